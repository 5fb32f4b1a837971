"""Build the kernels for aarch64 with Debian's cross compiler; run their tests in qemu.

For `make test-aarch64`, on Debian. It puts an aarch64 Python and its packages into
.aarch64 of the checkout, and installs the compiler and qemu as root with HPCSGD_APT=1.
With arguments it runs that Python instead: `.ci/aarch64.py -m hpcsgd info`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".aarch64"
SYSTEM, SITE, PYTHON = FOLDER / "system", FOLDER / "site", FOLDER / "python"
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PACKAGES = ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user")
FOREIGN = ("python3", "libpython3-dev", "libstdc++6", "libgfortran5", "zlib1g")
WHEELS = (
    *("numpy", "scipy", "h5py", "ml_dtypes", "jinja2", "rich", "mpi4py"),
    *("scikit-learn", "pytest", "pytest-mpi", "hypothesis", "setuptools>=77", "wheel"),
)
PLATFORMS = [f"manylinux{name}_aarch64" for name in ("_2_28", "_2_17", "2014")]
TESTS = (
    *("cpu", "cpu_columns", "cpu_csr", "cpu_many", "cpu_softmax", "cpu_softmax_steps"),
    *("sweep_kernels", "loss_terms", "moments", "looks", "threads", "parse_native"),
    "fit",
)
# qemu 7.2 itself fails in the children of a process with threads.
LEFT_OUT = "tests/unit/test_threads.py::test_a_child_has_threads_of_its_own"


def run(*command, **environment):
    """Run a command to its end; stop with its exit code if it fails."""
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env={**os.environ, **environment}
    )
    if done.returncode:
        sys.exit(done.returncode)


def check_programs():
    """Install the compiler and the emulator, or say how to."""
    import environment

    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        environment.apt_install(*PACKAGES)
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if missing:
        line = "apt-get install -y " + " ".join(PACKAGES)
        sys.exit(f"aarch64: {' and '.join(missing)} missing; on Debian: {line}")


def unpack_system():
    """Unpack Debian's aarch64 Python beside this system, which stays as it is."""
    state = FOLDER / "apt"
    (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    archives = state / "cache" / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in settings.items())]
    run(*apt, "update")
    run(*apt, "install", "-y", "--no-install-recommends", "--download-only", *FOREIGN)
    for archive in sorted(archives.glob("*.deb")):
        run("dpkg", "-x", archive, SYSTEM)


def write_python():
    """Write the command that runs the aarch64 Python, also for its own children."""
    emulator = f"{EMULATOR} -cpu max -L {SYSTEM} -0 {PYTHON}"
    PYTHON.write_text(
        "#!/bin/sh\n"
        f"export PYTHONHOME={SYSTEM}/usr PYTHONPATH={ROOT}:{SITE}\n"
        f'exec {emulator} {SYSTEM}/usr/bin/python3 "$@"\n'
    )
    PYTHON.chmod(0o755)


def version():
    """Return the version of the aarch64 Python, as 3.11."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.check_output([str(PYTHON), "-c", code], text=True).strip()


def install_wheels():
    """Install wheels for aarch64, by the pip of this processor."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", SITE]
    tags = [word for name in PLATFORMS for word in ("--platform", name)]
    pip += [*tags, "--only-binary=:all:", "--python-version", version()]
    run(*pip, *WHEELS)


def main():
    check_programs()
    if not SITE.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        unpack_system()
        write_python()
        install_wheels()
    if sys.argv[1:]:
        run(PYTHON, *sys.argv[1:])
        return
    headers = SYSTEM / "usr" / "include"
    flags = f"-I{headers}/python{version()} -I{headers}"
    build = {"CC": COMPILER, "LDSHARED": f"{COMPILER} -shared", "CFLAGS": flags}
    run(PYTHON, "setup.py", "-q", "build_ext", "--inplace", **build)
    pytest = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    pytest += ["--deselect", LEFT_OUT]
    run(*pytest, *(f"tests/unit/test_{name}.py" for name in TESTS))


if __name__ == "__main__":
    main()

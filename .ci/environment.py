"""Make .venv in this checkout and install the package there, once.

With the argument `docs` it makes .venv-docs, with what builds and tests the site.

Standard library only, and old syntax, so that an interpreter that is too old can still
read this file and say so. Nothing is installed outside the checkout.
"""

from __future__ import print_function

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
KEY_FILE = os.path.join(VENV, "hpcsgd-key")
EXTRAS = "test,plot"
OLDEST = (3, 11)
CORE = ["numpy", "scipy", "h5py", "ml_dtypes", "jinja2", "rich"]
UNREACHABLE = (
    "Failed to establish",
    "NewConnectionError",
    "ConnectionError",
    "Name or service not known",
    "Temporary failure in name resolution",
    "ConnectTimeout",
    "ReadTimeout",
    "No route to host",
    "ProxyError",
    "Network is unreachable",
    "Connection refused",
)
# Each would send what is installed somewhere else, or hide that it is missing.
ASTRAY = ("PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
# Children get it too: a pip that outlives a killed set-up still keeps others out.
LOCKS = []


class Refused(Exception):
    """What a person has to know, in one sentence."""


def use_docs():
    """Work on .venv-docs from here on."""
    global VENV, KEY_FILE, EXTRAS
    VENV = os.path.join(ROOT, ".venv-docs")
    KEY_FILE = os.path.join(VENV, "hpcsgd-key")
    EXTRAS = "docs"


def main():
    """Set up when needed; 0, or 2 after a sentence."""
    try:
        check_python(sys.version_info)
        if is_current(key()):
            return 0
        with alone():
            if not is_current(key()):
                build()
    except Refused as refused:
        print("set-up: %s" % refused, file=sys.stderr)
        return 2
    except OSError as error:
        print(
            "set-up: %s cannot be made or replaced here (%s); free it for this"
            " user, or work in a checkout of your own" % (folder_name(), error),
            file=sys.stderr,
        )
        return 2
    return 0


@contextlib.contextmanager
def alone():
    """One set-up at a time in this checkout, as of `make demo` beside `make test`."""
    held = os.open(ROOT, os.O_RDONLY)
    LOCKS.append(held)
    try:
        wait_for_others(held)
        yield
    finally:
        LOCKS.remove(held)
        os.close(held)


def wait_for_others(held):
    """Take the lock, or go without where the system or its disk has none."""
    try:
        import fcntl

        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("set-up: waiting for another set-up of this checkout", flush=True)
            fcntl.flock(held, fcntl.LOCK_EX)
    except (ImportError, OSError):
        pass


def check_python(version):
    """Refuse interpreters that cannot run the package."""
    if tuple(version[:2]) < OLDEST:
        raise Refused(
            "Python %d.%d is too old, hpcsgd needs 3.11 or newer; install one and run"
            " make PYTHON=python3.11 ..." % tuple(version[:2])
        )


def key():
    """A hash of everything the environment depends on."""
    parts = hashlib.sha256()
    for name in ("setup.cfg", "setup.py", "pyproject.toml", ".ci/environment.py"):
        parts.update(read(os.path.join(ROOT, name)))
    kernels = os.path.join(ROOT, "kernels", "cpu")
    for name in sorted(os.listdir(kernels)):
        parts.update(read(os.path.join(kernels, name)))
    # The checkout's own place too: a moved one has scripts with the old path in them.
    for text in (os.path.realpath(interpreter()), sys.version, ROOT):
        parts.update(text.encode())
    return parts.hexdigest()


def interpreter():
    """The Python that makes .venv: not the one inside, which goes with the old one."""
    if os.path.realpath(sys.prefix) == os.path.realpath(VENV):
        return getattr(sys, "_base_executable", sys.executable)
    return sys.executable


def read(path):
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def folder_name():
    """The folder of the environment, as a person sees it."""
    return os.path.basename(VENV)


def is_current(wanted):
    """True where .venv is whole and was made from what is here now."""
    return os.path.exists(KEY_FILE) and read(KEY_FILE).decode() == wanted


def build():
    """Make the environment anew; its key is written last, so a half-made one shows."""
    if not os.access(ROOT, os.W_OK):
        raise OSError("no permission to write in %s" % ROOT)
    once = "(once; it is kept until setup.cfg changes)"
    print("set-up: making %s %s" % (folder_name(), once), flush=True)
    if os.path.exists(VENV):
        shutil.rmtree(VENV)
    create()
    if shutil.which("g++") is None:
        apt_install("g++")  # for compiled kernels, and to run those of GPUs in tests
    notes = install()
    for note in notes:
        print("set-up: %s" % note)
    with open(KEY_FILE, "w") as file:
        file.write(key())


def create():
    """An empty environment by the first tool that is there."""
    for tool in (by_venv, by_virtualenv, by_uv, by_apt):
        if tool():
            return
    raise Refused(
        "this Python can make no virtual environment (no ensurepip, no virtualenv, no"
        " uv); on Debian: apt install python3-venv"
    )


def by_venv():
    """The standard library's, where ensurepip is there too (Debian parts them)."""
    done = run([interpreter(), "-c", "import ensurepip, venv"])
    if done.returncode:
        return False
    return attempt([interpreter(), "-m", "venv", VENV])


def by_virtualenv():
    """A virtualenv on the path, or as a module."""
    for command in (["virtualenv"], [interpreter(), "-m", "virtualenv"]):
        if command[0] == "virtualenv" and shutil.which("virtualenv") is None:
            continue
        if attempt(command + ["-q", "-p", interpreter(), VENV]):
            return True
    return False


def by_uv():
    """uv, with pip inside so that the rest is the same."""
    if shutil.which("uv") is None:
        return False
    return attempt(["uv", "venv", "-q", "--seed", "--python", interpreter(), VENV])


def by_apt():
    """Debian's missing half, where we are let install it."""
    return apt_install("python3-venv") and by_venv()


def may_install():
    """Whether the system is ours to change: as root, where HPCSGD_APT=1 says so."""
    asked = os.environ.get("HPCSGD_APT") == "1" and not os.geteuid()
    return asked and shutil.which("apt-get") is not None


def apt_install(*packages):
    """Where that is ours to do; whether they are there now."""
    if not may_install():
        return False
    installs = ["apt-get", "install", "-y"] + list(packages)
    return not (run(["apt-get", "update"]).returncode or run(installs).returncode)


def attempt(command):
    """Run a maker; what it left half-made is removed."""
    try:
        if run(command).returncode == 0:
            return True
    except OSError:
        pass  # the tool is named on the path and cannot be run: the next one may
    shutil.rmtree(VENV, ignore_errors=True)
    return False


def install():
    """The package, editable, with an MPI where there is one; what was found missing."""
    tries = [
        (["-e", ".[mpich,%s]" % EXTRAS], []),
        (["-e", ".[%s]" % EXTRAS], [without_mpich()]),
    ]
    for arguments, notes in tries:
        done = pip(arguments)
        if done.returncode == 0:
            return notes + compiler_note()
        refuse_unreachable(done.stdout)
        if not names_mpi(done.stdout):
            give_up(done.stdout)
    if EXTRAS == "docs":  # its pages start ranks
        give_up(done.stdout)
    return install_serial()


def names_mpi(output):
    """Whether pip's trouble is MPI: the extras in brackets name it in any trouble."""
    return re.search("mpich|mpi4py", re.sub(r"\[[^\]]*\]", "", output)) is not None


def install_serial():
    """Without mpi4py: its wheel is missing and nothing here can compile it."""
    steps = (
        CORE
        + ["matplotlib", "shtab", "pytest", "pytest-mpi", "pytest-xdist", "hypothesis"],
        ["--no-deps", "-e", "."],
    )
    for arguments in steps:
        done = pip(arguments)
        if done.returncode:
            give_up(done.stdout)
    return ["no mpi4py for this platform: runs are serial"] + compiler_note()


def give_up(output):
    """Pip's own words, less its remarks on where it looked, and ours."""
    lines = output.strip().split("\n")
    said = [line for line in lines if not line.startswith("WARNING: Location")]
    print("\n".join(said), file=sys.stderr)
    raise Refused("pip could not install the package; its words stand above")


def without_mpich():
    """What happens on a platform without an MPI wheel."""
    if shutil.which("mpiexec"):
        return "no MPI wheel for this platform: the system's MPI is used"
    return "no MPI wheel for this platform and no system MPI: runs are serial"


def compiler_note():
    """The kernels are optional, and their absence is said."""
    code = "from hpcsgd.backends import compiled_calls; print(compiled_calls.why())"
    done = run([python(), "-c", code])
    return [] if "compiled: " in done.stdout else ["kernels " + done.stdout.strip()]


def refuse_unreachable(output):
    """Say that the registry is out of reach, where that is what pip complains of."""
    nothing = re.findall(r"the requirement (\w+)\S* .*\(from versions: none\)", output)
    unknown = set(nothing) - {"mpich", "mpi4py"}  # those two may have no wheel here
    if unknown or any(sign in output for sign in UNREACHABLE):
        raise Refused(
            "the package registry cannot be reached; check the network, or name a"
            " mirror with PIP_INDEX_URL"
        )


def pip(arguments):
    """Run pip inside, quietly; without a HOME there is nowhere for its cache."""
    command = [python(), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if not os.environ.get("HOME"):
        command.append("--no-cache-dir")
    return run(command + arguments)


def python():
    """The interpreter inside."""
    folder = "Scripts" if os.name == "nt" else "bin"
    return os.path.join(VENV, folder, "python")


def run(command):
    """A finished process with all it printed."""
    environment = {k: v for k, v in os.environ.items() if k not in ASTRAY}
    environment["PIP_USER"] = "0"
    environment["DEBIAN_FRONTEND"] = "noninteractive"
    return subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        env=environment,
        pass_fds=LOCKS,
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["docs"]:
        use_docs()
    sys.exit(main())

"""Build the site into docs/_build/html: python docs/build.py

A warning is an error. What a build has made is kept for the next one as long as the
package, the configuration and the extensions of the site are the same and no build has
failed: Sphinx repeats no warning of a page that has not changed. Two builds at once
wait for each other.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
BUILD = DOCS / "_build"
KEY = BUILD / "key"
SOURCES = ("hpcsgd/**/*", "kernels/**/*", "docs/*.py", "docs/_*s/*.py", "setup.cfg")
SUFFIXES = (".py", ".c", ".h", ".cu", ".cuh", ".toml", ".cfg")


def main() -> int:
    """Return Sphinx's exit code."""
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build()


def build() -> int:
    """Build while no other build runs."""
    key = current_key()
    if not KEY.exists() or KEY.read_text() != key:
        clean()
    KEY.unlink(missing_ok=True)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"]
    folders = [DOCS, BUILD / "html"]
    doctrees = BUILD / "doctrees"
    # Examples and notebooks start commands of this environment.
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    done = subprocess.run(
        [*command, "-d", doctrees, *folders],
        cwd=DOCS.parent,
        env={**os.environ, "PATH": os.pathsep.join(paths), "HYDRA_LAUNCHER": "fork"},
    )
    if done.returncode == 0:
        KEY.write_text(key)
    return done.returncode


def current_key() -> str:
    """Return a hash of what pages depend on and Sphinx does not look at."""
    found = hashlib.sha256(sys.prefix.encode())
    for pattern in SOURCES:
        for path in sorted(DOCS.parent.glob(pattern)):
            if path.suffix in SUFFIXES:
                found.update(path.read_bytes())
    return found.hexdigest()


def clean() -> None:
    """Remove everything that a build writes."""
    for name in ("_build", "gallery", "notebooks", "reference/api/generated"):
        shutil.rmtree(DOCS / name, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

"""Build the site into docs/_build/html: python docs/build.py

A warning is an error. After an error the next build reads every page again, since
Sphinx repeats no warning of a page that has not changed.
"""

import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent


def main() -> int:
    """Return Sphinx's exit code."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"]
    folders = [DOCS, DOCS / "_build" / "html"]
    doctrees = DOCS / "_build" / "doctrees"
    done = subprocess.run([*command, "-d", doctrees, *folders], cwd=DOCS.parent)
    if done.returncode:
        shutil.rmtree(doctrees, ignore_errors=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

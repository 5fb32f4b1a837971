"""Install Debian's Chromium for `make test-docs`: as root with HPCSGD_APT=1, else not.

Standard library only, and old syntax, as in environment.py.
"""

import shutil
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium",)
APT_LINE = "apt-get install -y " + " ".join(PACKAGES)


def program():
    """The browser's path, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def missing():
    """The program that is not on this machine, as a list."""
    return [] if program() else [NAMES[0]]


def main():
    """0 in any case: without a browser its tests report that they did not run."""
    import environment  # the tests read this file from elsewhere

    if missing() and environment.may_install():
        print("set-up: " + APT_LINE, flush=True)
        if not environment.apt_install(*PACKAGES):
            print("set-up: apt-get could not install it", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

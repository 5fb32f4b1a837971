"""Install Debian's Slurm for `make test-slurm`: as root with HPCSGD_APT=1, else not.

Standard library only, and old syntax, as in environment.py.
"""

import os
import shutil
import sys

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
PACKAGES = ("slurm-wlm", "munge", "libpmix-dev")
APT_LINE = "apt-get install -y " + " ".join(PACKAGES)
WHERE = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # a plain user's PATH may lack them


def missing():
    """The programs of a cluster that are not on this machine."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *WHERE])
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def main():
    """0 in any case: without Slurm its tests say themselves that they did not run."""
    import environment  # the tests read this file from elsewhere

    if missing() and environment.may_install():
        print("set-up: " + APT_LINE, flush=True)
        if not environment.apt_install(*PACKAGES):
            print("set-up: apt-get could not install them", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

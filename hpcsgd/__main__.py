"""Run the command line of hpcsgd as `python -m hpcsgd`."""

import sys

from hpcsgd.cli import main

if __name__ == "__main__":
    sys.exit(main())

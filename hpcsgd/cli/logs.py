"""What the command line shows of the log: one handler, every record with its rank.

By default rank 0 shows INFO, and every rank shows warnings; what all ranks would say
alike carries `on_all_ranks` and is shown once.
"""

import argparse
import logging
import sys
from typing import Any

from hpcsgd.cli import launch
from hpcsgd.cli.numbers import not_negative

ROOT = "hpcsgd"
CHATTY = logging.getLogger("hpcsgd.session")  # a few lines a run


def add_volume(parser: Any) -> None:
    """Add -q and -v."""
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument(
        "-q", "--quiet", action="store_true", help="errors only, no progress"
    )
    volume.add_argument(
        "-v", "--verbose", action="store_true", help="what every rank does, and when"
    )


def add_progress(parser: Any) -> None:
    """How much is said while it runs."""
    parser.add_argument(
        "--progress",
        type=not_negative,
        default=10.0,
        metavar="SECONDS",
        help="between progress lines when the output is no terminal; 0 = none",
    )
    add_volume(parser)


class RankHandler(logging.Handler):
    """Writes to what standard error is now, which a progress bar may have replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self.size = launch.launcher_rank() or 0, launch.launcher_size()

    def emit(self, record: logging.LogRecord) -> None:
        """One line, if it is this rank's to say."""
        try:
            if self.says(record):
                # One write: lines of several ranks meet behind mpiexec.
                sys.stderr.write(self.line(record) + "\n")
                sys.stderr.flush()
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)

    def says(self, record: logging.LogRecord) -> bool:
        """Whether the user should read this record, and from this rank."""
        if self.rank == 0:
            return True
        if getattr(record, "on_all_ranks", False):
            return False
        return record.levelno >= logging.WARNING or self.level <= logging.DEBUG

    def line(self, record: logging.LogRecord) -> str:
        """The record as a line, told apart from those of other ranks."""
        tag = f"[rank {self.rank}/{self.size}]" if self.size > 1 else ""
        loud = record.levelno >= logging.WARNING or record.levelno <= logging.DEBUG
        level = f"{record.levelname}: " if loud else ""
        return f"hpcsgd{tag}: {level}{self.format(record)}"


HANDLER = RankHandler()


def set_up(arguments: argparse.Namespace) -> None:
    """Install the one handler, as loud as was asked for."""
    level = logging.INFO
    if getattr(arguments, "quiet", False):
        level = logging.ERROR
    elif getattr(arguments, "verbose", False):
        level = logging.DEBUG
    HANDLER.setLevel(level)
    logger = logging.getLogger(ROOT)
    logger.setLevel(level)
    logger.addHandler(HANDLER)
    CHATTY.setLevel(logging.NOTSET)


def set_rank(rank: int, size: int) -> None:
    """What the communicator says; a launcher's variables were the best guess so far."""
    HANDLER.rank, HANDLER.size = rank, size

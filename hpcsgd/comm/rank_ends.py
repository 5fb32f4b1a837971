"""How ranks of `--ranks` ended, by notes in a folder of the launcher.

The exit code of mpiexec combines those of all ranks, and often names a wrong signal.
This module is also used by small scripts beside the ranks and imports the standard
library only.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ENDS = "HPCSGD_ENDS"  # set by our launcher: the folder


class RankEnd(NamedTuple):
    """One rank and how it ended: an exit code, or −signal."""

    at: float
    rank: int
    code: int


def note_end(rank: int, code: int) -> None:
    """Note how a rank ended, for our launcher where there is one.

    The first note of a rank counts.
    """
    folder = os.environ.get(ENDS)
    if folder is None:
        return
    note = Path(folder, f"{rank}.{os.getpid()}")
    # It exists already, or this node does not see the folder.
    with suppress(OSError):
        note.write_text(f"{time.clock_gettime(time.CLOCK_MONOTONIC):.6f} {code}")
        os.link(note, Path(folder, str(rank)))


def read_ends(folder: Path) -> list[RankEnd]:
    """Return the ends noted so far, the first one first."""
    ends = []
    for path in folder.glob("*"):
        if path.name.isdigit():
            at, code = path.read_text().split()
            ends.append(RankEnd(float(at), int(path.name), int(code)))
    return sorted(ends)

"""A conversion that loses a rank: python -m tests.faults.converting HOW PIECE WORDS.

Rank 1 gets the signal SIG<HOW> when it loads its PIECE-th piece of text; both passes
count. The rest is what `hpcsgd data convert` is given.
"""

import os
import signal
import sys
from pathlib import Path

from hpcsgd.cli import main
from hpcsgd.cli.launch import launcher_rank
from hpcsgd.data.convert import text

PIECE = 4096  # bytes: a small file has many


def struck(how, piece):
    """`TextSource.load` until the signal comes."""
    load, loaded = text.TextSource.load, [0]

    def counting(self, task):
        loaded[0] += 1
        if loaded[0] == piece and launcher_rank() == 1:
            os.kill(os.getpid(), getattr(signal, f"SIG{how}"))
        return load(self, task)

    return counting


if __name__ == "__main__":
    how, piece, *arguments = sys.argv[1:]
    (Path.cwd() / f"pid{launcher_rank()}").write_text(str(os.getpid()))
    text.TextSource.piece = PIECE
    if int(piece):
        text.TextSource.load = struck(how, int(piece))
    sys.exit(main(["data", "convert", *arguments]))

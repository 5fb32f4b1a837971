"""A conversion that loses a rank: python -m tests.faults.converting HOW PIECE WORDS.

Rank 1 gets the signal SIG<HOW> when it loads its PIECE-th piece of text; both passes
count. With INT the end of rank 0 takes a second, and then it makes the file `ended`.
The rest is what `hpcsgd data convert` is given.
"""

import os
import signal
import sys
import time
from pathlib import Path

from hpcsgd.cli import main
from hpcsgd.cli.launch import launcher_rank
from hpcsgd.data.convert import pipeline, text

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


def slow_to_end(convert):
    """`convert`, whose end takes rank 0 a second."""

    def converting(*arguments, **named):
        try:
            return convert(*arguments, **named)
        finally:
            if launcher_rank() == 0:
                time.sleep(1.0)
                Path("ended").touch()

    return converting


if __name__ == "__main__":
    how, piece, *arguments = sys.argv[1:]
    (Path.cwd() / f"pid{launcher_rank()}").write_text(str(os.getpid()))
    text.TextSource.piece = PIECE
    if int(piece):
        text.TextSource.load = struck(how, int(piece))
    if how == "INT":
        pipeline.convert = slow_to_end(pipeline.convert)
    sys.argv = ["hpcsgd", "data", "convert", *arguments]
    sys.exit(main())

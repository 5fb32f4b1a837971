"""The command line: `hpcsgd COMMAND`, `python -m hpcsgd`, and both under mpiexec.

Standard output carries the result alone; everything else goes to standard error.
Exit codes: 0 good, 1 failed, 2 wrong input, 3 undecided (`hpcsgd verify`), 75 ended
early by the system, so that a restart resumes it, 130 interrupted.
"""

import os
import sys
from collections.abc import MutableMapping, Sequence

from hpcsgd.cli.interrupts import (
    INTERRUPTED,
    end_by_interrupts,
    exit_by_interrupt,
    exit_when_interrupted,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of `argv`, by default that of the process; return the exit code.

    `argv` contains the words after `hpcsgd`.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    end_by_interrupts(os.environ)
    try:
        if "numpy" in sys.modules:  # called from a program: its BLAS is there
            from hpcsgd.backends.blas_threads import one_thread

            with one_thread():
                return _run(words)
        limit_blas_threads(os.environ)
        return _run(words)
    except KeyboardInterrupt:
        if argv is None:  # the command is the whole process
            exit_by_interrupt()
        return INTERRUPTED


def _run(words: list[str]) -> int:
    with exit_when_interrupted():
        from hpcsgd.cli.parser import run

    return run(words)


def limit_blas_threads(environment: MutableMapping[str, str]) -> None:
    """Set the variables of BLAS libraries to one thread, unless they are set already.

    A single rank has one thread, too, with a launcher and without: a pool of threads
    waits for the cores of a busy machine, and its sums have other bits. Call this
    before NumPy is imported; after that, only `hpcsgd.backends.blas_threads` can set
    the number, by calls of the libraries.
    """
    from hpcsgd.comm.launchers import THREAD_SETTINGS

    for name in THREAD_SETTINGS:
        environment.setdefault(name, "1")

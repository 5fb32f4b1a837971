"""The command line: `hpcsgd COMMAND`, `python -m hpcsgd`, and both under mpiexec.

Standard output carries the result alone; everything else goes to standard error.
Exit codes: 0 good, 1 failed run, 2 wrong input, 130 interrupted.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from hpcsgd import ENDED_BY_INTERRUPTS

# Set for each rank by the launchers of MPI.
RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    end_by_interrupts(os.environ)
    try:
        if "numpy" in sys.modules:  # called from a program: its BLAS is there
            from hpcsgd.backends.blas import one_thread

            with one_thread():
                return _run(words)
        calm_blas(os.environ)
        return _run(words)
    except KeyboardInterrupt:
        if argv is None:  # the command is the whole process
            _leave()
        return INTERRUPTED


def _run(words: list[str]) -> int:
    with leaving_when_interrupted():
        from hpcsgd.cli.parser import run

    return run(words)


def end_by_interrupts(environment: Mapping[str, str]) -> None:
    """Let SIGINT end a rank at once until it listens; its launcher ends the rest.

    A KeyboardInterrupt would be a traceback amid imports, and in the start of MPI come
    only when that is over.
    """
    is_main = threading.current_thread() is threading.main_thread()
    usual = signal.default_int_handler
    if is_rank(environment) and is_main and signal.getsignal(signal.SIGINT) is usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has started this process as one of its ranks."""
    return any(name in environment for name in RANKS)


INTERRUPTED = 130  # exit code of what Ctrl-C has ended


@contextmanager
def leaving_when_interrupted() -> Iterator[None]:
    """End the process with 130 at the first SIGINT inside the `with`.

    For imports and parsing, which leave nothing behind. An exception would not do:
    a compiled module that is being imported turns it into errors of its own, and the
    interpreter prints where it was. A program that calls `main` with a handler of its
    own, or with SIGINT ignored, keeps what it has chosen.
    """
    try:
        if not _is_free_to_listen():
            raise ValueError("SIGINT has another handler")
        signal.signal(signal.SIGINT, _leave)
    except ValueError:  # or this is not the main thread, which alone sets handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_free_to_listen() -> bool:
    """Whether SIGINT does what the interpreter, or our own first import, made it do."""
    handler = signal.getsignal(signal.SIGINT)
    if ENDED_BY_INTERRUPTS and handler is signal.SIG_DFL:
        return not is_rank(os.environ)
    return handler is signal.default_int_handler


def _leave(*_: Any) -> None:
    """End the process with 130, whatever the interpreter makes of an interrupt.

    It would kill itself by SIGINT where the exception came out of code that was
    compiled at run time, as dataclasses are, and finalize an MPI that other ranks are
    still in.
    """
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)


def calm_blas(environment: MutableMapping[str, str]) -> None:
    """Give BLAS one thread, unless its own variable says otherwise.

    One rank has one, too, with a launcher and without: a pool of threads waits for the
    cores of a busy machine, and its sums have other bits. It has to happen before NumPy
    is imported; behind that the libraries are asked (`hpcsgd.backends.blas`).
    """
    from hpcsgd.comm.launched import THREAD_SETTINGS

    for name in THREAD_SETTINGS:
        environment.setdefault(name, "1")

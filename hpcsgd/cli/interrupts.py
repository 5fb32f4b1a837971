"""SIGINT while a command is imported and parsed: it ends without a traceback."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from hpcsgd import ENDED_BY_INTERRUPTS

# Set for each rank by the launchers of MPI.
RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
INTERRUPTED = 130  # exit code of a process that Ctrl-C has ended


def end_by_interrupts(environment: Mapping[str, str]) -> None:
    """Let SIGINT end a rank at once until it has a handler; its launcher ends the rest.

    A KeyboardInterrupt would print a traceback amid imports, and during the start of
    MPI it would be raised only after the start.
    """
    is_main = threading.current_thread() is threading.main_thread()
    usual = signal.default_int_handler
    if is_rank(environment) and is_main and signal.getsignal(signal.SIGINT) is usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_rank(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher has started this process as one of its ranks."""
    return any(name in environment for name in RANKS)


@contextmanager
def exit_when_interrupted() -> Iterator[None]:
    """End the process with 130 at the first SIGINT inside the `with`.

    It is for imports and parsing, which need no clean-up. An exception would not do: a
    compiled module that is being imported turns it into other errors, and the
    interpreter prints a traceback. If the program that calls `main` has its own handler
    of SIGINT, or ignores SIGINT, nothing is changed.
    """
    try:
        if not _is_free_to_listen():
            raise ValueError("Ctrl-C is left to the calling program, which handles it")
        signal.signal(signal.SIGINT, exit_by_interrupt)
    except ValueError:  # or this is not the main thread, which alone sets handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_free_to_listen() -> bool:
    """Return whether the handler of SIGINT is a default, which may be replaced.

    It is that of the interpreter or, except on ranks, SIG_DFL set by importing hpcsgd.
    """
    handler = signal.getsignal(signal.SIGINT)
    if ENDED_BY_INTERRUPTS and handler is signal.SIG_DFL:
        return not is_rank(os.environ)
    return handler is signal.default_int_handler


def exit_by_interrupt(*_: Any) -> None:
    """End the process with 130, without the interpreter's treatment of an interrupt.

    The interpreter would kill itself by SIGINT if the exception came from code that was
    compiled at run time, as that of dataclasses, and would finalize MPI while other
    ranks use it.
    """
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)

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
INTERRUPTED = 130  # exit code of what Ctrl-C has ended


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


@contextmanager
def exit_when_interrupted() -> Iterator[None]:
    """End the process with 130 at the first SIGINT inside the `with`.

    For imports and parsing, which leave nothing behind. An exception would not do:
    a compiled module that is being imported turns it into errors of its own, and the
    interpreter prints where it was. A program that calls `main` with a handler of its
    own, or with SIGINT ignored, keeps what it has chosen.
    """
    try:
        if not _is_free_to_listen():
            raise ValueError("SIGINT has another handler")
        signal.signal(signal.SIGINT, exit_by_interrupt)
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


def exit_by_interrupt(*_: Any) -> None:
    """End the process with 130, whatever the interpreter makes of an interrupt.

    It would kill itself by SIGINT where the exception came out of code that was
    compiled at run time, as dataclasses are, and finalize an MPI that other ranks are
    still in.
    """
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)

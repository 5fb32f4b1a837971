"""What a run says of a goal it did not reach, a fit says itself, as a warning."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SPEAKERS = ("hpcsgd.stopping", "hpcsgd.finisher", "hpcsgd.coordinate.run")
_fits: ContextVar[bool] = ContextVar("fits", default=False)


class _Once(logging.Filter):
    """Lets nothing below an error pass while this thread fits."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _fits.get() or record.levelno >= logging.ERROR


_ONCE = _Once()  # a logger has it once, however often it is added


@contextmanager
def said_once() -> Iterator[None]:
    """`with` it around a run whose ending is judged afterwards."""
    for name in SPEAKERS:
        logging.getLogger(name).addFilter(_ONCE)
    before = _fits.set(True)
    try:
        yield
    finally:
        _fits.reset(before)

"""How many threads share the work of one call of a compiled kernel."""

import logging
import os
import socket
from collections.abc import Sequence

from hpcsgd.backends import isa
from hpcsgd.backends.call import door_to

log = logging.getLogger(__name__)


def use(count: int, grain: int = 0) -> None:
    """From now on, in this process; the bits are the same for any number.

    A call of fewer than two times `grain` nanoseconds stays with its thread; 0 is what
    pays.
    """
    library = isa.best()[0]
    if library is not None:
        door_to(library, "hpcsgd_set_threads")(count, grain)


def warn(count: int, places: Sequence[tuple[str, Sequence[int]]], rank: int) -> None:
    """Say on one rank of a node that its ranks want more cores than they may use.

    `places` is what each rank said of `place`.
    """
    node = places[rank][0]
    here = [cores for name, cores in places if name == node]
    cores = len(set().union(*here))
    is_first = [name for name, _ in places].index(node) == rank
    if is_first and len(here) * count > cores:
        log.warning(
            "%d x %d threads share %d cores of %s and wait for one another;"
            " use fewer --threads or ranks",
            *(len(here), count, cores, node),
        )


def place() -> tuple[str, tuple[int, ...]]:
    """The node that this rank runs on, and the cores that it may use there."""
    if hasattr(os, "sched_getaffinity"):
        return socket.gethostname(), tuple(sorted(os.sched_getaffinity(0)))
    return socket.gethostname(), tuple(range(os.cpu_count() or 1))

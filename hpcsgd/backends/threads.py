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


def warn(count: int, hosts: Sequence[str], rank: int) -> None:
    """Say on one rank of a node that its ranks want more cores than there are."""
    here = hosts[rank]
    ranks, cores = hosts.count(here), cores_here()
    if ranks * count > cores and hosts.index(here) == rank:
        log.warning(
            "%d ranks of %d threads share %d cores of %s; their kernels will wait for"
            " one another: use fewer --threads",
            *(ranks, count, cores, here),
        )


def host() -> str:
    """The node that this rank runs on."""
    return socket.gethostname()


def cores_here() -> int:
    """Those of the node that its ranks may use between them."""
    return os.cpu_count() or 1

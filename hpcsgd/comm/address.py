"""Where a rank stands: its node, and the rack of that where somebody says so."""

import os
import socket
from collections.abc import Mapping
from typing import NamedTuple


class Address(NamedTuple):
    """Equal where two ranks share the thing; an empty rack is not known."""

    rack: str
    node: str


def own_address(environ: Mapping[str, str] = os.environ) -> Address:
    """HPCSGD_RACK, or the switches that Slurm names in front of the node."""
    switches, _, _ = environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")
    return Address(environ.get("HPCSGD_RACK", switches), socket.gethostname())

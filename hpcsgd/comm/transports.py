"""How arrays of GPUs travel: one row each, and the one way to open them."""

from importlib import import_module
from typing import Any

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.gpus import check_own_gpu
from hpcsgd.comm.layer import Layer
from hpcsgd.comm.on_device import OnDevice
from hpcsgd.comm.proof import prove
from hpcsgd.errors import ConfigError

TRANSPORTS = {
    "nccl": "hpcsgd.comm.nccl:NcclCommunicator",
    "mpi-cuda": "hpcsgd.comm.cuda_aware:CudaAwareCommunicator",
    "mpi-host": "hpcsgd.comm.staged:StagedCommunicator",
}


def open_transport(
    kind: str,
    host: Communicator,
    layer: Layer,
    *,
    stream: Any = None,
    share_gpus: bool = False,
) -> OnDevice:
    """The world of `host` with device arrays, proved by a small sum; by all ranks.

    `stream` None: whichever is the current one at each call.
    """
    transport = transport_of(kind)
    places = host.exchange_objects(layer.place)
    check_own_gpu(places, share_gpus and kind != "nccl", kind)
    world = transport(host, layer, stream)
    if world.size > 1:
        prove(world)
    return world


def transport_of(kind: str) -> type[OnDevice]:
    """What a row opens."""
    if kind not in TRANSPORTS:
        raise ConfigError(
            f"[run] unknown transport: {kind!r}; known: {', '.join(TRANSPORTS)}"
        )
    module, name = TRANSPORTS[kind].split(":")
    found: type[OnDevice] = getattr(import_module(module), name)
    return found

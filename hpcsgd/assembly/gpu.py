"""The GPU of this rank, and how arrays on it travel to those of others."""

import os

from hpcsgd.backends.device import Device
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.transports import open_transport
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError, MissingPackage

NCCL, BY_HOST = "nccl", "mpi-host"


def take_gpu(share_gpus: bool) -> Device:
    """Open it; ConfigError or MissingPackage say what is missing."""
    from hpcsgd.backends.cuda import device_of_rank
    from hpcsgd.backends.device_layer import count_gpus
    from hpcsgd.comm.gpus import gpu_of_rank

    number = gpu_of_rank(os.environ, count_gpus(), share_gpus=share_gpus)
    return device_of_rank(number)


def open_gpu(
    config: RunConfig, world: Communicator
) -> tuple[Device | None, Communicator]:
    """The GPU of this rank, if one is asked for, and the world with arrays on GPUs.

    Called by all ranks; what is missing on one is said on all.
    """
    run = config.run
    if run.device != "cuda":
        return None, world
    if run.emulate_members:
        raise ConfigError(
            "--emulate-members times the kernels of a CPU; use --device cpu with it"
        )
    device = world.together(lambda: take_gpu(run.share_gpus))
    device.is_shared = run.share_gpus
    if world.size == 1:
        return device, world
    kind = _transport(run.transport, run.share_gpus, device, world)
    return device, open_transport(
        kind, world, device.layer, stream=device.stream, share_gpus=run.share_gpus
    )


def _transport(
    asked: str, share_gpus: bool, device: Device, world: Communicator
) -> str:
    """`auto`: NCCL where every rank has it, and a GPU of its own."""
    if asked != "auto":
        return asked
    own = not share_gpus and _has_nccl(device)
    return NCCL if all(world.exchange_objects(own)) else BY_HOST


def _has_nccl(device: Device) -> bool:
    try:
        return device.layer.nccl is not None
    except MissingPackage:
        return False

"""The GPU of this rank, and how arrays on it travel to those of others."""

import logging
import os
from collections.abc import Iterable, Sequence

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_faults import shown
from hpcsgd.backends.device_room import Room, room_of
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.transports import open_transport
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError, MissingPackage
from hpcsgd.products.base import Task

log = logging.getLogger(__name__)
NCCL, BY_HOST = "nccl", "mpi-host"
SHARED = "share_gpus = true, and NCCL needs a GPU for each rank; leave it out"


def take_gpu(share_gpus: bool) -> Device:
    """Open it; ConfigError or MissingPackage say what is missing."""
    from hpcsgd.backends.cuda import device_of_rank
    from hpcsgd.backends.device_layer import count_gpus
    from hpcsgd.comm.gpus import gpu_of_rank

    number = gpu_of_rank(os.environ, count_gpus(), share_gpus=share_gpus)
    device = device_of_rank(number)
    # Every exchange needs it: what NVRTC lacks is heard of now, on all ranks.
    device.kernel(build_of("sample", "fp32", device.arch))
    return device


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
    device.is_shared |= run.share_gpus
    if world.size == 1:
        return device, world
    kind = _transport(run.transport, run.share_gpus, device, world)
    return device, open_transport(
        kind, world, device.layer, stream=device.stream, share_gpus=run.share_gpus
    )


def check_room(
    device: Device,
    task: Task,
    plans: Iterable[Sequence[int]],
    world: Communicator,
    sets: int = 1,
    kept: int = 0,
    held: int | None = None,
    asked: int = 0,
) -> int:
    """Refuse a run that its GPU has no room for, before the matrix is sent.

    Called by all ranks; those that share a GPU share what is free there. Exchanges have
    so many `sets` of buffers; `kept` bytes are beside them, and those `asked` for by
    what makes the Gram. `held`: bytes of weights and of what steps keep, where those
    are not all columns. Returns what is left for a rank on the fullest GPU of all.
    """
    wide = task.columns * task.states
    matrix = task.shard.matrix, plans, device.multiprocessors
    need = room_of(*matrix, wide, sets, kept, held, asked)
    free, total = device.memory()
    place = device.layer.place
    said = world.exchange_objects((place, need.total, free))
    gpus: dict[str, list[tuple[int, int]]] = {}
    for gpu, *sizes in said:
        gpus.setdefault(gpu, []).append(tuple(sizes))
    here = gpus[place]
    needed, free = _needed_and_free(here)
    if needed <= free:
        return min(_left(ranks) for ranks in gpus.values())
    who = f" by {len(here)} ranks" if len(here) > 1 else ""
    parts = need.said(task.precision.matrix)
    raise ConfigError(
        f"the GPU {place} has no room: {shown(needed)} are needed{who} and"
        f" {shown(free)} of {shown(total)} are free (one rank: {parts});"
        f" {_smaller(need, task, len(here) > 1, held is not None)}"
    )


def _needed_and_free(ranks: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Of one GPU, by what its ranks said."""
    return sum(need for need, _ in ranks), min(free for _, free in ranks)


def _left(ranks: Sequence[tuple[int, int]]) -> int:
    """For each rank of one GPU; negative where they need more than there is."""
    needed, free = _needed_and_free(ranks)
    return (free - needed) // len(ranks)


def _smaller(need: Room, task: Task, shared: bool, sliced: bool) -> str:
    """The knob that turns the largest part."""
    who = "replicas or members" if sliced else "members"
    more = "start fewer ranks on each GPU, or " if shared else ""
    halve = ", or halve it with --precision c" if _is_wide(task) else ""
    return {
        "matrix": f"{more}use more members on more GPUs (--grid){halve}",
        "rows": f"{more}use more replicas on more GPUs (--grid)",
        "exchange": f"{more}use a smaller --steps or --batch",
        "weights": f"{more}use more {who} on more GPUs (--grid)",
        "kept": f"{more}use [products] kind = 'gram', which keeps nothing",
        "asked": f"{more}use [products] gram_kernel = 'auto'",
    }[need.largest]


def _is_wide(task: Task) -> bool:
    return task.precision.matrix == "fp32"


def _transport(
    asked: str, share_gpus: bool, device: Device, world: Communicator
) -> str:
    """Return the transport: of `auto` NCCL where every rank has it, and its own GPU.

    Ranks on several GPUs whose sums then go through the host are told why.
    """
    if asked != "auto":
        return asked
    why = SHARED if share_gpus else _why_no_nccl(device)
    answers = world.exchange_objects((device.layer.place, why))
    lacking = [rank for rank, (_, why) in enumerate(answers) if why]
    if not lacking:
        return NCCL
    if world.rank == 0 and len({place for place, _ in answers}) > 1:
        log.warning(
            "arrays on GPUs travel through the host (transport = %s), which is slower"
            " than NCCL: %s%s",
            BY_HOST,
            "" if share_gpus else f"rank {lacking[0]} has none: ",
            answers[lacking[0]][1],
            extra={"on_all_ranks": True},
        )
    return BY_HOST


def _why_no_nccl(device: Device) -> str:
    """Return why NCCL cannot be loaded, with the remedy; nothing where it can."""
    try:
        return "" if device.layer.nccl is not None else "CuPy finds none"
    except MissingPackage as missing:
        return str(missing)

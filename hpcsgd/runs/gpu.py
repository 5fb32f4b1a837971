"""The GPU of a run, its memory, and the product that runs on it."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.agreements.gradient import Gradient
from hpcsgd.backends.task import Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.gpu import (
    ROOT,
    GpuChoice,
    GpuRequest,
    choose_gpus,
    gpu_request,
    open_transport,
)
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.shard import Matrix
from hpcsgd.errors import ConfigError, MissingPackage
from hpcsgd.files import format_bytes
from hpcsgd.glm.unrolling import blocks_of
from hpcsgd.products import get_product
from hpcsgd.products.base import Product, product_facts
from hpcsgd.products.direct import Direct, MicroBatches
from hpcsgd.runs.feed import Feed

if TYPE_CHECKING:  # a run without a GPU needs none of these
    from hpcsgd.backends.cuda.device import Device
    from hpcsgd.backends.cuda.sequences import CudaExchanges

# The GPU of this rank, and how arrays on it travel to those of others.

log = logging.getLogger(__name__)
NCCL = "nccl"
BY_HOST = "mpi-host"
SHARED = "NCCL needs a GPU for each rank, and share_gpus = true; leave share_gpus out"


def choose_gpu(
    world: Communicator,
    share_gpus: bool,
    environment: Mapping[str, str] = os.environ,
    root: Path = ROOT,
) -> tuple[GpuRequest, GpuChoice]:
    """Return the GPUs that this rank sees, and the one that it takes. Collective.

    An error on one rank, as too few GPUs or a missing package, is raised on all.
    `environment` has the variables of the launcher, `root` the folder sys.
    """
    from hpcsgd.backends.cuda.driver import gpu_buses

    request = world.together(
        lambda: gpu_request(environment, gpu_buses(), share_gpus, root)
    )
    choices = choose_gpus(world.exchange_objects(request))
    return request, choices[world.rank]


def take_gpu(world: Communicator, share_gpus: bool) -> "Device":
    """Return the GPU of this rank, near its cores if possible. Collective.

    Raise ConfigError or MissingPackage on failure.
    """
    from hpcsgd.backends.cuda.device import device_of_rank
    from hpcsgd.backends.cuda.kernels import build_of

    _, choice = choose_gpu(world, share_gpus)
    log.debug("this rank takes GPU %d, because %s", choice.number, choice.why)
    device = device_of_rank(choice.number)
    # Every exchange needs this kernel: NVRTC fails now, on all ranks, or not at all.
    device.kernel(build_of("sample", "fp32", device.arch))
    return device


def open_gpu(
    config: RunConfig, world: Communicator
) -> "tuple[Device | None, Communicator]":
    """Return the GPU of this rank, and the world that sends GPU arrays.

    Without `--device cuda`, return None and `world`. Called by all ranks. An error on
    one rank, as a missing package, is raised on all.
    """
    run = config.run
    if run.device != "cuda":
        return None, world
    if run.emulate_members:
        raise ConfigError(
            "--emulate-members cannot be used with --device cuda, because it times the"
            " kernels of a CPU; use --device cpu"
        )
    device = world.together(lambda: take_gpu(world, run.share_gpus))
    device.is_shared |= run.share_gpus
    if world.size == 1:
        return device, world
    kind = _transport(run.transport, run.share_gpus, device, world)
    return device, open_transport(
        kind, world, device.layer, stream=device.stream, share_gpus=run.share_gpus
    )


# Memory of a run on a GPU, counted before it is taken.

NAMES = {
    "matrix": "the matrix",
    "rows": "what belongs to its rows",
    "exchange": "the buffers of exchanges",
    "weights": "the weights",
    "kept": "arrays kept between exchanges",
    "asked": "the workspace of the Gram kernel",
}


@dataclass(frozen=True)
class DeviceNeed:
    """Bytes of GPU memory that one rank needs, by purpose."""

    matrix: int
    rows: int  # targets, weights, offsets, their order
    exchange: int  # tiles of the Gram, their parts, margins
    weights: int
    kept: int = 0  # Grams of all exchanges, rows of other members
    asked: int = 0  # workspace of a Gram kernel other than the plain one

    @property
    def total(self) -> int:
        """Return the sum of all parts."""
        return sum(vars(self).values())

    @property
    def largest(self) -> str:
        """Return the name of the largest part."""
        return max(vars(self), key=lambda name: getattr(self, name))

    def describe(self, form: str) -> str:
        """Describe the parts, the largest first; `form` is the format of the matrix."""
        parts = sorted(vars(self).items(), key=lambda part: -part[1])
        parts = [part for part in parts if part[1]]
        return ", ".join(
            f"{NAMES[name]} {format_bytes(size)}"
            f"{f' in {form}' if name == 'matrix' else ''}"
            for name, size in parts
        )


@dataclass(frozen=True)
class ExchangeDemand:
    """The batches and buffers of exchanges, which need memory on a GPU."""

    plans: Iterable[Sequence[int]]  # batch sizes of each exchange
    sets: int = 1  # of buffers
    kept: int = 0  # bytes that stay from one epoch to the next
    asked: int = 0  # bytes of workspace of another Gram kernel


def device_need(
    matrix: Matrix,
    demand: ExchangeDemand,
    multiprocessors: int,
    wide: int = 1,
    held: int | None = None,
    widest: int = 0,
) -> DeviceNeed:
    """Return the device memory of one rank for a host matrix and its exchanges.

    `widest` is the number of columns of the member with most of them; 0: as many as
    here. Weights take `held` bytes if that is given, because a rank has a part of them;
    otherwise they have a row for each column of the matrix and `wide` columns.
    """
    from hpcsgd.backends.cuda.matrix import bytes_of_order, bytes_of_rows

    height, width = matrix.shape
    dense = bytes_of_rows(height, width, matrix.dtype.itemsize)
    different = set(map(tuple, demand.plans))
    each = [
        _buffers(matrix, sizes, multiprocessors, wide, widest) for sizes in different
    ]
    return DeviceNeed(
        matrix=matrix.nbytes if matrix.is_sparse else dense,
        rows=bytes_of_order(height),
        exchange=demand.sets * sum(sum(buffers.values()) for buffers in each),
        weights=4 * width * wide if held is None else held,
        kept=demand.kept,
        asked=demand.asked,
    )


def _buffers(
    matrix: Matrix,
    sizes: tuple[int, ...],
    multiprocessors: int,
    wide: int,
    widest: int,
) -> dict[str, int]:
    """Return the bytes of the buffers of exchanges of these batch sizes, by name."""
    from hpcsgd.backends.cuda.exchange import ExchangeKernels

    blocks = blocks_of(sizes)
    width = matrix.shape[1]
    item = matrix.dtype.itemsize
    return dict(
        ExchangeKernels.holds(
            blocks, width, item, multiprocessors, wide, matrix.is_sparse, widest
        )
    )


def check_device_memory(
    device: "Device",
    task: Task,
    demand: ExchangeDemand,
    world: Communicator,
    held: int | None = None,
) -> int:
    """Return the bytes that are left for each rank on the fullest GPU of the run.

    Raise ConfigError if the GPU of this rank has no room for the run, before the matrix
    is sent. If only another GPU has no room, its ranks raise the error, and the result
    here is negative. Called by all ranks; ranks that share a GPU share its free memory.
    `held`: bytes of the weights and of the arrays of steps, if a rank has not all
    columns of them.
    """
    wide = task.columns * task.states
    shard = task.shard
    processors = device.multiprocessors
    need = device_need(shard.matrix, demand, processors, wide, held, shard.widest)
    free, total = device.memory()
    place = device.layer.place
    reports = world.exchange_objects((place, need.total, free))
    gpus: dict[str, list[tuple[int, int]]] = {}
    for gpu, *sizes in reports:
        gpus.setdefault(gpu, []).append(tuple(sizes))
    here = gpus[place]
    needed, free = _needed_and_free(here)
    if needed <= free:
        return min(_left(ranks) for ranks in gpus.values())
    who = f" by {len(here)} ranks" if len(here) > 1 else ""
    parts = need.describe(task.precision.matrix)
    raise ConfigError(
        f"the GPU {place} has no room: {format_bytes(needed)} are needed{who} and"
        f" {format_bytes(free)} of {format_bytes(total)} are free (one rank: {parts});"
        f" {_smaller(need, task, len(here) > 1, held is not None)}"
    )


def _needed_and_free(ranks: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the bytes that all ranks of a GPU need, and those free on it.

    `ranks` contains (needed, free) of each rank of the GPU.
    """
    return sum(need for need, _ in ranks), min(free for _, free in ranks)


def _left(ranks: Sequence[tuple[int, int]]) -> int:
    """Return the bytes left for each rank of a GPU; negative where memory is short."""
    needed, free = _needed_and_free(ranks)
    return (free - needed) // len(ranks)


def _smaller(need: DeviceNeed, task: Task, shared: bool, sliced: bool) -> str:
    """Return the remedy, in words, that makes the largest part of `need` smaller."""
    who = "replicas or members" if sliced else "members"
    more = "start fewer ranks on each GPU, or " if shared else ""
    halve = ", or halve it with --precision c" if _is_wide(task) else ""
    return {
        "matrix": f"{more}use more members on more GPUs (--grid){halve}",
        "rows": f"{more}use more replicas on more GPUs (--grid)",
        "exchange": f"{more}use a smaller --steps or --batch",
        "weights": f"{more}use more {who} on more GPUs (--grid)",
        # Of a product: what gradients keep is always less than weights or exchanges.
        "kept": f"{more}use [products] kind = 'gram', which keeps nothing",
        "asked": f"{more}use [products] gram_kernel = 'auto'",
    }[need.largest]


def _is_wide(task: Task) -> bool:
    return task.precision.matrix == "fp32"


def _transport(
    asked: str, share_gpus: bool, device: "Device", world: Communicator
) -> str:
    """Return the transport `asked`, or what "auto" stands for.

    That is NCCL if every rank has it and a GPU of its own, else MPI through the host.
    If sums between several GPUs go through the host, rank 0 logs why.
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
            "" if share_gpus else f"rank {lacking[0]} has no NCCL: ",
            answers[lacking[0]][1],
            extra={"on_all_ranks": True},
        )
    return BY_HOST


def _why_no_nccl(device: "Device") -> str:
    """Return why NCCL cannot be loaded; "" if it can."""
    try:
        return "" if device.layer.nccl is not None else "CuPy finds no NCCL"
    except MissingPackage as missing:
        return str(missing)


# The product of a run on the GPU of this rank.


def make_on_gpu(
    config: RunConfig,
    name: str,
    look_ahead: bool,
    task: Task,
    feed: Feed,
    grid: Grid,
    device: "Device",
) -> Product:
    """Return the product `name` on the GPU of this rank. Collective.

    It is `direct` where the members of `name` would hold all columns and there is one
    member. Raise ConfigError if the GPU has no room, or if rows are sparse and members
    would hold all columns.
    """
    from hpcsgd.backends.cuda.gram import allowed
    from hpcsgd.backends.cuda.sequences import CudaExchanges

    plans = feed.plans
    facts = product_facts(name)
    if not facts.has_recurrence:  # steps one by one
        plans = [(size,) for sizes in plans for size in sizes]
    stored_bytes = _kept(name, task, feed, device)
    sets = 1 + look_ahead
    kernel = allowed(config.products.gram_kernel, config.run.reproducible)
    takes = sets * _asked_bytes(kernel, task, plans, device)
    insists = 0 if kernel == "auto" else takes
    demand = ExchangeDemand(plans, sets, stored_bytes, asked=insists)
    left = check_device_memory(device, task, demand, grid.world)
    may_ask = kernel == "auto" and takes > 0  # the same on all ranks
    if may_ask and grid.world.max_flag(int(takes > left)):
        log.info(
            "the Gram matrix is not computed by cuBLAS, for whose workspace of %s a GPU"
            " of the run has no room, but by a kernel of hpcsgd",
            format_bytes(takes),
        )
        kernel = "own"
    if facts.holds_all_columns and task.shard.is_sparse:
        raise ConfigError(
            f"[products] kind = {name!r} cannot be used with sparse rows on GPUs; use"
            " products.kind = 'gram', or --device cpu"
        )
    if facts.holds_all_columns and task.members.size == 1:
        name = "direct"  # one member has all columns: nothing is sent
    kind: Callable[..., Product] = get_product(name, look_ahead)
    return kind(task, CudaExchanges(task, device, kernel))


def _asked_bytes(
    kind: str, task: Task, plans: Iterable[Sequence[int]], device: "Device"
) -> int:
    """Return the bytes of workspace of the Gram kernel `kind`; 0 for sparse rows."""
    from hpcsgd.backends.cuda.gram import bytes_asked

    shard = task.shard
    if shard.is_sparse:
        return 0
    sizes = {tuple(sizes) for sizes in plans}
    element = task.precision.matrix
    return bytes_asked(kind, sizes, shard.width, element, device, shard.widest)


def make_gradient_on_gpu(
    task: Task, feed: Feed, grid: Grid, device: "Device", gradient: Gradient
) -> Direct:
    """Return the product that computes the gradients of replicas. Collective.

    The product and its gradients are on the GPU of this rank.
    """
    from hpcsgd.backends.cuda.gradients import CudaGradientExchanges

    plans = [(size,) for sizes in feed.plans for size in sizes]
    if gradient.adds_tiles:
        _check_room_for_slices(task, feed, grid, device, gradient)
    else:
        two = replace(task, states=2)  # as wide as weights and their gradient
        # The columns of a slice, which the host sends to the GPU after its step.
        own_columns = task.shard.width // grid.replicas.size + 1
        again = task.shard.width * (gradient.gradients - 1)
        stored_bytes = 4 * (own_columns * gradient.steps_on_host + again) * task.columns
        demand = ExchangeDemand(plans, kept=stored_bytes)
        check_device_memory(device, two, demand, grid.world)
    return Direct(task, CudaGradientExchanges(task, device))


def _check_room_for_slices(
    task: Task, feed: Feed, grid: Grid, device: "Device", gradient: Any
) -> None:
    """Raise ConfigError if the GPU has no room for slices; called by all ranks.

    If the agreement takes the batches of an exchange at once, they count as one.
    """
    plans = [(size,) for sizes in feed.plans for size in sizes]
    if gradient.takes_at_once:
        plans = [(sum(sizes),) for sizes in feed.plans]
    one_state = replace(task, states=1)
    state_bytes = gradient.device_bytes(task.shard.width)
    scores = sum(rows for (rows,) in set(plans)) if gradient.slices_weights else 0
    score_bytes = 4 * task.columns * scores
    demand = ExchangeDemand(plans, kept=score_bytes)
    check_device_memory(device, one_state, demand, grid.world, state_bytes)


def on_gpu(product: Product) -> "CudaExchanges | None":
    """Return the exchanges of a product on its GPU; None for a product of the host."""
    inner = product.product if isinstance(product, MicroBatches) else product
    exchanges: Any = getattr(inner, "exchanges", None)
    return None if exchanges is None or exchanges.device is None else exchanges


def _kept(name: str, task: Task, feed: Feed, device: "Device") -> int:
    """Return the bytes that a product keeps on the device beside its buffers.

    They are those of all Grams for `cached`; those of rows and weights with all columns
    and of their messages where several members hold all columns; and otherwise 0.
    """
    from hpcsgd.backends.cuda.matrix import bytes_of_member_rows, bytes_of_rows

    shard = task.shard
    if name == "cached":
        gram_bytes = 0
        wide = task.columns * task.states
        for sizes, times in Counter(map(tuple, feed.plans)).items():
            processors = device.multiprocessors
            buffers = _buffers(shard.matrix, sizes, processors, wide, shard.widest)
            gram_bytes += times * buffers["message"]
        return gram_bytes
    if not product_facts(name).holds_all_columns or task.members.size == 1:
        return 0
    item = shard.matrix.dtype.itemsize
    total = shard.total_columns
    most = max(sum(sizes) for sizes in feed.plans)
    travel = bytes_of_member_rows(most, shard.width, total, item)
    here = shard.height if name == "gather-once" else most
    return travel + bytes_of_rows(here, total, item) + 4 * total * task.states

"""The gradient agreement of a run, put together."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hpcsgd.agreement.anybatch import Anybatch
from hpcsgd.agreement.buckets import Buffer, bucket_count
from hpcsgd.agreement.by_leaders import ByLeaders, open_groups
from hpcsgd.agreement.decentralised import Decentralised
from hpcsgd.agreement.decentralised_low import LowPrecision
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.growing import Growing
from hpcsgd.agreement.infinity import Infinity
from hpcsgd.agreement.kinds import SHARDED, batches_together, takes_gradients
from hpcsgd.agreement.means import Means
from hpcsgd.agreement.offload import Offload
from hpcsgd.agreement.offload_there import OffloadThere
from hpcsgd.agreement.qadam import QAdam
from hpcsgd.agreement.replica_check import ReplicaCheck
from hpcsgd.agreement.scheduled import Scheduled
from hpcsgd.agreement.scheduled_there import OrderedThere
from hpcsgd.agreement.senders import Coded, Plain, Sender
from hpcsgd.agreement.sharded import Sharded
from hpcsgd.agreement.sharded_there import RowsBackend, ShardedThere
from hpcsgd.agreement.steps import Steps
from hpcsgd.agreement.there import BufferThere, GradientThere, Landing, PlainThere
from hpcsgd.agreement.ticktock import AsOne, TickTock
from hpcsgd.agreement.ticktock_delayed import LateTickTock
from hpcsgd.assembly.any_batches import terms_of
from hpcsgd.assembly.engine_parts import Vocabulary
from hpcsgd.assembly.feed import Feed
from hpcsgd.assembly.gpu import BY_HOST
from hpcsgd.assembly.on_disk import place_of
from hpcsgd.assembly.shapers import make_shapers
from hpcsgd.backends.base import Backend
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_matrix import CHUNK
from hpcsgd.backends.loss_scale import LossScale
from hpcsgd.backends.rounded import RoundedBackend
from hpcsgd.codecs import Bucket, Codec, make_codec, owed
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.on_device import OnDevice
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import lengths, split_range
from hpcsgd.data.sampling import plan_groups
from hpcsgd.data.shard import Shard
from hpcsgd.loading import Loaded
from hpcsgd.products.any_batches import AnyBatches
from hpcsgd.products.base import Array, Product, State, Task
from hpcsgd.products.micro import AtOnce, MicroBatches
from hpcsgd.rates import make_rate
from hpcsgd.updates import make_rule
from hpcsgd.updates.rules import Linear

# Where the mode says more than the kind.
MODES: dict[tuple[str, str], type[Gradient]] = {("ticktock", "delayed"): LateTickTock}
KINDS: dict[str, type[Gradient]] = {
    "gradient": Gradient,
    "growing": Growing,
    "decentralized": Decentralised,
    "decentralized-low": LowPrecision,
    "qadam": QAdam,
    "anybatch": Anybatch,
    "scheduled": Scheduled,
    "ticktock": TickTock,
    "sharded": Sharded,
    "offload": Offload,
    "infinity": Infinity,
}
# Of these replicas say sums of gradients, all at once: devices may add them up.
SUMS = (Gradient, AsOne, Growing)


def of_feed(config: RunConfig) -> RunConfig:
    """The settings that rows are dealt by: batches that travel together are a group."""
    if not takes_gradients(config.agreement.kind):
        return config
    schedule = replace(config.schedule, steps=batches_together(config.agreement))
    return replace(config, schedule=schedule)


def make_gradient(
    config: RunConfig,
    words: Vocabulary,
    grid: Grid,
    loaded: Loaded,
    task: Task,
    feed: Feed,
    device: Device | None = None,
) -> Gradient:
    """The agreement, which opens its buckets when it sees the state.

    `device`: who sums gradients, where that is not the host.
    """
    each, shard = feed.exchanges_per_epoch, loaded.shard
    epochs = config.schedule.epochs
    rate = make_rate(config.rate, epochs * each, epochs)

    def buckets(columns: int, itemsize: int) -> int:
        """One where nobody waits for them, or to cut sparse rows would save nothing."""
        alone, kind = grid.replicas.size == 1, config.agreement.kind
        waits = not alone or (kind == "offload" and device is not None)  # a host
        if not waits or (shard.is_sparse and kind not in SHARDED):
            return 1
        return bucket_count(columns, task.columns, itemsize, config.agreement.bucket)

    kind = _kind(config, words.agreement, grid, shard.total_rows)
    rule = make_rule(config.update, words.update)
    means = Means(
        steps=Steps(rule, config.problem.l2, rate.at, each, rate.drops),
        backend=_backend(kind, task, device),
        columns=task.columns,
        held=shard.columns,
        buckets=buckets,
        opener=lambda state, buffer: _sender(kind, config, grid, state, buffer),
        check=ReplicaCheck(grid.replicas, config.run.check_members),
        settings=config.agreement,
        rows=lengths(shard.total_rows, grid.replicas.size),
        total=shard.total_columns,
        more=terms_of(config, grid, loaded, feed),
        accordion=config.accordion,
        batches=_batches(config, loaded, grid),
        place=place_of(config, loaded, task, rule),
        loss_scale=_loss_scale(task.backend),
        shapers=make_shapers(config, shard.total_columns, task.columns),
        buffer=_buffers(device, config.agreement.kind),
        unit=_unit(kind, shard, device),
        owes=lambda kept, rate: owed(
            config.agreement.codec, config.codec, config.accordion, kept, rate
        ),
    )
    share = shard.height / shard.total_rows
    if device is not None:
        return _there(kind, config, grid, means, device)(grid, share, means)
    return kind(grid, share, means)


def _backend(kind: type[Gradient], task: Task, device: Device | None) -> Any:
    """Where rows are on a device, what stands for them knows how to add them up."""
    if device is None:
        return task.backend
    return RowsBackend() if kind is Sharded else Landing()


def _unit(kind: type[Gradient], shard: Shard, device: Device | None) -> int:
    """Columns of a chunk, which is what a device reads of dense rows at once."""
    if kind is not Sharded or device is None or shard.is_sparse:
        return 1
    return CHUNK // int(shard.matrix.dtype.itemsize)


def _buffers(device: Device | None, kind: str) -> Any:
    """What makes one; of a device it lies there, too."""
    if device is None:
        return Buffer
    return partial(OrderedThere if kind == "scheduled" else BufferThere, device)


def _kind(config: RunConfig, name: str, grid: Grid, rows: int) -> type[Gradient]:
    """Halves of a step are taken as one where no half has anything to hide behind."""
    asked, replicas = config.agreement, grid.replicas.size
    if (name, asked.mode) == ("ticktock", "exact-sum"):
        most = split_range(rows, replicas, 0).stop
        if replicas == 1 or most <= config.schedule.batch * asked.accumulate:
            return AsOne
    return MODES.get((name, asked.mode), KINDS[name])


def in_exchanges(one: Product, gradient: Gradient, most: int) -> Product:
    """Steps of the product, put together into what `gradient` calls an exchange."""
    if isinstance(gradient, Anybatch):
        return AnyBatches(one, gradient, gradient.stream, most)
    if isinstance(gradient, Sharded) and gradient.takes_at_once and most > 1:
        return AtOnce(one, gradient, most)
    return MicroBatches(one, gradient, most)


def _batches(config: RunConfig, loaded: Loaded, grid: Grid) -> tuple[int, ...]:
    """Of the largest replica, in each exchange of an epoch."""
    rows = split_range(loaded.shard.total_rows, grid.replicas.size, 0).stop
    batch, together = config.schedule.batch, config.agreement.accumulate
    return tuple(len(sizes) for sizes in plan_groups(rows, batch, together))


def _loss_scale(backend: Backend) -> LossScale | None:
    """That of residuals, which waits for what all replicas say."""
    if not isinstance(backend, RoundedBackend) or backend.loss_scale is None:
        return None
    backend.loss_scale.waits = True
    return backend.loss_scale


def _sums_there(
    kind: type[Gradient], config: RunConfig, replicas: Communicator
) -> bool:
    """By way of the host would be twice the way that gradients take anyhow."""
    if kind not in SUMS:
        return False
    if replicas.size == 1:
        return True
    asked, feedback = config.agreement, config.codec.feedback
    plain = asked.codec == "identity" and asked.hierarchical == "off"
    carries = isinstance(replicas, OnDevice) and replicas.kind != BY_HOST
    return plain and feedback != "on" and carries


def _there(
    kind: type[Gradient],
    config: RunConfig,
    grid: Grid,
    means: Means,
    device: Device,
) -> Callable[..., Gradient]:
    """A linear step along sums that are there can be taken there."""
    if kind is Offload:
        return partial(OffloadThere, device=device)
    if kind is Sharded:
        return partial(ShardedThere, device=device)
    rule = means.steps.rule
    linear = isinstance(rule, Linear) and (rule.states == 1 or means.columns == 1)
    steps = linear and not means.shapers and kind in (Gradient, AsOne)
    there = steps and _sums_there(kind, config, grid.replicas)
    return GradientThere if there else kind


def _sender(
    kind: type[Gradient], config: RunConfig, grid: Grid, state: State, buffer: Buffer
) -> Sender:
    """Of all replicas, or of the leaders of groups of them."""
    replicas, of = grid.replicas, config.agreement.hierarchical
    if isinstance(buffer, BufferThere) and _sums_there(kind, config, replicas):
        buffer.stays = True
        return PlainThere(replicas)
    if of == "off" or replicas.size == 1:
        return _between(config, grid, state, buffer, replicas, replicas.size)
    groups = open_groups(grid, of)
    sender = _between(config, grid, state, buffer, groups.leaders, groups.count)
    return ByLeaders(groups, sender)


def _between(
    config: RunConfig,
    grid: Grid,
    state: State,
    buffer: Buffer,
    speakers: Communicator,
    count: int,
) -> Sender:
    """One alone has nobody to be short with: nothing is encoded."""
    agreement = config.agreement
    is_plain = agreement.codec == "identity" and config.codec.feedback != "on"
    if is_plain or count == 1:
        return Plain(speakers)
    codecs: dict[int, Codec] = {}
    for number, tile in enumerate(buffer):

        def room(name: str, columns: slice = tile.columns) -> Array:
            whole = state.remember(f"codec_{name}", buffer.width)
            part: Array = whole[columns].reshape(-1)
            return part

        bucket = Bucket(
            number=number,
            height=tile.height,
            width=buffer.width,
            dtype=buffer.flat.dtype,
            seed=config.sampling.seed,
            member=grid.member,
            room=room,
        )
        codec = make_codec(agreement.codec, bucket, config.codec, config.accordion)
        codecs[tile.columns.start] = codec
        for name, kept in codec.kept.items():
            state.kept[f"codec_{number}_{name}"] = kept
    return Coded(speakers, codecs, agreement.codec, grid.members)

"""The agreement of a run, made from its configuration."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcsgd.agreements import get_agreement
from hpcsgd.agreements.buckets import DeviceRole
from hpcsgd.agreements.codecs import is_coded
from hpcsgd.agreements.gradient import Gradient, GradientInputs, Steps
from hpcsgd.agreements.shaping import (
    ByNorm,
    ByPercentile,
    ByValue,
    ClippedRows,
    DirectionRates,
    LayerRates,
    Noise,
    OverClasses,
    OverColumns,
    PrivateNoise,
    Shaper,
    ToLengthOne,
    epsilon_of,
    least_noise,
    spent_by_step,
)
from hpcsgd.backends.base import Backend, LossScale
from hpcsgd.backends.task import Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.config import PrivacyConfig, RunConfig
from hpcsgd.data.sampling import OVERFLOW, plan_groups, poisson_share
from hpcsgd.data.shard import lengths, split_range
from hpcsgd.data.stream import StreamedMatrix
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.formats import Array
from hpcsgd.glm import make_rule
from hpcsgd.glm.families import Family
from hpcsgd.glm.mirror_maps import LOGARITHMIC, MirrorMap, make_mirror
from hpcsgd.glm.updates import Rule, make_rate
from hpcsgd.products.base import Product, product_facts
from hpcsgd.products.direct import AnyBatches, AtOnce, MicroBatches
from hpcsgd.runs.auto_rate import squares_of_rows
from hpcsgd.runs.feed import Feed, steps_together
from hpcsgd.runs.gpu import BY_HOST
from hpcsgd.runs.load import LoadedRows
from hpcsgd.runs.opened_run import OpenedRun

if TYPE_CHECKING:
    from hpcsgd.agreements.more.anybatch import (
        AnyBatchInputs,
        MixingTime,
        RoundClock,
    )
    from hpcsgd.agreements.more.infinity.agreement import InfinityPlace
    from hpcsgd.backends.cuda.device import Device

# What a configuration asks to be done to gradients that replicas agreed on.

CLIPS = {"value": ByValue, "norm": ByNorm, "percentile": ByPercentile}


def make_shapers(
    config: RunConfig, columns: int, classes: int, rows: int = 0
) -> tuple[Shaper, ...]:
    """Return the operations on averaged gradients, in the order in which they apply.

    `columns` is the number of columns of the data, `classes` that of scores of a row,
    and `rows` the number of all rows.
    """
    update = config.update
    if update.centre == "classes" and classes == 1:
        raise ConfigError(
            "[update] centre = 'classes' is refused for a family with one score for"
            " each row, because it would make every gradient zero; use --family"
            " softmax, or leave update.centre out"
        )
    shapers: list[Shaper] = []
    privacy = config.privacy
    if privacy.is_on:
        shapers.append(
            PrivateNoise(
                (privacy.noise * privacy.clip) ** 2,
                config.sampling.seed,
                expected_rows(config, rows) if privacy.is_poisson else None,
            )
        )
    if update.clip != "none":
        shapers.append(CLIPS[update.clip](update.limit))
    if update.centre == "classes":
        shapers.append(OverClasses())
    if update.centre == "columns":
        shapers.append(OverColumns(columns))
    if update.normalise:
        shapers.append(ToLengthOne())
    if update.trust:
        kind = DirectionRates if update.kind == "adam" else LayerRates
        shapers.append(kind(update.trust, config.problem.l2))
    if update.noise:
        shapers.append(Noise(update.noise, config.sampling.seed))
    return tuple(shapers)


# DP-SGD: the rows that are clipped, and what all steps of a run spend.


def clipped_rows(
    config: RunConfig, grid: Grid, loaded: LoadedRows, feed: Feed
) -> ClippedRows | None:
    """Return the clipping of the gradient of each row; None if rows have no privacy.

    Collective. Raise DataError if a row changes the weight of others.
    """
    privacy = config.privacy
    if not privacy.is_on:
        return None
    weights = loaded.shard.weights
    if weights is not None and len(np.unique(weights[weights > 0.0])) > 1:
        raise DataError(
            "[privacy] kind = 'dp-sgd' cannot be used with sample weights, which are"
            " divided by their mean, so that a row changes those of all others; leave"
            " the weights out"
        )
    if privacy.is_poisson and isinstance(loaded.shard.matrix, StreamedMatrix):
        raise ConfigError(
            "[privacy] draws = 'poisson' cannot be used with rows that are streamed"
            " from a file, which are read ahead in the order of [sampling]; set"
            " privacy.draws = 'shuffled', or use a larger run.memory"
        )
    norms = np.sqrt(squares_of_rows(grid, loaded) + float(config.problem.intercept))
    places = config.schedule.batch * steps_together(config)
    sampler = feed.sampler
    return ClippedRows(privacy.clip, norms, sampler.order, sampler.drawn, places)


def expected_rows(config: RunConfig, rows: int) -> float:
    """Return how many of all `rows` a full exchange of Poisson draws takes on average.

    Replicas have different numbers of rows, by one at most.
    """
    return sum(
        height * poisson_share(height, config.schedule.batch * steps_together(config))
        for height in lengths(rows, config.grid.replicas)
    )


def spent_epsilon(
    config: RunConfig, rows: int, noise: float, exchanges: int | None = None
) -> float:
    """Return the ε that a run has spent after a number of exchanges; None: all.

    `rows` is the number of all rows, and `noise` is σ. Batches of an order of the rows
    take each row once an epoch, which is a step that draws it with certainty: other
    steps of the epoch do not depend on it.
    """
    heights = lengths(rows, config.grid.replicas)
    batch = config.schedule.batch
    steps = steps_together(config)
    each = len(plan_groups(heights[0], batch, steps))
    planned = config.schedule.epochs * each
    epochs, rest = divmod(planned if exchanges is None else exchanges, each)
    delta = config.privacy.delta
    if not config.privacy.is_poisson:
        spent = (epochs + (rest > 0)) * spent_by_step(1.0, noise)
        return epsilon_of(spent, delta)
    largest: Array = np.zeros(())
    for height in {heights[0], heights[-1]}:
        plans = plan_groups(height, batch, steps)
        counts = Counter(poisson_share(height, sum(sizes)) for sizes in plans)
        begun = Counter(poisson_share(height, sum(sizes)) for sizes in plans[:rest])
        by_share = [
            (epochs * counts[share] + begun[share]) * spent_by_step(share, noise)
            for share in counts
        ]
        largest = np.maximum(largest, np.sum(by_share, axis=0))
    overflow = OVERFLOW * config.grid.replicas * (epochs * each + rest)
    return epsilon_of(largest, delta, overflow=overflow)


def settle_privacy(config: RunConfig, rows: int) -> tuple[PrivacyConfig, str]:
    """Return the section [privacy] with the noise that runs, and why it is that one.

    The text is empty if the user gave the noise. Raise ConfigError if ε would exceed
    its limit.
    """
    privacy = config.privacy
    if not privacy.is_on:
        return privacy, ""
    if privacy.noise:
        epsilon = spent_epsilon(config, rows, privacy.noise)
        if privacy.epsilon and epsilon > privacy.epsilon:
            raise ConfigError(
                f"[privacy] noise = {privacy.noise:g} spends ε = {epsilon:.4g}, above"
                f" epsilon = {privacy.epsilon:g}; leave privacy.noise out, which finds"
                " the least noise for it"
            )
        return privacy, ""
    noise = least_noise(lambda one: spent_epsilon(config, rows, one), privacy.epsilon)
    if noise is None:
        raise ConfigError(
            f"[privacy] epsilon = {privacy.epsilon:g} at delta = {privacy.delta:g} is"
            " reached by no noise; use a larger epsilon, a larger delta or fewer epochs"
        )
    epsilon = spent_epsilon(config, rows, noise)
    reason = f"the least for ε = {privacy.epsilon:g}: it spends {epsilon:.4g}"
    return replace(privacy, noise=noise), reason


# What any-batch rounds of a run need: pace, stream, mixing and the mirror map.


def terms_of(
    config: RunConfig, grid: Grid, loaded: LoadedRows, feed: Any, family: Family
) -> "AnyBatchInputs":
    """Return the inputs of any-batch rounds, which take rows from `feed.stream`.

    `family` gives the losses of rows.
    """
    from hpcsgd.agreements.more.anybatch import (
        AnyBatchInputs,
        ReplicaGraph,
        RoundMixer,
    )

    if isinstance(loaded.shard.matrix, StreamedMatrix):
        raise ConfigError(
            "[agreement] kind = 'anybatch' cannot be used with rows that are streamed"
            " from a file, because it does not know in advance how many it needs; use"
            " more ranks or a larger run.memory, so that all rows fit in memory"
        )
    settings: Any = config.agreement
    columns = loaded.shard.total_columns
    graph = ReplicaGraph(settings.graph, grid.replicas.size, config.sampling.seed)

    def mirror(is_alone: bool) -> MirrorMap:
        """Return the mirror map of a member.

        With `is_alone`, the member has all columns, and the map gathers nothing.
        """
        return make_mirror(config.mirror, columns, one if is_alone else gather)

    def one(words: Array) -> Array:
        return words[None]

    def gather(words: Array) -> Array:
        members = grid.members
        parts = np.empty(members.size * words.size, dtype=words.dtype)
        counts = [words.size] * members.size
        members.gather(words, counts, parts, "products")
        return parts.reshape(members.size, -1)

    return AnyBatchInputs(
        pace=_pace(config, grid, feed),
        stream=feed.stream,
        mixer=RoundMixer(
            grid.replicas,
            graph,
            settings.mixing,
            config.mirror.kind in LOGARITHMIC,
            _mixing_time(settings, grid),
        ),
        weighted=settings.weighted,
        mirror=mirror,
        family=family,
    )


def _mixing_time(settings: Any, grid: Grid) -> "MixingTime | None":
    """Return the time for the consensus iterations of a round; None: it is not fixed.

    A replayed log has the numbers of iterations.
    """
    from hpcsgd.agreements.more.anybatch import MixingTime, read_iterations

    if not settings.mixing_seconds or grid.replicas.size == 1:
        return None
    script: list[int] = []
    if settings.replay:
        script = grid.world.together(lambda: read_iterations(settings.replay))
    return MixingTime(grid.world, settings.mixing_seconds, script)


def _pace(config: RunConfig, grid: Grid, feed: Feed) -> "RoundClock":
    """Return the clock of any-batch rounds, which ends each round.

    It replays rounds if `agreement.replay` names a file of them; otherwise it makes all
    rounds full if `agreement.rounds` is "full", and else ends them by time.
    """
    from hpcsgd.agreements.more.anybatch import (
        Full,
        ReplayedRounds,
        TimedRounds,
        read_script,
    )

    settings: Any
    settings = config.agreement
    replicas = grid.replicas.size
    if settings.replay:
        rounds = feed.exchanges_per_epoch * config.schedule.epochs

        def read() -> Array:
            return read_script(settings.replay, replicas, rounds, settings.accumulate)

        return ReplayedRounds(grid.world.together(read)[grid.replica])
    if settings.rounds == "full":
        return Full(settings.accumulate)
    return TimedRounds(grid, settings.accumulate, settings.deadline)


# A run whose weights are on disk: where they lie, and who works with them.


def infinity_place(
    config: RunConfig, loaded: LoadedRows, task: Task, rule: Rule
) -> "InfinityPlace":
    """Return where on disk the state is stored, and in tiles of which height.

    The height is the largest that the budget `agreement.tile` allows.
    """
    settings: Any = config.agreement
    shard = loaded.shard
    from hpcsgd.agreements.more.infinity.agreement import (
        InfinityPlace,
        store_in,
        tile_height,
    )

    rows = 0 if shard.is_sparse else config.schedule.batch * settings.accumulate
    if not shard.matrix.is_in_memory:
        rows *= 2  # as they are stored, and widened
    height = tile_height(
        budget=settings.tile,
        widest=shard.widest,
        columns=task.columns,
        words=(task.states + len(rule.state_names)) * task.columns,
        rows=rows,
        itemsize=np.dtype(task.precision.working).itemsize,
        replicas=max(config.grid.replicas, 1),
    )
    return InfinityPlace(
        folder=Path(settings.store) if settings.store else store_in(config.run.out),
        columns=shard.total_columns,
        parts=shard.parts,
        height=height,
        direct=settings.direct,
        sync=settings.sync,
        is_of_a_run=not settings.store,
    )


# The gradient agreement of a run, put together.


def make_gradient(
    config: RunConfig, opened: OpenedRun, task: Task, feed: Feed, product: str
) -> Gradient:
    """Return the agreement on gradients of a run; it makes its buckets in `prepare`."""
    grid = opened.grid
    loaded = opened.loaded
    device = opened.device
    each = feed.exchanges_per_epoch
    shard = loaded.shard
    if product_facts(product).holds_all_columns:
        shard = replace(shard, columns=slice(0, shard.total_columns))
    epochs = config.schedule.epochs
    rate = make_rate(config.rate, epochs * each, epochs)
    replicas = grid.replicas.size
    most = split_range(shard.total_rows, replicas, 0).stop
    named: Any = get_agreement(opened.words.agreement)
    kind: type[Gradient] = named.variant(
        config.agreement, replicas, most, config.schedule.batch
    )
    rule = make_rule(config.update, opened.words.update)
    more: Any = None
    if config.agreement.on_disk:
        more = infinity_place(config, loaded, task, rule)
    elif config.agreement.takes_rounds:
        more = terms_of(config, grid, loaded, feed, task.family)
    inputs = GradientInputs(
        config=config,
        shard=shard,
        columns=task.columns,
        steps=Steps(rule, config.problem.l2, rate.at, each, rate.drops),
        backend=task.backend,
        shapers=make_shapers(
            config, shard.total_columns, task.columns, shard.total_rows
        ),
        loss_scale=_loss_scale(task.backend),
        role=DeviceRole(),
        more=more,
        clipped_rows=clipped_rows(config, grid, loaded, feed),
    )
    if device is not None:
        from hpcsgd.backends.cuda.matrix import CHUNK

        sums = _sums_on_device(kind, config, grid.replicas)
        chunk = 1 if shard.is_sparse else CHUNK // int(shard.matrix.dtype.itemsize)
        inputs = _on_device(inputs, kind, device, sums, chunk)
    return kind(grid, shard.height / shard.total_rows, inputs)


def _on_device(
    inputs: GradientInputs,
    kind: type[Gradient],
    device: "Device",
    sums: bool,
    chunk: int,
) -> GradientInputs:
    """Return the inputs of an agreement whose gradients are summed on a device.

    Replicas sum on their devices if `sums`. Tiles of slices begin at multiples of
    `chunk` columns.
    """
    from hpcsgd.backends.cuda.weights import DeviceMemory, DeviceRows

    rule = inputs.steps.rule
    memory = DeviceMemory(device)
    takes = sums and kind.steps_on_devices and not inputs.shapers
    # With several scores a row, momenta are stored between the scores.
    is_linear = rule.linear is not None and 1 in (rule.states, inputs.columns)
    return replace(
        inputs,
        backend=DeviceRows(),
        role=DeviceRole(
            memory=memory,
            sums=sums,
            linear_step=memory.linear_step if takes and is_linear else None,
            alignment=chunk if kind.adds_tiles else 1,
        ),
    )


def wrap_in_exchanges(one: Product, gradient: Gradient, most: int) -> Product:
    """Return a product that passes the batches of an exchange to the product `one`.

    They are passed as chunks of a round if the agreement `gradient` takes rounds, all
    at once if it can take them so and there are several, and otherwise one by one.
    `most` is the largest number of batches of an exchange.
    """
    if gradient.settings.takes_rounds:
        taken: Any = gradient
        return AnyBatches(one, taken, taken.stream, most)
    if gradient.takes_at_once and most > 1:
        return AtOnce(one, gradient, most)
    return MicroBatches(one, gradient, most)


def _loss_scale(backend: Backend) -> LossScale | None:
    """Return the loss scale of the residuals; None if their format needs none.

    It is set to adapt on all replicas together.
    """
    if backend.loss_scale is not None:
        backend.loss_scale.waits = True
    return backend.loss_scale


def _sums_on_device(
    kind: type[Gradient], config: RunConfig, replicas: Communicator
) -> bool:
    """Return whether replicas sum gradients on their devices, not on their hosts.

    They do if the agreement can, and if one replica is alone or gradients are summed
    as they are, in one level, over a transport that reads device memory. Where MPI
    copies arrays through the host, a sum on devices would copy gradients twice as
    often.
    """
    if not kind.sums_on_devices:
        return False
    if replicas.size == 1:
        return True
    plain = not is_coded(config) and config.agreement.hierarchical == "off"
    carries = replicas.kind not in ("none", BY_HOST)
    return plain and carries

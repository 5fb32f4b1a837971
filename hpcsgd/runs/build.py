"""From a configuration to a run that is ready, the only place of concrete classes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcsgd.agreements.gradient import Gradient
from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import Backend
from hpcsgd.backends.exchange import HostExchanges
from hpcsgd.backends.task import NO_MONITOR, Clip, NoMonitor, State, Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import Grid, close_on_agreed_error
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.data.sampling import make_sampler, plan_groups
from hpcsgd.data.stream import Route, StreamedMatrix
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.glm.families import for_models
from hpcsgd.products import get_product
from hpcsgd.products.base import Planner, Product, make_clip, product_facts
from hpcsgd.products.direct import TiledProduct
from hpcsgd.products.monitor import GapMonitor
from hpcsgd.products.observers import Observers
from hpcsgd.runs.agreements import (
    DrawPlace,
    cast,
    feed_config,
    make_gradient,
    wrap_in_exchanges,
)
from hpcsgd.runs.assembled_run import (
    AssembledRun,
    Earlier,
    Feed,
    Parts,
    ResolvedNames,
    make_feed,
    steps_in,
)
from hpcsgd.runs.auto_rate import resolve_rate
from hpcsgd.runs.checks import many_models, rates_of, resolve_names, resolve_steps
from hpcsgd.runs.choose import choose_run
from hpcsgd.runs.gpu import make_gradient_on_gpu, make_on_gpu, on_gpu, open_gpu
from hpcsgd.runs.load import LoadedRows, load
from hpcsgd.runs.make_training import make_training
from hpcsgd.runs.memory import check_memory
from hpcsgd.runs.resume import earlier_choice
from hpcsgd.solvers.callbacks import Callback
from hpcsgd.solvers.evaluation import Columns
from hpcsgd.solvers.snapshot import Snapshot

if TYPE_CHECKING:  # a run without a GPU needs none of these
    from hpcsgd.backends.cuda.device import Device
    from hpcsgd.backends.cuda.sequences import CudaExchanges

# Where a run begins: its first state, on the host or on its device.


def first_state(
    config: RunConfig,
    task: Task,
    product: Product,
    columns: Columns,
    agreement: Any,
    observers: Observers,
) -> State:
    """Weights and intercept before any step; whoever keeps more is told of them."""
    whole = columns.own.stop - columns.own.start, task.states * task.columns
    intercept = np.zeros((task.states, task.columns))
    holder = _holder(product)
    weights: Any
    if config.agreement.on_disk:
        dtype = task.backend.zeros((0, whole[1])).dtype
        weights = agreement.open_weights(task, whole[0], dtype)
    else:
        weights = task.backend.zeros(agreement.shape(*whole))
    state = State(
        weights=weights,
        intercept=intercept if config.problem.intercept else None,
    )
    if holder:
        from hpcsgd.backends.cuda.weights import DeviceCopies

        state.place(DeviceCopies(holder.device, weights, state.intercept, holder.scale))
    agreement.prepare(state)
    observers.prepare(state)
    return state


def _holder(product: Product) -> "CudaExchanges | None":
    """Where the weights of the run are between exchanges; None: on the host."""
    exchanges = on_gpu(product)
    return exchanges if exchanges is not None and exchanges.holds_weights else None


# The live objects of a run, put together.


def assemble(
    config: RunConfig,
    words: ResolvedNames,
    grid: Grid,
    loaded: LoadedRows,
    callbacks: list[Callback],
    earlier: Earlier | None = None,
    device: "Device | None" = None,
    undo: list[Callable[[], None]] | None = None,
) -> AssembledRun:
    """Everything from what is named and what was loaded.

    `earlier` is what a run that goes on had chosen, `device` the GPU that it is for;
    what closes the groups that were opened on the way goes into `undo`.
    """
    config = resolve_steps(config)
    task = _task(config, words, grid, loaded)
    chosen = choose_run(config, words, task, loaded, earlier)
    schedule = replace(config.schedule, steps=chosen.steps)
    config = replace(config, schedule=schedule)
    name, look_ahead = chosen.product, chosen.look_ahead
    feed = _feed(feed_config(config), words, task, grid, loaded)
    # A look holds residuals against their scores, not against two of them.
    watched = NO_MONITOR if task.anchored else _monitor(config, name, feed)
    task = replace(task, monitor=watched)
    if config.agreement.shares_gradients:
        gradient = make_gradient(config, words, grid, loaded, task, feed, device)
        task = replace(task, gradient=gradient)
        if device is None:
            product = _sharing(config, name, task, gradient)
        else:
            one = make_gradient_on_gpu(task, feed, grid, device, gradient)
            product = wrap_in_exchanges(
                one, gradient, config.agreement.batches_together
            )
    elif device is None:
        product = _product(name, look_ahead, task)
    else:
        product = make_on_gpu(config, name, look_ahead, task, feed, grid, device)
    columns = Columns(grid, loaded.shard.parts, product.holds_all_columns)
    parts = Parts(
        *(config, words, grid, loaded, task, product, name, look_ahead, feed, columns),
        undo=[] if undo is None else undo,
    )
    capture, solver, training = make_training(parts, callbacks)
    return AssembledRun(
        config=config,
        grid=grid,
        loaded=loaded,
        task=task,
        solver=solver,
        chosen=chosen,
        feed=feed,
        columns=columns,
        capture=capture,
        training=training,
        state=first_state(
            config, task, product, columns, solver.agreement, training.loop.observers
        ),
    )


def _task(
    config: RunConfig, words: ResolvedNames, grid: Grid, loaded: LoadedRows
) -> Task:
    shard, backend = loaded.shard, words.backend
    models = many_models(config, loaded.columns)
    columns = loaded.columns if models is None else models.columns
    family: Any = words.family
    if models is not None:
        family = for_models(words.family, len(models), loaded.columns)
    seed = (config.sampling.seed, grid.replica)
    place = DrawPlace(seed, shard.columns, shard.total_columns)
    cast(backend, config.precision, place)
    return Task(
        shard=shard,
        backend=backend,
        members=grid.members,
        family=family,
        precision=words.precision,
        columns=columns,
        states=words.update.states,
        probe=words.update.probe(),
        clock=Clock(),
        clip=_clip(config, backend),
        anchored=words.update.is_anchored,
        models=models,
    )


def _clip(config: RunConfig, backend: Backend) -> Clip | None:
    update = config.update
    clip = make_clip(update.clip, update.limit)
    if config.agreement.shares_gradients:
        return None  # that of all replicas together is clipped, where they agree
    weights = get_format(backend.precision.weights)
    if clip is not None and not weights.is_wide:
        raise ConfigError(
            f"[update] clip = {update.clip!r} is not offered for weights in"
            f" {weights.name}; use --set precision.weights=fp32"
        )
    return clip


def _monitor(config: RunConfig, name: str, feed: Feed) -> NoMonitor:
    """Who looks at the recurrence, where there is one and it is that of all ranks."""
    run = config.run
    is_monitored = product_facts(name).is_monitored and not run.emulate_members
    if not is_monitored or not run.gap_every:
        return NO_MONITOR
    return GapMonitor(run.gap_every, feed.exchanges_per_epoch, config.sampling.seed)


def _sharing(config: RunConfig, name: str, task: Task, gradient: Gradient) -> Product:
    """For gradients that replicas agree on."""
    if config.agreement.on_disk:
        reducer: Any = gradient
        return TiledProduct(task, reducer)
    one = _product(name, False, task)
    return wrap_in_exchanges(one, gradient, config.agreement.batches_together)


def _product(name: str, look_ahead: bool, task: Task) -> Product:
    kind: Callable[..., Product] = get_product(name, look_ahead)
    return kind(task, HostExchanges(task))


def _feed(
    config: RunConfig, words: ResolvedNames, task: Task, grid: Grid, loaded: LoadedRows
) -> Feed:
    schedule, rows = config.schedule, loaded.shard.total_rows
    own = plan_groups(loaded.shard.height, schedule.batch, schedule.steps)
    epochs = schedule.epochs
    rates = rates_of(config.rate, task.models, epochs * steps_in(own), epochs)
    l2, backend = config.problem.l2, words.backend
    planner = Planner(words.update, l2, rates, backend, task.models)
    matrix = loaded.shard.matrix
    follow = matrix.follow if isinstance(matrix, StreamedMatrix) else None
    return make_feed(config, planner, rows, grid.replicas.size, grid.replica, follow)


# RunConfig to live objects: the only place that names concrete classes.
#
# Everything that can be wrong is found here, on all ranks together, before the
# first exchange.


@dataclass(frozen=True)
class OpenedRun:
    """What is there before anything is chosen: names looked up, ranks, data."""

    words: ResolvedNames
    grid: Grid
    loaded: LoadedRows
    device: "Device | None"


def build(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    callbacks: list[Callback],
    setup: Clock,
    known: Snapshot | None = None,
) -> AssembledRun:
    """Everything a run needs; errors are raised on all ranks alike.

    `known` is the checkpoint that survivors of a failure go on from.
    """
    opened = open_all(config, world, reader, setup)
    with close_on_agreed_error(opened.grid.close):
        config = resolve_rate(config, opened.grid, opened.loaded, opened.words.family)
        earlier = earlier_choice(config, opened.grid.world, known)
        live = assemble_run(config, opened, callbacks, earlier)
    setup.lap("build")
    return live


def assemble_run(
    config: RunConfig,
    opened: OpenedRun,
    callbacks: list[Callback],
    earlier: Earlier | None = None,
) -> AssembledRun:
    """Assemble a run from what was opened. Collective."""
    found = opened.words, opened.grid, opened.loaded
    undo: list[Callable[[], None]] = []
    device = opened.device

    def close() -> None:
        for one in undo:
            one()

    with close_on_agreed_error(close):
        return opened.grid.world.together(
            lambda: assemble(config, *found, callbacks, earlier, device, undo)
        )


def open_all(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    setup: Clock,
) -> OpenedRun:
    """The grid of ranks, each with its block of the data."""
    own = world.together(compiled_calls.instructions)
    compiled_calls.settle(world.exchange_objects(own))
    _use_threads(config.run.threads, world)
    device, world = open_gpu(config, world)
    words = world.together(lambda: resolve_names(config, world))
    grid = Grid(words.world, config.grid.replicas, words.members)
    with close_on_agreed_error(grid.close):
        loaded = _loaded(config, words, grid, reader, setup)
    return OpenedRun(words, grid, loaded, device)


def _loaded(
    config: RunConfig,
    words: ResolvedNames,
    grid: Grid,
    reader: Callable[[Communicator], RowReader],
    setup: Clock,
) -> LoadedRows:
    """This rank's block of what the reader opens."""
    opened = grid.world.together(lambda: reader(grid.world))
    streams = check_memory(
        grid, opened, config, words.precision, words.update.states * config.sweep.count
    )
    setup.lap("open")
    stays = streams or getattr(opened, "is_there", False)
    route = _router(config, grid.replica) if stays else None
    loaded = load(grid, opened, config, words.family, words.backend, route)
    setup.lap("read")
    return loaded


def _router(config: RunConfig, replica: int) -> Callable[[int], Route | None]:
    """The way through the rows of a replica, once their number is known.

    None where a GPU holds them all, or where they are read by tiles.
    """
    if config.run.device == "cuda" or config.agreement.on_disk:
        return lambda rows: None
    return lambda rows: Route(
        make_sampler(config.sampling, rows, replica), config.schedule.epochs
    )


def _use_threads(count: int, world: Communicator) -> None:
    """In the kernels that all ranks have settled on."""
    compiled_calls.use(count)
    if count > 1:
        compiled_calls.warn(
            count, world.exchange_objects(compiled_calls.place()), world.rank
        )

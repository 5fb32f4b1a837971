"""RunConfig to live objects: the only place that names concrete classes.

Everything that can be wrong is found here, on all ranks together, before the
first exchange.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.agreement import AGREEMENTS, Agreement
from hpcsgd.backends.host import HostBackend
from hpcsgd.callbacks.base import Callback, View
from hpcsgd.callbacks.guards import MemberCheck
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.delayed import Delayed, parse_network
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.data.readers import RowReader
from hpcsgd.data.sampling import Sampler, plan_groups
from hpcsgd.engine import Engine, Pace
from hpcsgd.errors import ConfigError
from hpcsgd.evaluation import Evaluation
from hpcsgd.families import get_family
from hpcsgd.load import Loaded, load
from hpcsgd.objective import Objective
from hpcsgd.penalties import Ridge
from hpcsgd.precision import Precision
from hpcsgd.products import get_product
from hpcsgd.products.base import Group, Product, State, Task
from hpcsgd.products.choose import Shape, choose_product, uses_look_ahead
from hpcsgd.products.plan import Planner
from hpcsgd.rates import make_rate
from hpcsgd.schedule import Schedule
from hpcsgd.timing import Clock
from hpcsgd.updates import LinearUpdate, make_update

Array = NDArray[Any]


@dataclass(frozen=True)
class Live:
    """A run ready to go."""

    config: RunConfig
    grid: Grid
    loaded: Loaded
    task: Task
    product: Product
    product_name: str
    look_ahead: bool
    engine: Engine
    state: State
    groups: Iterator[Group | None]
    view: View
    clock: Clock

    def warm_up(self) -> None:
        """Touch the arrays and wake the libraries once, on copies, in silence."""
        task, shard = self.task, self.task.shard
        height = min(shard.height, self.config.schedule.batch)
        if height == 0:
            return
        rows = np.arange(height, dtype=np.int64)
        out = np.empty((height, shard.width), dtype=task.precision.working)
        task.backend.gather(shard.matrix, rows, out)
        weights = task.backend.zeros((shard.width, task.columns))
        margins = np.empty((height, task.columns), dtype=task.margin_dtype)
        task.backend.scores(out, weights, margins)
        task.family.residual(margins, shard.targets[:height])


def open_network(config: RunConfig, world: Communicator) -> Communicator:
    """`world` behind the network that was asked for."""
    if not config.run.network:
        return world
    return Delayed(world, parse_network(config.run.network))


def build(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[], RowReader],
    callbacks: list[Callback],
) -> Live:
    """Everything a run needs; errors are raised on all ranks alike."""
    parts = world.together(lambda: _vocabulary(config, world))
    grid = Grid(parts.world, config.grid.replicas, parts.members)
    loaded = load(grid, reader, parts.family, parts.backend, parts.precision)
    return world.together(lambda: _assemble(config, parts, grid, loaded, callbacks))


@dataclass(frozen=True)
class _Vocabulary:
    """What the configuration names, before any data is seen."""

    world: Communicator
    members: int
    family: Any
    precision: Precision
    backend: HostBackend
    update: LinearUpdate
    kind: str


def _vocabulary(config: RunConfig, world: Communicator) -> _Vocabulary:
    replicas = config.grid.replicas
    if replicas < 1 or config.grid.members < 0:
        raise ConfigError("[grid] replicas and members must be at least 1")
    members = config.grid.members or max(world.size // replicas, 1)
    if replicas * members != world.size:
        raise ConfigError(
            f"grid {replicas}x{members} needs {replicas * members} ranks and this run"
            f" has {world.size}; add --ranks {replicas * members} (or mpiexec -n"
            f" {replicas * members}), or choose another --grid"
        )
    if config.products.kind != "auto":
        get_product(config.products.kind)
    precision = config.precision.resolve()
    return _Vocabulary(
        world=open_network(config, world),
        members=members,
        family=get_family(config.problem.family),
        precision=precision,
        backend=HostBackend(precision),
        update=make_update(
            config.update.kind,
            0.0 if config.update.kind == "sgd" else config.update.momentum,
        ),
        kind=_agreement_kind(config),
    )


def _agreement_kind(config: RunConfig) -> str:
    kind, replicas = config.agreement.kind, config.grid.replicas
    if kind == "auto":
        return "average" if replicas > 1 else "none"
    if kind not in AGREEMENTS:
        known = sorted([*AGREEMENTS, "auto"])
        raise ConfigError(f"[agreement] unknown kind: {kind!r}; known: {known}")
    if kind == "none" and replicas > 1:
        raise ConfigError(
            f"[agreement] kind = 'none' with {replicas} replicas trains as many"
            " unrelated models; use kind = 'average', or --grid 1xN"
        )
    return kind


def _assemble(
    config: RunConfig,
    parts: _Vocabulary,
    grid: Grid,
    loaded: Loaded,
    callbacks: list[Callback],
) -> Live:
    clock = Clock()
    task = Task(
        shard=loaded.shard,
        backend=parts.backend,
        members=grid.members,
        family=parts.family,
        precision=parts.precision,
        columns=loaded.columns,
        states=parts.update.states,
        probe=parts.update.probe(),
        clock=clock,
    )
    name, look_ahead = _choose(config, parts, grid, loaded)
    product = _make_product(name, look_ahead, task, grid)
    agreement = AGREEMENTS[parts.kind](
        grid, loaded.shard.height / loaded.shard.total_rows, config.schedule.period
    )
    plans = plan_groups(
        _rows_of(loaded, grid, 0), config.schedule.batch, config.schedule.steps
    )
    view = View(
        epochs=config.schedule.epochs,
        exchanges_planned=len(plans) * config.schedule.epochs,
        total_rows=loaded.shard.total_rows,
        words=lambda: grid.world.ledger.words("products"),
    )
    engine = Engine(
        grid=grid,
        product=product,
        agreement=agreement,
        guard=MemberCheck(
            grid.members, config.run.check_members, product.holds_all_columns
        ),
        evaluation=_evaluation(config, task, grid, loaded, agreement, product),
        pace=Pace(
            config.schedule.epochs,
            len(plans),
            config.run.check_every,
            config.run.evaluate_every,
        ),
        view=view,
        callbacks=callbacks,
        clock=clock,
    )
    return Live(
        config=config,
        grid=grid,
        loaded=loaded,
        task=task,
        product=product,
        product_name=name,
        look_ahead=look_ahead,
        engine=engine,
        state=_first_state(config, task, product),
        groups=_groups(config, parts, grid, loaded, len(plans)),
        view=view,
        clock=clock,
    )


def _rows_of(loaded: Loaded, grid: Grid, replica: int) -> int:
    part = split_range(loaded.shard.total_rows, grid.replicas.size, replica)
    return int(part.stop - part.start)


def _choose(
    config: RunConfig, parts: _Vocabulary, grid: Grid, loaded: Loaded
) -> tuple[str, bool]:
    name = config.products.kind
    again = config.sampling.mode == "shuffle-once" and config.schedule.epochs > 1
    if name == "auto":
        shape = Shape(
            grid.members.size,
            _rows_of(loaded, grid, 0),
            loaded.shard.total_columns,
            again,
        )
        name = choose_product(shape, config.schedule, parts.precision)
    if name == "cached" and config.sampling.mode != "shuffle-once":
        raise ConfigError(
            f"[products] kind = 'cached' needs batches that come again and [sampling]"
            f" mode = {config.sampling.mode!r} draws new ones; use mode ="
            " 'shuffle-once', or kind = 'gram'"
        )
    latency = parts.world.network.alpha if isinstance(parts.world, Delayed) else 0.0
    return name, uses_look_ahead(config.products, name, latency)


def _make_product(name: str, look_ahead: bool, task: Task, grid: Grid) -> Product:
    if look_ahead:
        from hpcsgd.products.lookahead import LookAheadGram

        return LookAheadGram(task)
    kind = get_product(name)
    if name != "gather":
        product: Product = kind(task)
        return product
    total, members = task.shard.total_columns, grid.members.size
    parts = [split_range(total, members, c) for c in range(members)]
    gather: Product = kind(task, tuple(p.stop - p.start for p in parts))
    return gather


def _first_state(config: RunConfig, task: Task, product: Product) -> State:
    shard, width = task.shard, task.states * task.columns
    height = shard.total_columns if product.holds_all_columns else shard.width
    intercept = np.zeros((task.states, task.columns))
    return State(
        weights=task.backend.zeros((height, width)),
        intercept=intercept if config.problem.intercept else None,
    )


def _evaluation(
    config: RunConfig,
    task: Task,
    grid: Grid,
    loaded: Loaded,
    agreement: Agreement,
    product: Product,
) -> Evaluation:
    objective = Objective(
        grid,
        task.family,
        loaded.shard,
        Ridge(config.problem.l2),
        loaded.read_exact,
    )
    own = loaded.shard.columns if product.holds_all_columns else slice(None)
    return Evaluation(objective, agreement, task.columns, own)


def _groups(
    config: RunConfig,
    parts: _Vocabulary,
    grid: Grid,
    loaded: Loaded,
    per_epoch: int,
) -> Iterator[Group | None]:
    """The groups of all epochs; None where this replica has run out of rows.

    The sequence depends on seed, epoch and replica alone, never on s, the product
    or C: every member agrees on it without a message.
    """
    schedule: Schedule = config.schedule
    height = loaded.shard.height
    sampler = Sampler(config.sampling.mode, config.sampling.seed, height, grid.replica)
    plans = plan_groups(height, schedule.batch, schedule.steps)
    steps_per_epoch = sum(len(sizes) for sizes in plans)
    rate = make_rate(config.rate, schedule.epochs * steps_per_epoch)
    planner = Planner(parts.update, config.problem.l2, rate.at, parts.backend)
    padding: list[None] = [None] * (per_epoch - len(plans))
    for epoch in range(schedule.epochs):
        order = sampler.order(epoch)
        first, step = 0, epoch * steps_per_epoch
        for index, sizes in enumerate(plans):
            rows = order[first : first + sum(sizes)]
            yield planner.group(index, rows, sizes, step)
            first, step = first + sum(sizes), step + len(sizes)
        yield from padding

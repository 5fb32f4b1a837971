"""The live objects of a run, put together."""

from dataclasses import dataclass

import numpy as np

from hpcsgd.agreement import AGREEMENTS, Agreement
from hpcsgd.assembly.feed import Feed, make_feed, steps_in
from hpcsgd.assembly.vocabulary import Vocabulary
from hpcsgd.callbacks.base import Callback, View
from hpcsgd.callbacks.guards import MemberCheck
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Ledger
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.data.sampling import plan_groups
from hpcsgd.engine import Engine, Pace
from hpcsgd.errors import ConfigError
from hpcsgd.evaluation import Evaluation
from hpcsgd.load import Loaded
from hpcsgd.objective import Objective
from hpcsgd.penalties import Ridge
from hpcsgd.products import get_product
from hpcsgd.products.base import Product, State, Task
from hpcsgd.products.choose import Shape, choose_product, uses_look_ahead
from hpcsgd.products.lookahead import LookAheadGram
from hpcsgd.products.plan import Planner
from hpcsgd.rates import make_rate
from hpcsgd.timing import Clock


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
    feed: Feed
    engine: Engine
    state: State

    def warm_up(self) -> None:
        """Touch the arrays and wake the libraries once, on copies, in silence."""
        task, shard = self.task, self.task.shard
        height = min(shard.height, self.config.schedule.batch)
        rows = np.arange(height, dtype=np.int64)
        out = np.empty((height, shard.width), dtype=task.precision.working)
        task.backend.gather(shard.matrix, rows, out)
        weights = task.backend.zeros((shard.width, task.columns))
        margins = np.empty((height, task.columns), dtype=task.margin_dtype)
        task.backend.scores(out, weights, margins)
        task.family.residual(margins, shard.targets[:height])


def assemble(
    config: RunConfig,
    words: Vocabulary,
    grid: Grid,
    loaded: Loaded,
    callbacks: list[Callback],
) -> Live:
    """Everything from what is named and what was loaded."""
    task = _task(words, grid, loaded)
    name, look_ahead = _choose(config, words, loaded)
    product = _product(name, look_ahead, task)
    feed = _feed(config, words, grid, loaded)
    return Live(
        config=config,
        grid=grid,
        loaded=loaded,
        task=task,
        product=product,
        product_name=name,
        look_ahead=look_ahead,
        feed=feed,
        engine=_engine(config, words, grid, loaded, task, product, feed, callbacks),
        state=_first_state(config, task, product),
    )


def _task(words: Vocabulary, grid: Grid, loaded: Loaded) -> Task:
    return Task(
        shard=loaded.shard,
        backend=words.backend,
        members=grid.members,
        family=words.family,
        precision=words.precision,
        columns=loaded.columns,
        states=words.update.states,
        probe=words.update.probe(),
        clock=Clock(),
    )


def _choose(config: RunConfig, words: Vocabulary, loaded: Loaded) -> tuple[str, bool]:
    """The product's name, and whether it looks ahead."""
    name, sampling = config.products.kind, config.sampling
    if name == "auto":
        largest = split_range(loaded.shard.total_rows, config.grid.replicas, 0)
        again = sampling.mode == "shuffle-once" and config.schedule.epochs > 1
        shape = Shape(words.members, largest.stop, loaded.shard.total_columns, again)
        name = choose_product(shape, config.schedule, words.precision)
    if name == "cached" and sampling.mode != "shuffle-once":
        raise ConfigError(
            f"[products] kind = 'cached' needs batches that come again and [sampling]"
            f" mode = {sampling.mode!r} draws new ones; use mode = 'shuffle-once',"
            " or kind = 'gram'"
        )
    return name, uses_look_ahead(config.products, name, words.latency)


def _product(name: str, look_ahead: bool, task: Task) -> Product:
    if look_ahead:
        return LookAheadGram(task)
    product: Product
    if name == "gather":
        total, members = task.shard.total_columns, task.members.size
        parts = [split_range(total, members, c) for c in range(members)]
        product = get_product(name)(task, tuple(p.stop - p.start for p in parts))
    else:
        product = get_product(name)(task)
    return product


def _feed(config: RunConfig, words: Vocabulary, grid: Grid, loaded: Loaded) -> Feed:
    schedule, rows = config.schedule, loaded.shard.total_rows
    own = plan_groups(loaded.shard.height, schedule.batch, schedule.steps)
    rate = make_rate(config.rate, schedule.epochs * steps_in(own))
    planner = Planner(words.update, config.problem.l2, rate.at, words.backend)
    return make_feed(config, planner, rows, grid.replicas.size, grid.replica)


def _engine(
    config: RunConfig,
    words: Vocabulary,
    grid: Grid,
    loaded: Loaded,
    task: Task,
    product: Product,
    feed: Feed,
    callbacks: list[Callback],
) -> Engine:
    run, schedule, shard = config.run, config.schedule, loaded.shard
    share = shard.height / shard.total_rows
    agreement = AGREEMENTS[words.agreement](grid, share, schedule.period)
    whole = product.holds_all_columns
    return Engine(
        grid=grid,
        product=product,
        agreement=agreement,
        guard=MemberCheck(grid.members, run.check_members, whole),
        evaluation=_evaluation(config, task, grid, loaded, agreement, whole),
        pace=Pace(
            schedule.epochs,
            feed.exchanges_per_epoch,
            run.check_every,
            run.evaluate_every,
        ),
        view=View(
            epochs=schedule.epochs,
            exchanges_planned=feed.exchanges_per_epoch * schedule.epochs,
            total_rows=shard.total_rows,
            words=lambda: grid.world.ledger.words("products"),
            phases=lambda: phases_so_far(task.clock, grid.world.ledger),
            evaluations_planned=evaluations(schedule.epochs, run.evaluate_every),
        ),
        callbacks=callbacks,
        clock=task.clock,
    )


def phases_so_far(clock: Clock, ledger: Ledger) -> dict[str, float]:
    """Seconds of every phase; agreements are timed by the ledger, not the clock."""
    return {**clock.seconds, "agreement": ledger.entries["agreement"].seconds}


def evaluations(epochs: int, every: int) -> int:
    """Full losses of a run: at both ends, and every so many epochs."""
    if not every:
        return 2
    return 1 + -(-epochs // every)


def _evaluation(
    config: RunConfig,
    task: Task,
    grid: Grid,
    loaded: Loaded,
    agreement: Agreement,
    whole: bool,
) -> Evaluation:
    penalty = Ridge(config.problem.l2)
    objective = Objective(grid, task.family, loaded.shard, penalty, loaded.read_exact)
    own = loaded.shard.columns if whole else slice(None)
    return Evaluation(objective, agreement, task.columns, own)


def _first_state(config: RunConfig, task: Task, product: Product) -> State:
    shard, width = task.shard, task.states * task.columns
    height = shard.total_columns if product.holds_all_columns else shard.width
    intercept = np.zeros((task.states, task.columns))
    return State(
        weights=task.backend.zeros((height, width)),
        intercept=intercept if config.problem.intercept else None,
    )

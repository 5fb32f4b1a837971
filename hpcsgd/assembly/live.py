"""The live objects of a run, put together."""

from dataclasses import dataclass

import numpy as np

from hpcsgd.agreement import Agreement
from hpcsgd.assembly.feed import Feed, make_feed, steps_in
from hpcsgd.assembly.motor import Parts, make_engine
from hpcsgd.assembly.vocabulary import Vocabulary
from hpcsgd.callbacks.base import Callback
from hpcsgd.capture import Capture
from hpcsgd.checkpoint import Checkpoint
from hpcsgd.columns import Columns
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.data.sampling import plan_groups
from hpcsgd.data.stream import Streamed
from hpcsgd.engine import Engine
from hpcsgd.errors import ConfigError
from hpcsgd.load import Loaded
from hpcsgd.products import GATHERS, KEEPS, get_product
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
    columns: Columns
    capture: Capture
    engine: Engine
    state: State

    def put_back(self, checkpoint: Checkpoint) -> None:
        """Stand where the checkpoint stood."""
        self.capture.put_back(
            checkpoint, self.state, self.engine.view, self.feed.progress
        )

    def close(self) -> None:
        """Let go of the file and of the groups, with all ranks; the world stays."""
        if isinstance(self.loaded.shard.matrix, Streamed):
            self.loaded.shard.matrix.close()
        self.grid.close()

    def warm_up(self) -> None:
        """Touch the arrays and wake the libraries once, on copies, in silence."""
        task, shard = self.task, self.task.shard
        height = min(shard.height, self.config.schedule.batch)
        numbers = np.arange(height, dtype=np.int64)
        out = None
        if not shard.is_sparse:
            out = np.zeros((height, shard.width), dtype=task.precision.working)
        if isinstance(shard.matrix, Streamed):
            rows = out  # nothing of it is there yet
        else:
            rows = task.backend.gather(shard.matrix, numbers, out)
        weights = task.backend.zeros((shard.width, task.columns))
        margins = np.empty((height, task.columns), dtype=task.margin_dtype)
        task.backend.scores(rows, weights, margins)
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
    columns = Columns(grid, loaded.shard.parts, product.holds_all_columns)
    parts = Parts(
        config, words, grid, loaded, task, product, name, look_ahead, feed, columns
    )
    capture, engine = make_engine(parts, callbacks)
    return Live(
        config=config,
        grid=grid,
        loaded=loaded,
        task=task,
        product=product,
        product_name=name,
        look_ahead=look_ahead,
        feed=feed,
        columns=columns,
        capture=capture,
        engine=engine,
        state=_first_state(config, task, columns, engine.agreement),
    )


def _task(words: Vocabulary, grid: Grid, loaded: Loaded) -> Task:
    sparse, backend = loaded.shard.is_sparse, words.backend
    return Task(
        shard=loaded.shard,
        backend=backend.for_sparse() if sparse else backend,
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
        shape = Shape(
            words.members,
            largest.stop,
            loaded.shard.total_columns,
            again,
            loaded.stored / loaded.shard.total_rows,
            loaded.shard.is_sparse,
        )
        name = choose_product(shape, config.schedule, words.precision)
    if name in KEEPS and sampling.mode != "shuffle-once":
        raise ConfigError(
            f"[products] kind = {name!r} needs batches that come again and [sampling]"
            f" mode = {sampling.mode!r} draws new ones; use mode = 'shuffle-once',"
            f" or kind = {'gather' if name in GATHERS else 'gram'!r}"
        )
    return name, uses_look_ahead(config.products, name, words.latency)


def _product(name: str, look_ahead: bool, task: Task) -> Product:
    if look_ahead:
        return LookAheadGram(task)
    product: Product
    if name in GATHERS:
        widths = tuple(part.stop - part.start for part in task.shard.parts)
        product = get_product(name)(task, widths)
    else:
        product = get_product(name)(task)
    return product


def _feed(config: RunConfig, words: Vocabulary, grid: Grid, loaded: Loaded) -> Feed:
    schedule, rows = config.schedule, loaded.shard.total_rows
    own = plan_groups(loaded.shard.height, schedule.batch, schedule.steps)
    rate = make_rate(config.rate, schedule.epochs * steps_in(own))
    planner = Planner(words.update, config.problem.l2, rate.at, words.backend)
    matrix = loaded.shard.matrix
    follow = matrix.follow if isinstance(matrix, Streamed) else None
    return make_feed(config, planner, rows, grid.replicas.size, grid.replica, follow)


def _first_state(
    config: RunConfig, task: Task, columns: Columns, agreement: Agreement
) -> State:
    height, width = columns.own.stop - columns.own.start, task.states * task.columns
    intercept = np.zeros((task.states, task.columns))
    state = State(
        weights=task.backend.zeros((height, width)),
        intercept=intercept if config.problem.intercept else None,
    )
    agreement.prepare(state)
    return state

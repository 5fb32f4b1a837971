"""What this machine can do, measured on the data at hand in well under two seconds.

Every rank measures the same things in the same order, so that the sums in between meet;
the slowest of them counts, since ranks wait for each other.
"""

from collections.abc import Callable
from functools import reduce
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.base import Plain
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.workspace import Workspace
from hpcsgd.cost import Machine
from hpcsgd.data.shard import Shard
from hpcsgd.products.base import (
    Group,
    Rows,
    Scratch,
    State,
    Task,
    batch_of,
    gather_rows,
)
from hpcsgd.products.direct import one_by_one
from hpcsgd.products.gram import Gram
from hpcsgd.products.plan import Planner
from hpcsgd.schedule import Blocks, uniform_blocks
from hpcsgd.timed_tasks import of_columns, task_alone
from hpcsgd.updates import make_update

Array = NDArray[Any]
STEPS = 8  # of what is timed
LONG = 2**16  # words of a long message
PASS = 2**20  # bytes of rows that passes are timed on, where there are as many
FEW = 8  # columns of what is as good as no data
REPEATS = 5
PASSES = 9  # over rows: tens of microseconds each


def calibrate(task: Task, batch: int, world: Communicator) -> Machine:
    """The rates of the slowest rank of the world; called by all of them together.

    Of the world, not of the members alone: all replicas have to choose alike.
    """
    latency, per_byte = _network(task.members, task.margin_dtype, batch)
    own = Machine(latency=latency, per_byte=per_byte, **_rates(task, batch))
    everyone: list[Machine] = world.exchange_objects(own)
    return reduce(Machine.slowest, everyone)


def _network(members: Communicator, dtype: Any, batch: int) -> tuple[float, float]:
    """α and β of sums, with all that surrounds them."""
    if members.size == 1:
        return 0.0, 0.0
    short = _seconds_of_sum(members.workspace(batch, dtype), 4 * REPEATS)
    long = _seconds_of_sum(members.workspace(LONG, dtype), REPEATS)
    moved = 2.0 * (members.size - 1) / members.size * LONG * np.dtype(dtype).itemsize
    return short, max(long - short, 0.0) / moved


def _seconds_of_sum(workspace: Workspace, repeats: int) -> float:
    def send() -> None:
        workspace.array[...] = 0
        workspace.sum("control")

    return _seconds(send, repeats)


def _rates(task: Task, batch: int) -> dict[str, float]:
    """What one member does between two messages."""
    shard = task.shard
    blocks = uniform_blocks(batch, max(min(STEPS, shard.height // batch), 1))
    plain = task_alone(task)
    order = np.random.default_rng(0).permutation(shard.height)
    each = shard.width * value_bytes(shard)  # bytes of a row
    # Enough of narrow rows for a call of microseconds to be nothing beside them.
    sizes = (max(blocks.rows, min(shard.height, int(PASS / each))), blocks.rows)
    read, again = fastest_of(
        lambda i: time_passes(plain, np.roll(order, -i * sizes[0])[: sizes[0]])
    )
    (steps,) = fastest_of(
        lambda i: _steps(plain, np.roll(order, -i * sizes[0])[: sizes[0]], batch)
    )
    steps = min(steps, read + again)
    (gram,) = fastest_of(
        lambda i: time_gram(plain, np.roll(order, -i * sizes[1]), blocks)
    )
    words, size = blocks.gram_words, sizes[0] * each
    exchange, step = _overheads(plain, batch)
    inner, link = _recurrence(plain, blocks)
    return {
        "gram": max(words, 1) * shard.width / gram,
        "read": size / read,
        "again": size / again,
        "plain": size / max(steps - sizes[0] * link, steps / 4),
        "inner": max(words, 1) / inner,
        "link": link,
        "exchange": exchange,
        "step": step,
    }


def time_passes(task: Task, rows: Array) -> tuple[float, float]:
    """Seconds of scores on rows from memory, and of the update after them."""
    shard, backend = task.shard, task.backend
    weights = backend.zeros((shard.width, task.columns))
    margins = np.empty((len(rows), task.columns), dtype=task.margin_dtype)
    residuals = np.zeros((len(rows), task.columns), dtype=_inner(task))
    plan, room = _group(task, rows, (len(rows),)).plan, _room(task, len(rows))
    began = perf_counter()
    sampled: Rows = backend.gather(*shard.at(rows), room)
    backend.scores(sampled, weights, margins)
    read = perf_counter()
    backend.descend(weights, sampled, residuals, plan)
    return read - began, perf_counter() - read


def _steps(task: Task, rows: Array, batch: int) -> tuple[float]:
    """Seconds of plain steps on rows from memory, where one call takes them all."""
    sizes = [batch] * (len(rows) // batch)
    sizes += [len(rows) - sum(sizes)] if sum(sizes) < len(rows) else []
    group, belongs = _group(task, rows, tuple(sizes)), batch_of(task, rows)
    weights = task.backend.zeros((task.shard.width, task.columns))
    sampled = task.backend.gather(*task.shard.at(rows), _room(task, len(rows)))
    known = (group.blocks, group.coefficients.plain, task.family, belongs, None)
    began = perf_counter()
    found = task.backend.walk(weights, Plain(sampled, *known))
    return (float("inf") if found is None else perf_counter() - began,)


def time_gram(task: Task, order: Array, blocks: Blocks) -> tuple[float]:
    """Seconds of the Gram of the first rows of `order`."""
    rows = order[: blocks.rows]
    packed = np.ones(blocks.gram_words, dtype=_inner(task))  # touched
    sampled: Rows = task.backend.gather(*task.shard.at(rows), _room(task, len(rows)))
    began = perf_counter()
    task.backend.strict_gram(sampled, blocks, packed)
    return (perf_counter() - began,)


def _room(task: Task, rows: int) -> Array | None:
    """Where a copy of sampled rows may go, touched: a run does that once, not here."""
    if task.shard.is_sparse:
        return None
    room = np.empty((rows, task.shard.width), dtype=task.precision.working)
    room.fill(0)
    return room


def fastest_of(sample: Callable[[int], tuple[float, ...]]) -> tuple[float, ...]:
    """Of each of its times, after one that wakes everything.

    What others do on the machine only ever adds, and hits one rate more than another:
    the shortest times say what products take beside each other.
    """
    sample(0)
    samples = [sample(i) for i in range(1, PASSES + 1)]
    return tuple(max(min(values), 1e-9) for values in zip(*samples, strict=True))


def _recurrence(task: Task, blocks: Blocks) -> tuple[float, float]:
    """Seconds of the recurrence beyond its links, and of the link of one row."""
    whole = _residuals(task, blocks)
    links = _residuals(task, uniform_blocks(blocks.rows, 1))
    return max(whole - links, 1e-9), links / blocks.rows


def _residuals(task: Task, blocks: Blocks) -> float:
    rows = np.arange(blocks.rows) % task.shard.height
    group, batch = _group(task, rows, blocks.sizes), batch_of(task, rows)
    margins = np.zeros((blocks.rows, task.columns), dtype=task.margin_dtype)
    packed = np.zeros(blocks.gram_words, dtype=_inner(task))
    return _seconds(
        lambda: task.backend.corrected_residuals(
            margins, packed, group.plan, task.family, batch, None
        ),
        REPEATS,
    )


def _overheads(task: Task, batch: int) -> tuple[float, float]:
    """Seconds around an exchange, and around a plain step that messages part.

    Of so little data that arithmetic is nothing beside them.
    """
    task = of_columns(task, FEW)
    shard = task.shard
    few = min(4, batch, shard.height)
    steps = max(min(STEPS, shard.height // few), 1)
    weights = task.backend.zeros((shard.width, task.columns))
    state = State(weights=weights, intercept=None)
    product, rows = Gram(task), np.arange(few * steps, dtype=np.int64)
    group = _group(task, rows, (few,) * steps)
    exchange = _seconds(lambda: product.advance(state, group, None), REPEATS)
    one, many = (_seconds(_stepping(task, few, n), REPEATS) for n in (1, steps))
    # What surrounds all steps together is in the first of them, and counted above.
    return exchange, max((many - one) / max(steps - 1, 1), many / steps / 4)


def _stepping(task: Task, few: int, steps: int) -> Callable[[], None]:
    """So many plain steps of a few rows, one after the other, messages left out."""
    rows, scratch = np.arange(few * steps, dtype=np.int64), Scratch()
    group = _group(task, rows, (few,) * steps)
    weights = task.backend.zeros((task.shard.width, task.columns))
    state = State(weights=weights, intercept=None)
    margins = np.empty(few * task.columns, dtype=task.margin_dtype)

    def step_by_step() -> None:
        sampled, batch = gather_rows(task, scratch, "rows", group), batch_of(task, rows)
        known = (group.blocks, group.coefficients.plain, task.family, batch, None)
        by_kernel = task.backend.stepwise(weights, Plain(sampled, *known))
        if by_kernel is None:
            one_by_one(task, state, group, sampled, batch, scratch)
            return
        by_kernel[0](-1, None, margins)
        for j in range(steps):
            by_kernel[0](j, margins, margins)

    return step_by_step


def _group(task: Task, rows: Array, sizes: tuple[int, ...]) -> Group:
    """Steps of no length: what is timed changes nothing."""
    update = make_update("sgd", 0.0)
    planner = Planner(update, 0.0, lambda _, count: np.zeros(count), task.backend)
    return planner.group(0, 0, rows, sizes, 0)


def _inner(task: Task) -> Any:
    """The dtype that residuals are computed in."""
    return task.no_gram.dtype


def value_bytes(shard: Shard) -> float:
    """Of a value as it is stored; of sparse rows, per column."""
    if shard.is_sparse:
        matrix: Any = shard.matrix
        held = matrix.data.nbytes + matrix.indices.nbytes
        return float(max(held / (shard.height * shard.width), 1e-9))
    return float(shard.matrix.dtype.itemsize)


def _seconds(action: Callable[[], Any], repeats: int) -> float:
    """The median, after one that wakes everything."""
    action()
    times = []
    for _ in range(repeats):
        began = perf_counter()
        action()
        times.append(perf_counter() - began)
    return float(median(times))

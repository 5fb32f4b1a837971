"""What every product shares: the task, the state, one exchange's group of rows."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.base import Backend, Batch
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.narrow import open_message
from hpcsgd.comm.workspace import Message
from hpcsgd.data.shard import Shard, take
from hpcsgd.families.base import Family
from hpcsgd.formats import get_format
from hpcsgd.models import Models
from hpcsgd.precision import Precision
from hpcsgd.products.clip import Clip
from hpcsgd.products.watcher import UNWATCHED, Unwatched
from hpcsgd.schedule import Blocks
from hpcsgd.timing import Clock

Array = NDArray[Any]


class Taker(Protocol):
    """Takes what would be added to the weights, before it is."""

    def descend(
        self, task: "Task", state: "State", rows: "Rows", residuals: Array, plan: Any
    ) -> None:
        """What becomes of the gradient Yᵀr of one step."""


class Sharing(Taker, Protocol):
    """Takes gradients to share them, and knows where the weights are."""

    def scores(
        self, task: "Task", state: "State", rows: "Rows", point: Array, out: Array
    ) -> None:
        """out ← Y w of this member, whose weights may come tile by tile."""


@dataclass(frozen=True)
class Task:
    """What one member works on and with; nothing in it evolves."""

    shard: Shard
    backend: Backend
    members: Communicator
    family: Family
    precision: Precision
    columns: int  # K
    states: int  # 1, or 2 with momentum
    probe: Array  # q: scores are read at q · (w, v)
    clock: Clock
    clip: Clip | None = None
    gradient: Sharing | None = None  # shares it with other replicas, before any step
    monitor: Unwatched = UNWATCHED  # checks the recurrence now and then
    anchored: bool = False  # residuals are less those at the second state
    models: Models | None = None  # several at once, `columns` of all of them together

    @property
    def taker(self) -> Taker | None:
        """Who takes every update before it is added; None: kernels may add it."""
        return self.gradient or self.clip

    @cached_property
    def margin_dtype(self) -> Any:
        """z as it is accumulated and summed over members."""
        return get_format(self.precision.margin_sum).carrier

    @cached_property
    def no_gram(self) -> Array:
        """The packed Gram of one step: nothing lies strictly below one block."""
        return np.empty(0, dtype=get_format(self.precision.inner).carrier)


@dataclass
class State:
    """What evolves: the weights of this member, and what all members hold."""

    weights: Array  # (columns held, states · K)
    intercept: Array | None  # (states, K), the same on every member
    residuals: Array | None = None  # of the last exchange, the same on every member
    # What agreements and codecs keep between calls, one row a column held: checkpoints
    # save it by name.
    memory: dict[str, Array] = field(default_factory=dict)
    # And arrays of any shape, each rank's own: saved for the same grid alone.
    kept: dict[str, Array] = field(default_factory=dict)
    # And what they keep beside the intercept: (k, K), the same on every member.
    shared: dict[str, Array] = field(default_factory=dict)

    def remember(self, name: str, width: int) -> Array:
        """The kept array of that name, zeros at first: `width` words a column held."""
        if name not in self.memory:
            shape = len(self.weights), width
            self.memory[name] = np.zeros(shape, dtype=self.weights.dtype)
        return self.memory[name]

    def look_at(self, name: str) -> Any:
        """One of its arrays, to be read: where it lives elsewhere, it stays there."""
        return getattr(self, name)

    def glance(self) -> "State":
        """The same, to be read: where it lives elsewhere, it stays there."""
        return self

    def portion(self, share: float, group: Communicator) -> Array:
        """What evolves, times `share`, in one array that `group` can sum."""
        parts = [self.weights.reshape(-1)]
        if self.intercept is not None:
            parts.append(self.intercept.reshape(-1).astype(self.weights.dtype))
        buffer: Array = np.concatenate(parts)
        buffer *= share
        return buffer

    def become(self, total: Array) -> Array | None:
        """Such an array from now on; the intercept of it, to be written to."""
        weights, intercept = self.weights, self.intercept
        weights[...] = total[: weights.size].reshape(weights.shape)
        if intercept is not None:
            intercept[...] = total[weights.size :].reshape(intercept.shape)
        return intercept


@dataclass(frozen=True)
class Group:
    """The s batches of one exchange."""

    index: int  # of the exchange in its epoch
    epoch: int
    rows: Array  # local row numbers, m of them
    coefficients: Any  # `Coefficients` of hpcsgd.products.plan
    order: Array | None = None  # of all rows of the epoch, of which `rows` are a part
    first: int = 0  # where they begin there

    @property
    def place(self) -> tuple[Array, int]:
        """The order that the rows come from, and where they begin in it."""
        return (self.rows, 0) if self.order is None else (self.order, self.first)

    @property
    def blocks(self) -> Blocks:
        """Where each batch begins."""
        blocks: Blocks = self.coefficients.blocks
        return blocks

    @property
    def plan(self) -> Any:
        """The backend's coefficients for all s steps."""
        return self.coefficients.plan

    @property
    def steps(self) -> tuple[Any, ...]:
        """And for each step alone."""
        steps: tuple[Any, ...] = self.coefficients.steps
        return steps


# Sampled rows are an array, or what the backend has for sparse ones: both have a length
# and give slices of rows.
Rows = Any


class Product(Protocol):
    """How members get through s steps with one synchronisation."""

    holds_all_columns: bool  # True: every member holds w whole

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """The state after the steps of `group`; `upcoming` may be begun early."""

    def finish(self) -> None:
        """Settle what was begun early and will not be used."""


class Scratch:
    """Arrays that are used again: one for each name and shape."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, ...], Array] = {}
        self._messages: dict[tuple[Any, ...], Message] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array, the same one for the same arguments."""
        key = (name, shape, dtype)
        found = self._arrays.get(key)
        if found is None:
            found = self._arrays[key] = np.empty(shape, dtype=dtype)
        return found

    def message(
        self,
        members: Communicator,
        name: str,
        words: int,
        form: str,
        travels: bool = False,
    ) -> Message:
        """What members sum in format `form`, the same one for the same arguments.

        It is opened where it is first summed: members that sum in one order, as they
        must, open in one order too. `travels`: it is started, and waited for later.
        """
        key = (name, words, form, travels)
        found = self._messages.get(key)
        if found is None:
            found = open_message(members, words, form, travels)
            self._messages[key] = found
        return found


def batch_of(task: Task, rows: Array) -> Batch:
    """Targets, weights and offsets of the sampled rows."""
    shard = task.shard
    targets = np.take(shard.targets, rows, axis=0)
    if shard.weights is None and shard.offsets is None:
        return Batch(targets, None, None)
    weights = take(shard.weights, rows)
    if task.models is not None:
        weights = task.models.of_columns(weights)
    return Batch(targets, weights, take(shard.offsets, rows))


def gather_rows(task: Task, scratch: Scratch, name: str, group: Group) -> Rows:
    """The sampled rows of this member's columns, widened."""
    out = None
    if not task.shard.is_sparse:
        shape = (group.blocks.rows, task.shard.width)
        out = scratch.array(name, shape, task.precision.working)
    rows = task.backend.gather(*task.shard.at(group.rows), out)
    task.clock.lap("gather")
    return rows


def store_margins(task: Task, margins: Array) -> Array:
    """Round the summed margins to the format they are stored in."""
    stored, summed = task.precision.margin, task.precision.margin_sum
    if get_format(stored).unit_roundoff > get_format(summed).unit_roundoff:
        # What several members read in place is not for one of them to write.
        margins = margins if margins.flags.writeable else margins.copy()
        task.backend.round(margins, stored)
    return margins


def iterate(
    task: Task, state: State, group: Group, rows: Rows, margins: Array, gram: Array
) -> State:
    """The s steps themselves: residuals from summed products, then the update."""
    seen = task.monitor.before(state, group, margins)
    margins, batch = store_margins(task, margins), batch_of(task, group.rows)
    if task.anchored:
        batch = replace(batch, anchors=margins[:, task.columns : 2 * task.columns])
    state.residuals = task.backend.corrected_residuals(
        margins,
        gram,
        group.plan,
        task.family,
        batch,
        movable_intercept(task, state),
    )
    task.clock.lap("inner")
    if seen is not None:
        task.monitor.after(seen, task, state, group, rows, gram)
    descend(task, state, rows, state.residuals, group.plan)
    task.clock.lap("update")
    return state


def descend(task: Task, state: State, rows: Rows, residuals: Array, plan: Any) -> None:
    """weights ← Φ weights + Σ_i gain_i Y_iᵀ r_i, unless somebody takes that before."""
    if task.taker is None:
        task.backend.descend(state.weights, rows, residuals, plan)
    else:
        task.taker.descend(task, state, rows, residuals, plan)


def score(task: Task, state: State, rows: Rows, point: Array, out: Array) -> None:
    """out ← Y w of this member, by whoever holds the weights."""
    if task.gradient is None:
        task.backend.scores(rows, point, out)
    else:
        task.gradient.scores(task, state, rows, point, out)


def movable_intercept(task: Task, state: State) -> Array | None:
    """What residuals move along: a copy, where replicas agree on its gradient first."""
    if task.gradient is None or state.intercept is None:
        return state.intercept
    return state.intercept.copy()

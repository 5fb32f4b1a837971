"""What every product works with: the task, the state, the rows of an exchange."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from hpcsgd.backends.base import Backend, DeviceCopy
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import Clock, SentWords
from hpcsgd.comm.messages import bytes_of_word, sent_for_sum
from hpcsgd.data.shard import Shard
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, get_format
from hpcsgd.glm import unroll
from hpcsgd.glm.families import Family
from hpcsgd.glm.penalties import Models
from hpcsgd.glm.unrolling import (
    Blocks,
    ManyUnrolledSteps,
    PlainSteps,
    UnrolledSteps,
    blocks_of,
    one_step_many,
    plain_steps,
    unroll_many,
)
from hpcsgd.glm.updates import LinearUpdate
from hpcsgd.precision import Precision

if TYPE_CHECKING:  # a run without a GPU needs none of these
    from hpcsgd.backends.cuda.weights import DeviceCopies

# What watches the products from inside: here nobody does, `gap` has one who does.


class NoMonitor:
    """The protocol of a monitor, and the one of a run without.

    The message that carries margins has room for `words` more; `post` fills them and
    `judge` reads their sum. `before` and `after` stand around the residuals of every
    exchange.
    """

    words = 0  # of this member that wait for the next message
    checks = 0  # at the recurrence that ended in a verdict
    alarm: dict[str, Any] | None = None  # what was found, until somebody takes it

    def begin(
        self,
        done: int,
        plans: list[tuple[int, ...]],
        trains: Callable[[int], bool] = lambda number: True,
    ) -> None:
        """A run goes on after exchange `done`; `plans` are the batches of an epoch.

        `trains` says of an exchange, from 1, whether this replica takes part in it.
        """

    def is_due(self, group: Any) -> bool:
        """Whether `before` will want to see this exchange."""
        return False

    def post(self, room: Array) -> None:
        """Put what waits into its place in the message."""

    def judge(self, total: Array) -> None:
        """Compare what the members' words add up to with what it should be."""

    def before(self, state: Any, group: Any, margins: Array) -> Any:
        """What `after` needs of the state ahead of the steps; None: no look is due."""

    def after(
        self, seen: Any, task: Any, state: Any, group: Any, rows: Any, gram: Array
    ) -> None:
        """Check residuals, and walk: the weights are still those before the steps."""


NO_MONITOR = NoMonitor()


# Gradients that are too large, made smaller: value by value, or in norm.
#
# What is clipped is the gradient of the data, g = Yᵀr/b: neither the penalty nor the
# intercept. One step at a time this is what it says. Where s steps are taken together
# no step's own gradient is known before the next; clipping `over` the exchange is
# another method, by that name: the sum of the s steps is clipped as one step of all
# their rates, that is, the mean of their gradients, weighted by rate.

WAYS = ("none", "value", "norm", "percentile")  # the last where gradients are shared
OVERS = ("step", "exchange")
TOGETHER = ("gram", "cached")  # products that take s steps at once


@dataclass
class Clip:
    """Applied by every member to its own columns, alike on all of them."""

    how: str
    at: float
    clipped: int = 0  # updates that were made smaller
    _word: Array = field(default_factory=lambda: np.zeros(1))

    def apply_update(
        self, task: "Task", state: "State", rows: "Rows", residuals: Array, plan: Any
    ) -> None:
        """weights ← Φ weights + clipped Σ_i gain_i Y_iᵀ r_i."""
        moved = np.zeros_like(state.weights)
        task.backend.apply_update(moved, rows, residuals, plan)
        parts = moved.reshape(len(moved), task.states, -1)
        sizes = np.array(plan.blocks.sizes, dtype=np.float64)
        limits = self.at * (np.abs(plan.unrolled.gain) * sizes[:, None]).sum(axis=0)
        if self.how == "value":
            self._by_value(parts, limits)
        else:
            self._by_norm(task, parts, float(limits[0]))
        carried = np.einsum(
            "pq,dqk->dpk",
            plan.unrolled.carry.astype(state.weights.dtype),
            state.weights.reshape(parts.shape),
        )
        state.weights[...] = (carried + parts).reshape(moved.shape)

    def _by_value(self, parts: Array, limits: Array) -> None:
        bound = limits.astype(parts.dtype)[:, None]
        self.clipped += int((np.abs(parts) > bound).any())
        np.clip(parts, -bound, bound, out=parts)

    def _by_norm(self, task: "Task", parts: Array, limit: float) -> None:
        """Every state is the same gradient times its own gain: one factor for all."""
        word = self._word
        word[0] = np.square(parts[:, 0], dtype=np.float64).sum()
        if len(parts) != task.shard.total_columns:
            task.members.sum(word, "products")
        size = float(np.sqrt(word[0]))
        if size > limit:
            parts *= parts.dtype.type(limit / size)
            self.clipped += 1


def make_clip(how: str, at: float) -> Clip | None:
    """Return what clips as a configuration asks for; None where nothing is clipped."""
    return None if how == "none" else Clip(how, at)


def may_clip(product: str, steps: int, over: str) -> bool:
    """Whether this product has what is to be clipped before it goes on."""
    return over == "exchange" or product not in TOGETHER or steps == 1


def refuse(product: str, how: str) -> ConfigError:
    """Why it has not."""
    return ConfigError(
        f"[update] clip = {how!r} needs the gradient of every step, and {product} knows"
        " that of s steps together; use --products direct or gather, or --steps 1, or"
        " set update.clip_over = 'exchange', which clips their mean instead"
    )


# What every product shares: the task, the state, one exchange's group of rows.


class GradientSink(Protocol):
    """Takes what would be added to the weights, before it is."""

    def apply_update(
        self, task: "Task", state: "State", rows: "Rows", residuals: Array, plan: Any
    ) -> None:
        """Take the gradient Yᵀr of one step."""


class GradientReducer(GradientSink, Protocol):
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
    gradient: GradientReducer | None = (
        None  # shares it with other replicas, before any step
    )
    monitor: NoMonitor = NO_MONITOR  # checks the recurrence now and then
    anchored: bool = False  # residuals are less those at the second state
    models: Models | None = None  # several at once, `columns` of all of them together

    @property
    def gradient_sink(self) -> GradientSink | None:
        """The sink of every update before it is added; None: kernels may add it."""
        return self.gradient or self.clip

    @cached_property
    def margin_dtype(self) -> Any:
        """z as it is accumulated and summed over members."""
        return get_format(self.precision.margin_sum).carrier

    @cached_property
    def no_gram(self) -> Array:
        """The packed Gram of one step: nothing lies strictly below one block."""
        return np.empty(0, dtype=get_format(self.precision.inner).carrier)


class HostCopy:
    """A field of `State`, which may be stored on a device: the host's copy.

    It is copied when it is read, and may be written to.
    """

    def __init__(self, is_optional: bool = False) -> None:
        self.is_optional = is_optional

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, state: "State | None", owner: type) -> Any:
        if state is None:  # `dataclass` asks for the default of the field
            if not self.is_optional:
                raise AttributeError(self.name)
            return None
        fields = state.__dict__
        if fields.get("copies") is None:  # in each step of a host
            return fields[self.name]
        copy = state.device_copy(self.name)
        return fields[self.name] if copy is None else copy.on_host()

    def __set__(self, state: "State", values: Any) -> None:
        fields = state.__dict__
        if fields.get("copies") is None:
            fields[self.name] = values
            return
        copy = state.device_copy(self.name)
        if copy is None or values is None:
            fields[self.name] = values
        else:
            copy.replace(values)


@dataclass
class State:
    """What evolves: the weights of this member, and what all members hold.

    Once it was placed on a device, an exchange reads and writes the device's copies.
    Who reads a field of it reads an array of the host, which comes then, and goes back
    when the next exchange begins; what is only read (`host_array`, `host_state`) is not
    sent back.
    """

    # (columns held, states · K)
    weights: Array = cast(Array, HostCopy())
    # (states, K), the same on every member
    intercept: Array | None = cast(Array, HostCopy())
    # of the last exchange, the same on every member
    residuals: Array | None = cast(Array, HostCopy(is_optional=True))
    # What agreements and codecs keep between calls, one row a column held: checkpoints
    # save it by name.
    memory: dict[str, Array] = field(default_factory=dict)
    # And arrays of any shape, each rank's own: saved for the same grid alone.
    rank_arrays: dict[str, Array] = field(default_factory=dict)
    # And what they keep beside the intercept: (k, K), the same on every member.
    shared: dict[str, Array] = field(default_factory=dict)
    copies: "DeviceCopies | None" = field(default=None, init=False)  # None: on a host

    def place(self, copies: "DeviceCopies") -> None:
        """Have exchanges read and write the copies of a device from now on."""
        self.copies = copies

    def device_copy(self, name: str) -> DeviceCopy | None:
        """Return the copy of one of its arrays, or of `memory`, on a device."""
        copies = vars(self).get("copies")  # not yet, while it is made
        if copies is None:
            return None
        kept = getattr(self.memory, "mirrors", {})
        copy: DeviceCopy | None = kept.get(name) or copies.arrays.get(name)
        return copy

    def remember(self, name: str, width: int) -> Array:
        """The kept array of that name, zeros at first: `width` words a column held."""
        if name not in self.memory:
            shape = len(self.weights), width
            self.memory[name] = np.zeros(shape, dtype=self.weights.dtype)
        return self.memory[name]

    @property
    def scale(self) -> float:
        """Return what weights on a device are divided by."""
        return 1.0 if self.copies is None else self.copies.scale

    def on_device(self, name: str) -> Any:
        """Return one of its arrays, or of `memory`, where steps are taken.

        It is to be read and written there; None where the state has no such array.
        """
        copy = self.device_copy(name)
        if copy is not None:
            return copy.on_device()
        return self.memory[name] if name in self.memory else getattr(self, name)

    def mark_written(self, name: str) -> None:
        """Note that one of its arrays was written where steps are taken."""
        copy = self.device_copy(name)
        if copy is not None:
            copy.written()

    def written(self, residuals: Any) -> None:
        """Note that an exchange on a device wrote it, and made these residuals."""
        assert self.copies is not None
        self.copies.written(residuals)

    def host_array(self, name: str) -> Any:
        """Return one of its arrays to be read; where it is stored on a device, it stays
        there.
        """
        copy = self.device_copy(name)
        return getattr(self, name) if copy is None else copy.host_view()

    def host_state(self) -> "State":
        """Return weights and intercept to be read; arrays on a device stay there."""
        if self.copies is None:
            return self
        return State(
            weights=self.host_array("weights"),
            intercept=self.host_array("intercept"),
            memory=self.memory,
            rank_arrays=self.rank_arrays,
            shared=self.shared,
        )

    def portion(self, share: float, group: Communicator) -> Any:
        """What evolves, times `share`, in one array that `group` can sum.

        It is on the device, where the group sums arrays of devices.
        """
        if self.copies is not None and self.copies.sums(group):
            return self.copies.portion(share)
        weights, intercept = self.host_array("weights"), self.host_array("intercept")
        parts = [weights.reshape(-1)]
        if intercept is not None:
            parts.append(intercept.reshape(-1).astype(weights.dtype))
        buffer: Array = np.concatenate(parts)
        buffer *= share
        return buffer

    def become(self, total: Any) -> Any:
        """Such an array from now on; the intercept of it, to be written to."""
        if self.copies is not None and self.copies.has_made(total):
            return self.copies.become()
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
    coefficients: Any  # `ExchangeCoefficients` of hpcsgd.products.base
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


@dataclass(frozen=True)
class ExchangeMessage:
    """What a member gives to others in one step of an exchange, before formats.

    `field` names the field of a `Precision` whose format the words travel in. A column
    number of `index` bytes goes with each word of sparse rows.
    """

    words: int
    field: str
    is_gathered: bool = False  # else it is summed
    index: int = 0

    def sent(
        self, precision: Precision, members: int, reproducible: bool
    ) -> Iterator[SentWords]:
        """Yield the collectives that member 0 sends it in."""
        name = getattr(precision, self.field)
        if not self.is_gathered:
            yield from sent_for_sum(self.words, name, members, reproducible)
        elif members > 1:
            value = get_format(name).dtype.itemsize
            piece = min(value, 2) if self.index else value
            size = self.words * (self.index + value)
            yield SentWords(size // piece, size)


@dataclass(frozen=True)
class ExchangeShape:
    """The sizes that decide what member 0 sends in one exchange."""

    sizes: tuple[int, ...]  # rows of each batch
    scores: int = 1  # K, columns of weights
    states: int = 1  # 1, or 2 with momentum
    local_columns: int = 0  # of member 0
    stored: int | None = None  # values of sparse rows in these columns
    one_message: bool = True  # G and z travel together
    monitor_words: int = 0  # of the recurrence monitor, behind the margins
    epoch: int = 0
    is_kept: bool = False  # the product has met these rows before

    @property
    def gram(self) -> ExchangeMessage:
        """The packed Gram."""
        return ExchangeMessage(blocks_of(self.sizes).gram_words, "gram_wire")

    @property
    def margins(self) -> ExchangeMessage:
        """The margins of all rows, and the words of the monitor behind them."""
        words = sum(self.sizes) * self.scores * self.states + self.monitor_words
        return ExchangeMessage(words, "margin_sum")


COPIES = 8  # of sampled sparse values, with their columns and places, in words
VECTORS = 4  # margins, residuals, scaled ones, targets: words of a row and state


@dataclass(frozen=True)
class MemoryShape:
    """The sizes that decide what a member holds for its exchanges."""

    rows: int = 0  # m, of one exchange
    local_columns: int = 0
    columns: int = 0  # of all members
    states: int = 1
    members: int = 1
    working: int = 4  # bytes of a value that is computed with
    matrix: float = 4  # bytes of a value as it is stored
    density: float | None = None  # share of the values that sparse rows store
    gram_words: int = 0
    gram_size: int = 4  # bytes of a word of Gram that is computed with
    gram_wire: str = "fp32"  # format in which members sum it
    # Of all exchanges of an epoch:
    all_rows: int = 0
    all_gram_words: int = 0

    def sampled(self, columns: int) -> int:
        """Bytes of sparse rows in so many columns, with what is worked out of them."""
        stored = int(self.rows * columns * (self.density or 0.0))
        return 2 * COPIES * stored * self.working

    def own_rows(self) -> int:
        """Bytes of sampled rows in the own columns, as they are stored and widened."""
        if self.density is not None:
            return self.sampled(self.local_columns)
        narrow = self.matrix if self.matrix < self.working else 0
        return int(self.rows * self.local_columns * (self.working + narrow))

    def vectors(self) -> tuple[str, int]:
        """Margins and what follows from them, by name."""
        return "vectors", VECTORS * self.rows * self.states * self.working

    def message(self, ahead: bool = False) -> tuple[str, int]:
        """The Gram in messages, by name; `ahead`: the next one is under way, too.

        In memory that ranks of a node share that is the slot of this rank, the total,
        and a slice of the slots of all others.
        """
        word = float(bytes_of_word(self.gram_wire, self.members))
        second = 2 * word if ahead else 0.0
        if self.members > 1 and word == self.gram_size:
            word *= 3 - 1 / self.members
        return "messages", int(self.gram_words * max(word, second))


class Product(Protocol):
    """How members get through s steps with one synchronisation."""

    holds_all_columns: bool  # True: every member holds w whole

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """The state after the steps of `group`; `upcoming` may be begun early."""

    def finish(self) -> None:
        """Settle what was begun early and will not be used."""


# Groups with their coefficients: the bridge from sampled rows to an exchange.

KEPT = 16  # coefficients remembered; a constant rate needs two or three


class ExchangeCoefficients:
    """Those of one exchange, in each form that a product may ask for.

    A form is prepared when it is first asked for: with rates that change all the time
    every exchange has coefficients of its own, and uses one form of them.
    """

    def __init__(
        self,
        update: LinearUpdate,
        l2: float,
        backend: Backend,
        rates: list[float],
        sizes: tuple[int, ...],
    ) -> None:
        self.update = update
        self.l2 = l2
        self.backend = backend
        self.rates = rates
        self.blocks = blocks_of(sizes)

    @cached_property
    def whole(self) -> UnrolledSteps:
        """Of all s steps together, in float64."""
        return unroll(self.update, self.rates, self.blocks.sizes, self.l2)

    @cached_property
    def plan(self) -> Any:
        """The same, as the backend takes it."""
        return self.backend.prepare(self.whole, self.blocks)

    @cached_property
    def steps(self) -> tuple[Any, ...]:
        """Of each step alone."""
        return tuple(
            self.backend.prepare(self._one_step(rate, size), blocks_of((size,)))
            for rate, size in zip(self.rates, self.blocks.sizes, strict=True)
        )

    @cached_property
    def plain(self) -> PlainSteps:
        """Of each step alone, as the call that takes all of them wants them."""
        return plain_steps(self.update, self.rates, self.blocks.sizes, self.l2)

    def _one_step(self, rate: float, size: int) -> UnrolledSteps:
        """One step whose scores arrive already read at q."""
        one = unroll(self.update, [rate], [size], self.l2)
        return UnrolledSteps(
            lead=np.ones((1, 1)),
            couple=one.couple,
            carry=one.carry,
            gain=one.gain,
            free=one.free,
            push=one.push,
            probe=one.probe,
        )


class ManyCoefficients(ExchangeCoefficients):
    """The same for models of their own penalties; `rates` are (s, settings)."""

    def __init__(
        self,
        update: LinearUpdate,
        models: Models,
        backend: Backend,
        rates: Array,
        sizes: tuple[int, ...],
    ) -> None:
        super().__init__(update, 0.0, backend, [], sizes)
        self.models = models
        self.each = rates
        self.ridges = np.array([l2 for l2, _ in models.settings])

    def only(self, number: int, model: Models) -> "ManyCoefficients":
        """Those of one of the models."""
        own = self.models.setting_of[number * self.models.scores]
        rates, sizes = self.each[:, [own]], self.blocks.sizes
        return ManyCoefficients(self.update, model, self.backend, rates, sizes)

    @cached_property
    def whole(self) -> ManyUnrolledSteps:
        """Of all s steps together, in float64."""
        found = unroll_many(self.update, self.each, self.blocks.sizes, self.ridges)
        return found.of(self.models.setting_of)

    @cached_property
    def steps(self) -> tuple[Any, ...]:
        """Of each step alone."""
        plans = []
        for rates, size in zip(self.each, self.blocks.sizes, strict=True):
            one = one_step_many(self.update, rates, size, self.ridges)
            columns = one.of(self.models.setting_of)
            plans.append(self.backend.prepare(columns, blocks_of((size,))))
        return tuple(plans)


class Planner:
    """Coefficients of any group; the same rates and sizes are prepared once."""

    def __init__(
        self,
        update: LinearUpdate,
        l2: float,
        rates: Callable[[int, int], Array],
        backend: Backend,
        models: Models | None = None,
    ) -> None:
        self.update = update
        self.l2 = l2
        # (first step, count) -> rates of those steps; (s, settings) of several models
        self.rates = rates
        self.backend = backend
        self.models = models
        self._known: OrderedDict[Any, ExchangeCoefficients] = OrderedDict()

    def group(
        self,
        index: int,
        epoch: int,
        rows: Array,
        sizes: tuple[int, ...],
        first_step: int,
        order: Array | None = None,
        first: int = 0,
    ) -> Group:
        """The group of `rows` whose first step is number `first_step` of the run."""
        rates = self.rates(first_step, len(sizes))
        coefficients = self._coefficients(rates, sizes)
        return Group(index, epoch, rows, coefficients, order, first)

    def _coefficients(
        self, rates: Array, sizes: tuple[int, ...]
    ) -> ExchangeCoefficients:
        key = (rates.tobytes(), sizes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._made(rates, sizes)
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found

    def _made(self, rates: Array, sizes: tuple[int, ...]) -> ExchangeCoefficients:
        if self.models is None:
            return ExchangeCoefficients(
                self.update, self.l2, self.backend, rates.tolist(), sizes
            )
        return ManyCoefficients(self.update, self.models, self.backend, rates, sizes)

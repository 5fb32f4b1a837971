"""Task, state, snapshots, coefficients and protocols of the exchanges of one member."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from hpcsgd.backends.base import Backend, DeviceCopy, HostPlan, Rows
from hpcsgd.comm.communicator import Communicator, Pending
from hpcsgd.comm.ledger import Clock
from hpcsgd.data.shard import Shard
from hpcsgd.files import read_sealed, write_sealed
from hpcsgd.formats import Array, get_format
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
    unroll,
    unroll_many,
)
from hpcsgd.glm.updates import LinearUpdate
from hpcsgd.precision import Precision

if TYPE_CHECKING:  # a run without a GPU needs none of these
    from hpcsgd.backends.cuda.weights import DeviceCopies

# What checks the recurrence of an exchange.


class Monitor(Protocol):
    """A check of the recurrence of an exchange against freshly computed scores.

    The message with the margins has room for `words` more words; a GPU sends them in a
    message of their own. `post` writes them and `judge` reads their sum over the
    members. `before` is called before the steps of every exchange, and `after` after
    the residuals of an exchange for which `is_due` was true.
    """

    checks: int  # of the recurrence that were judged
    alarm: dict[str, Any] | None  # the first failed check, until it is taken

    @property
    def words(self) -> int:
        """Return how many words of this member are to be sent with the next message."""

    def begin(
        self,
        done: int,
        plans: list[tuple[int, ...]],
        trains: Callable[[int], bool] = lambda number: True,
    ) -> None:
        """Start or resume after exchange number `done`.

        `plans` are the sizes of the batches in the exchanges of an epoch. `trains`
        returns whether this replica takes part in the exchange with a given number,
        which counts from 1.
        """

    def is_due(self, group: "Group") -> bool:
        """Return whether `before` and `after` check the exchange of `group`."""

    def post(self, room: Array) -> None:
        """Write this member's words to `room`, their place in the message."""

    def judge(self, total: Array) -> None:
        """Compare the sum of the members' words, `total`, with its expected value.

        Set `alarm` if they differ by more than rounding can explain.
        """

    def before(self, state: "State", group: "Group", margins: Array) -> Any:
        """Return what `after` needs of the state before the steps, and of `margins`.

        Return None if this exchange is not checked.
        """

    def after(
        self,
        seen: Any,
        task: "Task",
        state: "State",
        group: "Group",
        rows: Rows,
        gram: Array,
    ) -> None:
        """Check the residuals of an exchange, before its update of the weights.

        `seen` is what `before` returned.
        """


# What takes a gradient instead of the weights.


class GradientSink(Protocol):
    """A consumer of gradients that decides itself how they change the weights."""

    def apply_update(
        self, task: "Task", state: "State", rows: Any, residuals: Array, plan: HostPlan
    ) -> None:
        """Process the gradient Yᵀr of the rows Y with residuals r."""


class GradientReducer(GradientSink, Protocol):
    """A consumer that sums gradients over replicas, and also computes scores.

    `rows` are in the form of the host's backend or, for a device, views of its rows.
    Only the host needs a `plan`.
    """

    def apply_update(
        self,
        task: "Task",
        state: "State",
        rows: Any,
        residuals: Array,
        plan: HostPlan | None,
    ) -> None:
        """Take the gradient Yᵀr of one batch, of rows Y and residuals r.

        It is added to what is sent to the other replicas; the weights change when the
        sum over replicas has arrived.
        """

    def scores(
        self, task: "Task", state: "State", rows: Any, point: Array, out: Array
    ) -> None:
        """Compute this member's part of the scores out ← Y w at w = `point`.

        In a sharded method, w is gathered tile by tile over replicas, and the call is
        collective.
        """


@dataclass
class Clip:
    """A sink that limits gradients of the loss, value by value or in norm.

    Every member clips its own columns, and all members apply the same rule: the norm is
    that of the gradient in all columns.
    """

    how: str  # "value", else in norm
    at: float  # the largest value or norm of a gradient
    clipped: int = 0  # updates that were made smaller
    _word: Array = field(default_factory=lambda: np.zeros(1))

    def apply_update(
        self, task: "Task", state: "State", rows: Rows, residuals: Array, plan: HostPlan
    ) -> None:
        """Compute weights ← Φ weights + clipped Σ_i gain_i Y_iᵀ r_i, over the steps i.

        Φ is the matrix `carry` of the unrolled steps. The limit of the sum is that of
        a mean gradient, `at`, times the sum of the steps' rates.
        """
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
        """Scale all states of the update by one factor if the first exceeds `limit`.

        Each state's update is the same gradient times its own gain. Collective.
        """
        word = self._word
        word[0] = np.square(parts[:, 0], dtype=np.float64).sum()
        if len(parts) != task.shard.total_columns:
            task.members.sum(word, "products")
        size = float(np.sqrt(word[0]))
        if size > limit:
            parts *= parts.dtype.type(limit / size)
            self.clipped += 1


# The task and the state of a member.


@dataclass(frozen=True)
class Task:
    """The data, the arithmetic and the communicator of one member, all constant."""

    shard: Shard
    backend: Backend
    members: Communicator
    family: Family
    precision: Precision
    columns: int  # K
    states: int  # 1, 2 with momentum, or 3 with svrg
    probe: Array  # q: scores are read at q · (w, v)
    clock: Clock
    clip: Clip | None = None  # limits gradients; not used if `gradient` is set
    gradient: GradientReducer | None = None  # shares them with other replicas first
    monitor: Monitor | None = None  # checks the recurrence now and then
    anchored: bool = False  # residuals minus those at the second state
    models: Models | None = None  # several at once; `columns` are those of all

    @property
    def gradient_sink(self) -> GradientSink | None:
        """Return the sink of every gradient; None: kernels update the weights."""
        return self.gradient or self.clip

    @property
    def monitor_words(self) -> int:
        """Return how many words of the monitor are sent with the next margins."""
        return 0 if self.monitor is None else self.monitor.words

    @cached_property
    def margin_dtype(self) -> np.dtype[Any]:
        """Return the dtype in which margins are summed."""
        return get_format(self.precision.margin_sum).carrier

    @cached_property
    def no_gram(self) -> Array:
        """Return an empty array, which is the packed Gram matrix of a single step."""
        return np.empty(0, dtype=get_format(self.precision.inner).carrier)


class HostCopy:
    """A descriptor of a field of `State`, which may be stored on a device.

    Reading the field copies the array of the device to the host and returns it; the
    copy may be written to.
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
    """The weights of this member, and arrays that are equal on all members.

    After `place`, exchanges read and write copies of the fields on a device. Reading a
    field copies its array to the host, and the next exchange copies it back to the
    device. Arrays that are read through `host_array` or `host_state` are not copied
    back.
    """

    # (local columns, states · K)
    weights: Array = cast(Array, HostCopy())
    # (states, K), the same on every member
    intercept: Array | None = cast(Array, HostCopy())
    # of the last exchange, the same on every member
    residuals: Array | None = cast(Array, HostCopy(is_optional=True))
    # What agreements and codecs keep between calls, one row a local column: checkpoints
    # save it by name.
    memory: dict[str, Array] = field(default_factory=dict)
    # Arrays of any shape, different on each rank: checkpoints restore them only on the
    # same grid.
    rank_arrays: dict[str, Array] = field(default_factory=dict)
    # What agreements and codecs keep for the intercept: (k, K), equal on every member.
    shared: dict[str, Array] = field(default_factory=dict)
    copies: "DeviceCopies | None" = field(default=None, init=False)  # None: on a host

    def place(self, copies: "DeviceCopies") -> None:
        """Store the state on a device: exchanges use `copies` from now on."""
        self.copies = copies

    def device_copy(self, name: str) -> DeviceCopy | None:
        """Return the copy on a device of the array `name` of the state or of `memory`.

        None: the array is stored on the host alone.
        """
        copies = vars(self).get("copies")  # not yet, while it is made
        if copies is None:
            return None
        mirrors = getattr(self.memory, "mirrors", {})
        copy: DeviceCopy | None = mirrors.get(name) or copies.arrays.get(name)
        return copy

    def remember(self, name: str, width: int) -> Array:
        """Return the array `name` of `memory`, `width` words for each local column.

        The first call makes it, with zeros.
        """
        if name not in self.memory:
            shape = len(self.weights), width
            self.memory[name] = np.zeros(shape, dtype=self.weights.dtype)
        return self.memory[name]

    @property
    def scale(self) -> float:
        """Return the number by which weights on a device are divided; 1 on a host."""
        return 1.0 if self.copies is None else self.copies.scale

    def on_device(self, name: str) -> Any:
        """Return the array `name` of the state or of `memory`, where steps are taken.

        It is the device's copy if there is one, else the array of the host, and may be
        read and written. None: the state has no such array.
        """
        copy = self.device_copy(name)
        if copy is not None:
            return copy.on_device()
        return self.memory[name] if name in self.memory else getattr(self, name)

    def mark_written(self, name: str) -> None:
        """Mark the array `name` as changed on the device, if it has a copy there."""
        copy = self.device_copy(name)
        if copy is not None:
            copy.written()

    def written(self, residuals: Any) -> None:
        """Mark the state as changed by an exchange on a device; store its residuals."""
        assert self.copies is not None
        self.copies.written(residuals)

    def host_array(self, name: str) -> Any:
        """Return the array `name` of the state on the host, for reading only.

        A copy on a device stays valid, and is not sent again.
        """
        copy = self.device_copy(name)
        return getattr(self, name) if copy is None else copy.host_view()

    def host_state(self) -> "State":
        """Return a state with weights and intercept on the host, for reading only.

        Without a device it is this state; copies on a device stay valid.
        """
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
        """Return weights and intercept times `share`, in one array for `group` to sum.

        The array is on the device if the state is there and `group` sums arrays of
        devices, else on the host. The state does not change.
        """
        if self.copies is not None and self.copies.sums(group):
            return self.copies.portion(share)
        weights = self.host_array("weights")
        intercept = self.host_array("intercept")
        parts = [weights.reshape(-1)]
        if intercept is not None:
            parts.append(intercept.reshape(-1).astype(weights.dtype))
        buffer: Array = np.concatenate(parts)
        buffer *= share
        return buffer

    def become(self, total: Any) -> Any:
        """Set weights and intercept to `total`, a sum of arrays of `portion`.

        Return the intercept where it was set, on the device or on the host, which may
        be written to; None without one.
        """
        if self.copies is not None and self.copies.has_made(total):
            return self.copies.become()
        weights = self.weights
        intercept = self.intercept
        weights[...] = total[: weights.size].reshape(weights.shape)
        if intercept is not None:
            intercept[...] = total[weights.size :].reshape(intercept.shape)
        return intercept


# Snapshots: the arrays of a run at one moment, in memory or in a file.

KIND, VERSION = "checkpoint", 1  # of a file
MEMORY = "memory_"  # before the names of what agreements and codecs keep
SHARED = "shared_"  # before the names of what is the same on all members
RANK = "rank_"  # before the names of what is each rank's own


@dataclass(frozen=True)
class Snapshot:
    """The arrays of a run at one moment, and facts of the run at that moment.

    Attributes
    ----------
    document : dict
        Facts of the run, such as the exchanges that were done. JSON can represent them.
    arrays : dict of ndarray
        `weights`, `intercept`, and what `State` keeps beside them, with the prefix
        `memory_`, `shared_` or `rank_`. `of` copies those of one rank. A checkpoint has
        those of all ranks (`hpcsgd.runs.checkpoint.Capture`).
    """

    document: dict[str, Any]
    arrays: dict[str, Array]

    @property
    def exchanges(self) -> int:
        """Return how many exchanges were done at the moment of the snapshot."""
        return int(self.document["exchanges"])

    @classmethod
    def of(cls, state: State, document: dict[str, Any]) -> "Snapshot":
        """Return a snapshot of `state`, with copies of all arrays on the host.

        Arrays on a device are copied to the host and are not changed.
        """
        arrays = arrays_of(state.host_state())
        return cls(document, {name: array.copy() for name, array in arrays.items()})

    def put_into(self, state: State) -> None:
        """Write the arrays of the snapshot into the arrays of `state`."""
        for name, array in self.arrays.items():
            _array(state, name)[...] = array

    def write(self, path: Path) -> None:
        """Write the snapshot to a file, complete or not at all.

        OSError is raised if there is no space.
        """
        write_sealed(path, KIND, VERSION, self.document, self.arrays)

    @classmethod
    def read(cls, path: Path) -> "Snapshot":
        """Read a snapshot from a file; raise DataError if it is damaged or another."""
        return cls(*read_sealed(path, KIND, VERSION))


def arrays_of(state: State) -> dict[str, Array]:
    """Return the arrays of `state`, not copies, by their names in a snapshot."""
    arrays = {"weights": state.weights}
    if state.intercept is not None:
        arrays["intercept"] = state.intercept
    arrays |= {MEMORY + name: array for name, array in state.memory.items()}
    arrays |= {SHARED + name: array for name, array in state.shared.items()}
    arrays |= {RANK + name: array for name, array in state.rank_arrays.items()}
    return arrays


def _array(state: State, name: str) -> Array:
    """Return the array of `state` with this name in a snapshot.

    No other array is copied from a device.
    """
    for prefix, arrays in (
        (MEMORY, state.memory),
        (SHARED, state.shared),
        (RANK, state.rank_arrays),
    ):
        if name.startswith(prefix):
            return arrays[name.removeprefix(prefix)]
    array: Array = getattr(state, name)
    return array


# The rows of an exchange, and the coefficients of its steps.


class ExchangeCoefficients:
    """The coefficients of one exchange, in each form that an exchange may need.

    A form is computed when it is first read: if the rate changes all the time, every
    exchange has coefficients of its own and uses only one form.
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
        """Return the coefficients of all s steps together, in float64."""
        return unroll(self.update, self.rates, self.blocks.sizes, self.l2)

    @cached_property
    def plan(self) -> HostPlan:
        """Return the coefficients of all s steps together, in the backend's form."""
        return self.backend.prepare(self.whole, self.blocks)

    @cached_property
    def steps(self) -> tuple[HostPlan, ...]:
        """Return the coefficients of each of the s steps, in the backend's form."""
        return tuple(
            self.backend.prepare(self._one_step(rate, size), blocks_of((size,)))
            for rate, size in zip(self.rates, self.blocks.sizes, strict=True)
        )

    @cached_property
    def plain(self) -> PlainSteps:
        """Return the coefficients of each of the s steps, for a fused kernel.

        Such a kernel takes all steps in one call.
        """
        return plain_steps(self.update, self.rates, self.blocks.sizes, self.l2)

    def _one_step(self, rate: float, size: int) -> UnrolledSteps:
        """Return the coefficients of one step, whose scores are computed at the probe.

        The probe q combines the weights and the momentum.
        """
        coefficients = unroll(self.update, [rate], [size], self.l2)
        return UnrolledSteps(
            lead=np.ones((1, 1)),
            couple=coefficients.couple,
            carry=coefficients.carry,
            gain=coefficients.gain,
            free=coefficients.free,
            push=coefficients.push,
            probe=coefficients.probe,
        )


class ManyCoefficients(ExchangeCoefficients):
    """The coefficients of an exchange of several models with different penalties.

    `rates` has shape (s, settings).
    """

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
        """Return the coefficients of `model` alone, which is number `number` of all."""
        setting = self.models.setting_of[number * self.models.scores]
        rates = self.each[:, [setting]]
        sizes = self.blocks.sizes
        return ManyCoefficients(self.update, model, self.backend, rates, sizes)

    @cached_property
    def whole(self) -> ManyUnrolledSteps:
        """Return the coefficients of all s steps together, in float64."""
        settings = unroll_many(self.update, self.each, self.blocks.sizes, self.ridges)
        return settings.of(self.models.setting_of)

    @cached_property
    def steps(self) -> tuple[HostPlan, ...]:
        """Return the coefficients of each of the s steps, in the backend's form."""
        plans = []
        for rates, size in zip(self.each, self.blocks.sizes, strict=True):
            coefficients = one_step_many(self.update, rates, size, self.ridges)
            columns = coefficients.of(self.models.setting_of)
            plans.append(self.backend.prepare(columns, blocks_of((size,))))
        return tuple(plans)


@dataclass(frozen=True)
class Group:
    """The s batches of one exchange."""

    index: int  # of the exchange in its epoch
    epoch: int
    rows: Array  # local row numbers, m of them
    coefficients: ExchangeCoefficients
    order: Array  # of all rows of the epoch, of which `rows` are a part
    first: int  # position of the first of them in `order`

    @property
    def blocks(self) -> Blocks:
        """Return the sizes of the s batches, and where each of them starts."""
        return self.coefficients.blocks

    @property
    def plan(self) -> HostPlan:
        """Return the coefficients of all s steps together, in the backend's form."""
        return self.coefficients.plan

    @property
    def steps(self) -> tuple[HostPlan, ...]:
        """Return the coefficients of each of the s steps, in the backend's form."""
        return self.coefficients.steps


# One member's part of an exchange, on a host or on a device.


class Exchange(Protocol):
    """The buffers and parts of exchanges of the same batch sizes on one member.

    `load` selects the group of an exchange. A product then calls the parts `sample`,
    `products`, `gram_alone`, `scores`, `steps` and `update` in its own order; each part
    reads the results of the parts before it from the buffers. `host_margins`,
    `host_rows`, `host_gram` and `host_state` serve the monitor of the recurrence.
    """

    blocks: Blocks

    def load(self, group: Group) -> None:
        """Select the group whose rows the next parts use."""

    def attach(self, state: State) -> None:
        """Select the state that the next steps advance."""

    def sample(self) -> None:
        """Gather the rows of the batches; on a GPU, the values of X stay in place."""

    def products(self) -> None:
        """Compute this member's parts of the Gram matrix and of the margins."""

    def gram_alone(self) -> None:
        """Compute this member's part of the Gram matrix."""

    def scores(self) -> None:
        """Compute this member's part of the margins."""

    def messages(self, *names: str, travels: bool = False) -> Sequence[Any]:
        """Return the messages that sum "gram", "margins" or both over the members.

        `names` are those to sum. The next products are written to the buffers of the
        messages. With `travels`, a sequence starts the sums and waits for them later.
        """

    def steps(self) -> None:
        """Compute the residuals of the s steps from the summed products.

        The intercept advances, unless replicas share gradients. `update` then applies
        the steps to the weights.
        """

    def update(self) -> None:
        """Apply the s steps to the weights, or pass their gradient to its consumer."""

    def finish(self) -> None:
        """Mark the arrays of the state that the exchange wrote."""

    def keep(self) -> Any:
        """Return the summed Gram matrix, for `use`. Collective.

        The products of later exchanges do not overwrite it.
        """

    def use(self, kept: Any) -> None:
        """Take the next steps with a Gram matrix that `keep` returned."""

    def host_margins(self) -> Array:
        """Return the margins, summed over the members, on the host."""

    def host_rows(self) -> Rows:
        """Return the sampled rows, in the form of the backend of the host."""

    def host_gram(self) -> Array:
        """Return the packed Gram matrix, summed over the members, on the host."""

    def host_state(self) -> State:
        """Return a state on the host for the monitor.

        It has the weights before the update, and the residuals of the steps.
        """


class PartSequence(Protocol):
    """Parts of an exchange, then sums over the members, then parts that need them.

    A host calls the parts one by one; a device records them, and launches them
    together.
    """

    def run(self) -> None:
        """Run all parts and sums in their order."""

    def up_to_sums(self) -> None:
        """Run the parts before the sums one by one, run the sums, and wait for them."""

    def start(self) -> Pending:
        """Run the parts before the sums, and start the sums; return them pending.

        `wait` of the result completes the sums.
        """

    def run_beside(self, ahead: Any, earlier: Pending) -> Pending:
        """Run all parts and sums; start the sums of `ahead` while they are under way.

        `ahead` is a sequence of the same device, or None. The parts after the sums also
        need the sums `earlier`, which are under way already. Return the pending sums of
        `ahead`.
        """


class PlainStepSequence(Protocol):
    """s plain steps of one member, without a Gram matrix.

    Each step needs one sum of margins over the members, if the member does not have all
    columns.
    """

    def load(self, group: Group) -> None:
        """Select the group whose steps are taken next."""

    def attach(self, state: State) -> None:
        """Select the state that the next steps advance."""

    def fused_steps(self) -> bool:
        """Take all steps by a kernel for plain steps, and return True.

        Return False, and take no step, if no kernel can do that.
        """

    def each_step(self) -> Iterator[Exchange]:
        """Yield the steps one by one, each as an exchange of one batch."""

    def finish(self) -> None:
        """Mark the arrays of the state that the steps wrote."""


class GatheredSteps(PlainStepSequence, Protocol):
    """s plain steps on rows that have the columns of all members.

    These steps need no sum over the members.
    """

    def has_rows(self) -> bool:
        """Return whether rows of the group that were gathered earlier are stored."""

    def pack(self) -> None:
        """Pack this member's part of the rows for sending, as the rows are stored.

        On a host the first call for sparse rows is collective.
        """

    def gather(self) -> None:
        """Gather the rows of all members. Collective."""

    def place(self) -> None:
        """Put the columns of all members side by side, after `gather`."""


class MemberExchanges(Protocol):
    """The exchanges of one member on its host or GPU, which products run."""

    device: Any  # the GPU; None for a host
    gram_kernel: str  # which kernel of a GPU makes Grams; "" for a host

    def exchange(self, blocks: Blocks, number: int = 0) -> Exchange:
        """Return the exchange for batches of the sizes `blocks`.

        Equal arguments return the same object; `number` distinguishes several exchanges
        of the same sizes.
        """

    def sequence(
        self,
        exchange: Any,
        before: Sequence[Callable[[], None]],
        sums: Sequence[Any],
        after: Sequence[Callable[[], None]],
        once: bool = False,
    ) -> PartSequence:
        """Return the sequence of the parts `before`, the sums, and the parts `after`.

        The parts are methods of `exchange`. `once` means that the sequence runs only
        once, so a device does not record it.
        """

    def plain(self, blocks: Blocks) -> PlainStepSequence:
        """Return plain steps on batches of these sizes, taken one by one."""

    def gathered(self, blocks: Blocks, keeps: bool = False) -> GatheredSteps:
        """Return steps on rows with the columns of all members.

        With `keeps`, gathered rows are stored for later epochs.
        """

"""Gradients that are summed before a step (DDP), and batches that grow.

`Gradient` is distributed data parallelism (Li et al., 2020). A rank holds d columns of
K classes. Behind the gradient it sends a tail of t = K·i + f + 1 words: Σr for the
intercept (i = 1 with one, else 0), a flag of overflow (f = 1 where residuals are
scaled, else 0), and the number of rows.

Needs    s = 1, τ = 1, update sgd, momentum, nesterov, nesterov-classic, adagrad or
         adam, product direct, gather or gather-once, one model, a smooth penalty, and
         weights of at least 32 bits.
Refuses  combinations alone, as scaled residuals with a codec.
Keeps    on every replica a gradient and the arrays of the rule (adam 2, adagrad 1, a
         momentum in 8 bits 1, others 0), d·K words each, and what the codec keeps.
Sends    d·K + t words in an exchange: an all-reduce of each bucket, the tail with the
         first. A codec sends its bytes of each bucket, behind an all-reduce of the tail
         in float64. With `hierarchical` the first replicas of groups do this, between a
         reduce and a broadcast inside. With i = 1 and R > 2 member 0 broadcasts the
         tail to the members. Where the data or the nodes of ranks decide, `messages`
         is None.

`Growing` is Accordion's second form (Agarwal et al., 2021):

Needs    what `Gradient` needs, and `accumulate` above 1.
Refuses  what `Gradient` refuses.
Keeps    what `Gradient` keeps, and the sum of watched gradients, d·K words.
Sends    what `Gradient` sends, for each batch or, once batches have grown, for each
         exchange: the data decide. At a check members all-reduce one word of float64,
         and rank 0 broadcasts one of int32 to all ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from hpcsgd.agreements.base import (
    PURPOSE,
    Agreement,
    AgreementSettings,
    GradientSettings,
    ReplicaCheck,
    RunShape,
    StateShape,
    bucket_count,
    same_on_members,
    tiles_of,
)
from hpcsgd.agreements.buckets import (
    Buffer,
    DeviceRole,
    LinearStep,
    PlainSender,
    Tile,
    pieces_of,
)
from hpcsgd.agreements.codecs import is_coded, kept_bytes, make_codec, owed
from hpcsgd.agreements.codecs.base import (
    FIRST,
    HIGHS,
    LOWS,
    AccordionConfig,
    Bucket,
    Moment,
    Regime,
)
from hpcsgd.agreements.hierarchical import SenderOpener
from hpcsgd.agreements.shaping import GradientFacts, Shaper
from hpcsgd.backends.base import HOST, LossScale, Memory, Rows, WordRange
from hpcsgd.backends.task import State, Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent, SentWords
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.data.sampling import plan_groups
from hpcsgd.data.shard import Shard, lengths
from hpcsgd.formats import Array
from hpcsgd.glm.unrolling import Blocks, UnrolledSteps, blocks_of, gradient_step
from hpcsgd.glm.updates import ColumnViews, Rule, Turn
from hpcsgd.precision import Precision

# The step that replicas take together, once they know the mean gradient.


@dataclass(frozen=True)
class Steps:
    """The step by the mean gradient that all replicas take in each exchange."""

    rule: Rule
    l2: float
    rates: Callable[[int, int], Array]  # (first step, count) -> rates
    each: int  # exchanges of an epoch, those of the largest replica
    drops: Callable[[int], int] = lambda step: 0  # step -> milestones that are passed

    def moment(self, number: int) -> Moment:
        """Return epoch, rates and passed milestones of exchange `number`, from 0."""
        now, then = self.rates(number, 2)
        drops = self.drops(number)
        return Moment(number, number // self.each, float(now), float(then), drops)

    def prepare(self, state: State, columns: int) -> None:
        """Allocate the optimizer state of the rule, unless `state` has it.

        `columns` is K: each array has K words for each column of the data, and K words
        for the intercept.
        """
        for name in self.rule.state_names:
            words = len(state.weights), columns, state.weights.dtype
            state.memory.setdefault(name, self.rule.allocate(name, *words))
            if state.intercept is not None:
                state.shared.setdefault(name, np.zeros((1, columns)))

    def take(
        self,
        state: State,
        columns: slice,
        gradient: Array,
        factor: float,
        moment: Moment,
    ) -> None:
        """Step some columns of the weights by the gradient `factor` · `gradient`.

        `factor` makes it the mean gradient. `gradient` is overwritten.
        """
        arrays = {name: state.memory[name][columns] for name in self.rule.state_names}
        part = ColumnViews(state.weights[columns], arrays)
        self.step(part, gradient, factor, moment)

    def step(
        self, part: ColumnViews, gradient: Array, factor: float, moment: Moment
    ) -> None:
        """Step the weights and the optimizer state in `part`.

        The mean gradient is `factor` · `gradient`; `gradient` is overwritten.
        """
        turn = Turn(moment.number, moment.rate)
        self.rule.step(part, gradient, factor, turn, self.l2)

    def step_slice(
        self,
        part: WordRange,
        gradient: Any,
        factor: float,
        moment: Moment,
        memory: Memory = HOST,
    ) -> None:
        """Step the slice of weights and the arrays of the rule that `part` has.

        The mean gradient is `factor` · `gradient`. `memory` is that of the host or of a
        device, where these arrays are; on the host `gradient` is overwritten.
        """
        turn = Turn(moment.number, moment.rate)
        memory.step(self.rule, self.l2, part, gradient, factor, turn)

    def take_intercept(self, state: State, gradient: Array, moment: Moment) -> None:
        """Step the intercept, without a penalty, by its mean `gradient`, (K,).

        Do nothing if the model has no intercept.
        """
        if state.intercept is None:
            return
        intercept = state.intercept.reshape(1, -1)  # (states, K) as one column
        arrays = {name: state.shared[name] for name in self.rule.state_names}
        turn = Turn(moment.number, moment.rate)
        self.rule.step(
            ColumnViews(intercept, arrays), gradient.reshape(1, -1), 1.0, turn, 0.0
        )


# The gradient that codecs of several replicas had not sent, for the step of the one
# replica on which the run resumes.
#
# One replica encodes nothing. A step that is linear in the state can take the unsent
# gradient before the next one, and momenta move by it as they would have done; any
# other step takes it together with the next gradient, as if a codec had sent all of it.


class UnsentGradient:
    """The gradient that codecs of several replicas had not sent, for one replica.

    A run that resumes on one replica has no codec. It takes the unsent gradient once,
    with its first step.
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        self._saved: dict[str, Array] = {}  # by codecs of the earlier replicas
        self._gradient: Array | None = None

    def store(self, name: str, saved: Array) -> None:
        """Store one array that codecs had saved in a checkpoint, under its `name`."""
        self._saved[name] = saved

    def start(self, state: State, rule: Rule, moment: Moment) -> None:
        """Take the unsent gradient as a step, or keep it for the next step.

        It is taken at once if the rule is linear in the state, else `add_to` adds it.
        At a rate of 0 nothing is done, since no step follows.
        """
        if not self._saved or not moment.rate:
            return
        config = self._config
        gradient = owed(
            config.agreement.codec,
            config.codec,
            config.accordion,
            self._saved,
            moment.rate,
        )
        self._saved = {}
        if gradient is None or rule.linear is None:
            self._gradient = gradient
            return
        gain = rule.linear.gain(moment.rate, 1)
        more = np.multiply.outer(gain, gradient).swapaxes(0, 1)
        state.weights[...] += more.reshape(state.weights.shape)

    def add_to(self, tile: Tile, factor: float) -> None:
        """Add the unsent gradient, divided by `factor`, to a tile of a gradient.

        The step multiplies the tile by `factor` later. Each column is added once; do
        nothing if there is no unsent gradient.
        """
        if self._gradient is None:
            return
        unsent = self._gradient[tile.columns]
        tile.gradient[...] += (unsent / factor).astype(tile.gradient.dtype)
        unsent[...] = 0.0


# Settings, rows, steps, backend, shapers: what gradient agreements are made of.


class RowBackend(Protocol):
    """The methods of a `Backend`, or of rows on a device, that agreements call."""

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return zeros of this shape, in the number format of weights."""

    def prepare(self, unrolled: UnrolledSteps, blocks: Blocks) -> Any:
        """Return the plan for `apply_update` on batches of the sizes in `blocks`."""

    def some_columns(self, rows: Any, part: slice) -> Any:
        """Return `rows` with only the columns in the slice `part`."""

    def scores(self, rows: Any, weights: Any, out: Any) -> Any:
        """Compute out ← Y w, where Y is the matrix of `rows` and w is `weights`."""

    def apply_update(
        self, weights: Any, rows: Any, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr to `weights`, which is a gradient here.

        Y is the matrix of `rows` and r are the `residuals`; `prepare` returns the plan.
        """


@dataclass(frozen=True)
class GradientInputs:
    """The inputs of a gradient agreement.

    Attributes
    ----------
    config : RunConfig
        The settings of the run.
    shard : Shard
        The rows of this rank, and the columns of its gradient: all columns if the
        product gathers rows.
    columns : int
        K, columns of the gradient.
    steps : Steps
        The step of all replicas.
    backend : RowBackend
        The backend that multiplies with rows.
    shapers : tuple of Shaper
        The functions that change the mean gradient before a step.
    loss_scale : LossScale or None
        The scale of residuals, the same on all replicas.
    role : DeviceRole
        The work of a device on the gradients.
    more : object
        An input that only one kind of agreement needs.
    """

    config: Any
    shard: Shard
    columns: int
    steps: Steps
    backend: RowBackend
    shapers: tuple[Shaper, ...]
    loss_scale: LossScale | None
    role: DeviceRole
    more: Any

    @property
    def settings(self) -> Any:
        """Return the section [agreement]."""
        return self.config.agreement

    @property
    def memory(self) -> Memory:
        """Return the memory in which gradients are added up and slices stepped."""
        return self.role.memory


# gradient ← gradient + Yᵀr, as a backend's step of weight one.


class Adder:
    """Adds gradients of batches to a sum, with one cached plan per batch size."""

    def __init__(self, backend: RowBackend) -> None:
        self.backend = backend
        self._plans: dict[int, Any] = {}

    def add(self, gradient: Array, rows: Rows, residuals: Array) -> None:
        """Compute gradient ← gradient + Yᵀr in place.

        Y is the matrix of `rows`, and r are the `residuals`.
        """
        size = len(residuals)
        if size not in self._plans:
            step = gradient_step()
            self._plans[size] = self.backend.prepare(step, blocks_of((size,)))
        self.backend.apply_update(gradient, rows, residuals, self._plans[size])


# DDP: replicas agree on the gradient of every step, and take the same step.
#
# g = Σ_p s_p / Σ_p n_p,  s_p = Yᵀr of this replica's batch, n_p its rows
#
# Sums and counts travel, never means of means: with R replicas a step is that of one
# process on the union of their batches, however uneven they are. A replica whose rows
# are used up sends zeros, counts no row, and takes the same step. Columns are sent in
# tiles, each while the rest of Yᵀr is computed, in one order on all replicas.

LOSS_SCALE = "loss_scale"
OF_CODECS = "codec_"  # prefix of the names of arrays that codecs keep


@dataclass(frozen=True)
class SummedSettings(GradientSettings):
    """The settings of summed gradients; a run may be resumed as a stage of ZeRO."""

    steps_of_gradient: ClassVar[bool] = True


class Gradient(Agreement):
    """The agreement of DDP: replicas sum the gradients of a step, then take it alike.

    As a `GradientSink` it receives the residuals of each batch. Gradients are added up
    in the buckets that are sent.
    """

    settings: ClassVar[type[AgreementSettings]] = SummedSettings
    # A device may add up the sums of all replicas, and take the step.
    sums_on_devices: ClassVar[bool] = True
    steps_on_devices: ClassVar[bool] = True
    # Whether the host takes the steps where rows are on a device.
    steps_on_host: ClassVar[bool] = False
    # Whether gradients of rows on a device are added tile by tile.
    adds_tiles: ClassVar[bool] = False
    gradients: ClassVar[int] = 1  # sums of gradients that exist at a time
    buffer_kind: ClassVar[type[Buffer]] = Buffer

    def __init_subclass__(
        cls,
        sums_on_devices: bool = False,
        steps_on_devices: bool = False,
        **more: Any,
    ) -> None:
        """Set whether a device may sum gradients and take the steps of a subclass.

        Both are False by default, since a subclass may change how sums and steps are
        made.
        """
        super().__init_subclass__(**more)
        cls.sums_on_devices = sums_on_devices
        cls.steps_on_devices = steps_on_devices

    @classmethod
    def variant(
        cls, settings: Any, replicas: int, rows: int, batch: int
    ) -> type["Gradient"]:
        """Return the class to use for these settings: this class, or a variant of it.

        Parameters
        ----------
        settings : AgreementSettings
            The section [agreement].
        replicas : int
            The number of replicas.
        rows : int
            Rows of the largest replica.
        batch : int
            Rows of a batch.

        Returns
        -------
        type
        """
        return cls

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, 1)
        self.inputs = inputs
        self.rows = lengths(inputs.shard.total_rows, grid.replicas.size)
        self.check = ReplicaCheck(grid.replicas, inputs.config.run.check_members)
        self.steps = inputs.steps
        self.backend = inputs.backend
        self.columns = inputs.columns
        self._adder = Adder(inputs.backend)
        self._left = 0  # batches of this exchange that are still to come
        self._done = -1  # the last exchange that was taken
        self._moment = Moment(0, 0, 1.0, 1.0)
        self._is_flat = False  # whether the loss has stopped falling
        self.unsent = UnsentGradient(inputs.config)

    @property
    def takes_at_once(self) -> bool:
        """Return whether the batches of an exchange are computed as one batch."""
        return False

    @property
    def holds_weights_on_device(self) -> bool:
        """Return whether the weights stay on the device, if the run uses one."""
        return self.inputs.role.linear_step is not None

    # A device that adds up gradients reads these properties before the next batch.

    @property
    def slices_weights(self) -> bool:
        """Return whether each replica stores a slice of the weights instead of all."""
        return bool(self.inputs.settings.slices_weights)

    @property
    def is_last(self) -> bool:
        """Return whether the next batch is the last one before a step."""
        return self._left == 1

    @cached_property
    def sharers(self) -> Communicator:
        """The members of this replica that have other columns of its gradient."""
        shard = self.inputs.shard
        has_all = shard.columns == slice(0, shard.total_columns)
        return SerialCommunicator() if has_all else self.grid.members

    @property
    def is_full(self) -> bool:
        """Return whether the next batch completes the sums that it is added to."""
        return self.is_last

    @property
    def sums(self) -> Any:
        """Return the sums to which the gradient of the next batch is added."""
        return self.buffer

    def ready(self, task: Task, state: State) -> Iterator[slice]:
        """Yield slices of columns whose weights are ready to compute scores.

        Here it is one slice, of all columns.
        """
        yield slice(None)

    def prepare(self, state: State) -> None:
        """Allocate buffer, optimizer state, and arrays of codecs. Collective."""
        self.buffer = self._make_buffer(state)
        if self.inputs.loss_scale is not None:
            state.shared.setdefault(LOSS_SCALE, self.inputs.loss_scale.kept())
        opener = SenderOpener(self.grid, self.inputs.config, self.sharers)
        self.sender = opener(state, self.buffer)
        self.steps.prepare(state, self.columns)
        self.linear: LinearStep | None = None
        if self.inputs.role.linear_step is not None:
            row = self.buffer.row
            words = self.buffer.gradient.size
            states = self.steps.rule.states
            self.linear = self.inputs.role.linear_step(row, words, states)
        for shaper in self.inputs.shapers:
            shaper.prepare(state)

    def _make_buffer(self, state: State, tiles: int = 0) -> Buffer:
        """Return a gradient buffer of `tiles` tiles; 0 makes one for each bucket."""
        columns = len(state.weights)
        dtype = state.weights.dtype
        count = tiles or self.tile_count(columns, dtype.itemsize)
        return self.buffer_kind(
            (columns, self.columns),
            dtype,
            tiles_of(columns, count, self.steps.rule.alignment),
            state.intercept is not None,
            flagged=self.inputs.loss_scale is not None,
            role=self.inputs.role,
        )

    def tile_count(self, columns: int, itemsize: int) -> int:
        """Return the number of tiles of a gradient of `columns` columns.

        It is 1 for one replica, unless gradients are copied from a device for a step on
        the host, and for sparse rows in methods that are not sharded: splitting the
        gradient would save no time.
        """
        settings = self.inputs.settings
        inputs = self.inputs
        on_device = inputs.memory.on_device
        waits = self.grid.replicas.size > 1 or (self.steps_on_host and on_device)
        if not waits or (inputs.shard.is_sparse and not settings.slices):
            return 1
        return bucket_count(columns, self.columns, itemsize, settings.bucket)

    def start(self, state: State, exchanges: int) -> None:
        """Restore the loss scale of residuals; take the unsent gradient, if any.

        That gradient is what codecs of several replicas had not sent, if this run
        resumes on one. It is taken as a step now, or with the next step.
        """
        if self.inputs.loss_scale is not None:
            self.inputs.loss_scale.restore(state.shared[LOSS_SCALE])
        self.unsent.start(state, self.steps.rule, self.steps.moment(exchanges))

    def plan_in_words(self, state: State) -> dict[str, str]:
        """Return what decides the messages of a run, which replicas compare.

        Besides the entries of every agreement these are the buckets in the order of
        sending, the codec, and the exchanges of an epoch.
        """
        tiles = getattr(self, "buffer", ())
        return {
            **super().plan_in_words(state),
            "buckets": " ".join(f"{t.columns.start}:{t.columns.stop}" for t in tiles),
            "codec": repr(self.inputs.settings.codec),
            "exchanges of an epoch": repr(self.steps.each),
        }

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """Start an exchange of `batches` batches, whose gradients are one sum."""
        self._begin(epoch * self.steps.each + index)
        self._left = batches

    def scores(
        self, task: Task, state: State, rows: Rows, point: Array, out: Array
    ) -> None:
        """Compute out ← Y w for the rows Y and the weights w = `point`.

        Every replica has all weights, so that no message is needed.
        """
        task.backend.scores(rows, point, out)

    def apply_update(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch; after the last one, sum over replicas and step.

        A tile is sent as soon as it is computed, while the next one is computed. If the
        codec needs the norm of the whole gradient, all tiles are sent after the last
        one.
        """
        self._left -= 1
        self._flag_overflow()
        self.buffer.count_in(residuals)
        if self._left:
            self.add_gradient(self.buffer.gradient, rows, residuals)
            return
        self._finish_sums(state)
        self.sender.begin(self.buffer, self._moment)
        for tile in self._computed(task, self.buffer, rows, residuals):
            self._finish_tile(state, tile)
            if not self.sender.wants_norm:
                self.sender.send(self.buffer, tile)
        if self.sender.wants_norm:
            self._send_whole()
        self._step(state, task)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Take the step of the other replicas if this one had no rows; check replicas.

        Collective. The check compares weights and optimizer state of all replicas,
        after every `run.check_members` exchanges.
        """
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            self._join(state)
        self.check.after_exchange(state, exchanges, self._alike(state))

    def note_plateau(self) -> None:
        """Let codecs know that the loss has stopped falling, on all ranks alike."""
        self._is_flat = True

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """Return whether the state of one replica stands for all.

        It does unless codecs keep arrays, which differ: weights and optimizer state are
        the same on all replicas.
        """
        codec_names = set(state.memory) - set(self.steps.rule.state_names)
        return self.grid.replicas.size == 1 or not codec_names

    def memory(self, state: State) -> dict[str, Array]:
        """Return the saved arrays of `state`, those in eight bits as plain numbers."""
        return {name: np.asarray(array) for name, array in state.memory.items()}

    def inherit(self, state: State, name: str, kept: Array) -> None:
        """Store an array that codecs of several replicas had saved; ignore any other.

        A run on one replica has no codec, and takes the unsent gradient in its first
        step.
        """
        if name.startswith(OF_CODECS):
            self.unsent.store(name.removeprefix(OF_CODECS), kept)

    def agree(self, state: State, purpose: str) -> None:
        """Do nothing: the weights of replicas never differ."""

    def updates(self, batches: int) -> int:
        """Return 1: all batches of an exchange make one step."""
        return 1

    def facts(self) -> dict[str, Any]:
        """Return facts for the report of a run: buckets, codec, transfer times."""
        return {
            **self._shaped(),
            "buckets": len(self.buffer.tiles),
            "codec": self.sender.codec,
            **self.sender.facts(),
            "mended_replicas": self.check.mended,
            **self.sender.overlap.facts(),
            **self.buffer.facts(),
        }

    def _shaped(self) -> dict[str, Any]:
        """Return the facts of all shapers of the gradient, for the report of a run."""
        facts: dict[str, Any] = {}
        for shaper in self.inputs.shapers:
            facts |= shaper.facts()
        return facts

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return what rank 0 sends for the mean gradient of one exchange.

        Return None where the data decide the bytes of a codec, with a codec in a
        reproducible run, where nodes or racks are the groups of `hierarchical`, and
        where an overflow of residuals decides how often the tail is sent.
        """
        return sent_for_gradient(shape, is_coded(shape.config))

    @classmethod
    def vectors(cls, shape: StateShape) -> int:
        """Return how many arrays, as large as a state, a rank allocates beside states.

        They are those of the update rule, the gradient, and two more with a codec.
        """
        return shape.moments + (1 if shape.settings.codec == "identity" else 3)

    @classmethod
    def holds(cls, shape: StateShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of states, of gradient and moments, and of codecs."""
        yield from super().holds(shape)
        yield "gradient", cls.vectors(shape) * shape.state
        if shape.replicas > 1:
            yield "codecs", (2 + shape.snapshots) * _kept_by_codecs(shape)

    @classmethod
    def saves(cls, shape: StateShape) -> int:
        """Return the bytes of one replica, or of all where codecs keep arrays."""
        kept = _kept_by_codecs(shape) if shape.replicas > 1 else 0
        each = shape.state + shape.moments * shape.vector + kept
        return shape.replicas * each if kept else each

    def close(self) -> None:
        """Close the communicators that `hierarchical` opened, if any. Collective."""
        if hasattr(self, "sender"):  # not yet, where others have refused
            self.sender.close()

    def _alike(self, state: State) -> list[Array]:
        """Return the arrays that replicas have alike, besides weights and intercept."""
        arrays = list(state.shared.values())
        for name in self.steps.rule.state_names:
            arrays += self.steps.rule.stored(state.memory[name])
        return arrays

    def _join(self, state: State) -> None:
        """Send zeros for this replica, which has no rows, and take the common step."""
        self.buffer.mark_empty()
        self.sender.begin(self.buffer, self._moment)
        self._send_whole()
        self._step(state, None)

    def _send_whole(self) -> None:
        """Send all tiles of the complete gradient; measure its norm if needed."""
        if self.sender.wants_norm:
            self.sender.measure(self.buffer)
        for tile in self.buffer:
            self.sender.send(self.buffer, tile)

    def _begin(self, number: int) -> None:
        self.buffer.clear()
        self._moment = replace(self.steps.moment(number), is_flat=self._is_flat)
        self._done = number

    def _finish_sums(self, state: State) -> None:
        """Change Σr, the complete gradient of the intercept; a hook of subclasses."""

    def _finish_tile(self, state: State, tile: Tile) -> None:
        """Change Yᵀr of a complete tile before it is sent; a hook of subclasses."""

    def add_gradient(self, gradient: Array, rows: Rows, residuals: Array) -> None:
        """Add Yᵀr of some rows of this replica to `gradient`, in place."""
        self._adder.add(gradient, rows, residuals)

    def _computed(
        self, task: Task, tiles: Iterable[Tile], rows: Rows, residuals: Array
    ) -> Iterator[Tile]:
        """Yield each tile after Yᵀr of the last batch is added to it.

        The time that the caller takes for sending is not counted as "update": the
        ledger counts it.
        """
        for tile in tiles:
            self.add_gradient(tile.gradient, self._columns(rows, tile), residuals)
            task.clock.lap("update")
            yield tile
            task.clock.start()

    def _columns(self, rows: Rows, tile: Tile) -> Rows:
        """Return `rows` with the columns of one tile, or all if there is one tile."""
        if len(self.buffer.tiles) > 1:
            rows = self.backend.some_columns(rows, tile.columns)
        return rows

    def _step(self, state: State, task: Task | None) -> None:
        """Take the step tile by tile, as the sums of tiles arrive.

        With shapers, wait for all tiles and shape the mean gradient before the step. A
        device with a `linear` step takes it at once. Take no step after an overflow.
        """
        if self.linear is not None:
            self._step_on_device(state, self.linear)
            return
        shapes = bool(self.inputs.shapers)
        counts = True
        if shapes:
            self._receive_all()
            counts = self._counts(state)
            self._shape(counts)
        for tile in self.buffer:
            factor = 1.0 if shapes else self._receive(tile)
            if tile is self.buffer.tiles[0] and not shapes:  # the tail is here
                counts = self._counts(state)
            if counts:
                self._take(state, tile, factor, task)
        if counts:
            self._step_intercept(state)
            for shaper in self.inputs.shapers:
                shaper.finish(self._facts_of_mean, self._moment)

    def _step_on_device(self, state: State, linear: LinearStep) -> None:
        """Take the step x ← M x + u Σ s / n on the device, which has the weights.

        M and u are those of the linear update, Σ s is the sum of gradients, and n the
        number of their rows. The device may store the weights divided by the power of
        two `state.scale`.
        """
        cast(PlainSender, self.sender).finish(self.buffer)  # a device has no codec
        rate = self._moment.rate
        update = self.steps.rule.linear
        tail = self._tail()
        assert update is not None  # other rules get no `linear_step`
        carry = update.transition(rate, self.steps.l2)
        gain = update.gain(rate, 1) / tail[-1] / state.scale
        linear.to(state.on_device("weights"), carry, gain)
        state.mark_written("weights")
        self._step_intercept(state, tail)

    def _step_intercept(self, state: State, tail: Array | None = None) -> None:
        """Step the intercept along its mean gradient, the same on all members.

        `tail` is Σ [Σr | … | count] over replicas, the same on all members. If it is
        None, the members synchronize their tails first.
        """
        if state.intercept is not None:
            tail = self._tail() if tail is None else tail
            mean = tail[: self.columns] / tail[-1]
            for shaper in self.inputs.shapers:
                shaper.shape_intercept(mean)
            self.steps.take_intercept(state, mean, self._moment)

    def _take(self, state: State, tile: Tile, factor: float, task: Task | None) -> None:
        """Step the weights of one tile, with the unsent gradient added, if any."""
        if task is not None:
            task.clock.start()
        self.unsent.add_to(tile, factor)
        self.steps.take(state, tile.columns, tile.gradient, factor, self._moment)
        if task is not None:
            task.clock.lap("update")

    def _flag_overflow(self) -> None:
        """Mark the exchange if residuals of this replica overflowed.

        No replica then takes the step.
        """
        scale = self.inputs.loss_scale
        if scale is not None and scale.overflowed:
            self.buffer.flag()

    def _counts(self, state: State) -> bool:
        """Return whether no residual of any replica overflowed; adapt the loss scale.

        If one did, the step is left out.
        """
        scale = self.inputs.loss_scale
        if scale is None:
            return True
        shared_scale = state.shared[LOSS_SCALE]
        overflowed = bool(self.sender.tail()[-2])
        scale.settle(overflowed)
        shared_scale[...] = scale.kept()
        return not overflowed

    def _receive(self, tile: Tile) -> float:
        """Wait for the sum of a tile, and return a factor.

        The factor times the tile's gradient is the mean gradient.
        """
        return self.sender.receive(self.buffer, tile)

    def _receive_all(self) -> None:
        for tile in self.buffer:
            factor = self._receive(tile)
            tile.gradient[...] *= tile.gradient.dtype.type(factor)

    def _shape(self, counts: bool) -> None:
        """Shape the mean gradient, unless its step is left out (`counts` is False)."""
        if counts:
            self._shape_mean(self.buffer.gradient)

    @property
    def _columns_of_mean(self) -> slice | Array:
        """Return which columns of the data the mean gradient of this rank has."""
        return self.inputs.shard.columns

    @property
    def _facts_of_mean(self) -> GradientFacts:
        return GradientFacts(self._columns_of_mean, self._total)

    def _shape_mean(self, mean: Array) -> None:
        whole = self._facts_of_mean
        for shaper in self.inputs.shapers:
            shaper.shape(mean, whole, self._moment)

    def _total(self, words: Array) -> Array:
        """Return `words` summed over the ranks that have other columns."""
        return self.sharers.sum(words, PURPOSE)

    def _tail(self) -> Array:
        """Return Σ [Σr | … | count] over replicas, the same on all members, in float64.

        Σr is the gradient of the intercept and count the number of rows.
        """
        return self._same_on_members(self.sender.tail())

    def _same_on_members(self, tail: Array) -> Array:
        tail = tail.astype(np.float64)
        same_on_members(self.grid, tail, self.grid.replicas.size)
        return tail


# What rank 0 sends for one mean gradient, from sizes and settings alone.
#
# Buckets are of whole columns. A codec that clips has members sum one word before its
# first bucket. With an intercept, R > 2 and several members, whose sums may differ in a
# bit, member 0 broadcasts the tail. In groups of n replicas the buckets and the tail
# are first reduced inside, and what leaders then have is broadcast there.


@lru_cache(maxsize=4)
def sent_for_gradient(
    shape: RunShape, coded: bool = False, partition: float = inf
) -> Sequence[SentWords] | None:
    """Return the collectives of rank 0 for one mean gradient.

    Return None if sizes and settings alone do not decide them. `partition` is the size
    in MiB of the pieces in which buckets without a codec are summed.
    """
    hierarchy = shape.settings.hierarchical
    inside = 1
    if hierarchy in ("node", "rack"):
        return None
    if hierarchy != "off":
        inside = min(int(hierarchy), shape.replicas)
    leaders = -(-shape.replicas // inside)
    shares_tail = shape.intercept and shape.shares_tail
    if shape.flagged and (inside > 1 or shares_tail):
        return None  # an overflow changes how often the tail is sent
    tail = shape.tail
    tiles = shape.tile_words
    sent: list[SentWords] = []
    if inside > 1:
        sent += [shape.sent(tail), *(2 * [shape.sent(words) for words in tiles])]
        sent += [shape.sent(tail, 8)] * shape.intercept
    if leaders > 1:
        between = (
            _sent_coded(shape, leaders) if coded else sent_in_place(shape, partition)
        )
        if between is None:
            return None
        sent += between
    if shares_tail:
        sent.append(shape.sent(tail, 8))
    return sent


def sent_in_place(shape: RunShape, partition: float = inf) -> list[SentWords]:
    """Return the collectives that sum all buckets, or their pieces, without a codec.

    The tail is sent with the first bucket.
    """
    first, *others = shape.tile_words
    return [
        sent
        for words in (first + shape.tail, *others)
        for piece in pieces_of(words, shape.itemsize, partition)
        for sent in shape.sum(piece.stop - piece.start)
    ]


def _sent_coded(shape: RunShape, ranks: int) -> list[SentWords] | None:
    """Return what rank 0 sends to sum the tail and all buckets by a codec.

    `ranks` is the number of replicas, or of leaders of groups, that sum. Return None if
    the bytes depend on the data.
    """
    if shape.reproducible:
        return None  # a codec may gather or sum: how often is its own affair
    sent = [shape.sent(shape.tail, 8)]
    wants_norm = False
    for number, words in enumerate(shape.tile_words):
        height = words // shape.classes
        dtype = np.dtype(f"f{shape.itemsize}")
        bucket = Bucket(number, height, shape.classes, dtype)
        config = shape.config.codec.of_bucket(number, len(shape.tile_words))
        codec = make_codec(shape.settings.codec, bucket, config)
        payload = codec.payload_bytes(ranks, 0)
        if payload is None:
            return None
        sent.append(SentWords(None, payload))
        wants_norm = codec.wants_norm
    if wants_norm and shape.members > 1 and not shape.gathers:
        sent.append(shape.sent(1, 8))
    return sent


def _kept_by_codecs(shape: StateShape) -> int:
    """Return the bytes that the codecs of all buckets keep between exchanges."""
    config = shape.config
    settings = shape.settings
    count = 1
    if not shape.sparse:
        count = bucket_count(shape.columns, 1, shape.itemsize, settings.bucket)
    codec_bytes = 0
    dtype = np.dtype(f"f{shape.itemsize}")
    for number, columns in enumerate(lengths(shape.columns, count)):
        bucket = Bucket(number, columns, 1, dtype)
        codec_bytes += kept_bytes(
            settings.codec, bucket, config.codec, config.accordion
        )
    return codec_bytes


# Batches that grow where gradients have settled (Accordion's second form).
#
# An exchange is up to A batches. While gradients change, each of them is a message and
# a step; from a look on at which they did not, the batches of an exchange are one
# message and one step, that of a batch A times larger, at A times the rate. Batches
# never become smaller again.
#
# Looks are those of `codecs/base.py`, at the ends of epochs, over all columns.
# Rank 0 decides for all, so that all ranks call the same collectives.

NAME = "accordion"
TOTAL = "accordion_total"  # the name of G among what is saved


@dataclass(frozen=True)
class GrowingSettings(GradientSettings):
    """The settings of batches that grow when gradients change little."""

    works_alone: ClassVar[bool] = True
    asks_members: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = GradientSettings.reads | {"accordion"}

    @property
    def batches_of_first_step(self) -> int:
        """Return 1: a step has one batch at first, and more once batches have grown."""
        return 1

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield a refusal of `accumulate` = 1, with which batches cannot grow."""
        if self.accumulate == 1:
            yield (
                "makes batches grow agreement.accumulate times, which is 1; 4 is usual"
            )


class Growing(Gradient, sums_on_devices=True):
    """The agreement of batches that grow (Accordion): small steps, then large ones.

    At first, each batch of an exchange is a step. Once gradients change little, all
    batches of an exchange together are one step.
    """

    settings: ClassVar[type[AgreementSettings]] = GrowingSettings

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, inputs)
        self.times = int(inputs.settings.accumulate)  # A
        self.accordion: AccordionConfig = inputs.config.accordion
        # Of the largest replica, in each exchange of an epoch.
        groups = plan_groups(self.rows[0], inputs.config.schedule.batch, self.times)
        self.batches = tuple(len(sizes) for sizes in groups)
        self._step_in = 0  # steps that this exchange has taken

    def prepare(self, state: State) -> None:
        """Allocate also the sum of the gradients whose norm decides when batches grow.

        A checkpoint saves it, and a run that resumes on another grid keeps it.
        """
        super().prepare(state)
        settings = self.accordion
        total = state.remember(TOTAL, self.columns)
        self.regime = Regime(total, settings.eta, settings.interval)
        record = np.tile(FIRST[:, None], self.columns)
        self.regime.record = state.shared.setdefault(NAME, record)[:, 0]

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """Start an exchange of `batches` batches.

        Each batch has a sum and a step of its own; once batches have grown, there is
        one for all.
        """
        super().begin(epoch, index, batches)
        if self.regime.is_low:
            self._left = 1

    def apply_update(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch, and step after each batch, or after the last one.

        The latter holds once batches have grown.
        """
        super().apply_update(task, state, rows, residuals, plan)
        if self._step_in and self._step_in < self._steps_of(self._done):
            self._begin_step(self._done)
            self._left = 1

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Take steps that only other replicas had rows for; decide on larger batches.

        Collective. Replicas are compared if that is due. It is decided whether batches
        grow at the end of an epoch whose gradients were summed.
        """
        number = exchanges - 1
        if self._done != number:
            self._begin(number)
        while self._step_in < self._steps_of(number):
            self._begin_step(number)
            self._join(state)
        self.check.after_exchange(state, exchanges, self._alike(state))
        if exchanges % self.steps.each == 0 and self.regime.watches(self._moment):
            self._look(exchanges)

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """Return whether the state of one replica stands for all, as `Gradient` does.

        The sum of watched gradients does not count: it is the same on all replicas.
        """
        others = replace(
            state, memory={k: v for k, v in state.memory.items() if k != TOTAL}
        )
        return super().holds_one_state(others, exchanges)

    def updates(self, batches: int) -> int:
        """Return the number of steps: one a batch, or 1 once batches have grown."""
        return batches if self.regime.is_low else 1

    def steps_taken(self, planned: int) -> int:
        """Return the steps taken so far, which were counted; `planned` is not used."""
        return int(self.regime.record[LOWS] + self.regime.record[HIGHS])

    def facts(self) -> dict[str, Any]:
        """Return the facts of `Gradient`, with the numbers of small and large steps."""
        record = self.regime.record
        counts = {"small_steps": int(record[LOWS]), "large_steps": int(record[HIGHS])}
        return super().facts() | counts

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> None:
        """Return None: gradients decide when batches grow."""
        return

    @classmethod
    def holds(cls, shape: StateShape) -> Iterator[tuple[str, int]]:
        """Yield what `Gradient` yields, and the name and bytes of the watched sum."""
        yield from super().holds(shape)
        yield "watched gradients", (2 + shape.snapshots) * shape.vector

    def _begin(self, number: int) -> None:
        self._step_in = 0
        self._begin_step(number)

    def _begin_step(self, number: int) -> None:
        """Start a step of exchange `number` with an empty buffer.

        The step's number counts all steps of the run. The rate is that of the exchange,
        times A if batches have grown and `accordion.scale_rate` is set.
        """
        super()._begin(number)
        grows = not self.regime.is_low and self.accordion.scale_rate
        factor = self.times if grows else 1
        moment = self._moment
        self._moment = replace(
            moment,
            number=self.steps_taken(number),
            rate=moment.rate * factor,
            next_rate=moment.next_rate * factor,
        )

    def _step(self, state: State, task: Task | None) -> None:
        super()._step(state, task)
        self._step_in += 1
        self.regime.count(self._moment)

    def _take(self, state: State, tile: Tile, factor: float, task: Task | None) -> None:
        if not self.inputs.shapers:
            self._watch(tile, factor)
        super()._take(state, tile, factor, task)

    def _shape(self, counts: bool) -> None:
        for tile in self.buffer if counts else ():
            self._watch(tile, 1.0)
        super()._shape(counts)

    def _watch(self, tile: Tile, factor: float) -> None:
        """Add the mean gradient of a tile, before it is shaped, to the watched sum.

        Do nothing in epochs that are not watched.
        """
        if self.regime.watches(self._moment):
            self.regime.total[tile.columns] += factor * tile.gradient

    def _steps_of(self, number: int) -> int:
        """Return how many steps all replicas take in exchange `number`, from 0."""
        if not self.regime.is_low:
            return 1
        return self.batches[number % self.steps.each]

    def _look(self, exchanges: int) -> None:
        """Decide whether batches grow, from |G|² of the watched sum G of gradients.

        Members sum |G|², and rank 0 broadcasts its decision to all ranks.
        """
        regime = self.regime
        moment = self.steps.moment(exchanges)
        square = float(self._total(np.array([regime.take_square()]))[0])
        small = regime.is_low and regime.verdict(moment, square)
        mode = np.array([small], dtype=np.int32)
        self.grid.world.broadcast(mode, 0, PURPOSE)
        regime.turn(bool(mode[0]), moment, square)

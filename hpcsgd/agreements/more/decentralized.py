"""Replicas that step by their own gradients, and mix or average their weights.

`Decentralized` and `LowPrecision` are D_FP_S and D_LP_S of BAGUA (Gan et al., 2021);
`LocalSteps` is local SGD with any rule, such as Adam. A rank has d columns and K
classes; i = 1 with an intercept, else 0. The first two:

Needs    s = 1, update sgd, momentum, nesterov, nesterov-classic, adagrad or
         adam, product direct, gather or gather-once, one model, a smooth penalty, and
         weights of at least 32 bits; `peers` = shift_one needs an even R.
Refuses  codecs, scaled residuals, changes and clipping of gradients, 8-bit states, and
         with several replicas [average].
Keeps    a gradient, momentum and the arrays of the rule, each replica its own;
         `LowPrecision` also (d + i)·K words of weights of each of two neighbours, and
         if τ > 1 of its own.
Sends    in the exchanges 1, τ + 1, 2τ + 1, ...: `Decentralized` (d + i)·K words, in an
         all-reduce or a swap with one replica; `LowPrecision` 8 + d·K bytes and i·K
         words to each neighbour. `LowPrecision` also every `resync` exchanges (d + i)·K
         words to each. At the end an all-reduce of (d + i)·S·K words, S = 2 with
         momentum, else 1. Where R > 2, members broadcast the intercept, S·K words,
         after that and after each mix of `Decentralized`. With `hierarchical` the first
         replicas of groups do this, between a reduce and a broadcast of (d + i)·K words
         in each group.

`LocalSteps` averages weights as `base` does, with slow momentum where it is set:

Needs    what the others need.
Refuses  what they refuse, but codecs; `hierarchical`, and averages of momentum with a
         codec.
Keeps    a gradient, momentum and the n arrays of the rule, each replica its own, and
         what its base, SlowMo and a codec keep.
Sends    what its base or SlowMo sends, and where `momentum` is average, behind each
         average of all replicas an all-reduce of n·(d + i)·K words of the rule (n is 2
         with adam, 1 with adagrad, else 0), of whose n·K words of the intercept member
         0 sends a broadcast to the members where R > 2.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcsgd.agreements.averaging import (
    MIXERS,
    PEERS_HELP,
    Average,
    AverageSettings,
    flat_positions,
    positions,
    refuse_odd,
    sent_for_mean,
)
from hpcsgd.agreements.base import (
    PURPOSE,
    AgreementInputs,
    AgreementSettings,
    GradientSettings,
    Overlap,
    Requires,
    RunShape,
    StateShape,
    Supports,
    alike,
    get_agreement,
    same_on_members,
)
from hpcsgd.agreements.codecs.base import SCALE_BYTES, Chunks
from hpcsgd.agreements.codecs.bits import from_bytes, to_bytes
from hpcsgd.agreements.gradient import Gradient, GradientInputs, group_sizes
from hpcsgd.agreements.hierarchical import Groups, open_groups
from hpcsgd.agreements.slowmo import SlowMo, SlowMoSettings
from hpcsgd.backends.base import Rows
from hpcsgd.backends.task import State, Task
from hpcsgd.comm.communicator import Pending
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent, SentWords
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.formats import Array
from hpcsgd.glm import ADAPTIVE
from hpcsgd.precision import Precision
from hpcsgd.settings import setting

# Decentralized SGD in full precision (BAGUA's D_FP_S, arXiv 2107.01499):
#
#     w_i ← (n_i w_i + n_j w_j) / (n_i + n_j) − η g_i(w_i)
#
# with j the replica that is met in this exchange, or with the mean over all replicas.
# The weights travel while the gradient is computed. Between two mixes replicas take τ
# steps, which is `communication_interval` of BAGUA; t / τ numbers the mixes in exchange
# t = 0, τ, 2τ, ..., by which pairs change.
# With `hierarchical`, groups of replicas (those of a node) take their mean first, their
# leaders mix these means, and broadcast the result in their groups.
# Weights count by the rows behind them, so that Σ n_i w_i, the model that a run
# evaluates and returns, is what mixing leaves alone.


@dataclass(frozen=True)
class OwnStepsSettings(GradientSettings):
    """The settings of replicas that step by their own gradients and mix weights."""

    reads: ClassVar[frozenset[str]] = frozenset()
    ignores: ClassVar[frozenset[str]] = frozenset({"bucket"})
    requires: ClassVar[Requires] = replace(GradientSettings.requires, period=None)
    supports: ClassVar[Supports] = Supports(
        codecs=False,
        leaders=False,
        loss_scale=False,
        shaping=False,
        clipping=False,
        packed_states=False,
        averages=False,
    )


def groups_of(grid: Grid, of: str) -> Groups:
    """Return the groups that `hierarchical` names; "off": each replica is a group.

    Collective.
    """
    if of == "off" or grid.replicas.size == 1:
        labels = tuple(range(grid.replicas.size))
        return Groups(SerialCommunicator(), grid.replicas, labels)
    return open_groups(grid, of)


class OwnSteps(Gradient, ABC):
    """A gradient agreement whose replicas step by their own gradients.

    Momentum and the other arrays of the update rule stay with their replica.
    Evaluations, results and the end of a run use the mean of the weights of all
    replicas.
    """

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, inputs)
        self.period = int(inputs.config.schedule.period)
        self.mean = Average(grid, share, 1)
        self.unpenalised = replace(inputs.steps, l2=0.0)  # gradients have the penalty
        self.groups = groups_of(grid, inputs.settings.hierarchical)
        self.overlap = Overlap(self.groups.leaders)
        group_rows = sum(
            count
            for count, first in zip(self.rows, self.groups.labels, strict=True)
            if first == self.groups.labels[grid.replica]
        )
        self.group_share = self.rows[grid.replica] / max(group_rows, 1)
        self._departed = False

    def prepare(self, state: State) -> None:
        """Allocate the buffer of this replica's gradient, and the rule's arrays."""
        self.buffer = self._make_buffer(state, tiles=1)
        self.steps.prepare(state, self.columns)

    def scores(
        self, task: Task, state: State, rows: Rows, point: Array, out: Array
    ) -> None:
        """Compute out ← Y w for the sampled rows Y and the weights w = `point`.

        The first call of an exchange calls `_depart` before it computes.
        """
        self._set_out(state)
        super().scores(task, state, rows, point, out)

    def ready(self, task: Task, state: State) -> Iterator[slice]:
        """Call `_depart` once in an exchange, and yield the slice of all columns."""
        self._set_out(state)
        yield slice(None)

    def apply_update(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add the gradient Yᵀr of a batch; after the last batch, take the step."""
        self._left -= 1
        self.buffer.count_in(residuals)
        self.add_gradient(self.buffer.gradient, rows, residuals)
        task.clock.lap("update")
        if not self._left:
            self._step(state, task)
            task.clock.start()  # the ledger counts the wait for others

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Mix the weights, without a step, if this replica had no rows. Collective."""
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            self._set_out(state)
            self._step(state, None)

    def is_whole(self, exchanges: int) -> bool:
        """Return whether there is one replica; several end with different weights."""
        return self.grid.replicas.size == 1

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """Return whether there is one replica; several have different states."""
        return self.grid.replicas.size == 1

    def agree(self, state: State, purpose: str) -> None:
        """Compute w ← Σ_r (n_r / n) w_r, for evaluations and results. Collective."""
        self.mean.agree(state, purpose)

    def facts(self) -> dict[str, Any]:
        """Return facts about messages, buffers and groups, for the report of a run."""
        facts: dict[str, Any] = {**self.overlap.facts(), **self.buffer.facts()}
        if self.inputs.settings.hierarchical != "off":
            facts["groups"] = self.groups.count
        return facts

    def close(self) -> None:
        """Close the communicators of groups that `hierarchical` made. Collective."""
        if self.groups.leaders is not self.grid.replicas:
            self.groups.close()

    @classmethod
    def saves(cls, shape: StateShape) -> int:
        """Return the bytes of the states of all replicas, which always differ."""
        return shape.replicas * (shape.state + shape.moments * shape.vector)

    others: ClassVar[int]  # vectors: words sent and received, and copies

    @classmethod
    def vectors(cls, shape: StateShape) -> int:
        """Return how many arrays, as large as a state, a rank allocates beside states.

        They are those of `Gradient`, those of messages, and copies.
        """
        return super().vectors(shape) + cls.others

    @classmethod
    def last_messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return what the mean of all replicas sends at the end of a run.

        It contains weights, intercept and momentum.
        """
        return sent_for_mean(shape, shape.classes * shape.states, shape.replicas)

    def _sends(self) -> bool:
        """Return whether replicas send their weights in this exchange."""
        return self.grid.replicas.size > 1 and is_sent(self._done, self.period)

    @abstractmethod
    def _depart(self, state: State) -> None:
        """Start to send what other replicas need, before the gradient is computed."""

    def _set_out(self, state: State) -> None:
        if not self._departed:
            self._departed = True
            self._depart(state)

    def _begin(self, number: int) -> None:
        super()._begin(number)
        self._departed = False

    def _whole_gradient(self, state: State) -> None:
        """Turn the summed gradient into the mean over this replica's rows, in place.

        The gradient of the ridge penalty is added, at the point at which the scores
        were computed.
        """
        gradient = self.buffer.gradient
        gradient *= gradient.dtype.type(1.0 / float(self.buffer.tail[-1]))
        if self.steps.l2:
            gradient += gradient.dtype.type(self.steps.l2) * self._point(state)

    def _point(self, state: State) -> Array:
        """Return the point at which scores are computed.

        It is w, or w + μv if the update rule computes scores ahead of the weights.
        """
        rule = self.steps.rule
        weights = state.weights
        point: Array = weights[:, : self.columns]
        if rule.linear is not None and rule.states > 1:
            momentum = float(rule.linear.probe()[1])
            point = point + weights.dtype.type(momentum) * weights[:, self.columns :]
        return point

    def _descend(self, state: State) -> None:
        """Step this replica along its own gradient, which contains the penalty.

        Do nothing if it had no rows in this exchange.
        """
        count = float(self.buffer.tail[-1])
        moment = self._moment
        if not count:
            return
        gradient = self.buffer.gradient
        self.unpenalised.take(state, slice(None), gradient, 1.0, moment)
        if state.intercept is not None:
            sums = self.buffer.tail[: self.buffer.sums].astype(np.float64)
            self.steps.take_intercept(state, sums / count, moment)


def is_sent(number: int, period: int) -> bool:
    """Return whether replicas send weights in exchange `number`, counted from 0."""
    return number % period == 0


@dataclass(frozen=True)
class DecentralizedSettings(OwnStepsSettings):
    """The settings of replicas that mix weights while they compute gradients."""

    peers: str = setting("all", PEERS_HELP, choices=tuple(MIXERS))

    supports: ClassVar[Supports] = replace(OwnStepsSettings.supports, leaders=True)

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield a refusal if an odd number of replicas is to mix in pairs."""
        if self.hierarchical == "off":
            yield from refuse_odd(self.peers, config.grid.replicas)


class Decentralized(OwnSteps):
    """Decentralized SGD: weights are mixed while the gradient is computed."""

    settings: ClassVar[type[AgreementSettings]] = DecentralizedSettings
    others: ClassVar[int] = 2

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, inputs)
        peers = inputs.settings.peers
        count = self.groups.count
        if peers == "shift_one" and count > 1 and count % 2 == 1:
            self.close()
            raise alike(
                f"[agreement] peers = 'shift_one' makes pairs, and {count} groups of"
                f" hierarchical = {inputs.settings.hierarchical!r} leave one over; use"
                " an even number of groups, or agreement.peers=all"
            )
        self.mixer = MIXERS[peers](self.groups.leaders, self.groups.rows(self.rows))

    def facts(self) -> dict[str, Any]:
        """Return the kind of peers, and the facts of `OwnSteps`."""
        return {"peers": self.inputs.settings.peers, **super().facts()}

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return the all-reduce or swap by which weights and intercept are mixed.

        It is a swap where `peers` is shift_one. Where members may differ in a bit of
        the intercept, member 0 broadcasts it to the members. The list is empty between
        two mixes. Return None where nodes or racks are the groups of `hierarchical`.
        """
        groups = group_sizes(shape)
        if groups is None:
            return None
        if not is_sent(exchanges - 1, shape.period):
            return []
        inside, leaders = groups
        words = _words_of(shape)
        sent = [shape.sent(words)] * (2 if inside > 1 else 0)
        if leaders > 1:
            is_sum = shape.settings.peers == "all"
            sent += shape.sum(words) if is_sum else [shape.sent(words)]
        if shape.intercept:
            sent += shape.to_members(shape.classes * shape.states)
        return sent

    def _depart(self, state: State) -> None:
        if self._sends():
            words = flat_positions(state, self.columns)
            with self.overlap.posting():
                self._arrive = self._start_mix(words)

    def _start_mix(self, words: Array) -> Callable[[], Array]:
        """Take the mean of the group, and start to mix it. Collective.

        Return a function that waits for the mixed words, and broadcasts them in the
        group.
        """
        groups = self.groups
        groups.mean(words, self.group_share)
        mixed = Pending(words)  # of a replica that does not lead
        if groups.leads:
            mixed = self.mixer.start(words, self._done // self.period)
        return lambda: groups.inside.broadcast(mixed.wait(), 0, PURPOSE)

    def _step(self, state: State, task: Task | None) -> None:
        if self.buffer.tail[-1]:
            self._whole_gradient(state)
        if self._sends():
            with self.overlap.waiting():
                mixed = self._arrive()
            positions(state, self.columns).become(mixed)
            if state.intercept is not None:
                same_on_members(self.grid, state.intercept, self.grid.replicas.size)
        self._descend(state)


def _words_of(shape: RunShape) -> int:
    """Return the words of weights and intercept, without momentum."""
    return shape.classes * (shape.local_columns + shape.intercept)


# Decentralized SGD in low precision on a ring (BAGUA's D_LP_S, arXiv 2107.01499).
#
# Replica i keeps the weights of its neighbours on the left and on the right, L and R,
# beside its own w. With x what its own τ steps make of w,
#
#     δ = (x − w) + a (L − w) + b (R − w);    w ← w + Q(δ),    L ← L + Q(δ_L), ...
#
# with a and b 1/3, less for one of fewer rows (`mixing_share`). All add the same
# decoded numbers to the same bits, so that L equals the weights of the left neighbour
# at any time: an error of Q is in the next δ, and no error is stored. A lost message
# would make them differ for ever; every `resync` exchanges neighbours send w itself,
# which changes nothing where no message was lost. With `hierarchical` the leaders of
# groups are the ring, and x is the mean of a group.

SENT = "ring_weights"  # name of w in checkpoints of the same grid, where it is not x
HEAD = 2 * SCALE_BYTES  # the least and the greatest word, float32


@dataclass(frozen=True)
class LowPrecisionSettings(OwnStepsSettings):
    """The settings of ring neighbours that send changes of weights in 8 bits."""

    resync: int = setting(
        0,
        "exchanges between two messages of uncompressed weights; 0 sends none",
        at_least=0,
    )

    supports: ClassVar[Supports] = replace(OwnStepsSettings.supports, leaders=True)


class LowPrecision(OwnSteps):
    """Decentralized SGD on a ring that sends changes of weights in 8 bits.

    A replica keeps copies of both neighbours' weights, to which it adds the changes
    that they send. The encoded change of a step travels during the next step.
    """

    settings: ClassVar[type[AgreementSettings]] = LowPrecisionSettings
    others: ClassVar[int] = 8

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, inputs)
        count = self.groups.count
        rank = self.groups.leaders.rank
        rows = self.groups.rows(self.rows)
        self.peers: tuple[int, ...] = ()  # in the ring of leaders
        if self.groups.leads and count > 1:
            self.peers = (rank - 1) % count, (rank + 1) % count
        self.shares = [mixing_share(rows[rank], rows[peer]) for peer in self.peers]
        self.resync = inputs.settings.resync
        self._land: Callable[[], None] | None = None
        self._sent: Array | None = None  # w, where own steps follow on it

    def prepare(self, state: State) -> None:
        """Allocate copies of both neighbours' weights, which `start` fills.

        If τ > 1, also allocate the weights that this replica sent last.
        """
        super().prepare(state)
        flat_weights = flat_positions(state, self.columns)
        self.words = len(flat_weights) - self.buffer.sums  # what is encoded
        self.neighbours = [flat_weights.copy() for _ in self.peers]
        if self.period > 1:
            self._sent = np.full_like(flat_weights, np.nan)
            state.rank_arrays[SENT] = self._sent

    def start(self, state: State, exchanges: int) -> None:
        """Receive the weights of both neighbours. Collective.

        Therefore a checkpoint need not contain the copies of the neighbours' weights.
        """
        if self._sent is not None and np.isnan(self._sent).all():
            # No checkpoint of this grid has set them: all replicas are at one point.
            self._sent[...] = flat_positions(state, self.columns)
        self._ask(state, "control")

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Finish an exchange; if a resync is due, swap weights with both neighbours.

        Collective.
        """
        super().after_exchange(state, exchanges)
        if self.resync and exchanges % self.resync == 0:
            self._arrive()
            self._ask(state, PURPOSE)

    def arrive(self, state: State) -> None:
        """Wait for the last changes of both neighbours, and apply them. Collective."""
        self._arrive()

    def settle(self, state: State, exchanges: int) -> None:
        """Wait for the last changes, then average over all replicas. Collective."""
        self._arrive()
        super().settle(state, exchanges)

    def _depart(self, state: State) -> None:
        """Do nothing: the change of weights is known, and sent, after the step."""

    def _step(self, state: State, task: Task | None) -> None:
        before = self._known(state)
        if self.buffer.tail[-1]:
            self._whole_gradient(state)
            self._descend(state)
        if not self._sends():
            return
        self._arrive()
        after = flat_positions(state, self.columns)
        self.groups.mean(after, self.group_share)
        if self.groups.leads and state.intercept is not None:
            same_on_members(self.grid, after[self.words :], self.groups.inside.size)
        record = None
        if self.peers:
            change = after - before
            for share, theirs in zip(self.shares, self.neighbours, strict=True):
                change += change.dtype.type(share) * (theirs - before)
            record = self._encode(change)
            after = before + self._decode(record)
        self.groups.inside.broadcast(after, 0, PURPOSE)
        positions(state, self.columns).become(after)
        if self._sent is not None:
            self._sent[...] = after
        if record is not None:
            with self.overlap.posting():
                self._land = self._send(record)

    def _send(self, record: NDArray[np.uint8]) -> Callable[[], None]:
        """Start to send a record to both neighbours.

        Return a function that waits for the neighbours' records, and adds them to the
        copies of their weights.
        """
        buffers = [np.empty_like(record) for _ in self.peers]
        pending = [
            self.groups.leaders.start_swap(record, buffer, peer, PURPOSE)
            for buffer, peer in zip(buffers, self.peers, strict=True)
        ]

        def land() -> None:
            for number, arriving in enumerate(pending):
                self.neighbours[number] += self._decode(arriving.wait())

        return land

    def _arrive(self) -> None:
        """Wait for the neighbours' last records; add them to the copies of weights."""
        land = self._land
        self._land = None
        if land is not None:
            with self.overlap.waiting():
                land()

    def _known(self, state: State) -> Array:
        """Return w, the weights of this replica that its neighbours have, too."""
        if self._sent is None:
            return flat_positions(state, self.columns)
        return self._sent

    def _ask(self, state: State, purpose: str) -> None:
        flat_weights = self._known(state)
        # Both at once: around a ring, one after the other would wait for ever.
        pending = [
            self.groups.leaders.start_swap(flat_weights, theirs, peer, purpose)
            for theirs, peer in zip(self.neighbours, self.peers, strict=True)
        ]
        for arriving in pending:
            arriving.wait()

    def _encode(self, change: Array) -> NDArray[np.uint8]:
        """Return a change of weights as bytes, with an uncompressed intercept.

        The bytes are [least, greatest word | a byte for each word | words of the
        intercept].
        """
        coded = change[: self.words]
        plain = change[self.words :]
        ends, codes = to_bytes(coded, self._chunks())
        parts = ends.reshape(-1).view(np.uint8), codes, plain.view(np.uint8)
        return np.concatenate(parts)

    def _decode(self, record: NDArray[np.uint8]) -> Array:
        """Return the change of weights that a record encodes, in the weights' dtype.

        All replicas decode a record to the same bits.
        """
        kind = self.buffer.flat.dtype
        last = HEAD + self.words
        ends = record[:HEAD].copy().view(np.float32).reshape(2, 1)
        coded = from_bytes(ends, record[HEAD:last], self._chunks()).astype(kind)
        return np.concatenate([coded, record[last:].copy().view(kind)])

    def _chunks(self) -> Chunks:
        return Chunks(self.words, self.words)

    @classmethod
    def vectors(cls, shape: StateShape) -> int:
        """Return the arrays of `OwnSteps`; if τ > 1, also that of the weights sent."""
        return super().vectors(shape) + int(shape.config.schedule.period > 1)

    @classmethod
    def saves(cls, shape: StateShape) -> int:
        """Return the bytes of all replicas; if τ > 1, also of the weights they sent."""
        sent = shape.vector * int(shape.config.schedule.period > 1)
        return super().saves(shape) + shape.replicas * sent

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return the records for both neighbours; if a resync is due, the weights.

        Between two records the list is empty. With `hierarchical`, a record is sent
        between a reduce and a broadcast of the weights in the group. Return None where
        nodes or racks are the groups.
        """
        groups = group_sizes(shape)
        if groups is None:
            return None
        inside, leaders = groups
        words = _words_of(shape)
        tail = shape.classes * shape.intercept * shape.itemsize
        record = HEAD + shape.local_columns * shape.classes + tail
        peers = 2 if leaders > 1 else 0
        sent: list[SentWords] = []
        if is_sent(exchanges - 1, shape.period):
            sent += [shape.sent(words)] * (2 if inside > 1 else 0)
            sent += [shape.sent(record, 1)] * peers
            if shape.intercept and inside > 2 and shape.members > 1:
                sent.append(shape.sent(shape.classes))
        resync = shape.settings.resync
        if resync and exchanges % resync == 0:
            sent += [shape.sent(words)] * peers
        return sent

    def facts(self) -> dict[str, Any]:
        """Return the bytes of a record, and the facts of `OwnSteps`."""
        tail = self.buffer.sums * self.buffer.flat.dtype.itemsize
        return {"record_bytes": HEAD + self.words + tail, **super().facts()}


def mixing_share(own: int, other: int) -> float:
    """Return a_ij, the share of neighbour j's weights in the mean of replica i.

    `own` and `other` are the rows n_i and n_j. Since n_i a_ij = n_j a_ji, mixing
    preserves Σ n_i w_i. The share is 1/3 where all replicas have as many rows.
    """
    return min(1.0, other / own if own else 1.0) / 3.0


# Local steps of any rule between averages of weights: local Adam, and codecs for it.
#
# Between two averages replica r steps by its own gradient, by a rule such as Adam,
# whose arrays are averaged with the weights, kept, or set to zero, as SlowMo does with
# the buffers of its base (Wang et al., 2020, Algorithm 1, line 2). Where they are set
# to zero, the bias corrections of Adam begin again, too.


@dataclass(frozen=True)
class LocalStepsSettings(SlowMoSettings, OwnStepsSettings):
    """The settings of local steps of any rule, with those of averages of weights."""

    slow_momentum: float = setting(
        0.0,
        "slow momentum coefficient β; 0 with slow_rate = 1 leaves the base agreement"
        " alone",
        at_least=0,
        below=1,
    )

    shares_gradients: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = AverageSettings.reads
    ignores: ClassVar[frozenset[str]] = frozenset({"bucket", "accumulate", "proximal"})
    supports: ClassVar[Supports] = replace(OwnStepsSettings.supports, codecs=True)

    @property
    def is_slow(self) -> bool:
        """Return whether slow momentum is added to the base."""
        if self.slow_period or self.slow_sharded:
            return True
        return self.slow_rate != 1.0 or self.slow_momentum > 0.0


class LocalSteps(OwnSteps):
    """Local SGD with any rule: own steps, and averages of weights as `base` takes them.

    Slow momentum and a codec work as in the agreements on weights.
    """

    settings: ClassVar[type[AgreementSettings]] = LocalStepsSettings
    others: ClassVar[int] = 0

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, inputs)
        config = inputs.config
        steps = inputs.steps
        self.momentum = inputs.settings.momentum
        terms = AgreementInputs(
            grid=grid,
            rows=tuple(self.rows),
            classes=inputs.columns,
            period=self.period,
            exchanges_per_epoch=steps.each,
            seed=config.sampling.seed,
            settings=inputs.settings,
            last_rate=lambda exchanges: float(steps.rates(exchanges - 1, 1)[0]),
            codec=config.codec if config.agreement.codec != "identity" else None,
        )
        self.averages: Any = averaging(inputs.settings).of(terms)

    @property
    def workers(self) -> int:
        """Return the number of replicas that train in an exchange of the base."""
        workers: int = self.averages.workers
        return workers

    @property
    def circle_sizes(self) -> list[int]:
        """Return the sizes of the nested groups of the base."""
        sizes: list[int] = self.averages.circle_sizes
        return sizes

    def trains(self, number: int) -> bool:
        """Return whether this replica trains in exchange `number`, counted from 1."""
        return bool(self.averages.trains(number))

    def prepare(self, state: State) -> None:
        """Allocate the arrays of the rule, and those of the averages. Collective."""
        super().prepare(state)
        self.averages.prepare(state)

    def start(self, state: State, exchanges: int) -> None:
        """Begin the averages of a run, or resume them."""
        self.averages.start(state, exchanges)

    def is_whole(self, exchanges: int) -> bool:
        """Return whether all replicas have equal weights after so many exchanges."""
        return bool(self.averages.is_whole(exchanges))

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Average weights and arrays of the rule where that is due. Collective."""
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)  # this replica had no rows, or rested
        self.averages.after_exchange(state, exchanges)
        if self.is_whole(exchanges):
            self._average_rule(state, exchanges)

    def conclude(self, state: State, exchanges: int, purpose: str) -> None:
        """Average weights for evaluations and at the end. Collective."""
        self.averages.conclude(state, exchanges, purpose)

    def agree(self, state: State, purpose: str) -> None:
        """Average weights as the base does. Collective."""
        self.averages.agree(state, purpose)

    def memory(self, state: State) -> dict[str, Array]:
        """Return the arrays of `state.memory` as checkpoints save them. Collective."""
        arrays: dict[str, Array] = self.averages.memory(state)
        return arrays

    def remember(self, state: State, name: str, kept: Array) -> None:
        """Store an array that `memory` has returned."""
        self.averages.remember(state, name, kept)

    def inherit(self, state: State, name: str, kept: Array) -> None:
        """Use a saved array that only the averages may know."""
        self.averages.inherit(state, name, kept)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the averages, and of the buffers."""
        return {**self.averages.facts(), **self.buffer.facts()}

    def close(self) -> None:
        """Close the communicators that the averages opened. Collective."""
        self.averages.close()

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return what an average sends, and behind one of all the rule's arrays."""
        kind = averaging(shape.settings)
        sent: Sent | None = kind.messages(shape, exchanges)
        if sent is None or not kind.agrees(shape, exchanges) or shape.replicas == 1:
            return sent
        return [*sent, *_sent_for_rule(shape)]

    @classmethod
    def last_messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return one average of all replicas; [] if the last exchange had one."""
        sent: Sent = averaging(shape.settings).last_messages(shape, exchanges)
        return sent

    @classmethod
    def rank_0_trains(cls, shape: RunShape, number: int) -> bool:
        """Return whether replica 0 trains in exchange `number`, counted from 0."""
        return bool(averaging(shape.settings).rank_0_trains(shape, number))

    @classmethod
    def holds(cls, shape: StateShape) -> Iterator[tuple[str, int]]:
        """Yield what own steps keep, and what the averages keep beside the state."""
        yield from super().holds(shape)
        for name, size in averaging(shape.settings).holds(shape):
            if name != "states":
                yield name, size

    def _depart(self, state: State) -> None:
        """Do nothing: weights are averaged after a step."""

    def _begin(self, number: int) -> None:
        """Start an exchange; after a reset, the rule counts its steps from then on."""
        super()._begin(number)
        if self.momentum == "reset":
            done = number
            while done and not self.is_whole(done):
                done -= 1
            self._moment = replace(self._moment, number=number - done)

    def _step(self, state: State, task: Task | None) -> None:
        if self.buffer.tail[-1]:
            self._whole_gradient(state)
        self._descend(state)

    def _average_rule(self, state: State, exchanges: int) -> None:
        """Average the arrays of the rule, set them to zero, or keep them. Collective.

        Average them with the weights of the replicas in the average of weights.
        """
        names = self.steps.rule.state_names
        if self.momentum == "reset":
            for name in names:
                state.memory[name][...] = 0.0
                if state.intercept is not None:
                    state.shared[name][...] = 0.0
        if self.momentum != "average" or not names or self.grid.replicas.size == 1:
            return
        intercepts = [
            state.shared[name] for name in names if state.intercept is not None
        ]
        rule = State(
            weights=np.hstack([state.memory[name] for name in names]),
            intercept=np.vstack(intercepts) if intercepts else None,
        )
        share = self.averages.weight(exchanges)
        self.mean.average(rule, share, self.grid.replicas, PURPOSE)
        for number, name in enumerate(names):
            columns = slice(number * self.columns, (number + 1) * self.columns)
            state.memory[name][...] = rule.weights[:, columns]
            if rule.intercept is not None:
                state.shared[name][...] = rule.intercept[number : number + 1]


def averaging(settings: LocalStepsSettings) -> Any:
    """Return the class of the averages between local steps: the base, or SlowMo."""
    return SlowMo if settings.is_slow else get_agreement(settings.base)


def _sent_for_rule(shape: RunShape) -> list[SentWords]:
    """Return what rank 0 sends to average the arrays of the rule, if it does."""
    count = ADAPTIVE.get(shape.config.update.kind, 0)
    if not count or shape.settings.momentum != "average":
        return []
    return sent_for_mean(shape, count * shape.classes, shape.replicas)

"""Weights that are averaged: local and post-local SGD, SGP, FedAvg, async averages.

The class docstrings count the words of a rank with d columns of K classes, in a run of
R replicas. S is the number of arrays of the update (sgd 1, momenta 2, svrg 3), a = S
where `momentum` is average and 1 where it is keep or reset, and i = 1 with an
intercept, else 0. Where R > 2 and a replica has several members, each average ends with
a broadcast of the intercept, a·K words in float64, to the members. An all-reduce counts
as two collectives in a run with `--reproducible`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, ClassVar

import numpy as np

from hpcsgd.agreements.base import (
    PURPOSE,
    Agreement,
    AgreementInputs,
    AgreementSettings,
    Overlap,
    RunShape,
    StateShape,
    Supports,
    same_on_members,
)
from hpcsgd.agreements.buckets import ReplicaChannel
from hpcsgd.agreements.codecs import (
    Bucket,
    CodecConfig,
    Moment,
    is_coded,
    kept_bytes,
    make_codec,
)
from hpcsgd.agreements.codecs.base import ERROR
from hpcsgd.backends.task import State
from hpcsgd.comm.communicator import Communicator, Pending
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent, SentWords
from hpcsgd.formats import Array
from hpcsgd.glm import ADAPTIVE
from hpcsgd.precision import Precision
from hpcsgd.settings import setting

# Local SGD (s = 1), and the 2-D hybrid (s > 1).
#
# Both change the iterates; CA-SGD inside one replica does not.

BUFFERS = ("average", "keep", "reset")  # what becomes of momentum when replicas agree
# Updates with more arrays than weights.
WITH_MOMENTUM = ("momentum", "nesterov", "nesterov-classic", "svrg", *ADAPTIVE)


@dataclass(frozen=True)
class AverageSettings(AgreementSettings):
    """The settings of local SGD: replicas step alone, and average their weights."""

    averages_weights: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset({"feedback"})
    supports: ClassVar[Supports] = replace(AgreementSettings.supports, codecs=True)

    momentum: str = setting(
        "average",
        "momentum buffers when replicas average their weights: averaged too (average),"
        " kept by each replica (keep), or reset to 0 (reset)",
        choices=BUFFERS,
        read_if={"update.kind": WITH_MOMENTUM},
    )
    proximal: float = setting(  # type: ignore[misc]
        0.0,
        "FedProx: weight μ of the term (μ/2) |w − a|² that keeps the steps of a replica"
        " near the last average a; 0 uses none",
        at_least=0,
    )


class Average(Agreement):
    """Local SGD (Stich, 2019): x ← Σ_r (n_r / n) x_r over all replicas.

    Needs    an update that is linear in the state: sgd, momentum, nesterov,
             nesterov-classic or svrg; no certain s, τ, product or penalty.
    Refuses  optimizer state in 8 bits, `hierarchical`, `accumulate` above 1, and
             changes of a mean gradient (centre, normalise, noise, clip by percentile);
             with a codec, averages of momentum, and the codecs dgc and accordion.
    Keeps    nothing beside the state. The momentum, the columns of the state behind the
             first `classes`, is averaged as the weights are, kept by every replica, or
             set to zero, as `momentum` names it. With `proximal` (FedProx, Li et al.,
             2020) the last columns are the anchor: the weights after the last average
             of all replicas, which is not sent. With a codec also these weights, d·K
             words, and what the codec keeps.
    Sends    every τ exchanges an all-reduce of (d + i)·a·K words, and at the end one
             more, unless the last exchange had one. With a codec, every τ exchanges the
             bytes of the codec for a bucket of d columns, and an all-reduce of i·K
             words in float64.
    """

    settings: ClassVar[type[AgreementSettings]] = AverageSettings

    def __init__(
        self,
        grid: Grid,
        share: float,
        period: int,
        settings: AverageSettings = AverageSettings(),
        classes: int = 0,
        changes: "CodedChanges | None" = None,
    ) -> None:
        super().__init__(grid, share, period)
        self.momentum = settings.momentum
        self.classes = classes
        self.has_anchor = settings.proximal > 0.0
        self.changes = changes

    @classmethod
    def of(cls, terms: AgreementInputs) -> "Average":
        """Make the agreement from `terms`, the inputs of a run."""
        return cls(
            terms.grid,
            terms.share,
            terms.period,
            terms.settings,
            terms.classes,
            CodedChanges.of(terms),
        )

    def prepare(self, state: State) -> None:
        """Allocate what the codec of changes keeps, if there is a codec."""
        if self.changes is not None:
            self.changes.prepare(state)

    def start(self, state: State, exchanges: int) -> None:
        """Set the anchor to the first weights of a run, unless it is resumed."""
        if not exchanges:
            self.anchor(state)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Average the weights if that is due; all replicas then anchor there."""
        if self.is_whole(exchanges):
            self.synchronise(state, exchanges)
            self.anchor(state)

    def synchronise(self, state: State, exchanges: int) -> None:
        """Average all replicas, by a codec if there is one. Collective.

        `conclude` averages without a codec: evaluations and the end of a run use it.
        """
        if self.changes is None:
            self.conclude(state, exchanges, PURPOSE)
            return
        self.changes.average(state, self.weight(exchanges), exchanges)
        if self.momentum == "reset":
            clear_momentum(self.unanchored(state), self.classes)

    def anchor(self, state: State) -> None:
        """Set the anchors of FedProx and of a codec, if any, to the present weights."""
        if self.changes is not None:
            self.changes.anchor(state)
        if not self.has_anchor:
            return
        state.weights[:, -self.classes :] = state.weights[:, : self.classes]
        if state.intercept is not None:
            state.intercept[-1] = state.intercept[0]

    def inherit(self, state: State, name: str, kept: Array) -> None:
        """Move by what codecs of several replicas had not sent; ignore other arrays.

        A run on one replica has no codec.
        """
        if name == OF_CODEC + ERROR:
            state.weights[:, : self.classes] -= kept

    def agree(self, state: State, purpose: str) -> None:
        """Average weights and intercept over replicas, weighted by rows. Collective."""
        self.average(state, self.share, self.grid.replicas, purpose)

    def weight(self, exchanges: int) -> float:
        """Return the weight of this replica in an average: its share of all rows."""
        return self.share

    def keeps_own(self, state: State) -> bool:
        """Return whether replicas keep arrays that differ after an average.

        They do if each keeps its momentum, or has arrays in `state.memory`.
        """
        if self.momentum == "keep" and not self.averages_all(state):
            return True
        return super().keeps_own(state)

    def averages_all(self, state: State) -> bool:
        """Return whether all but the anchor is averaged, including any momentum."""
        if self.momentum == "average":
            return True
        states = 1 + self.has_anchor
        return bool(state.host_array("weights").shape[1] <= states * self.classes)

    def unanchored(self, state: State) -> State:
        """Return the state without the anchor of FedProx, as views."""
        if not self.has_anchor:
            return state
        return positions(
            state, self.classes, state.weights.shape[1] // self.classes - 1
        )

    def average(
        self, state: State, share: float, group: Communicator, purpose: str
    ) -> None:
        """Compute x ← Σ share · x over the ranks of `group`, whose shares add up to 1.

        Collective. x is weights and intercept. Momentum is averaged, kept or set to 0,
        as `momentum` names it.
        """
        if self.averages_all(state):
            self._average_all(self.unanchored(state), share, group, purpose)
            return
        self._average_all(positions(state, self.classes), share, group, purpose)
        if self.momentum == "reset":
            clear_momentum(self.unanchored(state), self.classes)

    @classmethod
    def agrees(cls, shape: RunShape, exchanges: int) -> bool:
        """Return whether all replicas average after so many exchanges."""
        return exchanges % shape.period == 0

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return what rank 0 sends after an exchange; [] where no average is due.

        Return None where the data decide what a codec sends, and with a codec in a
        reproducible run.
        """
        return sent_for_changes(shape) if cls.agrees(shape, exchanges) else []

    @classmethod
    def last_messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return what rank 0 sends at the end; [] if the last exchange averaged."""
        return [] if cls.agrees(shape, exchanges) else sent_for_average(shape)

    @classmethod
    def holds(cls, shape: StateShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of the states, and of what a codec of changes keeps."""
        yield from super().holds(shape)
        if is_coded(shape.config) and shape.replicas > 1:
            yield "coded changes", bytes_of_changes(shape)

    def _average_all(
        self, state: State, share: float, group: Communicator, purpose: str
    ) -> None:
        if group.size == 1:
            return
        buffer = state.portion(share, group)
        group.sum(buffer, purpose)
        intercept = state.become(buffer)
        if intercept is not None:
            same_on_members(self.grid, intercept, group.size, purpose)


class AverageVariant(Average):
    """Base class of variants of local SGD, which are made from all inputs of a run."""

    def __init__(self, terms: AgreementInputs) -> None:
        super().__init__(
            terms.grid,
            terms.share,
            terms.period,
            terms.settings,
            terms.classes,
            CodedChanges.of(terms),
        )

    @classmethod
    def of(cls, terms: AgreementInputs) -> "Average":
        """Make the agreement from `terms`, the inputs of a run."""
        return cls(terms)


def sent_for_average(shape: RunShape, replicas: int = 0) -> list[SentWords]:
    """Return what rank 0 sends for an average over `replicas` replicas; 0: over all.

    The list is empty for one replica. Else it has an all-reduce of weights and
    intercept, and of momentum if that is averaged. If there are more than two replicas
    of several members, a broadcast of the intercept to the members follows.
    """
    replicas = replicas or shape.replicas
    return sent_for_mean(shape, words_averaged(shape), replicas)


def words_averaged(shape: RunShape) -> int:
    """Return how many words an average sends for each column of the data."""
    if shape.settings.momentum != "average":
        return shape.classes
    has_anchor = shape.settings.proximal > 0.0
    return shape.classes * (shape.states - int(has_anchor))


def sent_for_mean(shape: RunShape, wide: int, replicas: int) -> list[SentWords]:
    """Return what rank 0 sends for a mean over `replicas` of `wide` words a column.

    The list is empty for one replica. The intercept, if there is one, counts as one
    more column; if there are more than two replicas of several members, it is also
    broadcast to the members after the sum.
    """
    if replicas == 1:
        return []
    sent = shape.sum((shape.local_columns + shape.intercept) * wide)
    if shape.intercept and replicas > 2 and shape.members > 1:
        sent.append(shape.sent(wide, 8))
    return sent


def positions(state: State, classes: int, states: int = 1) -> State:
    """Return a state with views of the first `states` arrays of weights and intercept.

    By default these are the weights and the intercept, without momentum.
    """
    intercept: Array | None = state.intercept
    return State(
        weights=state.weights[:, : states * classes],
        intercept=None if intercept is None else intercept[:states],
    )


def clear_momentum(state: State, classes: int) -> None:
    """Set the momentum of the weights and of the intercept to zero."""
    state.weights[:, classes:] = 0.0
    if state.intercept is not None:
        state.intercept[1:] = 0.0


# Changes of weights by a codec: Qsparse-local-SGD, and FedPAQ with `fedavg`.
#
# Since the last average, whose weights a all replicas know, replica r has moved by
# a − x_r. With its error e_r, which is 0 for codecs without error feedback,
#
#     c_r = R (n_r / n) (a − x_r) + e_r;    e_r ← c_r − C(c_r)
#     a ← a − (1/R) Σ_r C(c_r);             x_r ← a
#
# D. Basu, D. Data, C. Karakus and S. Diggavi, "Qsparse-local-SGD" (NeurIPS 2019),
# Algorithm 1, lines 8 to 14; A. Reisizadeh, A. Mokhtari, H. Hassani, A. Jadbabaie and
# R. Pedarsani, "FedPAQ" (AISTATS 2020), equation 6, without e_r, where n_r / n are the
# shares of the replicas that were drawn. The intercept is averaged as it is, and so are
# all weights at evaluations and at the end.

AGREED = "agreed"  # name of a in checkpoints
AVERAGES = "averages"  # and of the number of averages so far
OF_CODEC = "codec_"  # prefix of the names of arrays that the codec keeps


class CodedChanges:
    """The codec by which replicas send how far they moved since the last average."""

    def __init__(self, terms: AgreementInputs, config: CodecConfig) -> None:
        self.grid = terms.grid
        self.config = config
        self.name = terms.settings.codec
        self.seed = terms.seed
        self.classes = terms.classes
        self.each = terms.exchanges_per_epoch
        self._line = ReplicaChannel(terms.grid.replicas)

    @classmethod
    def of(cls, terms: AgreementInputs) -> "CodedChanges | None":
        """Return the codec of a run; None without one, and for one replica."""
        if terms.codec is None or terms.grid.replicas.size == 1:
            return None
        return cls(terms, terms.codec)

    def prepare(self, state: State) -> None:
        """Make the codec of all local columns, and allocate what checkpoints save."""

        def room(name: str) -> Array:
            whole: Array = state.remember(OF_CODEC + name, self.classes)
            return whole.reshape(-1)

        bucket = Bucket(
            number=0,
            height=len(state.weights),
            width=self.classes,
            dtype=state.weights.dtype,
            seed=self.seed,
            member=self.grid.member,
            room=room,
        )
        self.codec = make_codec(self.name, bucket, self.config.of_bucket(0, 1))
        state.remember(AGREED, self.classes)
        state.shared.setdefault(AVERAGES, np.zeros((1, self.classes)))
        for what, array in self.codec.kept.items():
            state.rank_arrays[OF_CODEC + what] = array

    def anchor(self, state: State) -> None:
        """Store the present weights, which all replicas have, as those agreed on."""
        state.memory[AGREED][...] = state.weights[:, : self.classes]

    def average(self, state: State, share: float, exchanges: int) -> None:
        """Set the weights to a − (1/R) Σ C(c), and average the intercept. Collective.

        `share` is the weight of this replica in the average after `exchanges`
        exchanges.
        """
        agreed = state.memory[AGREED]
        part = agreed - state.weights[:, : self.classes]
        part *= part.dtype.type(share * self._line.size)
        number = int(state.shared[AVERAGES][0, 0])
        moment = Moment(number, (exchanges - 1) // self.each, 1.0, 1.0)
        finish = self.codec.start(part.reshape(-1), self._line, moment)
        mean = finish().mean.reshape(agreed.shape)
        state.weights[:, : self.classes] = agreed - mean
        state.shared[AVERAGES] += 1.0
        if state.intercept is not None:
            intercept = state.intercept[0]
            intercept *= share
            self.grid.replicas.sum(intercept, PURPOSE)
            same_on_members(self.grid, intercept, self._line.size)


def sent_for_changes(shape: RunShape) -> list[SentWords] | None:
    """Return what rank 0 sends for an average of all replicas, by the codec if any.

    Return None where the data decide the bytes, and with a codec in a reproducible run:
    a codec may gather or sum.
    """
    if not is_coded(shape.config) or shape.replicas == 1:
        return sent_for_average(shape)
    if shape.reproducible:
        return None
    dtype = np.dtype(f"f{shape.itemsize}")
    bucket = Bucket(0, shape.local_columns, shape.classes, dtype)
    config = shape.config.codec.of_bucket(0, 1)
    codec = make_codec(shape.settings.codec, bucket, config)
    payload = codec.payload_bytes(shape.replicas, 0)
    if payload is None:
        return None
    sent = [SentWords(None, payload)]
    if shape.intercept:
        sent += [shape.sent(shape.classes, 8), *shape.to_members(shape.classes)]
    return sent


def bytes_of_changes(shape: StateShape) -> int:
    """Return the bytes of the weights agreed on, and of what a codec keeps and makes.

    They count with their snapshots, and with the words that are encoded and decoded.
    """
    config = shape.config
    bucket = Bucket(0, shape.columns, 1, np.dtype(f"f{shape.itemsize}"))
    codec = shape.settings.codec, bucket, config.codec, config.accordion
    kept = shape.vector + kept_bytes(*codec)
    return (2 + shape.snapshots) * kept + 3 * shape.vector


# Post-local SGD: local SGD that averages more often at first.


@dataclass(frozen=True)
class PostLocalSettings(AverageSettings):
    """The settings of post-local SGD, which averages more often at first."""

    switch: float = setting(
        1.0,
        "epochs at the start in which replicas average after every exchange",
        at_least=0,
    )


class PostLocal(AverageVariant):
    """Post-local SGD (Lin, Stich, Patel and Jaggi, 2020).

    Needs    what `Average` needs.
    Refuses  what `Average` refuses.
    Keeps    what `Average` keeps.
    Sends    the all-reduce of `Average` after each exchange of the first `switch`
             epochs, later after each number of exchanges that τ divides, and at the
             end, unless the last exchange had one.
    """

    settings: ClassVar[type[AgreementSettings]] = PostLocalSettings

    def __init__(self, terms: AgreementInputs) -> None:
        super().__init__(terms)
        self.switch = exchanges_in(terms.settings.switch, terms.exchanges_per_epoch)

    def is_whole(self, exchanges: int) -> bool:
        """Return whether all replicas have equal weights after so many exchanges.

        They have until the switch, and later whenever the period divides the number of
        exchanges, which counts from the start of the run, as in all other agreements.
        """
        return exchanges <= self.switch or exchanges % self.period == 0

    @classmethod
    def agrees(cls, shape: RunShape, exchanges: int) -> bool:
        """Return whether all replicas average after so many exchanges.

        They do after each exchange up to the switch, and later at the end of each
        period.
        """
        switch = exchanges_in(shape.settings.switch, shape.each())
        return exchanges <= switch or super().agrees(shape, exchanges)


def exchanges_in(epochs: float, each: int) -> int:
    """Return the number of exchanges in `epochs` epochs of `each`, rounded up."""
    return ceil(round(epochs * each, 6))  # 0.1 · 30 is 3, not 4


# Stochastic gradient push: half of the weights to one other replica, by push-sum.
#
# M. Assran, N. Loizou, N. Ballas and M. Rabbat, "Stochastic Gradient Push for
# Distributed Deep Learning" (ICML 2019), Algorithm 1, on the directed exponential graph
# of its appendix A. After exchange k = 1, 2, ... replica r sends half of its x and of
# its push-sum weight p to replica r + 2^((k − 1) mod ⌈log₂ R⌉), keeps the others, and
# steps at z = x / p:
#
#     x_r ← ½ x_r + ½ x_s;    p_r ← ½ p_r + ½ p_s;    z_r ← x_r / p_r
#
# with s the replica that sends to r. Σ p_r z_r never changes by this. p begins as
# R n_r / n (1 where all replicas have as many rows), so that the mean that a run
# evaluates, Σ (p_r / R) z_r, is that of `average`. Where τ divides k all replicas take
# this mean, as SlowMo needs it, and p begins again.

PUSH = "push_weight"  # the name of p in checkpoints of the same grid


@dataclass(frozen=True)
class GossipSettings(AverageSettings):
    """The settings of stochastic gradient push, which are those of averages."""

    supports: ClassVar[Supports] = replace(
        AverageSettings.supports, emulated_members=False
    )


class Gossip(AverageVariant):
    """Stochastic gradient push (SGP; Assran et al., 2019), with averages every τ.

    Needs    what `Average` needs.
    Refuses  what `Average` refuses, and `--emulate-members`.
    Keeps    what `Average` keeps, and the push-sum weight of this replica. Momentum
             stays with its replica until all average.
    Sends    after exchanges that τ does not divide (d + i)·K + 1 words to one other
             replica; after the others and at the end what `Average` sends.
    """

    settings: ClassVar[type[AgreementSettings]] = GossipSettings

    def __init__(self, terms: AgreementInputs) -> None:
        super().__init__(terms)
        self._push = np.ones(1)

    def prepare(self, state: State) -> None:
        """Allocate also the push-sum weight, which checkpoints save."""
        super().prepare(state)
        self._push = state.rank_arrays.setdefault(PUSH, self._push)
        self._push[0] = self.share * self.grid.replicas.size

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Push half of the weights, or average all replicas if due. Collective."""
        super().after_exchange(state, exchanges)
        if not self.is_whole(exchanges) and self.grid.replicas.size > 1:
            self._exchange_halves(state, exchanges)

    def anchor(self, state: State) -> None:
        """Anchor at the present weights; push-sum weights begin again."""
        super().anchor(state)
        self._push[0] = self.share * self.grid.replicas.size

    def weight(self, exchanges: int) -> float:
        """Return p / R, the weight of this replica in an average of all."""
        return float(self._push[0]) / self.grid.replicas.size

    def conclude(self, state: State, exchanges: int, purpose: str) -> None:
        """Set all replicas to Σ (p_r / R) z_r. Collective."""
        self.average(state, self.weight(exchanges), self.grid.replicas, purpose)

    def _exchange_halves(self, state: State, exchanges: int) -> None:
        replicas = self.grid.replicas
        hop = push_hop(exchanges, replicas.size)
        half = flat_positions(state, self.classes)
        half = np.append(half, half.dtype.type(1.0))
        half *= half.dtype.type(0.5 * self._push[0])
        counts = [0] * replicas.size
        counts[(replicas.rank + hop) % replicas.size] = half.size
        received = [0] * replicas.size
        received[(replicas.rank - hop) % replicas.size] = half.size
        total = np.empty_like(half)
        replicas.deal(half, counts, total, received, PURPOSE)
        total += half
        self._push[0] = total[-1]
        positions(state, self.classes).become(total[:-1] / total[-1])

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return half of the weights and p, or where due an average of all."""
        if cls.agrees(shape, exchanges):
            return super().messages(shape, exchanges)
        words = shape.classes * (shape.local_columns + shape.intercept)
        return [shape.sent(words + 1)] if shape.replicas > 1 else []


def push_hop(exchanges: int, replicas: int) -> int:
    """Return by how many places a replica pushes its half after `exchanges`.

    It is 1, 2, 4, ... in turn, up to the largest power of two below `replicas`.
    """
    return int(2 ** ((exchanges - 1) % max((replicas - 1).bit_length(), 1)))


# Federated averaging: in every round of τ exchanges a part of the replicas trains.
#
# Round k = 0, 1, ... is exchanges kτ + 1 .. (k + 1)τ. m = max(⌊fraction · R + 1/2⌋, 1)
# replicas are drawn without replacement, by seed and round alone, which takes no
# message. The others keep the weights of the round's beginning; then all replicas take
#
#     w ← Σ_{r drawn} (n_r / Σ_{q drawn} n_q) w_r

ROUNDS = 0xFEDA  # in place of the replica in seeds of row orders


@dataclass(frozen=True)
class FedAvgSettings(AverageSettings):
    """The settings of FedAvg: a random part of the replicas trains in each round."""

    fraction: float = setting(
        0.5,
        "share of the replicas that train in a round",
        above=0,
        at_most=1,
    )

    @property
    def rests(self) -> bool:
        """Return True: replicas that were not drawn rest."""
        return True


class FedAvg(AverageVariant):
    """FedAvg: the drawn replicas train, all take their average (McMahan et al., 2017).

    Needs    what `Average` needs.
    Refuses  what `Average` refuses.
    Keeps    what `Average` keeps: seed and round alone decide which replicas are drawn.
    Sends    what `Average` sends. Replicas that rest give zeros to the all-reduce,
             since all receive its result; the ledger counts these words, too.
    """

    settings: ClassVar[type[AgreementSettings]] = FedAvgSettings

    def __init__(self, terms: AgreementInputs) -> None:
        super().__init__(terms)
        self.rows = terms.rows
        self.count = client_count(len(terms.rows), terms.settings.fraction)
        self.seed = terms.seed  # that of the row order

    @property
    def workers(self) -> int:
        """Return m, the number of replicas that train in a round."""
        return self.count

    def facts(self) -> dict[str, Any]:
        """Return `workers`, the number of replicas that train in a round."""
        return {"workers": self.count}

    def trains(self, number: int) -> bool:
        """Return whether this replica trains in exchange `number`, counted from 1."""
        return self.grid.replica in self.clients(number)

    def clients(self, number: int) -> frozenset[int]:
        """Return the replicas that train in exchange `number`, counted from 1."""
        round_number = (number - 1) // self.period
        return draw(self.seed, round_number, len(self.rows), self.count)

    def weight(self, exchanges: int) -> float:
        """Return the share of this replica in the rows of all drawn replicas.

        The round is that of exchange `exchanges`. The share is 0 if this replica was
        not drawn for it.
        """
        drawn = self.clients(max(exchanges, 1))
        if self.grid.replica not in drawn:
            return 0.0
        return self.rows[self.grid.replica] / sum(self.rows[r] for r in drawn)

    def conclude(self, state: State, exchanges: int, purpose: str) -> None:
        """Set all replicas to the average of those drawn for the round. Collective."""
        share = self.weight(exchanges)
        self.average(state, share, self.grid.replicas, purpose)

    @classmethod
    def rank_0_trains(cls, shape: RunShape, number: int) -> bool:
        """Return whether replica 0 trains in exchange `number`, counted from 0."""
        count = client_count(shape.replicas, shape.settings.fraction)
        seed = shape.config.sampling.seed
        round_number = number // shape.period
        return 0 in draw(seed, round_number, shape.replicas, count)


def client_count(replicas: int, fraction: float) -> int:
    """Return m, the number of replicas that train in a round, at least 1."""
    return max(int(fraction * replicas + 0.5), 1)


@lru_cache(maxsize=64)
def draw(seed: int, round_number: int, replicas: int, count: int) -> frozenset[int]:
    """Return the `count` replicas that train in a round.

    Seed and round alone decide which, so all ranks draw the same replicas without a
    message.
    """
    rng = np.random.default_rng((seed, ROUNDS, round_number))
    return frozenset(rng.choice(replicas, size=count, replace=False).tolist())


# One replica, which has no other to synchronise with.


@dataclass(frozen=True)
class NoAgreementSettings(AgreementSettings):
    """The settings of a run without agreement, which has one replica."""

    works_alone: ClassVar[bool] = True

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield a refusal of several replicas: they would train several models."""
        replicas = config.grid.replicas
        if replicas > 1:
            yield (
                f"with {replicas} replicas trains as many unrelated models; use kind ="
                " 'average', or --grid 1xN"
            )


class NoAgreement(Agreement):
    """No agreement: a replica ends with its own weights.

    Needs    one replica, and what `Average` needs.
    Refuses  what `Average` refuses.
    Keeps    nothing beside the state.
    Sends    nothing.
    """

    settings: ClassVar[type[AgreementSettings]] = NoAgreementSettings

    def agree(self, state: State, purpose: str) -> None:
        """Do nothing: one replica has no other to synchronise with."""

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return an empty list: replicas send nothing."""
        return []


# Weights and intercept without momentum, in one row that can be sent.


def flat_positions(state: State, columns: int) -> Array:
    """Return a copy of [weights | intercept] without momentum, in one row."""
    views = positions(state.host_state(), columns)
    parts = [views.weights.reshape(-1)]
    if views.intercept is not None:
        parts.append(views.intercept.reshape(-1).astype(views.weights.dtype))
    whole: Array = np.concatenate(parts)
    return whole


# Averages under way while replicas continue (BAGUA's asynchronous model average).
#
# The all-reduce of an average begins after exchange t = τ, 2τ, ... After exchange
# t + `delay` every replica moves by what the average would have changed at t:
#
#     w ← Σ_r (n_r / n) w_r(t) + (w − w_own(t))
#
# BAGUA takes a lock, averages and releases it, at any time; here exchanges are counted
# instead, so that every run is the same. A delay of 0 is `average`, to the bit. An
# average has a communicator of its own, so that no other message queues behind it.

ASIDE = 6  # vectors: what is sent, the sum, both saved, and copies of these
MEAN = "async_mean"
OWN = "async_own"
SINCE = "async_since"


@dataclass(frozen=True)
class AverageUnderWay:
    """An average whose all-reduce is under way."""

    since: int  # the exchange after which it started
    own: Array  # the words of this replica
    pending: Pending


@dataclass(frozen=True)
class AsyncAverageSettings(AverageSettings):
    """The settings of averages that overlap with steps."""

    delay: int = setting(
        1,
        "exchanges from the start of an average to its use; 0 makes it the agreement"
        " average",
        at_least=0,
    )

    supports: ClassVar[Supports] = replace(
        AverageSettings.supports, codecs=False, averages=False, emulated_members=False
    )
    reads: ClassVar[frozenset[str]] = frozenset()

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield refusals of a delay above the period, of svrg, and of FedProx."""
        period = config.schedule.period
        if self.proximal:
            yield (
                "has no moment at which all replicas are at one average, and proximal"
                " draws steps to it; use --agreement average, or agreement.proximal=0"
            )
        if self.delay > period:
            yield (
                f"sends one average at a time: [agreement] delay = {self.delay} must be"
                f" at most [schedule] period = {period}; use a longer --period"
            )
        if config.update.kind == "svrg":
            yield (
                "moves what all agreed on a while ago, and svrg takes snapshots of what"
                " they agree on now; use --agreement average"
            )


class AsyncAverage(AverageVariant):
    """Asynchronous model average of BAGUA (Gan et al., 2021).

    Needs    what `Average` needs, and `delay` of at most τ.
    Refuses  what `Average` refuses, svrg, `--emulate-members`, and with several
             replicas [average].
    Keeps    (d + i)·a·K words that were sent and as many of their sum, and room for
             both in the state, from which checkpoints save them.
    Sends    every τ exchanges an all-reduce of (d + i)·a·K words, on the communicator
             `aside`; the broadcast to members, which comes `delay` exchanges later, has
             S·K words. At the end what `Average` sends, on the replicas' communicator,
             unless `delay` is 0 and the last exchange had an average.
    """

    settings: ClassVar[type[AgreementSettings]] = AsyncAverageSettings

    def __init__(self, terms: AgreementInputs, aside: Communicator) -> None:
        super().__init__(terms)
        self.delay = terms.settings.delay
        self.aside = aside
        self.overlap = Overlap(aside)
        self._travelling: AverageUnderWay | None = None

    @classmethod
    def of(cls, terms: AgreementInputs) -> "AsyncAverage":
        """Open a communicator of all replicas, and make the agreement. Collective."""
        terms.grid.meet()
        replicas = terms.grid.replicas
        aside = replicas.host_group.split(0, replicas.rank)
        return cls(terms, aside)

    def prepare(self, state: State) -> None:
        """Allocate the arrays in which checkpoints save an average under way.

        Only a run on the same grid resumes from these arrays. A run on another grid
        starts from the mean over all replicas, which an average does not change.
        """
        words = self._said(state)
        state.rank_arrays[MEAN] = np.zeros_like(words)
        state.rank_arrays[OWN] = np.zeros_like(words)
        state.rank_arrays[SINCE] = np.zeros(
            1, dtype=np.int64
        )  # 0: nothing is under way

    def start(self, state: State, exchanges: int) -> None:
        """Restore the average that was under way at the checkpoint, if any.

        A checkpoint saves it in `state.rank_arrays`.
        """
        arrays = state.rank_arrays
        since = int(state.rank_arrays[SINCE][0])
        if since:
            arrived = Pending(arrays[MEAN].copy())
            self._travelling = AverageUnderWay(since, arrays[OWN].copy(), arrived)

    def is_whole(self, exchanges: int) -> bool:
        """Return whether all replicas have equal weights after so many exchanges.

        They have after each period if `delay` is 0, and otherwise never.
        """
        return self.delay == 0 and super().is_whole(exchanges)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Apply an average that is due, then start one if a period ends. Collective.

        With a `delay` of 0 that one is applied at once. With one replica, do nothing.
        """
        if self.grid.replicas.size == 1:
            return
        if self._is_due(exchanges):
            self.apply_average(state)
        if exchanges % self.period == 0:
            self.start_average(state, exchanges)
            if self.delay == 0:
                self.apply_average(state)

    def arrive(self, state: State) -> None:
        """Wait for the all-reduce under way, but apply nothing yet. Collective."""
        if self._travelling is not None:
            self._arrive(self._travelling)

    def settle(self, state: State, exchanges: int) -> None:
        """Drop the average under way, and average the present weights. Collective.

        The mean over all replicas is the same as with the dropped average. Weights that
        are equal on all replicas are not averaged.
        """
        if self._travelling is not None:
            self._arrive(self._travelling)
            self._travelling = None
        super().settle(state, exchanges)

    def memory(self, state: State) -> dict[str, Array]:
        """Return the arrays of `state.memory` as checkpoints save them. Collective.

        Also store the average under way in `state.rank_arrays`, where checkpoints save
        it.
        """
        now = self._travelling
        state.rank_arrays[SINCE][0] = 0 if now is None else now.since
        if now is not None:
            state.rank_arrays[MEAN][...] = self._arrive(now)
            state.rank_arrays[OWN][...] = now.own
        return super().memory(state)

    def facts(self) -> dict[str, Any]:
        """Return the delay, and how much of the transfers steps hid, for the report."""
        return {"delay": self.delay, **self.overlap.facts()}

    def close(self) -> None:
        """Close the communicator of the averages. Collective."""
        self.aside.close()

    def _is_due(self, exchanges: int) -> bool:
        now = self._travelling
        return now is not None and exchanges == now.since + self.delay

    def start_average(self, state: State, exchanges: int) -> None:
        """Start the all-reduce of an average, which runs while training continues."""
        own_words = self._said(state)
        words = own_words * own_words.dtype.type(self.share)
        with self.overlap.posting():
            pending = self.aside.start_sum(words, PURPOSE)
        self._travelling = AverageUnderWay(exchanges, own_words, pending)

    def _arrive(self, now: AverageUnderWay) -> Array:
        """Return the sum of an average; the first call waits for it."""
        if now.pending.is_under_way:
            with self.overlap.waiting():
                now.pending.wait()
        return now.pending.buffer

    def apply_average(self, state: State) -> None:
        """Wait for the average; add this replica's changes since its start to it.

        The sum becomes the weights and intercept. Momentum is averaged, kept or set to
        0, as `momentum` names it. Collective.
        """
        now = self._travelling
        self._travelling = None
        assert now is not None
        state.rank_arrays[SINCE][0] = 0
        # In this order: without changes since then it is the mean, to the bit.
        moved = self._arrive(now) + (self._said(state) - now.own)
        if self.averages_all(state):
            state.become(moved)
        else:
            positions(state, self.classes).become(moved)
            if self.momentum == "reset":
                clear_momentum(state, self.classes)
        if state.intercept is not None:
            same_on_members(self.grid, state.intercept, self.grid.replicas.size)

    def _said(self, state: State) -> Array:
        """Return a copy of the words that are averaged, in one row."""
        if self.averages_all(state):
            words: Array = state.portion(1.0, self.aside)
            return words
        return flat_positions(state, self.classes)

    @classmethod
    def agrees(cls, shape: RunShape, exchanges: int) -> bool:
        """Return whether all replicas have equal weights after so many exchanges.

        They have after each period if `delay` is 0, and otherwise never.
        """
        return shape.settings.delay == 0 and super().agrees(shape, exchanges)

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return what rank 0 sends after exchange `exchanges`.

        This is the all-reduce of an average that starts then, and the broadcast to the
        members of an average that is applied then. An average that would be applied
        after the last exchange is dropped.
        """
        wide = words_averaged(shape)
        sent = []
        since = exchanges - shape.settings.delay
        if exchanges % shape.period == 0:
            sent = shape.sum((shape.local_columns + shape.intercept) * wide)
        is_applied = since > 0 and since % shape.period == 0
        if is_applied and shape.intercept:
            sent += shape.to_members(shape.classes * shape.states)
        return sent

    @classmethod
    def holds(cls, shape: StateShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of the states, and of an average that is under way."""
        yield from super().holds(shape)
        yield "averages under way", ASIDE * shape.vector

    @classmethod
    def saves(cls, shape: StateShape) -> int:
        """Return the bytes of all replicas, with what was sent last, and its sum."""
        return shape.replicas * (shape.state + 2 * shape.vector)

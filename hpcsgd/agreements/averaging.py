"""Weights that are averaged: local SGD, post-local SGD, FedAvg, async averages.

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
from hpcsgd.backends.task import State
from hpcsgd.comm.communicator import Communicator, Pending
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent, SentWords
from hpcsgd.formats import Array
from hpcsgd.precision import Precision
from hpcsgd.settings import setting

# Local SGD (s = 1), and the 2-D hybrid (s > 1).
#
# Both change the iterates; CA-SGD inside one replica does not.

BUFFERS = ("average", "keep", "reset")  # what becomes of momentum when replicas agree
WITH_MOMENTUM = ("momentum", "nesterov", "nesterov-classic", "svrg")  # updates


@dataclass(frozen=True)
class AverageSettings(AgreementSettings):
    """The settings of local SGD: replicas step alone, and average their weights."""

    momentum: str = setting(
        "average",
        "momentum buffers when replicas average their weights: averaged too (average),"
        " kept by each replica (keep), or reset to 0 (reset)",
        choices=BUFFERS,
        read_if={"update.kind": WITH_MOMENTUM},
    )


class Average(Agreement):
    """Local SGD (Stich, 2019): x ← Σ_r (n_r / n) x_r over all replicas.

    Needs    an update that is linear in the state: sgd, momentum, nesterov,
             nesterov-classic or svrg; no certain s, τ, product or penalty.
    Refuses  optimizer state in 8 bits, codecs, `hierarchical`, `accumulate` above 1,
             and changes of a mean gradient (centre, normalise, noise, clip by
             percentile).
    Keeps    nothing beside the state. The momentum, the columns of the state behind the
             first `classes`, is averaged as the weights are, kept by every replica, or
             set to zero, as `momentum` names it.
    Sends    every τ exchanges an all-reduce of (d + i)·a·K words, and at the end one
             more, unless the last exchange had one.
    """

    settings: ClassVar[type[AgreementSettings]] = AverageSettings

    def __init__(
        self,
        grid: Grid,
        share: float,
        period: int,
        momentum: str = "average",
        classes: int = 0,
    ) -> None:
        super().__init__(grid, share, period)
        self.momentum = momentum
        self.classes = classes

    @classmethod
    def of(cls, terms: AgreementInputs) -> "Average":
        """Make the agreement from `terms`, the inputs of a run."""
        return cls(
            terms.grid,
            terms.share,
            terms.period,
            terms.settings.momentum,
            terms.classes,
        )

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
        """Return whether the whole state is averaged, including any momentum."""
        if self.momentum == "average":
            return True
        return bool(state.host_array("weights").shape[1] <= self.classes)

    def average(
        self, state: State, share: float, group: Communicator, purpose: str
    ) -> None:
        """Compute x ← Σ share · x over the ranks of `group`, whose shares add up to 1.

        Collective. x is weights and intercept. Momentum is averaged, kept or set to 0,
        as `momentum` names it.
        """
        if self.averages_all(state):
            self._average_all(state, share, group, purpose)
            return
        self._average_all(positions(state, self.classes), share, group, purpose)
        if self.momentum == "reset":
            clear_momentum(state, self.classes)

    @classmethod
    def agrees(cls, shape: RunShape, exchanges: int) -> bool:
        """Return whether all replicas average after so many exchanges."""
        return exchanges % shape.period == 0

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return what rank 0 sends after an exchange; [] where no average is due."""
        return sent_for_average(shape) if cls.agrees(shape, exchanges) else []

    @classmethod
    def last_messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return what rank 0 sends at the end; [] if the last exchange averaged."""
        return [] if cls.agrees(shape, exchanges) else sent_for_average(shape)

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
            terms.settings.momentum,
            terms.classes,
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
    travels = shape.settings.momentum == "average"
    return shape.classes * (shape.states if travels else 1)


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


def positions(state: State, classes: int) -> State:
    """Return a state with views of weights and intercept, without momentum."""
    intercept: Array | None = state.intercept
    return State(
        weights=state.weights[:, :classes],
        intercept=None if intercept is None else intercept[:1],
    )


def clear_momentum(state: State, classes: int) -> None:
    """Set the momentum of the weights and of the intercept to zero."""
    state.weights[:, classes:] = 0.0
    if state.intercept is not None:
        state.intercept[1:] = 0.0


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
        AverageSettings.supports, averages=False, emulated_members=False
    )

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield refusals of a delay above the period, and of svrg."""
        period = config.schedule.period
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

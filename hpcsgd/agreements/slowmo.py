"""SlowMo: slow momentum on averaged weights (Wang et al., 2020).

Needs    a base that averages weights: average, postlocal, hierarchical, fedavg or
         gossip.
Refuses  what its base refuses, and `--emulate-members` where the base splits groups.
Keeps    x_old and v, d·K words each of d columns and K classes (1/R of that on each of
         R replicas with `slow_sharded`), and K words each for the intercept.
Sends    what its base sends; where a slow step is due, one average of all replicas
         instead: one all-reduce, or with `slow_sharded` a reduce-scatter and an
         all-gather. A sharded checkpoint gathers x_old and v ("control").
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hpcsgd.agreements.averaging import (
    Average,
    AverageSettings,
    FedAvgSettings,
    PostLocalSettings,
    clear_momentum,
    positions,
    sent_for_average,
    sent_for_changes,
    words_averaged,
)
from hpcsgd.agreements.base import (
    Agreement,
    AgreementInputs,
    AgreementSettings,
    RunShape,
    StateShape,
    Supports,
    get_agreement,
)
from hpcsgd.agreements.hierarchical import HierarchicalSettings
from hpcsgd.backends.task import State
from hpcsgd.comm.ledger import Sent
from hpcsgd.data.shard import split_range
from hpcsgd.formats import Array
from hpcsgd.precision import Precision
from hpcsgd.settings import Condition, declarations, setting

# A sharded average: reduce-scatter, update of the own columns, all-gather.
#
# A rank holds d_c columns of W words each. Replica r makes the columns
# `split_range(d_c, R, r)`: all replicas send it theirs (a reduce-scatter: d_c·W words,
# and the intercept R times over), it adds them in rank order and updates them, and a
# gather of (d_c / R)·W words gives the columns of all to all. Apart from the intercept
# both collectives together move the words of one all-reduce.

Work = Callable[[State, Array], None]


class Shards:
    """An average over replicas; each replica computes a share of the columns."""

    def __init__(self, base: Average) -> None:
        self.base = base
        self.classes = base.classes
        self.replicas = base.grid.replicas

    def part(self, rows: int, replica: int | None = None) -> slice:
        """Return which of `rows` columns a replica computes; by default this replica.

        `rows` counts the rows of an array that has one row for each column.
        """
        rank = self.replicas.rank if replica is None else replica
        return split_range(rows, self.replicas.size, rank)

    def average(self, state: State, exchanges: int, work: Work) -> None:
        """Average the weights over all replicas. Collective.

        Before the means are gathered, `work` updates the columns that this replica
        computes.
        """
        whole = self.base.momentum == "average"
        sent = self.base.unanchored(state) if whole else positions(state, self.classes)
        width = sent.weights.shape[1]
        states = width // self.classes  # of the intercept that travel
        weights = state.weights[:, :width]
        intercept = None if state.intercept is None else state.intercept[:states]
        shard, mean = self._scatter(weights, intercept, self.base.weight(exchanges))
        work(state, shard[:, : self.classes])
        state.weights[:, :width] = self.join(shard, state, "agreement")
        if intercept is not None:
            intercept[...] = mean.reshape(intercept.shape)
        if self.base.momentum == "reset":
            clear_momentum(self.base.unanchored(state), self.classes)

    def join(self, own: Array, state: State, purpose: str) -> Array:
        """Return an array with a row per local column, joined from all replicas.

        Collective. `own` is the part of this replica.
        """
        rows = len(state.weights)
        width = own.shape[1]
        out = np.empty((rows, width), dtype=own.dtype)
        flat = np.ascontiguousarray(own).reshape(-1)
        counts = [size * width for size in self._sizes(rows)]
        self.replicas.gather(flat, counts, out.reshape(-1), purpose)
        return out

    def _scatter(
        self, held: Array, intercept: Array | None, share: float
    ) -> tuple[Array, Array]:
        """Return Σ share · weights of this replica's columns, and Σ share · intercept.

        Collective. The sums are over all replicas, in rank order.
        """
        rows, width = held.shape
        more = np.empty(0, held.dtype)
        if intercept is not None:
            more = intercept.reshape(-1).astype(held.dtype)
        parts = [self.part(rows, r) for r in range(self.replicas.size)]
        pieces = np.concatenate([x for p in parts for x in (held[p].reshape(-1), more)])
        pieces *= share
        counts = [size * width + more.size for size in self._sizes(rows)]
        size = counts[self.replicas.rank]
        out = np.empty((self.replicas.size, size), dtype=held.dtype)
        self.replicas.exchange_pieces(pieces, counts, out.reshape(-1), "agreement")
        total = out[0]
        for other in out[1:]:
            total += other
        cut = size - more.size
        return total[:cut].reshape(-1, width), total[cut:]

    def _sizes(self, rows: int) -> list[int]:
        parts = [self.part(rows, r) for r in range(self.replicas.size)]
        return [part.stop - part.start for part in parts]


# Slow momentum over any agreement that averages.
#
# Wang, Tantia, Ballas and Rabbat, "SlowMo: Improving communication-efficient
# distributed SGD with slow momentum", ICLR 2020, Algorithm 1: where slow step t is due,
# all replicas agree on x̄ by the base's own full average, and
#
#     u_t = β u_{t−1} + (x_old − x̄) / γ_t        x ← x_old − α γ_t u_t        x_old ← x
#
# γ_t is the learning rate of the last step before slow step t, on the replica with most
# rows. The code keeps v_t = γ_t u_t, in units of weights,
#
#     v_t = β (γ_t / γ_{t−1}) v_{t−1} + (x_old − x̄)        x ← x_old − α v_t
#
# whose factor β γ_t / γ_{t−1} is β under a constant rate. With α = 1, β = 0 and slow
# steps where the base agrees (`slow_period = 0`, not sharded) the bits are those of the
# base. With one replica SlowMo is a look-ahead optimiser, with the base `fedavg`
# FedAvgM.

START, MOMENTUM = "slow_start", "slow_momentum"  # x_old and v


@dataclass(frozen=True)
class SlowMoSettings(PostLocalSettings, FedAvgSettings, HierarchicalSettings):
    """The settings of SlowMo, among them those of its base."""

    base: str = setting(
        "average",
        "agreement that slow momentum is added to",
        choices=("average", "postlocal", "hierarchical", "fedavg", "gossip"),
    )
    slow_rate: float = setting(
        1.0,
        "slow learning rate α; a larger one follows the slow momentum further",
        above=0,
    )
    slow_momentum: float = setting(
        0.5,
        "slow momentum coefficient β; 0 with slow_rate = 1 leaves the base agreement"
        " alone",
        at_least=0,
        below=1,
    )
    slow_period: int = setting(
        0,
        "exchanges between two slow steps; 0 takes one at each agreement of the base",
        at_least=0,
        becomes=lambda facts: (
            facts.config.schedule.period,
            "at each agreement of the base",
        ),
    )
    slow_sharded: bool = setting(
        False, "divide the slow state over the replicas to save memory"
    )

    supports: ClassVar[Supports] = AverageSettings.supports
    reads: ClassVar[frozenset[str]] = AverageSettings.reads

    @property
    def of_base(self) -> type[AgreementSettings]:
        """Return the settings class of the base."""
        return get_agreement(self.base).settings

    @property
    def rests(self) -> bool:
        """Return whether only a part of the replicas trains in the base."""
        return issubclass(self.of_base, FedAvgSettings)

    def conditions(self) -> dict[str, Condition]:
        """Return, for each setting of a base alone, that `base` must name that base."""
        return {
            key: {"agreement.base": [base]}
            for base in declarations(type(self))["base"].known
            for key in declarations(get_agreement(base).settings)
            if key not in declarations(AverageSettings)
        }

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield the conflicts of SlowMo and its base with other settings of a run."""
        if config.run.emulate_members and not self.of_base.supports.emulated_members:
            yield (
                f"with base = {self.base!r} splits groups of ranks, and"
                " --emulate-members has one rank; use base = 'average'"
            )
        if config.agreement.codec != "identity":
            if not self.of_base.supports.codecs:
                yield (
                    f"with base = {self.base!r} averages in groups of replicas, for"
                    " which there is no codec; leave agreement.codec out, or use base ="
                    " 'average'"
                )
            if self.slow_sharded:
                yield (
                    "with slow_sharded adds weights piece by piece, and a codec encodes"
                    " changes of all columns; leave agreement.codec out, or use"
                    " slow_sharded = false"
                )
        yield from self.of_base.conflicts_with(self, config, precision)


def base_of(shape: RunShape) -> type[Average]:
    """Return the class of the base agreement, to which slow momentum is added."""
    base: Any = get_agreement(shape.settings.base)
    agreement: type[Average] = base
    return agreement


class SlowMo(Agreement):
    """Slow momentum on a base agreement: slow steps with rate α and momentum β.

    A slow step is due after every `slow_period` exchanges, or with `slow_period` = 0
    whenever the base agrees.
    `fast_rate(n)` is the learning rate γ of the last step of exchange n = 1, 2, ...
    Every replica keeps the whole slow state, or with `slow_sharded` a share of its
    columns: then the slow step is taken between the reduce-scatter and the all-gather.
    """

    settings: ClassVar[type[AgreementSettings]] = SlowMoSettings

    def __init__(
        self,
        base: Average,
        settings: SlowMoSettings,
        fast_rate: Callable[[int], float],
    ) -> None:
        super().__init__(base.grid, base.share, base.period)
        self.base = base
        self.classes = base.classes
        self.rate = settings.slow_rate
        self.momentum = settings.slow_momentum
        self.fast_rate = fast_rate
        self.slow_period = settings.slow_period
        self.shards = Shards(base) if settings.slow_sharded else None

    @classmethod
    def of(cls, terms: AgreementInputs) -> "SlowMo":
        """Make the base agreement from `terms`, and wrap it. Collective."""
        base: Any = get_agreement(terms.settings.base)
        return cls(base.of(terms), terms.settings, terms.last_rate)

    @property
    def workers(self) -> int:
        """Return the number of replicas that train in an exchange of the base."""
        return self.base.workers

    @property
    def circle_sizes(self) -> list[int]:
        """Return the sizes of the nested groups of the base."""
        return self.base.circle_sizes

    def facts(self) -> dict[str, Any]:
        """Return the facts of the base for the report of a run."""
        return self.base.facts()

    def weight(self, exchanges: int) -> float:
        """Return the weight of this replica in an average of the base."""
        return self.base.weight(exchanges)

    def trains(self, number: int) -> bool:
        """Return whether this replica trains in exchange `number`, counted from 1."""
        return self.base.trains(number)

    def prepare(self, state: State) -> None:
        """Allocate x_old and v of the local weights, and of the intercept."""
        self.base.prepare(state)
        weights = self._own(state.weights[:, : self.classes])
        for name in (START, MOMENTUM):
            state.memory[name] = weights * 0.0
            if state.intercept is not None:
                state.shared[name] = state.intercept[:1] * 0.0

    def start(self, state: State, exchanges: int) -> None:
        """Set x_old to the first weights of a run, unless it is resumed."""
        self.base.start(state, exchanges)
        if exchanges:
            return
        state.memory[START][...] = self._own(state.weights[:, : self.classes])
        if state.intercept is not None:
            state.shared[START][...] = state.intercept[:1]

    def is_whole(self, exchanges: int) -> bool:
        """Return whether all replicas have equal weights after so many exchanges.

        They have after a slow step, and where they have in the base.
        """
        return self.is_slow(exchanges) or self.base.is_whole(exchanges)

    def is_slow(self, exchanges: int) -> bool:
        """Return whether a slow step is due after `exchanges` exchanges."""
        if self.slow_period:
            return exchanges % self.slow_period == 0
        return self.base.is_whole(exchanges)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Average all replicas and take a slow step where it is due. Collective.

        After other exchanges do what the base does.
        """
        if not self.is_slow(exchanges):
            self.base.after_exchange(state, exchanges)
            return
        decay = self._decay(exchanges)
        if self.shards is not None:
            self.shards.average(state, exchanges, partial(self._walk, decay))
        else:
            self.base.synchronise(state, exchanges)
            self._walk(decay, state, state.weights[:, : self.classes])
        self._walk_intercept(decay, state)
        self.base.anchor(state)

    def conclude(self, state: State, exchanges: int, purpose: str) -> None:
        """Average as the base does, without a slow step. Collective.

        A run ends with such an average, and evaluations use it.
        """
        self.base.conclude(state, exchanges, purpose)

    def agree(self, state: State, purpose: str) -> None:
        """Synchronise as the base does. Collective."""
        self.base.agree(state, purpose)

    def keeps_own(self, state: State) -> bool:
        """Return whether arrays of the base differ between replicas once these agree.

        The slow state does not count: it is that of all replicas together.
        """
        rest = {n: a for n, a in state.memory.items() if n not in (START, MOMENTUM)}
        seen = State(state.weights, state.intercept, memory=rest)
        return self.base.keeps_own(seen)

    def memory(self, state: State) -> dict[str, Array]:
        """Return the arrays of `state.memory` as checkpoints save them. Collective.

        A sharded slow state is gathered from all replicas.
        """
        arrays = dict(self.base.memory(state))
        if self.shards is not None:
            for name in (START, MOMENTUM):
                arrays[name] = self.shards.join(state.memory[name], state, "control")
        return arrays

    def remember(self, state: State, name: str, kept: Array) -> None:
        """Store an array that `memory` has returned.

        Of a sharded slow state, store the columns of this replica alone.
        """
        if name in (START, MOMENTUM):
            state.memory[name][...] = self._own(kept)
        else:
            self.base.remember(state, name, kept)

    def inherit(self, state: State, name: str, kept: Array) -> None:
        """Use a saved array that only the base may know."""
        self.base.inherit(state, name, kept)

    def close(self) -> None:
        """Close the communicators that the base opened. Collective."""
        self.base.close()

    @classmethod
    def agrees(cls, shape: RunShape, exchanges: int) -> bool:
        """Return whether all replicas average in the base or a slow step is due then.

        `exchanges` is the number of exchanges done.
        """
        if cls.steps_slowly(shape, exchanges):
            return True
        return base_of(shape).agrees(shape, exchanges)

    @classmethod
    def steps_slowly(cls, shape: RunShape, exchanges: int) -> bool:
        """Return whether a slow step is due after `exchanges` exchanges."""
        period = shape.settings.slow_period
        if period:
            return bool(exchanges % period == 0)
        return base_of(shape).agrees(shape, exchanges)

    @classmethod
    def rank_0_trains(cls, shape: RunShape, number: int) -> bool:
        """Return whether replica 0 trains in exchange `number`, counted from 0."""
        return base_of(shape).rank_0_trains(shape, number)

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return what the base sends, or one average of all where a slow step is due.

        On d local columns of W words, a sharded average is a reduce-scatter of d·W
        words and R times the intercept, and an all-gather to which rank 0 sends its
        (d / R)·W words.
        """
        if not cls.steps_slowly(shape, exchanges):
            return base_of(shape).messages(shape, exchanges)
        if not shape.settings.slow_sharded:
            return sent_for_changes(shape)
        wide = words_averaged(shape)
        shard_columns = split_range(shape.local_columns, shape.replicas, 0).stop
        more = shape.replicas * wide * shape.intercept
        pieces = shape.sent(shape.local_columns * wide + more)
        return [pieces, shape.sent(shard_columns * wide)]

    @classmethod
    def last_messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return one average of all replicas; [] if the last exchange had one."""
        return [] if cls.agrees(shape, exchanges) else sent_for_average(shape)

    @classmethod
    def holds(cls, shape: StateShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of the states, and of the slow state x_old and v.

        The slow state counts with its snapshots, and once as whole arrays for a
        checkpoint.
        """
        yield from get_agreement(shape.settings.base).holds(shape)
        parts = shape.replicas if shape.settings.slow_sharded else 1
        shard_bytes = shape.vector * (1 + shape.snapshots) // parts
        yield "slow state", 2 * (shard_bytes + shape.vector)

    @classmethod
    def saves(cls, shape: StateShape) -> int:
        """Return the bytes of all replicas, each with the slow state."""
        return shape.replicas * (shape.state + 2 * shape.vector)

    def _own(self, rows: Array) -> Array:
        """Return this replica's part of an array with a row for each column.

        It is the whole array unless the slow state is sharded.
        """
        if self.shards is not None:
            return rows[self.shards.part(len(rows))]
        return rows

    def _decay(self, exchanges: int) -> float:
        """Return β γ_t / γ_{t−1} of the slow step that is due after `exchanges`.

        The schedule determines the rate of slow step t − 1, so that a checkpoint needs
        no rate. Before the first slow step v is 0, and the factor has no effect; where
        the rate before was 0, v restarts from 0.
        """
        earlier = (k for k in range(exchanges - 1, 0, -1) if self.is_slow(k))
        before = self.fast_rate(next(earlier, exchanges))
        return self.momentum * (self.fast_rate(exchanges) / before) if before else 0.0

    def _walk(self, decay: float, state: State, weights: Array) -> None:
        slow = state.memory
        slow_step(weights, slow[START], slow[MOMENTUM], self.rate, decay)

    def _walk_intercept(self, decay: float, state: State) -> None:
        if state.intercept is not None:
            slow = state.shared
            intercept = state.intercept[:1]
            slow_step(intercept, slow[START], slow[MOMENTUM], self.rate, decay)


def slow_step(
    mean: Array, start: Array, slow: Array, rate: float, decay: float
) -> None:
    """Take a slow step in place: `mean` becomes x_old − α (ρ v + Δ), Δ = x_old − x̄.

    `mean` is x̄, `start` x_old, `slow` v, `rate` α and `decay` ρ = β γ_t / γ_{t−1}. The
    sum is taken as x̄ + (1 − α) Δ − α ρ v, so that α = 1 and ρ = 0 leave x̄ as it is.
    """
    change = start - mean
    if rate != 1.0:
        mean += (1.0 - rate) * change
    if decay:
        mean -= (rate * decay) * slow
    slow *= decay
    slow += change
    start[...] = mean

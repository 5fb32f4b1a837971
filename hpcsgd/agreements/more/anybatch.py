"""Any-batch SGD: replicas take the rows they can in a round, and mix over a graph.

After any-batch mirror descent (Eshraghi and Liang, 2020). A rank has d columns and K
classes; i = 1 with an intercept and b = 1 where `weighted`, else 0.

Needs    update sgd, s = 1, τ = 1, product direct, gather or gather-once, one model, a
         smooth penalty, weights of at least 32 bits, and rows that are not streamed.
Refuses  codecs, `hierarchical`, scaled residuals, changes and clipping of gradients,
         8-bit states, [average], and [rate] per_batch.
Keeps    a gradient and the arrays of the mirror map (entropy and diagonal 1, eg 2,
         others 0), d·K words each, and the number of chunks of every round.
Sends    in each of `mixing` iterations of a round n = (d + i)·K + b words, with eg
         (d + 1)·K more, to every neighbour; time decides the number of iterations
         where `mixing_seconds` is set. A graph `full` takes one iteration: an
         all-reduce of n words, with entropy and eg a swap with all others. At the end
         an all-reduce of (d + i)·K + 1 words, unless the graph is full. Member 0
         broadcasts the intercept, K words, to the members after the all-reduce of a
         full graph where R > 2, and after that at the end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Protocol

import numpy as np

from hpcsgd.agreements.base import (
    PURPOSE,
    ROUNDS_FILE,
    AgreementSettings,
    GradientSettings,
    Requires,
    RunShape,
    StateShape,
    Supports,
    same_on_members,
)
from hpcsgd.agreements.gradient import Gradient, GradientInputs
from hpcsgd.backends.base import Rows
from hpcsgd.backends.task import State, Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import read_entry_text
from hpcsgd.formats import Array
from hpcsgd.glm.families import Family
from hpcsgd.glm.mirror_maps import LOGARITHMIC, MirrorMap, ReplicaViews, log_sum
from hpcsgd.precision import Precision
from hpcsgd.products.direct import Stream
from hpcsgd.settings import setting

# The length of a round: a deadline by this rank's clock, a log, or A chunks.
#
# The clock is read between chunks, never inside of one. A run logs the chunks of every
# round, and a replay of the log gives the same run, bit for bit.

CHUNKS, ROWS = "chunks_", "rows_"  # before the number of a replica
LOSSES = "losses"  # name of the log of them
ITERATIONS = "iterations"  # column of the consensus iterations of a round


class RoundClock(Protocol):
    """The protocol of the clock that ends the rounds of a replica."""

    has_clock: bool  # whether pending computation has to finish before a check

    def begin(self, number: int) -> None:
        """Start round `number` of the run, from 0 on."""

    def has_next_chunk(self, taken: int) -> bool:
        """Return whether a chunk follows after `taken` chunks of this round.

        All members of a replica get the same answer.
        """

    def end(self) -> None:
        """End the round on this replica. Collective."""


class Full:
    """A clock whose rounds all have `most` chunks."""

    has_clock = False

    def __init__(self, most: int) -> None:
        self.most = most

    def begin(self, number: int) -> None:
        """Do nothing: all rounds have the same number of chunks."""

    def has_next_chunk(self, taken: int) -> bool:
        """Return whether fewer than `most` chunks were taken in this round."""
        return taken < self.most

    def end(self) -> None:
        """Do nothing: no time is measured."""


class ReplayedRounds(Full):
    """A clock that repeats rounds: `budgets` has the number of chunks of each round."""

    def __init__(self, budgets: Array) -> None:
        super().__init__(0)
        self.budgets = budgets  # one for each round

    def begin(self, number: int) -> None:
        """Set the number of chunks to that of round `number`."""
        self.most = int(self.budgets[number])


class TimedRounds:
    """A clock whose rounds end after `deadline` seconds, or after `most` chunks.

    If `deadline` is 0, the first round has half of `most` chunks and sets it: to this
    number times the median over ranks of the median seconds of a chunk. A replica of
    usual speed then takes half of `most` in later rounds, and a replica that is twice
    as fast takes all of them.
    """

    has_clock = True

    def __init__(
        self,
        grid: Grid,
        most: int,
        deadline: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.grid = grid
        self.most = most
        self.deadline = deadline
        self.clock = clock
        self._began = 0.0
        self._looks: list[float] = []

    def begin(self, number: int) -> None:
        """Start the clock of a round."""
        self._began = self.clock()
        self._looks = []

    def has_next_chunk(self, taken: int) -> bool:
        """Return whether a chunk follows after `taken` chunks of this round.

        Collective. Member 0 of a replica decides, so that all its members take the same
        chunks.
        """
        now = self.clock()
        self._looks.append(now)
        if self.deadline:
            ends = taken >= self.most or now - self._began >= self.deadline
        else:
            ends = taken >= half_round(self.most)
        word = np.array([ends], dtype=np.uint8)
        return not self.grid.members.broadcast(word, 0, "control")[0]

    def end(self) -> None:
        """Set the deadline if it is 0, by the times of the first round. Collective."""
        if self.deadline:
            return
        durations = self.grid.world.exchange_objects(np.diff(self._looks).tolist())
        each = [float(np.median(seconds)) for seconds in durations if seconds]
        if each:
            self.deadline = half_round(self.most) * float(np.median(each))


def half_round(most: int) -> int:
    """Return half of `most` chunks, at least 1: a round of usual length."""
    return max(most // 2, 1)


def as_csv(
    chunks: Sequence[Sequence[int]],
    rows: Sequence[Sequence[int]],
    iterations: Sequence[int] = (),
) -> str:
    """Return a CSV table with a line for each round.

    A line has the chunks of every replica, then the rows of every replica, then the
    consensus iterations, if time has decided them.
    """
    head = [f"{name}{r}" for name in (CHUNKS, ROWS) for r in range(len(chunks))]
    more = [iterations] if len(iterations) else []
    lines = [["round", *head, *([ITERATIONS] if more else [])]]
    for number, counts in enumerate(zip(*chunks, *rows, *more, strict=True)):
        lines.append([str(number), *map(str, counts)])
    return "".join(",".join(line) + "\n" for line in lines)


def read_script(path: str, replicas: int, rounds: int, most: int) -> Array:
    """Return the number of chunks of every replica in every round of a log.

    The result has the shape (R, rounds of the log). `path` is the file of the log or
    the folder of its run. Raise an error if the log has another number of replicas,
    fewer than `rounds` rounds, or a round of more than `most` chunks.
    """
    where, lines = _lines_of(path)
    chunks = _columns(lines, where, replicas)
    _check_script(chunks, rounds, most, where)
    return chunks


def read_iterations(path: str) -> list[int]:
    """Return the consensus iterations of all rounds of a log.

    Raise an error if the log has none.
    """
    where, lines = _lines_of(path)
    head = lines[0].split(",") if lines else []
    try:
        place = head.index(ITERATIONS)
        return [max(int(line.split(",")[place]), 1) for line in lines[1:]]
    except (ValueError, IndexError) as error:
        raise DataError(
            f"{where} contains no numbers of consensus iterations, and"
            " agreement.mixing_seconds was given; leave it out, or give the log of a"
            " run that had it"
        ) from error


def _lines_of(path: str) -> tuple[str, list[str]]:
    """Return the place and the lines of a log, by the path of it or of its folder."""
    where = Path(path)
    where = where / ROUNDS_FILE if where.is_dir() else where
    try:
        return str(where), read_entry_text(where).split()
    except OSError as error:
        raise DataError(
            f"cannot read [agreement] replay = {path!r}: {error.strerror}; give the"
            f" {ROUNDS_FILE} of a run, or its folder"
        ) from error


def _columns(lines: list[str], path: str, replicas: int) -> Array:
    head = lines[0].split(",") if lines else []
    named = [name for name in head if name.startswith(CHUNKS)]
    if named != [f"{CHUNKS}{r}" for r in range(replicas)]:
        raise DataError(
            f"{path} contains the rounds of {len(named)} replicas and this run has"
            f" {replicas}; give --grid as many replicas as the file has, or set"
            " agreement.replay to the log of another run"
        )
    places = [head.index(name) for name in named]
    try:
        table = [[int(line.split(",")[k]) for k in places] for line in lines[1:]]
    except (ValueError, IndexError) as error:
        raise DataError(
            f"{path} is not a log of rounds ({error}); give one that a run wrote"
        ) from error
    return np.array(table, dtype=np.int64).reshape(-1, replicas).T


def _check_script(chunks: Array, rounds: int, most: int, path: str) -> None:
    if chunks.shape[1] < rounds:
        raise ConfigError(
            f"{path} contains {chunks.shape[1]} rounds and this run needs {rounds};"
            " lower schedule.epochs, or use schedule.batch and agreement.accumulate of"
            " the run that wrote the file"
        )
    if chunks.size and not 0 <= chunks.min() <= chunks.max() <= most:
        raise ConfigError(
            f"{path} contains rounds of up to {chunks.max()} chunks and this run has"
            f" agreement.accumulate = {most}; set agreement.accumulate as in the run"
            " that wrote the file"
        )


def rows_of(chunks: Array, streams: list[tuple[list[int], int]]) -> Array:
    """Return the number of rows of every replica and round, (R, rounds), from `chunks`.

    `streams` contains, for each replica, the rows of each chunk of one pass, and the
    number of chunks that its stream has given so far.
    """
    rows = np.zeros_like(chunks)
    for replica_rows, counts, (sizes, taken) in zip(rows, chunks, streams, strict=True):
        edges = taken - counts.sum() + np.concatenate([[0], np.cumsum(counts)])
        whole = np.concatenate([[0], np.cumsum(sizes)])
        each = max(len(sizes), 1)
        replica_rows[...] = np.diff(edges // each * whole[-1] + whole[edges % each])
    return rows


# The peers of each replica and the weights of mixing at any time: doubly stochastic
# graphs.
#
# W(t) is symmetric and its rows sum to 1, so that mixing never changes a mean over
# replicas. Every replica knows W(t) without a message: it is a function of
# the number of replicas, the time and a seed. With unequal degrees the weights are
# those of Metropolis, W_ij = 1 / (1 + max(deg_i, deg_j)), on any graph that has no
# direction.

DRAWS = 0x9A1B  # in place of the replica in seeds of row orders
GRAPHS = ("full", "ring", "rings", "matching")


@dataclass(frozen=True)
class ReplicaGraph:
    """A graph over the replicas, with the weights by which neighbours are mixed."""

    kind: str  # of GRAPHS, or edges as "0-1,1-2"
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in GRAPHS:
            check_whole(_of_edges(self.kind, self.size), self.kind)
        check_doubly_stochastic(self.at(0))

    def at(self, time: int) -> Array:
        """Return W(t), the weights of mixing at time `time`, (R, R) in float64."""
        if self.kind == "full":
            return np.full((self.size, self.size), 1.0 / self.size)
        if self.kind == "ring":
            return _ring(self.size, 1)
        if self.kind == "rings":
            return _ring(self.size, 1 + time % max(self.size // 2, 1))
        if self.kind == "matching":
            return _matching(self.size, self.seed, time)
        return _of_edges(self.kind, self.size)

    def row(self, rank: int, time: int) -> dict[int, float]:
        """Return peer -> weight of mixing for replica `rank`, in rank order.

        The replica itself is included.
        """
        weights = self.at(time)[rank]
        row = {int(r): float(weights[r]) for r in np.flatnonzero(weights)}
        return row | {rank: float(weights[rank])} if rank not in row else row


_known_graph = lru_cache(maxsize=4)(ReplicaGraph)


def metropolis(edges: Array) -> Array:
    """Return the Metropolis weights W of the graph with these edges.

    `edges` is a symmetric (R, R) array of booleans; its diagonal is ignored.
    """
    linked = edges & ~np.eye(len(edges), dtype=bool)
    degree = linked.sum(axis=1)
    weights: Array = linked / (1.0 + np.maximum.outer(degree, degree))
    np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
    return weights


def sigma_2(weights: Array) -> float:
    """Return the largest factor by which one mixing scales a disagreement of replicas.

    It is the second largest singular value of `weights`, or 0 for one replica.
    """
    size = len(weights)
    return float(np.linalg.norm(weights - 1.0 / size, 2)) if size > 1 else 0.0


def check_doubly_stochastic(weights: Array) -> None:
    """Raise ConfigError if weights would bias the mean over replicas."""
    sums = [*weights.sum(axis=0), *weights.sum(axis=1)]
    if weights.min(initial=0.0) < 0.0 or not np.allclose(sums, 1.0, 0.0, 1e-12):
        raise ConfigError(
            "the mixing weights of a graph must not be negative, and each row and each"
            " column of their matrix must sum to 1, because replicas would otherwise"
            " agree on a biased mean; use Metropolis weights"
        )


def check_whole(weights: Array, kind: str) -> None:
    """Raise ConfigError if the graph of `weights` does not connect all replicas."""
    seen = np.zeros(len(weights), dtype=bool)
    seen[:1] = True
    for _ in range(len(weights)):
        seen = seen | (weights[:, seen] > 0.0).any(axis=1)
    if not seen.all():
        alone = np.flatnonzero(~seen).tolist()
        raise ConfigError(
            f"[agreement] graph = {kind!r} does not join replicas {alone} to replica 0;"
            " add an edge to them"
        )


@lru_cache(maxsize=64)
def _ring(size: int, offset: int) -> Array:
    """Return W where each replica mixes with those `offset` places ahead and behind."""
    places = np.arange(size)
    edges = np.zeros((size, size), dtype=bool)
    edges[places, (places + offset) % size] = True
    return metropolis(edges | edges.T)


@lru_cache(maxsize=64)
def _matching(size: int, seed: int, time: int) -> Array:
    """Return W of random pairs of replicas, drawn from `seed` and `time`.

    All replicas draw the same pairs. One of an odd number of replicas has no partner.
    """
    order = np.random.default_rng((seed, DRAWS, time)).permutation(size)
    edges = np.zeros((size, size), dtype=bool)
    half = size // 2
    edges[order[:half], order[half : 2 * half]] = True
    return metropolis(edges | edges.T)


@lru_cache(maxsize=64)
def _of_edges(text: str, size: int) -> Array:
    edges = np.zeros((size, size), dtype=bool)
    for edge in text.split(","):
        ends = edge.strip().split("-")
        if len(ends) != 2 or not all(e.isdigit() and int(e) < size for e in ends):
            raise ConfigError(
                f"[agreement] unknown graph: {text!r}; known: {list(GRAPHS)}, or edges"
                f" between replicas 0 to {size - 1}, as '0-1,1-2'"
            )
        edges[int(ends[0]), int(ends[1])] = True
    return metropolis(edges | edges.T)


# Consensus iterations: y_i ← Σ_j W_ij(t) y_j, over a graph that may change with t.
#
# Parts are added in rank order, so that replicas that mix the same parts get the same
# bits. A full graph is one sum over all replicas, where plain numbers travel;
# logarithms are mixed as what they are logarithms of, by
#
#     ln Σ_j W_ij x_j = log-sum-exp_j (ln W_ij + ln x_j)


@dataclass
class MixingTime:
    """A fixed time for the iterations of a round (T_c; Ferdinand et al., 2019).

    The first round measures an iteration. Later rounds have as many iterations as fit,
    at least one: as many on all replicas, which could not exchange words otherwise.
    """

    world: Communicator
    seconds: float
    script: Sequence[int] = ()  # of every round, if a log is repeated
    clock: Callable[[], float] = perf_counter
    counts: list[int] = field(default_factory=list)  # of every round so far

    def next_count(self, usual: int) -> int:
        """Return the iterations of the next round, `usual` in the first one."""
        if self.script:
            return self.script[len(self.counts)]
        return self.counts[-1] if len(self.counts) > 1 else usual

    def fitting(self, durations: Sequence[float]) -> int:
        """Return how many iterations of these durations fit. Collective."""
        every = np.empty(self.world.size)
        own = np.array([np.median(durations)])
        self.world.gather(own, [1] * self.world.size, every, "control")
        each = max(float(np.median(every)), self.seconds / MOST_MIXING)
        return max(int(self.seconds / each), 1)


MOST_MIXING = 1000  # iterations of a round that time decides


class RoundMixer:
    """The consensus iterations of a round, over a graph of replicas."""

    def __init__(
        self,
        replicas: Communicator,
        graph: ReplicaGraph,
        iterations: int,
        logarithms: bool,
        time: MixingTime | None = None,
    ) -> None:
        self.replicas = replicas
        self.graph = graph
        self.by_sum = graph.kind == "full" and not logarithms
        # One iteration of a full graph gives all replicas the mean.
        self.iterations = 1 if graph.kind == "full" else iterations
        self.time = time  # None: all rounds have `iterations`

    def mix(self, words: Array, logs: int, number: int) -> None:
        """Run all iterations of round `number` on `words`, in place. Collective.

        The first `logs` words are logarithms: their exponentials are mixed.
        """
        if self.by_sum:
            self.replicas.sum(words, PURPOSE)
            words *= words.dtype.type(1.0 / self.replicas.size)
            return
        if self.time is not None:
            self._mix_in_time(words, logs, self.time)
            return
        for k in range(self.iterations):
            self._iterate(words, logs, number * self.iterations + k)

    def _mix_in_time(self, words: Array, logs: int, time: MixingTime) -> None:
        """Run the iterations of a round for which there is time. Collective."""
        count = time.next_count(self.iterations)
        first = sum(time.counts)
        moments = [time.clock()]
        for k in range(count):
            self._iterate(words, logs, first + k)
            moments.append(time.clock())
        time.counts.append(count)
        if len(time.counts) == 1 and not time.script:
            self.iterations = time.fitting(np.diff(moments).tolist())

    def _iterate(self, words: Array, logs: int, time: int) -> None:
        weights = self.graph.row(self.replicas.rank, time)
        parts = self._parts(words, [r for r in weights if r != self.replicas.rank])
        terms = [parts[r] for r in weights]
        shares = np.array(list(weights.values()))[:, None]
        if logs:
            with np.errstate(divide="ignore"):
                logged = np.stack([part[:logs] for part in terms]) + np.log(shares)
            words[:logs] = log_sum(logged.astype(np.float64))
        mixed = np.zeros(words.size - logs)
        for share, part in zip(shares, terms, strict=True):
            mixed += share * part[logs:]
        words[logs:] = mixed

    def _parts(self, words: Array, peers: list[int]) -> dict[int, Array]:
        """Return the words of each peer and of this replica, by rank. Collective.

        This replica sends its words to every peer.
        """
        swaps = {
            peer: self.replicas.start_swap(words, np.empty_like(words), peer, PURPOSE)
            for peer in peers
        }
        parts = {peer: swap.wait() for peer, swap in swaps.items()}
        return parts | {self.replicas.rank: words.copy()}


def flatten_arrays(arrays: Sequence[Array], dtype: np.dtype) -> Array:
    """Return all `arrays` as one vector of this `dtype`, in the order of the list."""
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    words: Array = flat.astype(dtype, copy=False)
    return words


def weight_by_rows(words: Array, logs: int, rows: int) -> Array:
    """Return the vector [b y | b] of a replica that had b = `rows` rows.

    `words` is y, and is overwritten. To the first `logs` words, which are logarithms,
    the logarithm of b is added.
    """
    with np.errstate(divide="ignore"):
        words[:logs] += np.log(words.dtype.type(rows))
    words[logs:] *= rows
    return np.append(words, words.dtype.type(rows))


def divide_by_weight(words: Array, logs: int) -> float:
    """Divide mixed numerators in place by the denominator, the last word; return it.

    The first `logs` words are logarithms, from which its logarithm is subtracted. A
    denominator of 0 leaves all words as they are.
    """
    den = words[-1]
    if den != 0.0:
        words[:logs] -= np.log(den)
        words[logs:-1] /= den
    return float(den)


def relative_disagreement(world: Communicator, own: Array, mean: Array) -> float:
    """Return sqrt(Σ_i |x_i − x̄|² / Σ_i |x̄|²) over all ranks i. Collective.

    `own` is the x_i of this rank, and `mean` is x̄ in the columns of this rank. The
    result is 0 if x̄ is 0 on all ranks.
    """
    squares = np.array([np.square(own - mean).sum(), np.square(mean).sum()])
    world.sum(squares, "control")
    return float(np.sqrt(squares[0] / squares[1])) if squares[1] else 0.0


# Regret: what replicas lose beside points that know the rows of all rounds.
#
#     f_it(x) = Σ c ℓ over the rows of replica i in round t, + b_it λ/2 |x|²
#     static    Σ_t Σ_i f_it(x_it) − min_x Σ_t Σ_i f_it(x)
#     dynamic   Σ_t Σ_i f_it(x_it) − Σ_t min_x Σ_i f_it(x)


@dataclass(frozen=True)
class RoundRows:
    """Rows of all columns in float64, with targets, weights and offsets."""

    values: Array  # (m, d)
    targets: Array  # (m, 1)
    weights: Array  # (m, 1)
    offsets: Array  # (m, 1)

    def loss(self, family: Family, weights: Array, intercept: Array) -> float:
        """Return Σ c ℓ of the rows at these weights, (d, K), and intercept, (K,)."""
        scores = self.values @ weights + intercept + self.offsets
        return float((self.weights * family.loss(scores, self.targets)).sum())

    def slope(self, family: Family, weights: Array, intercept: Array) -> Array:
        """Return the gradient of `loss` as one vector, (d·K + K,)."""
        scores = self.values @ weights + intercept + self.offsets
        residuals = self.weights * family.residual(scores, self.targets)
        gradient = self.values.T @ residuals
        return np.append(gradient, residuals.sum(axis=0))

    def __getitem__(self, numbers: Array) -> "RoundRows":
        return RoundRows(*(array[numbers] for array in vars(self).values()))


def least_loss(
    family: Family, rows: RoundRows, count: int, l2: float, fit: tuple[int, bool]
) -> float:
    """Return the least Σ c ℓ + `count` · λ/2 |x|² over all x.

    `fit` has the number K of scores, and whether there is an intercept.
    """
    from scipy.optimize import minimize

    classes, has_intercept = fit
    size = rows.values.shape[1] * classes

    def mean_loss(words: Array) -> tuple[float, Array]:
        weights = words[:size].reshape(-1, classes)
        intercept = words[size:]
        value = rows.loss(family, weights, intercept) + count * l2 / 2 * float(
            np.square(weights).sum()
        )
        slope = rows.slope(family, weights, intercept)
        slope[:size] += count * l2 * words[:size]
        slope[size:] *= has_intercept
        return value / count, slope / count

    limits = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-10}
    start = np.zeros(size + classes)
    found = minimize(mean_loss, start, jac=True, method="L-BFGS-B", options=limits)
    return count * float(found.fun)


# Any-batch mirror descent: rounds of a fixed time, on replicas of any speed.
#
# A round t of replica i, whose weights are x_i:
#
#     s_i, b_i ← Σ Yᵀr and rows of as many chunks as there was time for
#     y_i      = argmin_x η_t ⟨s_i / b_i + λ x_i, x⟩ + D_ψ(x, x_i)       (b_i = 0: x_i)
#     y_i      ← Σ_j W_ij y_j,  k times over a graph that may change
#     x_i      = y_i;  weighted: x_i = num_i / den_i, where b_i y_i and b_i are mixed
#
# No replica waits for a slow one to finish a batch, only for the words of its
# neighbours. W is doubly stochastic: mixing preserves sums, and the weighted mean of
# all replicas, Σ den_i x_i / Σ den_i = Σ b_i y_i / Σ b_i, is the model that a run
# evaluates and returns, and from which other grids resume.

DEN = "anybatch_den"  # (1, K) beside the intercept: the weight of this replica
CHUNK_TABLE = "chunks"
SKIPPED = "skipped"
ROW_TABLE = "rows"


@dataclass(frozen=True)
class AnyBatchInputs:
    """The inputs of `Anybatch` in addition to `GradientInputs`."""

    pace: RoundClock
    stream: Stream
    mixer: RoundMixer
    weighted: bool
    mirror: Callable[[bool], MirrorMap]  # of: whether a member has all columns itself
    family: Family


@dataclass(frozen=True)
class AnybatchSettings(GradientSettings):
    """The settings of rounds of a fixed time, with any number of rows each."""

    rounds: str = setting(
        "clock",
        "what ends a round, a time limit or `accumulate` batches, whichever is first"
        " (clock), or `accumulate` batches alone (full)",
        choices=("clock", "full"),
    )
    deadline: float = setting(
        0.0,
        "seconds of computation in a round; 0 measures them in the first round",
        at_least=0,
        becomes=("first round", "half of a whole round, timed in the first one"),
        read_if={"agreement.rounds": ("clock",)},
    )
    replay: str = setting(
        "", "run folder, or its rounds.csv, whose rounds are repeated"
    )
    graph: str = setting(
        "ring",
        'graph of the replicas: full, ring, rings, matching, or edges as "0-1,1-2"',
    )
    mixing: int = setting(
        1,
        "consensus iterations of a round; more bring the replicas closer together",
        at_least=1,
    )
    mixing_seconds: float = setting(
        0.0,
        "seconds of consensus iterations in a round: the first round has `mixing`"
        " iterations and measures how many fit; 0 always takes `mixing`",
        at_least=0,
    )
    weighted: bool = setting(True, "weight each replica by the rows of its round")
    regret: bool = setting(
        False,
        "report the static and the dynamic regret of all rounds, for which every rank"
        " gathers all rows at the end",
    )

    takes_rounds: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset({"mirror"})
    ignores: ClassVar[frozenset[str]] = frozenset({"bucket"})
    requires: ClassVar[Requires] = replace(GradientSettings.requires, updates=("sgd",))
    supports: ClassVar[Supports] = Supports(
        codecs=False,
        leaders=False,
        loss_scale=False,
        shaping=False,
        clipping=False,
        packed_states=False,
        averages=False,
    )

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield conflicts with [average], [rate] per_batch and a graph of all."""
        if self.regret:
            yield from self._refuses_regret(config)
        if self.mixing_seconds and self.graph == "full":
            yield (
                "mixes in one iteration with graph = 'full', and mixing_seconds ="
                f" {self.mixing_seconds} was given; use another agreement.graph, or"
                " leave agreement.mixing_seconds out"
            )
        if config.average.kind != "none" and config.grid.replicas == 1:
            yield (
                "takes the mean of replicas when it is asked for, not after every"
                " round; set average.kind = 'none'"
            )
        if config.rate.per_batch > 0:
            yield (
                f"has steps of any number of rows and [rate] per_batch ="
                f" {config.rate.per_batch} is for a known one; leave it out"
            )

    def _refuses_regret(self, config: Any) -> Iterator[str]:
        """Yield a message for each setting with which there is no regret."""
        if config.grid.members > 1:
            yield (
                "reports the regret of replicas with all columns, and grid.members ="
                f" {config.grid.members} was given; use one member, or leave"
                " agreement.regret out"
            )
        if config.mirror.bound:
            yield (
                "reports regret against all points, and [mirror] bounds the weights;"
                " leave mirror.radius out with another mirror.kind than entropy and eg,"
                " or leave agreement.regret out"
            )
        if not config.problem.l2:
            yield (
                "reports regret against the best point of each round, which the few"
                " rows of a round may not have with problem.l2 = 0; use --l2, or leave"
                " agreement.regret out"
            )
        if config.run.device == "cuda":
            yield (
                "computes regret on the host, and --device cuda was given; use --device"
                " cpu, or leave agreement.regret out"
            )


class Anybatch(Gradient):
    """Any-batch SGD: replicas step after a round by themselves, and mix weights."""

    settings: ClassVar[type[AgreementSettings]] = AnybatchSettings

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, inputs)
        terms: AnyBatchInputs = inputs.more
        self.terms = terms
        self.stream = terms.stream
        self.mixer = terms.mixer
        self.weighted = terms.weighted
        self.disagreement = 0.0
        self._chunks: list[int] = []  # of every round so far, on this replica
        self._before: Array = np.zeros((grid.replicas.size, 0), dtype=np.int64)
        # Chunks of the streams in place of which an earlier grid took others.
        self._skipped = self._before
        self._is_regridded = False
        self.has_regret = bool(inputs.settings.regret)
        self._losses: list[float] = []  # of the rows of every round so far
        self._losses_before: Array = np.zeros((grid.replicas.size, 0))
        self._settled = -1  # the exchange after which `settle` was called
        self._started = 0  # chunks of the stream, where this round began
        self._taken = 0

    def prepare(self, state: State) -> None:
        """Allocate gradient sums and arrays of the mirror map; set the first weights.

        The mirror map may change the weights of `state` to its own initial ones.
        """
        self.buffer = self._make_buffer(state, tiles=1)
        self.mirror = self.terms.mirror(self._holds_all(state))
        for name in self.mirror.state_names:
            state.remember(name, self.columns)
        real = state.weights.dtype
        for name in self.mirror.shared:
            state.shared.setdefault(name, np.zeros((1, self.columns), real))
        state.shared.setdefault(DEN, np.ones((1, self.columns)))
        self.mirror.begin(self._point(state))

    def _holds_all(self, state: State) -> bool:
        """Return whether this member has all columns of the data."""
        return len(state.weights) == self.inputs.shard.total_columns

    def plan_in_words(self, state: State) -> dict[str, str]:
        """Return the facts of `Agreement`, with graph, mixing and mirror map added."""
        graph = self.mixer.graph
        return {
            **super().plan_in_words(state),
            "graph": f"{graph.kind} by seed {graph.seed}",
            "consensus iterations": repr(self._iterations_of_plan()),
            "replicas count by rows": repr(self.weighted),
            "mirror map": type(self.mirror).__name__,
        }

    def _iterations_of_plan(self) -> Any:
        """Return the iterations of a round, or the seconds for them."""
        time = self.mixer.time
        return self.mixer.iterations if time is None else f"{time.seconds} s"

    def start(self, state: State, exchanges: int) -> None:
        """Begin a run, or resume it after `exchanges` rounds.

        Do nothing unless the checkpoint has another number of replicas: then the
        streams begin where full rounds would have ended.
        """
        if self._is_regridded:
            shape = self.grid.replicas.size, exchanges
            most = self.inputs.settings.accumulate
            self._chunks = []
            self._before = np.zeros(shape, dtype=np.int64)
            self._skipped = np.full(shape, most, dtype=np.int64)
            self.stream.taken = exchanges * most
            self.mirror.repair(self._point(state))
            state.shared[DEN][...] = 1.0

    # ------------------------------------------------------------------ a round

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """Start the round of exchange `index` of epoch `epoch`, and its clock."""
        self._begin(epoch * self.steps.each + index)
        self._started = self.stream.taken
        self._taken = 0
        self.terms.pace.begin(self._done)

    def has_next_chunk(self) -> bool:
        """Return whether another chunk is taken, and count it; called before each."""
        if self.terms.pace.has_clock:
            self.buffer.settle()
        if not self.terms.pace.has_next_chunk(self._taken):
            return False
        self._taken += 1
        return True

    @property
    def is_last(self) -> bool:
        """Return True: the clock may end the round after any chunk."""
        return True

    @property
    def is_full(self) -> bool:
        """Return False: the sums of a round are collected only after its last chunk."""
        return False

    def ready(self, task: Task, state: State) -> Iterator[slice]:
        """Yield all columns before the first chunk; weights stay fixed in a round."""
        if self._taken == 1:
            yield slice(None)

    def apply_update(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add the gradient Yᵀr of a chunk to the sums of the round; take no step."""
        self.buffer.count_in(residuals)
        self.add_gradient(self.buffer.gradient, rows, residuals)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Step along the summed gradient, then mix. Collective.

        A replica without rows in this round mixes without a step.
        """
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            self._started = self.stream.taken
            self._taken = 0
        self.terms.pace.end()
        self._chunks.append(self._taken)
        rows = self.stream.rows_in(self._started, self._taken)
        if self.has_regret:
            numbers = self.stream.rows_at(self._started, self._taken)
            self._losses.append(self._loss_of(state, numbers))
        if rows:
            self.buffer.collect()
            self._descend(state, rows)
        if self.grid.replicas.size > 1:
            self._mix(state, rows)

    def _loss_of(self, state: State, numbers: Array) -> float:
        """Return f_it(x_it), the loss of these local rows at the present weights."""
        if not len(numbers):
            return 0.0
        weights = state.weights.astype(np.float64)
        intercept = np.zeros(self.columns)
        if state.intercept is not None:
            intercept = state.intercept[0].astype(np.float64)
        loss = self._rows_of(numbers).loss(self.terms.family, weights, intercept)
        return loss + len(numbers) * self.steps.l2 / 2 * float(np.square(weights).sum())

    def _rows_of(self, numbers: Array) -> RoundRows:
        """Return the local rows with these numbers, as steps read them."""
        shard = self.inputs.shard
        backend: Any = self.backend
        gathered: Any = shard.matrix.gather(backend, numbers, None)
        found, columns = gathered.dense()
        values = np.zeros((len(numbers), shard.total_columns))
        values[:, columns] = found
        ones = np.ones((len(numbers), 1))
        sides = [
            default if side is None else side[numbers].astype(np.float64)
            for side, default in ((shard.weights, ones), (shard.offsets, 0.0 * ones))
        ]
        return RoundRows(values, shard.targets[numbers], *sides)

    def _regret(self, chunks: Array, counts: Array) -> dict[str, Any]:
        """Return static and dynamic regret of all rounds. Collective.

        `chunks` and `counts` have the chunks and rows of every replica in every round.
        The result is empty if it is not requested, and after a resume on another number
        of replicas, whose rows are not known.
        """
        if not self.has_regret or self._skipped.any() or not chunks.size:
            return {}
        replicas = self.grid.replicas
        # 1. All rows on every rank, and the numbers of those of every round.
        own = self._rows_of(np.arange(len(self.inputs.shard.targets)))
        whole = np.hstack(list(vars(own).values()))
        width = whole.shape[1]
        every = np.empty((sum(self.rows), width))
        sizes = [height * width for height in self.rows]
        replicas.gather(whole.reshape(-1), sizes, every.reshape(-1), "control")
        rows = RoundRows(every[:, :-3], *(every[:, -k, None] for k in (3, 2, 1)))
        taken = int(chunks[replicas.rank].sum())
        visits = self.stream.rows_at(0, taken) + sum(self.rows[: replicas.rank])
        of_all = np.empty(int(counts.sum()), dtype=np.int64)
        lengths = [int(count) for count in counts.sum(axis=1)]
        replicas.gather(visits.astype(np.int64), lengths, of_all, "control")
        # 2. The best points, on rank 0.
        cost = float(self.logs()[LOSSES].sum())
        found: dict[str, Any] = {}
        if self.grid.world.rank == 0:
            found = self._against_best(rows, of_all, counts, cost)
        regret: dict[str, Any] = self.grid.world.share_object(found)
        return {"regret": regret}

    def _against_best(
        self, rows: RoundRows, visits: Array, counts: Array, cost: float
    ) -> dict[str, Any]:
        """Return the regret of `cost`.

        `visits` has the numbers of the rows that replica after replica took, in the
        order of rounds, and `counts` how many each took in each round.
        """
        fit = self.columns, bool(self.inputs.config.problem.intercept)

        def least(numbers: Array) -> float:
            if not len(numbers):
                return 0.0
            family = self.terms.family
            return least_loss(family, rows[numbers], len(numbers), self.steps.l2, fit)

        rounds = np.tile(np.arange(counts.shape[1]), len(counts))
        of_round = np.repeat(rounds, counts.reshape(-1))
        moving = sum(least(visits[of_round == t]) for t in range(counts.shape[1]))
        return {
            "rows": len(visits),
            "loss": cost,
            "static": cost - least(visits),
            "dynamic": cost - moving,
        }

    def _descend(self, state: State, rows: int) -> None:
        """Step along the mean gradient of this replica's own rows."""
        gradient = self.buffer.gradient
        rate = self._moment.rate
        gradient *= gradient.dtype.type(1.0 / rows)
        if self.steps.l2:
            gradient += gradient.dtype.type(self.steps.l2) * state.weights
        self.mirror.step(self._point(state), gradient, rate)
        if state.intercept is not None:
            state.intercept -= rate * self.buffer.tail[:-1].astype(np.float64) / rows

    def _mix(self, state: State, rows: int) -> None:
        """Mix this replica's point with those of other replicas. Collective.

        What is mixed is [b y | b] with b = `rows` if replicas are weighted, else y
        alone.
        """
        point = self._point(state)
        travelling = self.mirror.travels(point)
        logs = sum(a.size for a in travelling) if self.mirror.logarithms else 0
        if state.intercept is not None:
            travelling = [*travelling, state.intercept]
        words = flatten_arrays(travelling, self.buffer.flat.dtype)
        words = weight_by_rows(words, logs, rows) if self.weighted else words
        self.mixer.mix(words, logs, self._done)
        if self._knows(state, words, logs):
            first = 0
            for array in travelling:
                part = words[first : first + array.size]
                array[...] = part.reshape(array.shape)
                first += array.size
            self.mirror.arrive(point)
        if state.intercept is not None and self.mixer.by_sum:
            same_on_members(self.grid, state.intercept, self.grid.replicas.size)

    def _knows(self, state: State, words: Array, logs: int) -> bool:
        """Divide the mixed words by their weight; return whether that weight is not 0.

        The weight is 0 if neither this replica nor a neighbour had any rows. Without
        `weighted` there is no weight, and the result is True.
        """
        if not self.weighted:
            return True
        den = divide_by_weight(words, logs)
        state.shared[DEN][...] = den
        return den != 0.0

    def _point(self, state: State) -> ReplicaViews:
        return ReplicaViews(
            state.weights,
            {name: state.memory[name] for name in self.mirror.state_names},
            {name: state.shared[name] for name in self.mirror.shared},
        )

    # ------------------------------------------------------------- agreeing on one

    def is_whole(self, exchanges: int) -> bool:
        """Return whether all replicas have equal weights after `exchanges` exchanges.

        They are equal with one replica, on a full graph, at the start, and after
        `settle`.
        """
        if self.grid.replicas.size == 1 or exchanges in (0, self._settled):
            return True
        return self.mixer.graph.kind == "full"

    def settle(self, state: State, exchanges: int) -> None:
        """Give all replicas the mean at the end of a run. Collective."""
        super().settle(state, exchanges)
        self._settled = exchanges

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """Return whether all replicas have the same state: then one of them is saved.

        It is False if the mirror map keeps arrays, since each replica may have
        different ones.
        """
        return self.is_whole(exchanges) and not self.keeps_own(state)

    def agree(self, state: State, purpose: str) -> None:
        """Set weights to Σ_i c_i x_i / Σ_i c_i over all replicas i. Collective.

        c_i is what mixing made of the rows of the last round, or 1 if replicas are not
        weighted by rows or none had any. The relative disagreement of the replicas
        before is stored.
        """
        mean = self._mean(state, purpose, float(state.shared[DEN][0, 0]))
        if mean is None:  # a round in which no replica had rows
            mean = self._mean(state, purpose, 1.0)
        if mean is None:
            return
        local_weights = state.weights.astype(np.float64)
        intercept = state.become(mean)
        if intercept is not None and self.grid.members.size > 1:
            self.grid.members.broadcast(intercept, 0, purpose)
        self.disagreement = relative_disagreement(
            self.grid.world, local_weights, state.weights
        )

    def _mean(self, state: State, purpose: str, share: float) -> Array | None:
        words = state.portion(share, self.grid.replicas)
        words = np.append(words, words.dtype.type(share))
        self.grid.replicas.sum(words, purpose)
        if words[-1] == 0.0:
            return None
        mean: Array = words[:-1] / words[-1]
        return mean

    @classmethod
    def saves(cls, shape: StateShape) -> int:
        """Return the bytes of the states of all replicas, and of mirror maps."""
        return shape.replicas * 2 * shape.state

    # ------------------------------------------------------------------ the log

    def logs(self) -> dict[str, Array]:
        """Return two logs, numbers of chunks of the shape (R, rounds). Collective.

        One has the chunks that were taken in every round so far, the other those that
        were skipped when a checkpoint of another number of replicas was resumed. Where
        time decides the consensus iterations, a third log has those of every round.
        """
        local_chunks = np.array(self._chunks, dtype=np.int64)
        chunks = np.array(self.grid.replicas.exchange_objects(local_chunks))
        none = np.zeros_like(chunks)
        logs = {
            CHUNK_TABLE: np.concatenate([self._before, chunks], axis=1),
            SKIPPED: np.concatenate([self._skipped, none], axis=1),
        }
        if self.has_regret:
            count, replicas = len(self._losses), self.grid.replicas
            losses = np.empty((replicas.size, count))
            own = np.array(self._losses)
            sizes = [count] * replicas.size
            replicas.gather(own, sizes, losses.reshape(-1), "control")
            logs[LOSSES] = np.hstack([self._losses_before, losses])
        if self.mixer.time is not None:
            counts = np.array(self.mixer.time.counts, dtype=np.int64)
            logs[ITERATIONS] = np.tile(counts, (len(chunks), 1))
        return logs

    def recall(self, name: str, log: Array) -> None:
        """Restore the position of the streams from a log.

        If the log is of another number of replicas, `start` sets the position instead.
        """
        if len(log) != self.grid.replicas.size:
            self._is_regridded = True
            return
        if name == LOSSES:
            self._losses, self._losses_before = [], log
            return
        if name == ITERATIONS:
            if self.mixer.time is not None:
                self.mixer.time.counts = log[0].tolist()
            return
        self._chunks = []
        if name == SKIPPED:
            self._skipped = log
        else:
            self._before = log
            self._skipped = np.zeros_like(log)
        passed = self._before + self._skipped
        self.stream.taken = int(passed[self.grid.replica].sum())

    def visited(self, dealt: int) -> int:
        """Return R times the rows of this replica in the round.

        `facts` has the rows that the replicas really took.
        """
        rows = self.stream.rows_in(self._started, self._taken)
        return rows * self.grid.replicas.size

    def facts(self) -> dict[str, Any]:
        """Return facts about rounds and mixing for the report of a run. Collective."""
        chunks = self.logs()[CHUNK_TABLE]
        stream = list(self.stream.sizes), self.stream.taken
        rows = rows_of(chunks, self.grid.replicas.exchange_objects(stream))
        return {
            "graph": self.mixer.graph.kind,
            "iterations": self.mixer.iterations,
            "deadline_seconds": getattr(self.terms.pace, "deadline", None),
            "disagreement": self.disagreement,
            **self.buffer.facts(),
            "rows_by_replica": rows.sum(axis=1).tolist(),
            **self._regret(chunks, rows),
            "rounds": {
                CHUNK_TABLE: chunks.tolist(),
                ROW_TABLE: rows.tolist(),
                **self._mixed(),
            },
        }

    def _mixed(self) -> dict[str, list[int]]:
        """Return the iterations of every round, where time has decided them."""
        time = self.mixer.time
        return {} if time is None else {ITERATIONS: time.counts}

    # ------------------------------------------------------------- what it sends

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return what rank 0 sends in all iterations of a round.

        The clock decides how many rows a round has, but not how many words are mixed.
        Return None where it decides the number of iterations.
        """
        settings = shape.settings
        if settings.mixing_seconds:
            return None
        mirror = shape.config.mirror.kind
        has_logs = mirror in LOGARITHMIC
        words = (
            shape.classes * (shape.local_columns + shape.intercept) + settings.weighted
        )
        if mirror == "eg":  # both signs, and the slack
            words += shape.classes * (shape.local_columns + 1)
        if settings.graph == "full" and not has_logs:
            shared = shape.to_members(shape.classes) if shape.intercept else []
            return shape.sum(words) + shared
        graph = _known_graph(settings.graph, shape.replicas, shape.config.sampling.seed)
        iterations = 1 if settings.graph == "full" else settings.mixing
        first = (exchanges - 1) * iterations
        peers = [len(graph.row(0, first + k)) - 1 for k in range(iterations)]
        return [shape.sent(words)] * sum(peers)

    @classmethod
    def last_messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return what rank 0 sends for the mean of all replicas at the end of a run.

        The list is empty if the graph is full.
        """
        if shape.settings.graph == "full":
            return []
        words = shape.classes * (shape.local_columns + shape.intercept) + 1
        sent = shape.sum(words)
        if shape.intercept and shape.members > 1:
            sent.append(shape.sent(shape.classes, 8))
        return sent

    @classmethod
    def vectors(cls, shape: StateShape) -> int:
        """Return how many arrays as large as a state are kept for sums and mixing.

        They are the gradient, the arrays of the mirror map, and the float64 copies of
        this replica and its neighbours.
        """
        mirror = shape.config.mirror.kind
        travels = {"entropy": 1, "eg": 2}.get(mirror, 0)
        map_arrays = 2 if mirror == "diagonal" else travels
        few = {"ring": 2, "rings": 2, "matching": 1, "full": 0}
        others = shape.replicas - 1
        if travels:  # logarithms have no sum: all peers of a full graph
            del few["full"]
        peers = min(others, few.get(shape.settings.graph, others))
        return 1 + map_arrays + max(travels, 1) * (3 * peers + 5)

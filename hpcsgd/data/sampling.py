"""The order of rows in batches, folds of rows, and validation rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcsgd.data.checksums import GOLDEN, mix64
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.formats import Array
from hpcsgd.settings import Settings, setting

# The order of rows is a function of mode, seed, epoch and replica only.

MODES = ("shuffle-once", "reshuffle", "replacement", "blocks", "in-order")
DRAWN = 2**16  # rows that are drawn together


@dataclass(frozen=True)
class SamplingConfig(Settings, section="sampling"):
    """How rows are drawn."""

    mode: str = setting(
        "shuffle-once",
        "order of the rows: one random order for all epochs (shuffle-once), a new order"
        " for each epoch (reshuffle), independent draws (replacement), blocks of rows,"
        " for data larger than memory (blocks), or the order of the data, for streams"
        " that drift (in-order)",
        choices=MODES,
    )
    seed: int = setting(
        0,
        "seed of the random order of the rows",
        at_least=0,
        remedy="0 will do",
    )
    block: int = setting(
        1024,
        "blocks: rows that are read together",
        at_least=1,
        remedy="1024 is usual",
        read_if={"sampling.mode": ("blocks",)},
    )
    window: int = setting(
        16,
        "blocks: blocks that are shuffled together; more mix better and need more"
        " memory",
        at_least=1,
        remedy="16 is usual",
        read_if={"sampling.mode": ("blocks",)},
    )
    hold_out: float = setting(
        0.0,
        "share of the rows that are kept for validation and not trained on",
        at_least=0,
        below=1,
        remedy="0 holds nothing out, 0.1 is usual",
    )


@dataclass(frozen=True)
class Sampler:
    """The row order of one replica; its members compute it without a message.

    The generator is `default_rng((seed, replica, key))` with key 0 for shuffle-once and
    epoch + 1 otherwise. The order does not depend on batch, steps, product and members:
    runs that differ in them take the same rows in the same order.
    """

    mode: str
    seed: int
    rows: int
    replica: int
    block: int = 1024
    window: int = 16

    @property
    def blocks(self) -> int:
        """Return the number of blocks of rows; only the last block may be smaller."""
        return -(-self.rows // self.block)

    def rows_of(self, block: int) -> Array:
        """Return the local row numbers of a block, int64."""
        last = min((block + 1) * self.block, self.rows)
        return np.arange(block * self.block, last, dtype=np.int64)

    def block_rows(self, block: int) -> int:
        """Return the number of rows of a block."""
        return min(self.block, self.rows - block * self.block)

    def windows(self, epoch: int) -> list[Array]:
        """Return the block numbers of each window of `epoch`, in order of use."""
        return self._windows(
            np.random.default_rng((self.seed, self.replica, epoch + 1))
        )

    def _windows(self, rng: np.random.Generator) -> list[Array]:
        order = rng.permutation(self.blocks)
        return [order[i : i + self.window] for i in range(0, self.blocks, self.window)]

    def _by_windows(self, rng: np.random.Generator) -> Array:
        """Return the rows of random blocks, shuffled within each window of blocks."""
        order = np.empty(self.rows, dtype=self._number)
        first = 0
        for blocks in self._windows(rng):
            rows = np.concatenate([self.rows_of(int(b)) for b in blocks])
            order[first : first + len(rows)] = rng.permutation(rows)
            first += len(rows)
        return order

    def order(self, epoch: int) -> Array:
        """Return the local row numbers of `epoch` in their order.

        They are int32, or int64 if there are more than 2³¹ − 1 rows.
        """
        if self.mode == "shuffle-once":
            return self._only_order
        if self.mode == "in-order":
            return np.arange(self.rows, dtype=self._number)
        rng = np.random.default_rng((self.seed, self.replica, epoch + 1))
        if self.mode == "replacement":
            return self._drawn(rng)
        if self.mode == "blocks":
            return self._by_windows(rng)
        return self._shuffled(rng)

    def drawn(self, epoch: int, index: int) -> int:
        """Return how many rows exchange `index` of `epoch` has drawn; here all."""
        return self.rows

    @property
    def _number(self) -> type[np.integer[Any]]:
        return np.int32 if self.rows < 2**31 else np.int64

    def _shuffled(self, rng: np.random.Generator) -> Array:
        # The numbers of `permutation`, which holds two arrays of int64 meanwhile.
        order = np.arange(self.rows, dtype=self._number)
        rng.shuffle(order)
        return order

    def _drawn(self, rng: np.random.Generator) -> Array:
        """Return independent draws, which are int64 for `DRAWN` rows at a time."""
        order = np.empty(self.rows, dtype=self._number)
        for first in range(0, self.rows, DRAWN):
            part = order[first : first + DRAWN]
            part[...] = rng.integers(self.rows, size=len(part), dtype=np.int64)
        return order

    def keep_order(self, keep: Callable[[Array], Array]) -> None:
        """Store the order of shuffle-once as `keep` returns it. Collective.

        `keep` is that of the members of the replica: those of a node share one copy.
        """
        if self.mode == "shuffle-once":
            order = keep(self._only_order)
            order.flags.writeable = False
            vars(self)["_only_order"] = order

    @cached_property
    def _only_order(self) -> Array:
        """Return the row order of shuffle-once, which is the same for all epochs."""
        rng = np.random.default_rng((self.seed, self.replica, 0))
        order = self._shuffled(rng)
        order.flags.writeable = False
        return order


# Rows that are drawn independently of each other, as differential privacy counts them.
#
# An exchange computes with arrays of a fixed size m, of which drawn rows fill only the
# first places. The share q is the largest with which more than m of n rows are drawn
# with a probability of at most `OVERFLOW`; of more, m are kept. This is the truncated
# Poisson sampling of L. Chua et al., "Scalable DP-SGD: Shuffling vs. Poisson
# Subsampling" (NeurIPS 2024), whose δ grows by (1 + e^ε) times that probability in
# each exchange.

OVERFLOW = 1e-15  # the probability that an exchange of a replica draws too many rows


def poisson_share(rows: int, places: int) -> float:
    """Return the probability q with which an exchange of `places` draws each row.

    `rows` is the number n of rows of a replica. Where all rows have a place, q is 1.
    """
    from scipy.special import betaincinv

    if places >= rows:
        return 1.0
    # P(more than m of n rows) = I_q(m + 1, n − m), the incomplete beta function.
    return float(betaincinv(places + 1, rows - places, OVERFLOW))


@dataclass(frozen=True)
class PoissonSampler(Sampler):
    """The rows of one replica, of which each exchange draws each with probability q.

    An epoch has as many places as rows, `places` of them in an exchange; places that
    are not filled contain row 0, and `drawn` tells how many are.
    """

    places: int = 1

    def order(self, epoch: int) -> Array:
        """Return a local row number for each place of `epoch`, drawn ones first."""
        order = np.zeros(self.rows, dtype=self._number)
        for index, first in enumerate(range(0, self.rows, self.places)):
            dice, count = self._draw(epoch, index)
            order[first : first + count] = dice.choice(self.rows, count, replace=False)
        return order

    def drawn(self, epoch: int, index: int) -> int:
        """Return how many rows exchange `index` of `epoch` has drawn."""
        return self._draw(epoch, index)[1]

    def _draw(self, epoch: int, index: int) -> tuple[np.random.Generator, int]:
        """Return the generator of an exchange, and the number of rows that it draws."""
        dice = np.random.default_rng((self.seed, self.replica, epoch + 1, index))
        places = min(self.places, self.rows - index * self.places)
        count = int(dice.binomial(self.rows, poisson_share(self.rows, places)))
        return dice, min(count, places)


def make_sampler(config: SamplingConfig, rows: int, replica: int) -> Sampler:
    """Return the sampler of a replica with `rows` rows."""
    return Sampler(config.mode, config.seed, rows, replica, config.block, config.window)


def plan_groups(rows: int, batch: int, steps: int) -> list[tuple[int, ...]]:
    """Return the batch sizes of each exchange of an epoch; only the last may differ."""
    whole, rest = divmod(rows, batch * steps)
    groups = [(batch,) * steps] * whole
    if rest:
        full, ragged = divmod(rest, batch)
        groups.append((batch,) * full + ((ragged,) if ragged else ()))
    return groups


# Rows that are not trained on: folds of a cross-validation, and validation rows.
#
# The fold of a row is a function of a seed and of its number in the whole data, so that
# all ranks of any grid compute it without a message. Every stretch of consecutive rows
# has equally many rows of all folds.

STRETCH = 10  # rows of which a share is held out
HELD_OUT = 0x68656C64  # combined with the seed, so that other draws differ


def fold_of(rows: slice, folds: int, seed: int) -> Array:
    """Return the fold of each row, int64.

    Each fold has one of every `folds` consecutive rows of the data, counted from row 0.
    """
    return _places(rows, folds, seed)


def held_out(rows: slice, share: float, seed: int) -> Array:
    """Return a mask of the rows that are held out, bool.

    Of every ten consecutive rows of the data, counted from row 0, a `share` is held out
    on average.
    """
    first = rows.start // STRETCH
    stretches = np.arange(first, -(-rows.stop // STRETCH) + 1, dtype=np.float64)
    # The cumulative sum is rounded, so that the share is right over many stretches.
    counts = np.diff(np.floor(stretches * STRETCH * share + 1e-9))
    numbers = np.arange(rows.start, rows.stop) // STRETCH - first
    is_held_out: Array = _places(rows, STRETCH, seed ^ HELD_OUT) < counts[numbers]
    return is_held_out


def _places(rows: slice, length: int, seed: int) -> Array:
    """Return the place of each row in a random order of its stretch.

    A stretch is `length` consecutive rows of the data.
    """
    first = rows.start // length
    last = -(-rows.stop // length)
    drawn = _hash(np.arange(first * length, last * length, dtype=np.uint64), seed)
    order = np.argsort(drawn.reshape(-1, length), axis=1, kind="stable")
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(length)[None, :], axis=1)
    begin = rows.start - first * length
    return places.reshape(-1)[begin : begin + rows.stop - rows.start]


def _hash(numbers: Array, seed: int) -> Array:
    """Return SplitMix64 of each number and a seed, the same bits on every machine."""
    with np.errstate(over="ignore"):
        x = (numbers + np.uint64(1)) * GOLDEN
        x ^= (np.uint64(seed & 0xFFFFFFFFFFFFFFFF) + np.uint64(1)) * np.uint64(
            0xD1B54A32D192ED03
        )
    return mix64(x)


@dataclass(frozen=True)
class FoldSplit:
    """The division of rows into training rows and folds or validation rows.

    With folds, sample weights have a column for each fold, which leaves out the rows of
    that fold, and a last column with all rows.
    """

    folds: int = 0
    fold_seed: int = 0
    hold_out: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.folds and self.hold_out:
            raise ConfigError(
                "[sampling] hold_out and [sweep] folds both hold rows out; use one of"
                " them"
            )

    @property
    def columns(self) -> int:
        """Return the number of columns of sample weights."""
        return self.folds + 1 if self.folds else 1

    @property
    def is_whole(self) -> bool:
        """Return whether there are neither folds nor validation rows."""
        return not self.folds and not self.hold_out

    def kept_apart(self, rows: slice, known: Array | None = None) -> Array:
        """Return an array (rows, columns), True where a row is not trained on.

        `known` contains the fold of every row of the data if the caller chose the
        folds; −1 marks a row of no fold, which all columns train on.
        """
        if self.hold_out:
            return held_out(rows, self.hold_out, self.seed)[:, None]
        drawn = fold_of(rows, self.folds, self.fold_seed)
        fold = drawn if known is None else np.where(known[rows] < 0, -2, known[rows])
        return np.asarray(fold[:, None] == np.append(np.arange(self.folds), -1))

    def check(self, trained: Array, kept: Array) -> None:
        """Raise DataError if training or held-out weights of a column sum to 0.

        `trained` and `kept` contain the sum of the sample weights in each column: over
        rows that are trained on, and over rows that are held out.
        """
        if (trained <= 0.0).any():
            raise DataError(
                "no rows are left to train on (with folds: outside of one of them), or"
                " only rows with sample weights of 0; hold out fewer rows, or give one"
                " of the others a weight above 0"
            )
        if (kept[: self.folds or 1] <= 0.0).any():
            raise DataError(
                "a fold, or the set of validation rows, is empty or has only sample"
                " weights of 0; use fewer [sweep] folds, or raise [sampling] hold_out"
            )

"""Rows that are kept apart: folds of a cross-validation, and rows held out.

A row's part is a function of a seed and of its number in the whole data, so that all
ranks of any grid agree without a message. In every stretch of rows that follow each
other all folds have as many.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError, DataError

Array = NDArray[Any]
STRETCH = 10  # rows of which a share is held out
HELD_OUT = 0x68656C64  # beside the seed, so that other draws of it are others


def fold_of(rows: slice, folds: int, seed: int) -> Array:
    """The fold of each of these rows, int64: each one once in `folds` rows."""
    return _places(rows, folds, seed)


def held_out(rows: slice, share: float, seed: int) -> Array:
    """Which of these rows are held out, bool: `share` of every ten in the mean."""
    first = rows.start // STRETCH
    stretches = np.arange(first, -(-rows.stop // STRETCH) + 1, dtype=np.float64)
    # Rounded where it is summed, so that the share is right over many stretches.
    counts = np.diff(np.floor(stretches * STRETCH * share + 1e-9))
    numbers = np.arange(rows.start, rows.stop) // STRETCH - first
    found: Array = _places(rows, STRETCH, seed ^ HELD_OUT) < counts[numbers]
    return found


def _places(rows: slice, length: int, seed: int) -> Array:
    """The place of each row among the rows of its stretch, in an order drawn for it."""
    first, last = rows.start // length, -(-rows.stop // length)
    drawn = _hash(np.arange(first * length, last * length, dtype=np.uint64), seed)
    order = np.argsort(drawn.reshape(-1, length), axis=1, kind="stable")
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(length)[None, :], axis=1)
    begin = rows.start - first * length
    return places.reshape(-1)[begin : begin + rows.stop - rows.start]


def _hash(numbers: Array, seed: int) -> Array:
    """SplitMix64 of each number: the same on every machine."""
    with np.errstate(over="ignore"):
        step = np.uint64(0x9E3779B97F4A7C15)
        x = (numbers + np.uint64(1)) * step
        x ^= (np.uint64(seed & 0xFFFFFFFFFFFFFFFF) + np.uint64(1)) * np.uint64(
            0xD1B54A32D192ED03
        )
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))


@dataclass(frozen=True)
class Split:
    """Which rows are trained on, by which columns of sample weights.

    With folds there is a column for each of them, without its rows, and a last one
    that has all rows.
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
        """Of sample weights."""
        return self.folds + 1 if self.folds else 1

    @property
    def is_whole(self) -> bool:
        """True where every row is trained on by all."""
        return not self.folds and not self.hold_out

    def kept_apart(self, rows: slice, known: Array | None = None) -> Array:
        """(rows, columns), True where a row is not trained on.

        `known` are folds of all rows that somebody has drawn; −1: in none of them.
        """
        if self.hold_out:
            return held_out(rows, self.hold_out, self.seed)[:, None]
        drawn = fold_of(rows, self.folds, self.fold_seed)
        fold = drawn if known is None else np.where(known[rows] < 0, -2, known[rows])
        return np.asarray(fold[:, None] == np.append(np.arange(self.folds), -1))

    def check(self, trained: Array, kept: Array) -> None:
        """Refuse parts whose weights (of all rows) sum to nothing."""
        if (trained <= 0.0).any():
            raise DataError(
                "sample_weight sums to zero over the rows that are trained on; give at"
                " least one of them a weight above 0"
            )
        if (kept[: self.folds or 1] <= 0.0).any():
            raise DataError(
                "a part of the rows that is held out is empty, or all its weights are"
                " 0; hold out more rows, or use fewer folds"
            )

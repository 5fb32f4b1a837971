"""The preparation of rows before they are stored: column scales and unit rows.

x ← (x − mean) / scale for each column, then x ← x / ‖x‖ if rows shall have length 1.
Files and results contain the means and scales.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.data.checksums import GOLDEN, mix64
from hpcsgd.formats import Array

MEANS, SCALES = "column_means", "column_scales"  # data sets of a store, of a result
NAMES = "column_names"  # data set of a store
CATEGORIES = "categories"  # data set of a store: levels of columns that were text
LABELS = "label_numbers"  # attribute of a store: numbers of labels that were text
# Moments of the same rows differ by this at most, whatever order they are added up in.
ALIKE = 1e-9  # of the scale
ROUNDED = 16 * np.finfo(np.float64).eps  # of the mean


@dataclass(frozen=True)
class Scales:
    """x ← (x − mean) / scale for each column; sparse columns keep their zeros."""

    mean: Array | None  # None: sparse, only scaled
    scale: Array

    def apply(self, X: Any) -> Any:
        """Return the block X with its columns scaled, in float64."""
        if hasattr(X, "tocsr"):
            from scipy.sparse import csr_array, diags_array

            return csr_array(X.astype(np.float64) @ diags_array(1 / self.scale))
        scaled = X.astype(np.float64)
        if self.mean is not None:
            scaled -= self.mean
        scaled /= self.scale
        return scaled

    def equals(self, other: "Scales | None") -> bool:
        """Return whether `other` has the same means and scales, up to rounding."""
        if other is None or (self.mean is None) != (other.mean is None):
            return False
        if self.scale.shape != other.scale.shape:
            return False
        near = ALIKE * self.scale
        if not (np.abs(self.scale - other.scale) <= near).all():
            return False
        if self.mean is None or other.mean is None:
            return True
        near += ROUNDED * np.abs(self.mean)
        return bool((np.abs(self.mean - other.mean) <= near).all())


@dataclass(frozen=True)
class Preparation:
    """The preparation of rows before they were stored: column scales, unit rows.

    The default is the preparation of raw rows, to which nothing was done.
    """

    scales: Scales | None = None
    unit_rows: bool = False

    @property
    def is_raw(self) -> bool:
        """Return whether rows are neither scaled nor brought to length 1."""
        return self.scales is None and not self.unit_rows

    @property
    def columns(self) -> str:
        """Return what the columns are: raw, scaled or standardized."""
        if self.scales is None:
            return "raw"
        return "scaled" if self.scales.mean is None else "standardized"

    @property
    def text(self) -> str:
        """Return a phrase that describes rows of this preparation in a message."""
        return self.columns + (", of length 1" if self.unit_rows else "")

    def scales_as(self, other: "Preparation") -> bool:
        """Return whether `other` scales columns in the same way.

        Two preparations that do not scale columns are equal in this sense.
        """
        if self.scales is None:
            return other.scales is None
        return self.scales.equals(other.scales)

    def describe(self) -> dict[str, Any]:
        """Return a description for JSON, without the moments of all columns."""
        return {"columns": self.columns, "unit_rows": self.unit_rows}

    def apply(self, X: Any) -> Any:
        """Return the raw rows X prepared in this way, in float64.

        If this is the preparation of raw rows, X is returned as it is.
        """
        if self.scales is not None:
            X = self.scales.apply(X)
        if not self.unit_rows:
            return X

        return unit_rows(X)

    def arrays(self) -> dict[str, Array]:
        """Return the means and scales of the columns, by their names in files."""
        if self.scales is None:
            return {}
        moments = {MEANS: self.scales.mean, SCALES: self.scales.scale}
        return {name: array for name, array in moments.items() if array is not None}


RAW = Preparation()


def preparation_from(arrays: Mapping[str, Array], unit_rows: bool) -> Preparation:
    """Return the preparation whose method `arrays` would return these `arrays`."""
    scale = arrays.get(SCALES)
    mean = arrays.get(MEANS)
    return Preparation(None if scale is None else Scales(mean, scale), unit_rows)


# Unit rows, and the choice of test rows.

HASHED_AT_ONCE = 2**20


def unit_rows(X: Any) -> Any:
    """Return the rows of X divided by their lengths; rows of zeros are unchanged."""
    if hasattr(X, "tocsr"):
        from scipy.sparse import csr_array, diags_array

        norms = np.sqrt(np.asarray(X.astype(np.float64).power(2).sum(axis=1)).ravel())
        return csr_array(diags_array(1 / np.where(norms, norms, 1.0)) @ X)
    wide = X.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    wide /= np.where(norms, norms, 1.0)
    return wide


def is_test(rows: Array, fraction: float, seed: int) -> Array:
    """Return which row numbers are test rows (bool), by a hash of (seed, row)."""
    drawn: Array = _hash(rows, seed) < np.uint64(int(fraction * 2**53))
    return drawn


def count_test(rows: int, fraction: float, seed: int, start: int = 0) -> int:
    """Return how many of the rows from `start` to before `rows` are test rows."""
    return sum(
        int(is_test(part, fraction, seed).sum()) for part in _row_numbers(start, rows)
    )


def _row_numbers(start: int, stop: int) -> Iterator[Array]:
    for first in range(start, stop, HASHED_AT_ONCE):
        yield np.arange(first, min(first + HASHED_AT_ONCE, stop))


def _hash(rows: Array, seed: int) -> Array:
    """Return 53 bits of a SplitMix64 hash of (seed, row) for each row number."""
    mixed = _splitmix(rows.astype(np.uint64) + _splitmix(np.array([seed], np.uint64)))
    return mixed >> np.uint64(11)


def _splitmix(z: Array) -> Array:
    with np.errstate(over="ignore"):
        z = z + GOLDEN
    return mix64(z)

"""What a conversion does to rows: unit rows, and who is a test row."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, issparse

Array = NDArray[Any]
HASHED_AT_ONCE = 2**20
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def unit_rows(X: Any) -> Any:
    """Rows of length 1; rows of zeros stay what they are."""
    if issparse(X):
        norms = np.sqrt(np.asarray(X.astype(np.float64).power(2).sum(axis=1)).ravel())
        return csr_array(diags_array(1 / np.where(norms, norms, 1.0)) @ X)
    wide = X.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    wide /= np.where(norms, norms, 1.0)
    return wide


def is_test(rows: Array, fraction: float, seed: int) -> Array:
    """Whether each row number is drawn for the test set: a hash of (seed, row)."""
    drawn: Array = _hash(rows, seed) < np.uint64(int(fraction * 2**53))
    return drawn


def count_test(rows: int, fraction: float, seed: int, start: int = 0) -> int:
    """How many of rows `start` to `rows` are drawn."""
    return sum(
        int(is_test(part, fraction, seed).sum()) for part in _row_numbers(start, rows)
    )


def _row_numbers(start: int, stop: int) -> Iterator[Array]:
    for first in range(start, stop, HASHED_AT_ONCE):
        yield np.arange(first, min(first + HASHED_AT_ONCE, stop))


def _hash(rows: Array, seed: int) -> Array:
    """53 bits of splitmix64, begun elsewhere for each seed."""
    mixed = _splitmix(rows.astype(np.uint64) + _splitmix(np.array([seed], np.uint64)))
    return mixed >> np.uint64(11)


def _splitmix(z: Array) -> Array:
    with np.errstate(over="ignore"):
        z = z + GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Array = z ^ (z >> np.uint64(31))
    return mixed

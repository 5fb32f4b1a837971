"""Rows as a store holds them: bytes that its writer has only to put in place."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hpcsgd.data.layout import COLUMNS, Layout
from hpcsgd.errors import DataError

Array = NDArray[Any]


class CsrStored:
    """CSR rows whose elements may be bits that SciPy does not know."""

    def __init__(self, data: Array, indices: Array, indptr: Array) -> None:
        self.data, self.indices, self.indptr = data, indices, indptr
        self.shape = (len(indptr) - 1,)

    def __getitem__(self, rows: slice) -> "CsrStored":
        start, stop, _ = rows.indices(self.shape[0])
        pointers = self.indptr[start : stop + 1]
        part = slice(pointers[0], pointers[-1])
        return CsrStored(self.data[part], self.indices[part], pointers - pointers[0])


@dataclass(frozen=True)
class StoredRows:
    """Consecutive rows of a store, and their columns beside X."""

    matrix: Any  # an array of stored elements, or CsrStored
    columns: dict[str, Array]
    largest: float  # norm of these rows, as they were given

    def __len__(self) -> int:
        return int(self.matrix.shape[0])


def encode_rows(
    layout: Layout, X: Any, columns: Mapping[str, Array], first: int, path: Path
) -> StoredRows:
    """Rows from number `first` of the store `path` on; too large a value is refused."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = (_largest_csr if layout.is_sparse else _largest_dense)(X)
    encode = _encode_csr if layout.is_sparse else _encode_dense
    beside = {n: np.asarray(c, COLUMNS[n]).reshape(-1) for n, c in columns.items()}
    return StoredRows(encode(layout, X, first, path), beside, largest)


def _encode_dense(layout: Layout, X: Any, first: int, path: Path) -> Array:
    return _encode(layout, np.asarray(X), first, path)


def _encode_csr(layout: Layout, X: Any, first: int, path: Path) -> CsrStored:
    """Columns in order."""
    rows = csr_array(X)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    data = _encode(layout, rows.data, first, path, rows.indptr)
    indices = rows.indices.astype(layout.index, copy=False)
    return CsrStored(data, indices, rows.indptr.astype("<i8"))


def _largest_dense(X: Any) -> float:
    """max ‖a_i‖ of these rows, before they are rounded."""
    values = np.asarray(X)
    return _largest(np.einsum("ij,ij->i", values, values, dtype=np.float64))


def _largest_csr(X: Any) -> float:
    """The same."""
    rows = csr_array(X)
    values = rows.data.astype(np.float64)
    squares = csr_array((values * values, rows.indices, rows.indptr), rows.shape)
    return _largest(np.asarray(squares.sum(axis=1)))


def _largest(squares: Array) -> float:
    """The root of the largest, passing over those that are no numbers."""
    return float(np.sqrt(np.fmax.reduce(squares, initial=0.0)))


def _encode(
    layout: Layout, values: Array, first: int, path: Path, indptr: Any = None
) -> Array:
    """As stored; a finite value that the element type cannot hold is refused."""
    with np.errstate(over="ignore", invalid="ignore"):  # NaN stays NaN
        stored = layout.encode(values)
    if layout.element == "fp64" or not values.size:
        return stored
    kept = layout.decode(stored)
    with np.errstate(over="ignore", invalid="ignore"):
        total = kept.sum(dtype=np.float64)
    if np.isfinite(total):  # only if all terms are: no mask in the good case
        return stored
    lost = np.isfinite(values) & ~np.isfinite(kept)
    if lost.any():
        place = np.argwhere(lost)[0]
        row = (
            place[0]
            if indptr is None
            else np.searchsorted(indptr, place[0], "right") - 1
        )
        raise DataError(
            f"{path}: {values[tuple(place)]:g} at row {first + row} is too large for"
            f" {layout.element} with scale {layout.scale:g}; choose a wider element"
            " type or a larger scale"
        )
    return stored

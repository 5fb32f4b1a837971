"""Rows that are in memory already."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.csr import from_scipy
from hpcsgd.data.preparation import RAW, Preparation
from hpcsgd.errors import DataError

Array = NDArray[Any]
RAGGED = "X has rows of different lengths; give a matrix with rows and columns"


class MemoryReader:
    """Arrays given from Python, the same on every rank; nothing is copied.

    Sparse ones of any kind become CSR with ascending columns, once. Arrays cannot say
    how they were prepared: they are raw rows, unless `preparation` says otherwise.
    """

    is_in_memory = True
    best_piece = 2**20  # bytes: what is looked at several times stays in cache

    def __init__(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        names: list[str] | None = None,
        preparation: Preparation = RAW,
    ) -> None:
        self.X = self._matrix(X)
        self.is_sparse = hasattr(self.X, "tocsr")
        self.rows, self.cols = self.X.shape
        self.nnz = int(self.X.nnz if self.is_sparse else self.X.size)
        self.y = self._column("y", y)
        self.weights = self._column("sample_weight", sample_weight)
        self.offsets = self._column("offset", offset)
        self.column_names, self.preparation = names, preparation

    def read(self, rows: slice, cols: slice) -> Array:
        """A view of the block; a dense copy of a sparse one."""
        if self.is_sparse:
            return from_scipy(self.read_csr(rows, cols)).to_dense()
        block: Array = self.X[rows, cols]
        return block

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """A sparse block with its own column numbers, ascending in each row."""
        block = self.X[rows]
        if (cols.start, cols.stop) != (0, self.cols):
            block = block[:, cols]
        block.sort_indices()
        return block

    def targets(self, rows: slice) -> Any:
        """Targets as float64."""
        if self.y is None:
            raise DataError("no y was given; predictions alone need none")
        return self.y[rows]

    def sample_weight(self, rows: slice) -> Any:
        """Weights as float64, or None."""
        return None if self.weights is None else self.weights[rows]

    def offset(self, rows: slice) -> Any:
        """Offsets as float64, or None."""
        return None if self.offsets is None else self.offsets[rows]

    def describe(self) -> dict[str, Any]:
        """What a result remembers of its data."""
        return {"kind": "memory", "rows": self.rows, "cols": self.cols}

    def close(self) -> None:
        """Nothing is open."""

    def _matrix(self, X: Any) -> Any:
        """X as it is read: dense, or CSR."""
        return _sparse(X) if hasattr(X, "tocsr") else _dense(X)

    def _column(self, name: str, values: Any) -> Any:
        if values is None:
            return None
        column = to_numbers(name, values)
        if column.shape not in ((self.rows,), (self.rows, 1)):
            raise DataError(
                f"{name} has shape {column.shape} and X has {self.rows} rows;"
                f" give {self.rows} values"
            )
        return column.reshape(-1)


def _sparse(X: Any) -> Any:
    """As CSR; duplicates are added up, stored zeros stay."""
    from scipy.sparse import csr_array

    given = real_dtype(X.dtype, X.shape)
    if hasattr(X, "check_format"):  # compressed: SciPy would follow any number in it
        try:
            X.check_format(full_check=True)
        except ValueError as error:
            raise DataError(
                f"X is not a sound sparse matrix ({error}); make it again from its"
                " rows, columns and values"
            ) from error
    matrix = csr_array(X)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()  # what the caller gave stays as it is
        matrix.sum_duplicates()
    return matrix.astype(given, copy=False)


def to_numbers(name: str, values: Any) -> Array:
    """Targets, weights or offsets in float64; times, say, do not become numbers."""
    refuse_masked(name, values)
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    try:
        if kind in ("c", "m", "M"):
            raise TypeError(values.dtype)
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{name} is not numeric; encode it as numbers, labels as 0, 1, ..., for"
            " example by numpy.unique(y, return_inverse=True)"
        ) from error


def refuse_masked(name: str, values: Any) -> None:
    """NumPy would take what lies under the mask."""
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(
            f"{name} is a masked array, whose mask would be lost; fill it"
            f" ({name}.filled(value)) or drop those rows"
        )


def _dense(X: Any) -> Array:
    refuse_masked("X", X)
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise DataError(RAGGED) from error
    return array.astype(real_dtype(array.dtype, array.shape), copy=False)


def real_dtype(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.dtype[Any]:
    """float32 or float64, whichever holds these elements."""
    if dtype.kind not in "fiub":
        raise DataError(f"X has elements of type {dtype}; give real numbers")
    if len(shape) != 2 or 0 in shape:
        raise DataError(f"X has shape {shape}; give a matrix with rows and columns")
    if dtype.kind == "f" and dtype.itemsize in (4, 8):
        return dtype
    return np.dtype(np.float64 if dtype.itemsize > 2 else np.float32)

"""Rows that are in memory already."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import DataError

Array = NDArray[Any]


class MemoryReader:
    """Arrays given from Python, the same on every rank; nothing is copied."""

    def __init__(
        self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None
    ) -> None:
        self.X = _matrix(X)
        self.rows, self.cols = self.X.shape
        self.y = self._column("y", y)
        self.weights = self._column("sample_weight", sample_weight)
        self.offsets = self._column("offset", offset)

    def read(self, rows: slice, cols: slice) -> Array:
        """A view of the block."""
        return self.X[rows, cols]

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

    def _column(self, name: str, values: Any) -> Any:
        if values is None:
            return None
        try:
            column = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"{name} is not numeric; encode it as numbers") from error
        if column.shape not in ((self.rows,), (self.rows, 1)):
            raise DataError(
                f"{name} has shape {column.shape} and X has {self.rows} rows;"
                f" give {self.rows} values"
            )
        return column.reshape(-1)


def _matrix(X: Any) -> Array:
    array = np.asarray(X)
    if array.dtype.kind not in "fiub":
        raise DataError(f"X has elements of type {array.dtype}; give real numbers")
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(
            f"X has shape {array.shape}; give a matrix with rows and columns"
        )
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        array = array.astype(np.float64 if array.dtype.itemsize > 2 else np.float32)
    return array

"""What sources of arrays have in common: shapes, labels, real numbers."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.hdf5_open import check_file
from hpcsgd.data.streams import (
    ArrayStream,
    Labels,
    check_labels,
    open_array,
)
from hpcsgd.errors import DataError

Array = NDArray[Any]


def matrix_shape(stream: ArrayStream) -> tuple[int, int]:
    """Rows and columns."""
    if len(stream.shape) != 2 or 0 in stream.shape:
        raise DataError(
            f"{stream.said} has shape {stream.shape}; give a matrix with rows and"
            " columns"
        )
    return stream.shape[0], stream.shape[1]


def open_labels(path: Path | None, start: int, rows: int) -> Labels | None:
    """Those of a file, from row `start` on; None where there is no file."""
    return None if path is None else Labels(path, start, rows)


def check_label_file(path: Path, rows: int) -> None:
    """Before anything is written; lines of a text are counted as they are read."""
    if path.suffix.lower() != ".npy":
        check_file(path, "a file of labels")
        return
    stream = open_array(path)
    stream.close()
    check_labels(stream.shape, rows, str(path))


def real(block: Any) -> Array:
    """float32 where every value fits it, else float64."""
    kept = block.dtype.kind == "f" and block.dtype.itemsize in (4, 8)
    if kept and block.dtype.isnative:
        array: Array = block
        return array
    narrow = block.dtype.itemsize <= 2
    return np.asarray(block, dtype=np.float32 if narrow else np.float64)


def column(values: Any, dtype: Any = np.float64) -> Array:
    """Targets, weights or offsets: one float64 a row; or another dtype."""
    return np.asarray(values, dtype=dtype).reshape(-1)

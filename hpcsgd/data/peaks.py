"""The largest size of a value in every column, for formats with few exponents."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data import sparse_block
from hpcsgd.data.readers import CHUNK_BYTES, RowReader, is_sparse, pieces

Array = NDArray[Any]


def column_peaks(reader: RowReader, rows: slice, cols: slice) -> Array:
    """max |value| of each of these columns over these rows, 0 where there is none."""
    peaks = np.zeros(cols.stop - cols.start)
    if is_sparse(reader):
        for _, block in sparse_block.pieces(reader, rows, cols, CHUNK_BYTES):
            np.maximum.at(peaks, block.indices, np.abs(block.data))
        return peaks
    for _, piece in pieces(reader, rows, cols, lambda block: block):
        np.maximum(peaks, np.abs(piece).max(axis=0, initial=0.0), out=peaks)
    return peaks

"""Rows with the values of the data themselves, whatever a shard has stored of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcsgd.csr import Csr
from hpcsgd.data.readers import RowReader, element_of
from hpcsgd.data.shard import Shard
from hpcsgd.data.unheld import Unheld
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision


def exact(
    reader: RowReader, shard: Shard, precision: Precision
) -> Callable[[slice], Any]:
    """Local rows with the values of the data: from the shard where it holds them."""
    matrix: Any = shard.matrix
    if _is_exact(reader, shard, precision):
        if isinstance(matrix, Csr):
            return lambda rows: matrix[rows].to_scipy()
        return lambda rows: matrix[rows]
    some = exact_columns(reader, shard, precision)
    return lambda rows: some(rows, slice(0, shard.width))


def exact_columns(
    reader: RowReader, shard: Shard, precision: Precision
) -> Callable[[slice, slice], Any]:
    """Some local columns of local rows, the same way."""
    matrix: Any = shard.matrix
    row, column = shard.rows.start, shard.columns.start
    if _is_exact(reader, shard, precision):
        if isinstance(matrix, Csr):
            return lambda rows, part: matrix[rows].to_scipy()[:, part]
        return lambda rows, part: matrix[rows, part]
    read = reader.read_csr if shard.is_sparse else reader.read
    return lambda rows, part: read(
        slice(row + rows.start, row + rows.stop),
        slice(column + part.start, column + part.stop),
    )


def _is_exact(reader: RowReader, shard: Shard, precision: Precision) -> bool:
    """Whether what is held are the values of the data themselves."""
    stored = get_format(precision.matrix)
    source = element_of(reader)
    held = stored.is_wide and np.can_cast(source, stored.dtype, casting="safe")
    return held and not isinstance(shard.matrix, Unheld)

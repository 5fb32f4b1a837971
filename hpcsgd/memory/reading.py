"""What reading rows holds beside them: pieces of the file, rounded ones, and copies."""

import numpy as np

from hpcsgd.data.readers import CHUNK_BYTES, RowReader, element_of, is_sparse
from hpcsgd.formats import get_format
from hpcsgd.objective import block_rows
from hpcsgd.precision import Precision
from hpcsgd.storage import ENCODED

ROUNDING = 8 * ENCODED  # what rounding so many bytes takes, several arrays of them
WIDE = 8  # bytes of a float64


def is_shared(reader: RowReader, cols: int, precision: Precision) -> bool:
    """True where rows are taken where they lie in the memory of the caller.

    They have to be one array of this format, aligned to its words, of which all columns
    belong to this rank.
    """
    if is_sparse(reader) or not getattr(reader, "is_in_memory", False):
        return False
    form = get_format(precision.matrix)
    X = reader.X  # type: ignore[attr-defined]
    is_whole = cols == reader.cols and X.flags.c_contiguous and X.flags.aligned
    return bool(is_whole and form.is_wide and X.dtype == form.dtype)


def reading_of_dense(
    reader: RowReader, rows: int, cols: int, precision: Precision
) -> int:
    """Bytes of a piece as it is read and as it is stored, while the matrix fills up.

    The last piece fills the rest of the matrix: what it has not filled when the one
    before is read is not counted twice.
    """
    form = get_format(precision.matrix)
    if is_shared(reader, cols, precision):
        return 0
    in_memory = getattr(reader, "is_in_memory", False)
    chunk = min(getattr(reader, "best_piece", CHUNK_BYTES), CHUNK_BYTES)
    words = chunk // WIDE
    element = element_of(reader)
    read = 0 if in_memory else words * element.itemsize
    is_copied = in_memory or not form.is_wide or element != form.dtype
    stored = words * form.dtype.itemsize if is_copied else 0
    if not form.is_wide:
        stored += ROUNDING
    pieces, rest = divmod(rows * cols, words)
    share = rest / words  # of a piece, the last one
    if not pieces:
        return int(share * (read + stored))
    unfilled = share * words * form.dtype.itemsize
    return int(max(read + stored - unfilled, share * (read + stored)))


def reading_of_sparse(matrix: int, own: int, rows: int) -> int:
    """Bytes of the pieces beside the whole that they are put together to.

    What reading `own` values took stays with the process meanwhile: the arrays are so
    small that the C library keeps them.
    """
    return matrix + 2 * min(CHUNK_BYTES, 16 * (own + rows))


def losses_of(
    reader: RowReader,
    rows: int,
    cols: int,
    precision: Precision,
    is_held: bool = True,
) -> int:
    """Bytes of the rows that are looked at together for a loss.

    They are read again where the matrix does not hold the values of the data, and
    become float64.
    """
    form, element = get_format(precision.matrix), element_of(reader)
    exact = is_held and form.is_wide and np.can_cast(element, form.dtype, "safe")
    read = 0 if exact else element.itemsize
    values = form.dtype if exact else element
    wide = 0 if values == np.float64 else WIDE
    return min(block_rows(reader.cols), rows) * cols * (read + wide)

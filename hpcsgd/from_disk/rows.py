"""Dense rows that stay in their file, of which not even one is ever there whole."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.looks import all_finite
from hpcsgd.data.fingerprint import Fingerprint
from hpcsgd.data.readers import RowReader, pieces
from hpcsgd.data.stream import Route
from hpcsgd.data.unheld import Unheld

Array = NDArray[Any]
NARROW = 4096  # columns of a file that are looked at together
LOOKED = 2**20  # bytes of them


def stream_tiles(
    reader: RowReader,
    rows: slice,
    columns: slice,
    store: Callable[[Array], Array],
    element: str,
    seen: Fingerprint,
    route: Callable[[int], Route | None],
) -> Unheld:
    """Every value is looked at once, and read again by those who want a tile of it."""
    for first in range(columns.start, columns.stop, NARROW):
        some = slice(first, min(first + NARROW, columns.stop))
        looked = reader, rows, some, store, LOOKED, seen.add, all_finite
        for _ in pieces(*looked):
            continue

    def take(part: slice, of: slice) -> Array:
        own = slice(rows.start + part.start, rows.start + part.stop)
        wanted = slice(columns.start + of.start, columns.start + of.stop)
        return store(reader.read(own, wanted))

    def fill(part: slice, out: Array) -> None:
        out[...] = take(part, slice(0, columns.stop - columns.start))

    shape = rows.stop - rows.start, columns.stop - columns.start
    dtype = store(np.empty((0, shape[1]), dtype=np.float32)).dtype
    return Unheld(fill, shape, dtype, read_some=take)

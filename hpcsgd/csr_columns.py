"""Columns of a few sparse rows, tile by tile: one sort serves all tiles.

Stored values lie row after row, and a column is anywhere in them. Sorted by column
once, those of any columns lie together; nothing is as long as there are columns.
"""

import numpy as np

from hpcsgd.csr import Array, Csr, edges_of, index_dtype


class ByColumns:
    """The order of the stored values by their columns."""

    def __init__(self, whole: Csr) -> None:
        self.whole = whole
        self.order = np.argsort(whole.indices, kind="stable")
        self.sorted: Array = whole.indices[self.order]
        self.row_of = np.repeat(np.arange(len(whole)), whole.lengths)

    def tile(self, part: slice) -> Csr:
        """The values of some neighbouring columns, which begin at 0."""
        ends = np.array([part.start, part.stop], dtype=self.sorted.dtype)
        first, last = np.searchsorted(self.sorted, ends)
        chosen = np.sort(self.order[first:last])  # row after row, as they were
        lengths = np.bincount(self.row_of[chosen], minlength=len(self.whole))
        width = part.stop - part.start
        indices = self.whole.indices[chosen] - part.start
        indices = indices.astype(index_dtype(width), copy=False)
        return Csr(edges_of(lengths), indices, self.whole.data[chosen], width)

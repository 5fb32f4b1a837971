"""The first rows of a file as a file of its own: what is timed on instead of all."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.readers import RowReader, is_sparse, stored_in
from hpcsgd.data.targets import LABELLED, MOST_CLASSES
from hpcsgd.families import get_family

Array = NDArray[Any]


class FirstRows:
    """Rows 0 .. n − 1 of a reader; of a family of classes with every label in them."""

    def __init__(self, whole: RowReader, rows: int, family: str) -> None:
        self.whole = whole
        self.rows = min(rows, whole.rows)
        self.cols = whole.cols
        self.is_sparse = is_sparse(whole)
        self.nnz = int(stored_in(whole) * self.rows / max(whole.rows, 1))
        self._y = _with_all_labels(whole, self.rows, family)

    def read(self, rows: slice, cols: slice) -> Array:
        """As the whole has it."""
        return self.whole.read(rows, cols)

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """As the whole has it."""
        return self.whole.read_csr(rows, cols)

    def targets(self, rows: slice) -> Array:
        """With every label somewhere."""
        found: Array = self._y[rows]
        return found

    def sample_weight(self, rows: slice) -> Array | None:
        """As the whole has it."""
        return self.whole.sample_weight(rows)

    def offset(self, rows: slice) -> Array | None:
        """As the whole has it."""
        return self.whole.offset(rows)

    def describe(self) -> dict[str, Any]:
        """As the whole does."""
        return self.whole.describe()

    def close(self) -> None:
        """Close the whole."""
        self.whole.close()


def _with_all_labels(whole: RowReader, rows: int, family: str) -> Array:
    """Targets of the first rows; labels that they lack take the places of some.

    Times depend on how many classes there are, not on whose row is whose.
    """
    y = np.array(whole.targets(slice(0, rows)))
    if get_family(family).targets not in LABELLED or rows == whole.rows:
        return y
    labels = np.unique(whole.targets(slice(0, whole.rows)))
    if len(labels) <= min(MOST_CLASSES, rows):
        y[: len(labels)] = labels
    return y

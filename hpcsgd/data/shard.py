"""The block of the data that one rank holds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.csr import Csr
from hpcsgd.data.stream import Streamed
from hpcsgd.data.unheld import Unheld

Array = NDArray[Any]


@dataclass(frozen=True)
class Shard:
    """Rows of one replica × columns of one member, as the backend stores them.

    Targets, weights and offsets belong to the rows, so every member of a replica
    holds them whole; they are columns (n, 1) so that they meet scores (m, K). With
    folds there are weights (n, folds + 1): without each fold, and of all rows.
    """

    matrix: Array | Csr | Unheld  # (n, d_c) in the storage of precision.matrix
    targets: Array  # (n, 1), encoded for the family
    weights: Array | None  # (n, 1), scaled to mean 1 over all rows of the data
    offsets: Array | None  # (n, 1), added to scores after scaling
    rows: slice  # of the whole data
    columns: slice  # of the whole data
    parts: tuple[slice, ...]  # the columns of every member, this one's among them
    total_rows: int
    held: Array | None = None  # (n, 1), weights of rows that are not trained on

    @property
    def total_columns(self) -> int:
        """Columns of the whole data."""
        return int(self.parts[-1].stop)

    @property
    def is_sparse(self) -> bool:
        """True where only stored values are held."""
        return isinstance(self.matrix, Csr)

    def unrounded(
        self, keep: Callable[[Array], Array], sides: dict[str, Array | None]
    ) -> "Shard":
        """The same with side columns as they were given, where storage rounds them.

        Steps take what is stored; a loss is that of the data, whatever they compute in.
        """
        exact: dict[str, Any] = {}
        for name, given in sides.items():
            stored = getattr(self, name)
            # Of several folds the steps' own do: nothing is certified of a sweep.
            if given is None or stored.shape[1] > 1 or stored.dtype == np.float64:
                continue
            upright = given.reshape(stored.shape)
            if not np.array_equal(upright, stored):
                exact[name] = keep(upright)
        return replace(self, **exact) if exact else self

    def at(self, rows: Array) -> tuple[Any, Array]:
        """What holds these local rows, and their numbers in it."""
        if isinstance(self.matrix, Streamed):
            return self.matrix.locate(rows)
        return self.matrix, rows

    @property
    def height(self) -> int:
        """Rows held here."""
        return int(self.matrix.shape[0])

    @property
    def width(self) -> int:
        """Columns held here, d_c."""
        return int(self.matrix.shape[1])


def take(column: Array | None, rows: Array) -> Array | None:
    """The entries of an optional column."""
    return None if column is None else np.take(column, rows, axis=0)

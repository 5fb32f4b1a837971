"""Sampled rows of which only some columns are there at a time."""

from functools import cached_property
from typing import Any

import numpy as np

from hpcsgd.csr import Csr
from hpcsgd.csr_columns import ByColumns
from hpcsgd.data.unheld import Unheld
from hpcsgd.products.base import Array, Rows, Scratch, Task


class TiledRows:
    """The rows of one exchange; every tile of columns is made when it is asked for."""

    def __init__(self, task: Task, scratch: Scratch, rows: Array, height: int) -> None:
        self.task, self.scratch, self.rows = task, scratch, rows
        self.height = height  # columns of a tile

    def __len__(self) -> int:
        return len(self.rows)

    def tile(self, part: slice) -> Rows:
        """These columns, as the backend takes rows."""
        task, matrix = self.task, self.task.shard.matrix
        if isinstance(matrix, Csr):
            return task.backend.widen(self._sparse.tile(part), None)
        shape = (len(self.rows), part.stop - part.start)
        out = self._room(shape)
        if isinstance(matrix, Unheld):
            held = matrix.some(self.rows, part)
            return task.backend.gather(held, np.arange(len(held)), out)
        return task.backend.gather(matrix[:, part], self.rows, out)

    def _room(self, shape: tuple[int, int]) -> Array:
        words = shape[0] * min(self.height, self.task.shard.width)
        flat = self.scratch.array("tile", (words,), self.task.precision.working)
        return flat[: shape[0] * shape[1]].reshape(shape)

    @cached_property
    def _sparse(self) -> ByColumns:
        """Sorted once, for both passes over the tiles."""
        return ByColumns(self.task.backend.pick(*self._held))

    @property
    def _held(self) -> Any:
        return self.task.shard.at(self.rows)

"""Steps on weights that are read tile by tile."""

from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hpcsgd.data.sparse import ByColumns, Csr
from hpcsgd.data.stream import Unheld
from hpcsgd.formats import Array
from hpcsgd.products.base import (
    ExchangeCoefficients,
    GradientReducer,
    Group,
    Rows,
    Scratch,
    State,
    Task,
    batch_of,
    movable_intercept,
    store_margins,
)

# Sampled rows of which only some columns are there at a time.


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


# Plain SGD on rows and weights that are never there whole.
#
# Batches whose gradients travel together are one batch here: a pass over all tiles of
# the weights serves all of them.


class ByTiles(GradientReducer, Protocol):
    """Who holds the weights, and passes them tile by tile."""

    height: int  # columns of a tile

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """An exchange begins, with so many batches on this replica."""


class TiledProduct:
    """One pass over the tiles for scores, one for gradient and step."""

    holds_all_columns = False

    def __init__(self, task: Task, by_tiles: ByTiles) -> None:
        self.task = task
        self.by_tiles = by_tiles
        self.scratch = Scratch()
        self._known: dict[int, ExchangeCoefficients] = {}

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """t = Σ_b Y_b w_b, summed over members;  r;  then Y_bᵀr, tile by tile."""
        task, plan = self.task, self._plan(group)
        self.by_tiles.begin(group.epoch, group.index, 1)
        rows = TiledRows(task, self.scratch, group.rows, self.by_tiles.height)
        margins = store_margins(task, self._margins(state, rows))
        state.residuals = task.backend.corrected_residuals(
            margins,
            task.no_gram,
            plan,
            task.family,
            batch_of(task, group.rows),
            movable_intercept(task, state),
        )
        task.clock.lap("inner")
        self.by_tiles.apply_update(task, state, rows, state.residuals, plan)
        return state

    def finish(self) -> None:
        """Nothing is begun early."""

    def _margins(self, state: State, rows: TiledRows) -> Array:
        task, shape = self.task, (len(rows), self.task.columns)
        if task.members.size == 1:
            margins = np.empty(shape, dtype=task.margin_dtype)
            self._score(state, rows, margins)
            return margins
        words, form = shape[0] * shape[1], task.precision.margin_sum
        message = self.scratch.message(task.members, "margins", words, form)
        self._score(state, rows, message.array.reshape(shape))
        total = message.sum("products")
        task.clock.lap("communicate")
        return total.reshape(shape)

    def _score(self, state: State, rows: TiledRows, out: Array) -> None:
        self.by_tiles.scores(self.task, state, rows, state.weights, out)
        self.task.clock.lap("scores")

    def _plan(self, group: Group) -> Any:
        """Of one step of all rows; its rate is nobody's concern here."""
        size, of_group = len(group.rows), group.coefficients
        if size not in self._known:
            update, l2, backend = of_group.update, of_group.l2, of_group.backend
            one = ExchangeCoefficients(update, l2, backend, of_group.rates[:1], (size,))
            self._known[size] = one
        return self._known[size].steps[0]

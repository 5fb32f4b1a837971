"""Plain SGD on rows and weights that are never there whole.

Batches whose gradients travel together are one batch here: a pass over all tiles of
the weights serves all of them.
"""

from typing import Any, Protocol

import numpy as np

from hpcsgd.products.base import (
    Array,
    Group,
    Scratch,
    Sharing,
    State,
    Task,
    batch_of,
    movable_intercept,
    store_margins,
)
from hpcsgd.products.plan import Coefficients
from hpcsgd.products.tiled_rows import TiledRows


class ByTiles(Sharing, Protocol):
    """Who holds the weights, and passes them tile by tile."""

    height: int  # columns of a tile

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """An exchange begins, with so many batches on this replica."""


class Tiled:
    """One pass over the tiles for scores, one for gradient and step."""

    holds_all_columns = False

    def __init__(self, task: Task, by_tiles: ByTiles) -> None:
        self.task = task
        self.by_tiles = by_tiles
        self.scratch = Scratch()
        self._known: dict[int, Coefficients] = {}

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
        self.by_tiles.descend(task, state, rows, state.residuals, plan)
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
            one = Coefficients(update, l2, backend, of_group.rates[:1], (size,))
            self._known[size] = one
        return self._known[size].steps[0]

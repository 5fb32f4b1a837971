"""Scores that steps should have seen: a walk through them, folded into few words."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.products.base import Group, Rows, State, Task
from hpcsgd.products.direct import probed
from hpcsgd.products.roundoff import Model
from hpcsgd.schedule import Blocks

Array = NDArray[Any]
PROBES = 64  # rows whose sizes are estimated at least, by more than one look if need be


def words_of(sizes: tuple[int, ...]) -> int:
    """b of them, and two where batches are single rows."""
    return max(*sizes, 2)


class Fold:
    """All m rows as few words: rows of one place, and their K scores, with signs."""

    def __init__(self, blocks: Blocks, columns: int, seed: tuple[int, ...]) -> None:
        rng = np.random.default_rng(seed)
        # One of the words says how large the partial scores are.
        self.places = words_of(blocks.sizes) - 1
        drawn = rng.integers(0, 2, size=(blocks.rows, columns), dtype=np.int8)
        self.signs = 2.0 * drawn - 1.0
        rows = [np.arange(size) for size in blocks.sizes]
        self.place = np.concatenate(rows) % self.places

    def signed(self, values: Array) -> Array:
        """One word for each place."""
        return self.added(self.signs * values)

    def added(self, values: Array) -> Array:
        """The same without signs."""
        total: Array = np.bincount(
            self.place, values.sum(axis=1, dtype=np.float64), self.places
        )
        return total


def terms(task: Task) -> float:
    """How many products a member adds for one score: those of the widest."""
    shard = task.shard
    if not shard.is_sparse:
        return float(max(part.stop - part.start for part in shard.parts))
    mean = shard.matrix.nnz / max(shard.height, 1)  # type: ignore[union-attr]
    return float(1.0 + mean) * len(shard.parts)


def walked(
    task: Task,
    state: State,
    group: Group,
    rows: Rows,
    fold: Fold,
    model: Model,
    number: int,
) -> tuple[Array, float]:
    """This member's fresh scores, folded, and how large their rounding errors are.

    The size is in units of `model.unit`, the largest of all places.
    """
    weights, starts = state.weights.copy(), group.blocks.starts
    scores = np.empty((group.blocks.rows, task.columns), dtype=task.margin_dtype)
    for j, plan in enumerate(group.steps):
        part = slice(starts[j], starts[j + 1])
        task.backend.scores(rows[part], probed(task, weights), scores[part])
        if j + 1 < len(group.steps):
            residuals = state.residuals[part]  # type: ignore[index]
            task.backend.descend(weights, rows[part], residuals, plan)
    before, behind = probed(task, state.weights), probed(task, weights)
    spread = np.sqrt(
        model.of_weights * (before**2 + behind**2)
        + model.of_steps * (behind - before) ** 2
    ).astype(weights.dtype, copy=False)
    squares = _squares(task, rows, spread, fold, (number, task.members.rank))
    squares += model.of_weights * np.square(scores, dtype=np.float64)
    return fold.signed(scores), float(np.sqrt(fold.added(squares).max()))


def _squares(
    task: Task, rows: Rows, spread: Array, fold: Fold, seed: tuple[int, ...]
) -> Array:
    """‖y ∘ spread‖² of every row: the mean square of products with random signs."""
    rng = np.random.default_rng(seed)
    m = len(fold.place)
    total = np.zeros((m, task.columns))
    out = np.empty(total.shape, dtype=task.margin_dtype)
    looks = max(1, PROBES // m)
    for _ in range(looks):
        signs = rng.integers(0, 2, size=(len(spread), 1), dtype=np.int8)
        signs = 2 * signs - 1
        task.backend.scores(rows, np.ascontiguousarray(spread * signs), out)
        total += np.square(out, dtype=np.float64)
    total /= looks
    return total

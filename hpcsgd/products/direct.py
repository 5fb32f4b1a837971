"""Plain SGD: a sum of b words in every step, and no Gram."""

from typing import Any

import numpy as np

from hpcsgd.backends.base import Batch
from hpcsgd.products.base import (
    Array,
    Group,
    Scratch,
    State,
    Task,
    batch_of,
    gather_rows,
    store_margins,
)


class Direct:
    """s sums of b·K words (none when a replica is one member)."""

    holds_all_columns = False

    def __init__(self, task: Task) -> None:
        self.task = task
        self.scratch = Scratch()

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """One synchronisation per step."""
        rows = gather_rows(self.task, self.scratch, "rows", group)
        return walk(self.task, state, group, rows, summed=True)

    def finish(self) -> None:
        """Nothing is begun early."""


def walk(task: Task, state: State, group: Group, rows: Array, summed: bool) -> State:
    """s steps one after the other on `rows`; scores are summed where asked."""
    batch = batch_of(task, group.rows)
    residuals = []
    starts = group.blocks.starts
    for j, plan in enumerate(group.steps):
        part = slice(starts[j], starts[j + 1])
        residuals.append(
            _step(task, state, plan, rows[part], _part(batch, part), summed)
        )
    state.residuals = residuals[0] if len(residuals) == 1 else np.vstack(residuals)
    return state


def _step(
    task: Task, state: State, plan: Any, rows: Array, batch: Batch, summed: bool
) -> Array:
    """t = Σ_c Y w;  r = residual(t, y);  w ← M w + u Yᵀr."""
    backend, clock = task.backend, task.clock
    margins = np.empty((len(rows), task.columns), dtype=task.margin_dtype)
    backend.scores(rows, probed(task, state.weights), margins)
    clock.lap("scores")
    if summed:
        task.members.sum(margins, "products")
        clock.lap("communicate")
    store_margins(task, margins)
    residuals = backend.corrected_residuals(
        margins, task.no_gram, plan, task.family, batch, state.intercept
    )
    clock.lap("inner")
    backend.descend(state.weights, rows, residuals, plan)
    clock.lap("update")
    return residuals


def probed(task: Task, weights: Array) -> Array:
    """The point at which scores are read: w, or w + μv."""
    if task.states == 1:
        return weights
    point = weights[:, : task.columns]
    momentum = float(task.probe[1])
    if momentum == 0.0:
        return point
    return point + momentum * weights[:, task.columns :]


def _part(batch: Batch, part: slice) -> Batch:
    return Batch(
        batch.targets[part],
        None if batch.weights is None else batch.weights[part],
        None if batch.offsets is None else batch.offsets[part],
    )

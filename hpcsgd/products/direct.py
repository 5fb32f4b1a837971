"""Plain SGD: a sum of b words in every step, and no Gram."""

from dataclasses import replace
from typing import Any

import numpy as np

from hpcsgd.backends.base import Batch, Plain
from hpcsgd.comm.workspace import Message
from hpcsgd.products.base import (
    Array,
    Group,
    Rows,
    Scratch,
    State,
    Task,
    batch_of,
    descend,
    gather_rows,
    movable_intercept,
    score,
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
        task = self.task
        rows = gather_rows(task, self.scratch, "rows", group)
        batch = batch_of(task, group.rows)
        if task.members.size > 1 and _is_for_kernels(task):
            plain = _plain(task, state, group, rows, batch)
            by_kernel = task.backend.stepwise(state.weights, plain)
            if by_kernel is not None:
                self._between_messages(group.blocks.sizes, by_kernel[0])
                state.residuals = by_kernel[1]
                return state
        return walk(task, state, group, rows, self.scratch, batch)

    def _between_messages(self, sizes: tuple[int, ...], between: Any) -> None:
        """A sum, a call; a sum, a call: nothing else lies between two steps."""
        clock, message = self.task.clock, self._message(sizes[0])
        between(-1, None, message.array)
        clock.lap("steps")
        for j, size in enumerate(sizes):
            total = message.sum("products")
            clock.lap("communicate")
            after = sizes[j + 1] if j + 1 < len(sizes) else size
            if after != size:
                message = self._message(after)
            between(j, total, message.array)
            clock.lap("steps")

    def _message(self, rows: int) -> Message:
        """Of the scores of these rows, for the members to sum."""
        task, words = self.task, rows * self.task.columns
        form = task.precision.margin_sum
        return self.scratch.message(task.members, "margins", words, form)

    def finish(self) -> None:
        """Nothing is begun early."""


def walk(
    task: Task,
    state: State,
    group: Group,
    rows: Rows,
    scratch: Scratch | None,
    batch: Batch | None = None,
) -> State:
    """s steps one after the other on `rows`; with `scratch`, scores are summed.

    `batch` is what belongs to the rows, where that is known already.
    """
    batch = batch or batch_of(task, group.rows)
    alone = scratch is None or task.members.size == 1
    if alone and _is_for_kernels(task):
        plain = _plain(task, state, group, rows, batch)
        at_once = task.backend.walk(state.weights, plain)
        if at_once is not None:
            task.clock.lap("steps")
            state.residuals = at_once
            return state
    return one_by_one(task, state, group, rows, batch, scratch)


def _is_for_kernels(task: Task) -> bool:
    """Where nothing lies between two steps that a kernel does not know."""
    return task.taker is None and task.models is None and not task.anchored


def _plain(task: Task, state: State, group: Group, rows: Rows, batch: Batch) -> Plain:
    steps = group.coefficients.plain
    return Plain(rows, group.blocks, steps, task.family, batch, state.intercept)


def one_by_one(
    task: Task,
    state: State,
    group: Group,
    rows: Rows,
    batch: Batch,
    scratch: Scratch | None,
) -> State:
    """The same where something lies between two steps, a message or NumPy."""
    residuals = []
    starts = group.blocks.starts
    for j, plan in enumerate(group.steps):
        part = slice(starts[j], starts[j + 1])
        residuals.append(
            _step(task, state, plan, rows[part], batch.part(part), scratch)
        )
    state.residuals = residuals[0] if len(residuals) == 1 else np.vstack(residuals)
    return state


def _step(
    task: Task,
    state: State,
    plan: Any,
    rows: Rows,
    batch: Batch,
    scratch: Scratch | None,
) -> Array:
    """t = Σ_c Y w;  r = residual(t, y);  w ← M w + u Yᵀr."""
    backend, clock = task.backend, task.clock
    margins = store_margins(task, _margins(task, state, rows, scratch))
    if task.anchored:
        margins, anchors = np.split(margins, 2, axis=1)
        batch = replace(batch, anchors=anchors)
    residuals = backend.corrected_residuals(
        margins,
        task.no_gram,
        plan,
        task.family,
        batch,
        movable_intercept(task, state),
    )
    clock.lap("inner")
    descend(task, state, rows, residuals, plan)
    clock.lap("update")
    return residuals


def _margins(task: Task, state: State, rows: Rows, scratch: Scratch | None) -> Array:
    """Scores of one batch, summed over members where there is a `scratch`."""
    point = state.weights[:, : 2 * task.columns]  # w and its anchor
    if not task.anchored:
        point = probed(task, state.weights)
    shape = len(rows), point.shape[1]
    if scratch is None:
        margins = np.empty(shape, dtype=task.margin_dtype)
        score(task, state, rows, point, margins)
        task.clock.lap("scores")
        return margins
    words, form = shape[0] * shape[1], task.precision.margin_sum
    message = scratch.message(task.members, "margins", words, form)
    score(task, state, rows, point, message.array.reshape(shape))
    task.clock.lap("scores")
    total = message.sum("products")
    task.clock.lap("communicate")
    return total.reshape(shape)


def probed(task: Task, weights: Array) -> Array:
    """The point at which scores are read: w, or w + μv."""
    if task.states == 1:
        return weights
    point = weights[:, : task.columns]
    momentum = float(task.probe[1])
    if momentum == 0.0:
        return point
    return point + momentum * weights[:, task.columns :]

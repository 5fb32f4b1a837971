"""Snapshots of SVRG: where the run stands, with the gradient of all rows there."""

import numpy as np

from hpcsgd.columns import Columns
from hpcsgd.evaluation import Evaluation
from hpcsgd.products.base import Array, Group, State
from hpcsgd.products.hooks import Hook


class Snapshots(Hook):
    """Taken before the first exchange of every so many epochs.

    The gradient is that of the exact values in float64, whatever the steps compute in:
    what rounding does to r(w) − r(w̃) goes away as both come together, and where they
    rest it is μ̃ that decides. Replicas take it at the mean of their weights, alike.
    """

    def __init__(
        self,
        every: int,
        exchanges_per_epoch: int,
        evaluation: Evaluation,
        columns: Columns,
    ) -> None:
        self.every = every
        self.exchanges_per_epoch = exchanges_per_epoch
        self.evaluation = evaluation
        self.columns = columns
        self.kept: tuple[Array, Array | None] | None = None

    def before_epoch(self, state: State, epoch: int) -> None:
        """w̃ ← w,  μ̃ ← ∂F/∂w − λw."""
        if epoch % self.every:
            return
        K, evaluation = self.evaluation.columns, self.evaluation
        seen, slope = evaluation.slope_of(state, epoch * self.exchanges_per_epoch)
        own = seen.weights[evaluation.own, :K].astype(np.float64)
        data = slope.weights - evaluation.objective.penalty.l2 * own
        if self.columns.whole:
            grid, parts = self.columns.grid, self.columns.parts
            data = Columns(grid, parts, whole=False).join(data)
        state.weights[:, K : 2 * K] = seen.weights[:, :K]
        state.weights[:, 2 * K :] = data
        if state.intercept is not None and seen.intercept is not None:
            state.intercept[1] = seen.intercept[0]
            state.intercept[2] = slope.intercept

    def after_steps(self, state: State, group: Group | None) -> None:
        """What replicas hold alike is not to be averaged: sums round."""
        if self.columns.grid.replicas.size == 1:
            return
        rest = slice(self.evaluation.columns, None)
        intercept = None if state.intercept is None else state.intercept[1:].copy()
        self.kept = state.weights[:, rest].copy(), intercept

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Put it back."""
        if self.kept is None:
            return
        weights, intercept = self.kept
        state.weights[:, self.evaluation.columns :] = weights
        if state.intercept is not None:
            state.intercept[1:] = intercept

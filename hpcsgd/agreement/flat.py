"""Weights and intercept without momentum, in one row that can travel."""

import numpy as np

from hpcsgd.agreement.line import PURPOSE
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import Array, State


def positions(state: State, columns: int) -> Array:
    """A copy of [weights | intercept] without momentum, in one row."""
    seen = state.glance()
    parts = [seen.weights[:, :columns].reshape(-1)]
    if seen.intercept is not None:
        parts.append(seen.intercept[0].astype(seen.weights.dtype))
    whole: Array = np.concatenate(parts)
    return whole


def put_positions(state: State, words: Array, columns: int) -> None:
    """And back."""
    weights = state.weights[:, :columns]
    weights[...] = words[: weights.size].reshape(weights.shape)
    if state.intercept is not None:
        state.intercept[0] = words[weights.size :]


def share_intercept(state: State, grid: Grid) -> None:
    """Each column block added its own copy; the order of a sum may have differed."""
    if state.intercept is not None and grid.replicas.size > 2 and grid.members.size > 1:
        grid.members.broadcast(state.intercept, 0, PURPOSE)

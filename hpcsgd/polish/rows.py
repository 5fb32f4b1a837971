"""All rows of the data as two products, in float64 on their exact values.

Each is one pass over the rows of this rank. Scores are summed over members, gradients
over replicas; both are booked as "evaluate", as every look at all rows is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.exact import exact_scores
from hpcsgd.comm.grid import Grid
from hpcsgd.objective import Objective, block_rows

Array = NDArray[Any]


@dataclass(frozen=True)
class Moments:
    """What columns look like under row weights h: sums over all rows."""

    first: Array  # Σ h a, (d_c, K)
    second: Array  # Σ h a², (d_c, K)
    total: Array  # Σ h, (K,)


@dataclass(frozen=True)
class AllRows:
    """The rows of the objective, with what belongs to them."""

    objective: Objective
    columns: int  # K
    targets: Array  # (n, 1)
    share: Array  # c / Σc, the sum over all rows: a mean is a sum of these; (n, 1)

    @property
    def grid(self) -> Grid:
        """The ranks that hold them."""
        return self.objective.grid

    @property
    def height(self) -> int:
        """Rows of this replica."""
        return self.objective.shard.height

    @property
    def width(self) -> int:
        """Columns of this member."""
        return self.objective.shard.width

    def residuals(self, scores: Array) -> Array:
        """c ∂ℓ/∂t / Σc at these scores: a gradient is Aᵀ of it, over all rows."""
        family = self.objective.family
        found: Array = self.share * family.residual(scores, self.targets)
        return found

    def loss(self, scores: Array) -> float:
        """Σ c ℓ / Σc of the local rows."""
        losses = self.objective.family.loss(scores, self.targets)
        return float((self.share * losses).sum())

    def start(self, weights: Array, intercept: Array | None) -> Array:
        """t = A w + β + offset of the local rows, (n, K)."""
        scores, _ = self.scores(weights, np.empty(0))
        if intercept is not None:
            scores += intercept
        if self.objective.shard.offsets is not None:
            scores += self.objective.shard.offsets
        return scores

    def scores(self, weights: Array, words: Array) -> tuple[Array, Array]:
        """A w of the local rows, and the sum over members of a few `words`.

        One pass, and one message of nK words and these.
        """
        buffer = np.empty(self.height * self.columns + words.size)
        scores = buffer[: self.height * self.columns].reshape(self.height, -1)
        for rows in self.blocks():
            scores[rows] = exact_scores(self.objective.read(rows), weights)
        buffer[scores.size :] = words
        self.grid.members.sum(buffer, "evaluate")
        return scores, buffer[scores.size :]

    def gradient(self, residuals: Array) -> tuple[Array, Array]:
        """(Aᵀr, 1ᵀr) over all rows: one pass, and one message of d_c·K + K words."""
        buffer = np.zeros((self.width + 1, residuals.shape[1]))
        buffer[-1] = residuals.sum(axis=0)
        for rows in self.blocks():
            buffer[:-1] += self.objective.read(rows).T @ residuals[rows]
        self.grid.replicas.sum(buffer, "evaluate")
        return buffer[:-1], buffer[-1]

    def moments(self, h: Array) -> Moments:
        """Of the columns, under weights h (n, K): one pass, 2 d_c·K + K words."""
        buffer = np.zeros((2 * self.width + 1, self.columns))
        first, second = buffer[: self.width], buffer[self.width : -1]
        buffer[-1] = h.sum(axis=0)
        for rows in self.blocks():
            block = self.objective.read(rows)
            first += block.T @ h[rows]
            second += _squares(block).T @ h[rows]
        self.grid.replicas.sum(buffer, "evaluate")
        return Moments(first, second, buffer[-1])

    def blocks(self) -> Iterator[slice]:
        """The local rows that are looked at together, one block after the other."""
        objective = self.objective
        step = objective.block or block_rows(objective.shard.total_columns)
        for start in range(0, self.height, step):
            yield slice(start, min(start + step, self.height))


def open_rows(objective: Objective, columns: int) -> AllRows:
    """The rows of an objective with K = `columns` scores each; one word is summed."""
    shard = objective.shard
    weights = np.ones((shard.height, 1)) if shard.weights is None else shard.weights
    total = np.array([weights.sum(dtype=np.float64)])
    objective.grid.replicas.sum(total, "evaluate")
    share = weights.astype(np.float64) / total[0]
    return AllRows(objective, columns, shard.targets.astype(np.float64), share)


def _squares(block: Any) -> Any:
    """a², in float64: values of float32 may be too large for their own squares."""
    wide = block.astype(np.float64)
    return np.square(wide) if isinstance(wide, np.ndarray) else wide.power(2)

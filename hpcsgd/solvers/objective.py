"""The full objective on all rows, in memory, in slices, and from disk."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcsgd.agreements.more.infinity import OnDisk
from hpcsgd.backends.numpy_rows import add_combined, all_finite, exact_scores
from hpcsgd.comm.grid import Grid
from hpcsgd.data.matrix import Csr
from hpcsgd.data.readers import WIDE, RowReader, element_of
from hpcsgd.data.shard import Shard, keeps_values
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, Format
from hpcsgd.glm.families import Family
from hpcsgd.glm.penalties import Models, Penalty

# The full objective on all rows, in float64, on the values of the data itself.
#
# F(w) = (1/Σc_i) Σ_i c_i ℓ(t_i, y_i) + l1‖w‖₁ + (l2/2)‖w‖²
#
# Where the matrix is stored in a narrow format, the rows are read again from the data:
# the loss does not depend on the precision.

BLOCK_ROWS = 4096  # rows of scores summed over members in one message, at most
BLOCK_VALUES = 2**20  # of a block, over all columns: wide rows make it shorter
MADE_DENSE = 1024  # columns up to which a block of sparse rows may be made dense


def block_rows(total_columns: int, density: float = 1.0) -> int:
    """Return the number of rows of one block, by the values that it stores.

    `density` is the share of the values of all `total_columns` columns that are stored.
    """
    values = max(density * total_columns, min(total_columns, MADE_DENSE))
    return int(max(min(BLOCK_ROWS, BLOCK_VALUES // values), 64))


def bytes_of_losses(
    reader: RowReader,
    rows: int,
    cols: int,
    form: Format,
    is_stored: bool = True,
    density: float = 1.0,
) -> int:
    """Return the bytes of one block of rows in an evaluation of the loss.

    If the matrix is not stored, or its format `form` does not store the data exactly,
    the rows are read again from the data. They become float64. `density` is the share
    of the values that the rows store.
    """
    element = element_of(reader)
    exact = is_stored and keeps_values(reader, form)
    read = 0 if exact else element.itemsize
    wide = 0 if (form.dtype if exact else element) == np.float64 else WIDE
    height = min(block_rows(reader.cols, density), rows)
    return int(height * cols * density * (read + wide))


@dataclass(frozen=True)
class Losses:
    """The objective F of every model at its weights, over all rows."""

    each: Array  # F, (models,)
    held: Array | None  # (models,), mean loss of held-out rows; NaN: there are none
    clips: int


@dataclass(frozen=True)
class Slope:
    """F and its gradient at some weights, over all rows.

    With l1 or bounds, `weights` is the gradient of the smooth part, the ridge included.
    """

    loss: float  # F, l1 included
    weights: Array  # ∂F/∂w at this member's columns, (d_c, K)
    intercept: Array | None  # ∂F/∂β, (K,), the same on every rank
    clips: int
    least: Array | None = None  # F's smallest subgradient there; None: it is weights


@dataclass(frozen=True)
class Objective:
    """The objective F on the rows of all ranks: losses, gradients and their norms."""

    grid: Grid
    family: Family
    shard: Shard
    penalty: Penalty  # of this member's columns
    read: Callable[[slice], Any]  # local rows -> this member's columns, exact
    models: Models | None = None  # several at once
    columns: int = 1  # K, the scores of a row: classes, or those of all models
    # Rows of a block; 0: as many as their width allows.
    block: int = field(default=0, kw_only=True)

    def has_broken(self, weights: Array, states: int) -> bool:
        """Return whether training has broken down: a weight is not finite.

        Of several models, all must have such a value. `weights` has the columns of
        `states` states.
        """
        if self.models is None:
            return not all_finite(weights)  # without a mask as long as they are
        return not self.models.are_finite(weights, states).any()

    def loss(self, weights: Array, intercept: Array | None) -> tuple[float, int]:
        """Return F and the number of clipped scores. Collective.

        `weights` contains this member's columns of w, (d_c, K), and `intercept` has the
        shape (K,). A score is clipped if its exponential would overflow: the loss is
        then a lower bound.
        """
        losses = self.measure(weights, intercept)
        return float(losses.each[0]), losses.clips

    def measure(self, weights: Array, intercept: Array | None) -> Losses:
        """Return F of every model, and its mean loss on the rows held out from it.

        Collective. One pass, one message for each block of rows and one over replicas,
        however many models there are.
        """
        weights = weights.astype(np.float64)
        point, start = self._read_at(weights, intercept)
        return self._measured(point, start, lambda: self._penalties(weights))

    def _measured(
        self, point: Array, start: Array | None, penalties: Callable[[], Array]
    ) -> Losses:
        """Return the losses at `point`, computed block by block. Collective.

        `start` is the intercept, which is added to the scores that `_own_scores`
        computes from `point`. `penalties` returns the penalty of every model.
        """
        holdout = self.shard.held
        count = len(self.models or (0,))
        sums = np.zeros((2 if holdout is None else 4) * count + 1)
        for rows in self.blocks():
            scores, targets, c = self._scores(rows, point, start)
            losses = self.family.loss(scores, targets)
            weighted = losses if self.shard.weights is None else c * losses
            block_sums = [_whole(_summed(v), count) for v in (weighted, c)]
            clips = np.array([self.family.clipped(scores)])
            if holdout is not None:
                per_model = self._of_models(holdout[rows].astype(np.float64))
                block_sums += [
                    _whole(_summed(v), count) for v in (per_model * losses, per_model)
                ]
            sums += np.concatenate([*block_sums, clips])
        self.grid.replicas.sum(sums, "evaluate")
        totals = sums[:-1].reshape(-1, 2, count)
        means = totals[:, 0] / totals[:, 1]
        per_model = means[0] + penalties()
        return Losses(per_model, None if holdout is None else means[1], int(sums[-1]))

    def slope(self, weights: Array, intercept: Array | None) -> Slope:
        """Return F and its gradient, in one pass over the rows. Collective.

        Members sum the scores of each block of rows. Replicas sum d_c·K + K + 3 words
        once.
        """
        weights = weights.astype(np.float64)
        width, columns = weights.shape
        sums = np.zeros(3 + columns + weights.size)
        steps = sums[3 : 3 + columns]
        gradient = sums[3 + columns :].reshape(width, -1)
        for rows in self.blocks():
            scores, targets, c = self._scores(rows, weights, intercept)
            sums[:3] += self._sums(scores, targets, c)
            residuals = self.family.residual(scores, targets) * c
            steps += residuals.sum(axis=0)
            add_combined(self.read(rows), residuals, gradient)
        self.grid.replicas.sum(sums, "evaluate")
        loss = float(sums[0] / sums[1])
        total = sums[1]
        smooth = gradient / total + self.penalty.l2 * weights
        return Slope(
            loss=loss + self._penalty(weights),
            weights=smooth,
            intercept=None if intercept is None else steps / total,
            clips=int(sums[2]),
            least=self.penalty.least(weights, smooth),
        )

    def norm(self, slope: Slope) -> float:
        """Return ‖∇F‖ over all columns and the intercept. Collective.

        With l1 or bounds it is the norm of the smallest subgradient. It is zero at the
        minimum of F and nowhere else.
        """
        least = slope.weights if slope.least is None else slope.least
        square = np.array([np.sum(np.square(least))])
        self.grid.members.sum(square, "evaluate")
        if slope.intercept is not None:
            square += np.sum(np.square(slope.intercept))
        return float(np.sqrt(square[0]))

    def _read_at(
        self, weights: Array, intercept: Array | None
    ) -> tuple[Array, Array | None]:
        """Return weights and intercept from which scores are computed. Collective.

        They are those of the first model alone if all models are equal, as they are
        before the first step.
        """
        models = self.models
        if models is None or len(models) == 1:
            return weights, intercept
        first_weights = np.ascontiguousarray(weights[:, : models.scores])
        start = None if intercept is None else intercept[: models.scores]
        differs = not np.array_equal(weights, np.tile(first_weights, len(models)))
        if intercept is not None and start is not None:
            differs |= not np.array_equal(intercept, np.tile(start, len(models)))
        if self.grid.world.max_flag(int(differs)):
            return weights, intercept
        return first_weights, start

    def blocks(self) -> Iterator[slice]:
        """Yield the range of local rows of each block.

        Members use the same blocks, which depend on the columns of the whole data. A
        member alone counts the values that its rows store.
        """
        shard = self.shard
        density = 1.0
        if isinstance(shard.matrix, Csr) and self.grid.members.size == 1:
            density = shard.matrix.nnz / max(shard.height * shard.width, 1)
        step = self.block or block_rows(shard.total_columns, density)
        for start in range(0, shard.height, step):
            yield slice(start, min(start + step, shard.height))

    def _scores(
        self, rows: slice, weights: Array, intercept: Array | None
    ) -> tuple[Array, Array, Array]:
        """Return scores t, targets and sample weights of these rows. Collective.

        All are in float64. The scores are summed over members, and include the
        intercept and offsets.
        """
        shard = self.shard
        scores = self._own_scores(rows, weights)
        self.grid.members.sum(scores, "evaluate")
        if intercept is not None:
            scores += intercept
        if shard.offsets is not None:
            scores += shard.offsets[rows]
        targets = shard.targets[rows].astype(np.float64, copy=False)
        if shard.weights is None:
            return scores, targets, np.ones((len(scores), 1))
        c = self._of_models(shard.weights[rows].astype(np.float64))
        return scores, targets, c

    def _own_scores(self, rows: slice, weights: Array) -> Array:
        """Return this member's part of the scores of these rows, (m, K)."""
        if not weights.any():  # as before the first step: no row is read
            return np.zeros((rows.stop - rows.start, weights.shape[1]))
        return exact_scores(self.read(rows), weights)

    def _of_models(self, weights: Array) -> Array:
        """Return sample weights with a column for each model.

        The shape is (m, models), or that of `weights` if there is a single model.
        """
        if self.models is None:
            return weights
        by_model = self.models.sample_weights(weights)
        assert by_model is not None
        return by_model

    def _sums(self, scores: Array, targets: Array, c: Array) -> Array:
        """Return Σcℓ, Σc and the number of clipped scores of these rows."""
        losses = self.family.loss(scores, targets)
        return np.array([(c * losses).sum(), c.sum(), self.family.clipped(scores)])

    def _penalties(self, weights: Array) -> Array:
        """Return the penalty of every model, (models,), over all members' columns."""
        if self.models is None:
            return np.array([self._penalty(weights)])
        if not self.models.l2.any():
            return np.zeros(len(self.models))
        squares = self.models.sums(np.square(weights).sum(axis=0))
        self.grid.members.sum(squares, "evaluate")
        return 0.5 * self.models.l2 * squares

    def _penalty(self, weights: Array) -> float:
        if self.penalty.is_nothing:
            return 0.0
        value = np.array([self.penalty.value(weights)])
        self.grid.members.sum(value, "evaluate")
        return float(value[0])


def _summed(values: Array) -> Array:
    """Return the sum of each column, (columns,).

    A single column is summed as a flat array.
    """
    total: Array = values.sum(axis=0) if values.shape[1] > 1 else values.sum()[None]
    return total


def _whole(sums: Array, count: int) -> Array:
    """Return sums of every model, (count,), or one sum repeated for all of them."""
    return sums if len(sums) == count else np.broadcast_to(sums, (count,))


# The objective of weights that replicas store in slices: evaluated tile by tile.
#
# An evaluation gathers each tile once, on all replicas, which add the part of its
# columns to the scores of their rows. The scores in float64 and two tiles are all the
# memory that it needs beside the rows.

Tiles = Callable[[Array], Iterator[tuple[slice, Array]]]


@dataclass(frozen=True)
class _ScoredRows(Objective):
    """The objective at weights whose scores by this member's columns are known."""

    known: Array | None = None
    penalised: float = 0.0

    def _own_scores(self, rows: slice, weights: Array) -> Array:
        assert self.known is not None
        return self.known[rows].copy()

    def _penalty(self, weights: Array) -> float:
        value = np.array([self.penalised])
        self.grid.members.sum(value, "evaluate")
        return float(value[0])


@dataclass(frozen=True)
class SlicedObjective(Objective):
    """The objective at weights of which each replica stores a slice.

    `tiles` gathers one tile after the other from all replicas.
    """

    tiles: Tiles | None = None

    def measure(self, weights: Array, intercept: Array | None) -> Losses:
        """Return the losses, by a pass over local rows for each tile. Collective."""
        assert self.tiles is not None
        scores = np.zeros((self.shard.height, weights.shape[1]))
        penalised = 0.0
        fields = vars(self).copy()
        for part, tile in self.tiles(weights):
            wide = tile.astype(np.float64)
            penalised += self.penalty.value(wide)
            for rows in self.blocks():
                scores[rows] += exact_scores(_columns(self.read(rows), part), wide)
        del fields["tiles"]
        scored_rows = _ScoredRows(**fields, known=scores, penalised=penalised)
        return scored_rows.measure(np.empty((0, weights.shape[1])), intercept)

    def slope(self, weights: Array, intercept: Array | None) -> Slope:
        """Raise ConfigError: the gradient of F needs memory for all columns."""
        raise ConfigError(
            "the gradient of F cannot be evaluated with [agreement] stage = 3, where no"
            " rank holds all weights; use --method zero2"
        )


def _columns(rows: Array, part: slice) -> Array:
    """Return the columns `part` of rows; the rows themselves if that is all columns."""
    if part.start == 0 and part.stop == rows.shape[1]:
        return rows
    columns: Array = rows[:, part]
    return columns


# The objective at weights that are on disk: one pass over their tiles.

VALUES = 2**16  # in float64, of the rows of a tile that are read together


@dataclass(frozen=True)
class TiledObjective(Objective):
    """The objective of weights on disk, with the scores of all local rows in memory.

    No more than a tile of w is in memory at a time.
    """

    read_some: Callable[[slice, slice], Any] = lambda rows, columns: None

    def has_broken(self, weights: Any, states: int) -> bool:
        """Return whether a step has written a weight that is not finite."""
        on_disk: OnDisk = weights
        return on_disk.is_broken

    def measure(self, weights: Any, intercept: Array | None) -> Losses:
        """Return F and the loss on held-out rows, by one pass over the tiles of w.

        Collective.
        """
        on_disk: OnDisk = weights
        scores = np.zeros((self.shard.height, on_disk.columns))
        value = np.zeros(1)
        penalty = self.penalty
        for columns, tile in on_disk.tiles("evaluate"):
            wide = tile.astype(np.float64)
            value += penalty.of(columns).value(wide)
            for rows in self._pieces(len(wide)):
                scores[rows] += exact_scores(self.read_some(rows, columns), wide)
        on_disk.check_reads()
        if not penalty.is_nothing:
            self.grid.members.sum(value, "evaluate")
        return self._measured(scores, intercept, lambda: value)

    def _pieces(self, width: int) -> list[slice]:
        """Return the ranges of rows that are read together for a tile of this width."""
        if self.shard.is_sparse:
            return [slice(0, self.shard.height)] if self.shard.height else []
        step = max(VALUES // width, 1)
        starts = range(0, self.shard.height, step)
        return [slice(first, min(first + step, self.shard.height)) for first in starts]

    def _own_scores(self, rows: slice, weights: Array) -> Array:
        """Return the scores of these rows, which `weights` already contains."""
        return weights[rows].copy()

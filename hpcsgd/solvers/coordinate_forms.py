"""Forms of the problem for coordinate descent: primal, dual, proximal Newton."""

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hpcsgd.backends.compiled_calls import available, functions, stride_of
from hpcsgd.backends.numpy_rows import add_combined
from hpcsgd.comm.communicator import Communicator
from hpcsgd.data.shard import Shard
from hpcsgd.formats import Array
from hpcsgd.glm.families import least_losses
from hpcsgd.glm.penalties import Penalty
from hpcsgd.solvers.coordinate import CoordinatePoint, Items, SampledItems
from hpcsgd.solvers.full_passes import (
    InterceptLevel,
    LossTerms,
    WeightedMoments,
    bends,
    gap_at,
    level,
    open_rows,
)
from hpcsgd.solvers.objective import BLOCK_ROWS, Objective, Slope

# What a form supplies to coordinate descent: items, ψ, and evaluations of a point.


@dataclass(frozen=True)
class FormModel:
    """Loss, gradient norm and gap of a model, the same on all ranks."""

    loss: float  # F on the exact values of the data
    gradient: float  # norm of F's smallest subgradient
    gap: float | None  # no less than F − F*; None: no bound is known


class Form(ABC):
    """Base class of the forms of the problem, on the data of this rank."""

    name: str
    items: Items
    members: Communicator  # the ranks that share the items
    scale: float  # σ
    separable: Any  # ψ
    objective: Objective
    worst: float  # F₀: F of the null model, less the least F of all
    steep: float = 0.0  # the gradient there; 0: that of the first evaluation is used
    sweeps: int = 1  # over the items in an epoch
    renews: bool = False  # whether items change in every epoch

    @abstractmethod
    def begin(self, weights: Array | None = None) -> CoordinatePoint:
        """Return the point of this rank's `weights` w, (d_c, K).

        Without `weights` it is the point of the null model.
        """

    @abstractmethod
    def become(self, penalty: Penalty, point: CoordinatePoint) -> None:
        """Change the penalty of the form, and adapt `point` to it.

        The model of the point stays the same, except in the dual form, where w depends
        on the penalty.
        """

    @abstractmethod
    def model(self, point: CoordinatePoint) -> tuple[Array, Array | None]:
        """Return this rank's columns of w, (d_c, K), and the intercept or None.

        The intercept has shape (K,).
        """

    def steepest(self) -> float:
        """Return the largest |∂F/∂w| of a weight at the null model. Collective.

        F is taken without l1: with an l1 that large, w = 0 is optimal. It takes one
        pass over the rows, in float64, on exact values.
        """
        slope = self.objective.slope(*self.model(self.begin()))
        local_slope = float(np.abs(slope.weights).max(initial=0.0))
        return self.objective.grid.world.max_number(local_slope)

    @property
    def count(self) -> int:
        """Return the number of items, N."""
        return self.items.count

    @property
    def is_alone(self) -> bool:
        """Return whether the sweeps of this epoch need no exchange for each group."""
        return False

    def prepare(self, point: CoordinatePoint, order: Array) -> Array:
        """Begin an epoch; return the items of `order` over which its sweeps go."""
        return order

    def sweep(self, point: CoordinatePoint) -> "SweepProgress":
        """Take one sweep or more over the items of the epoch, where `is_alone`."""
        raise NotImplementedError

    def settle(self, point: CoordinatePoint) -> None:  # noqa: B027
        """Finish the epoch after its sweeps; the default does nothing."""

    @abstractmethod
    def evaluate(self, point: CoordinatePoint) -> FormModel:
        """Return loss, gradient norm and gap of the model at a point."""


# ψ: the separable part of the problem, with its proximal step.
#
# `step` returns the x that minimises  g (x − x₀) + (L/2)(x − x₀)² + ψ(x),  and
# `conjugate` is ψ*(u) = max over x of u x − ψ(x).


class Separable(Protocol):
    """The protocol of ψ, the separable part of the problem.

    ψ is a sum over all unknowns, of which `numbers` select some.
    """

    def step(self, numbers: Array, x: Array, slope: Array, curvature: float) -> Array:
        """Return the end of the proximal step from x, with slope g and curvature L.

        It is the u that minimises g (u − x) + (L/2)(u − x)² + ψ(u), for each unknown.
        """

    def step_one(self, number: int, x: float, slope: float, curvature: float) -> float:
        """Return `step` of a single unknown, without arrays."""


@dataclass(frozen=True)
class ElasticNet:
    """The ψ of weights: l1|x| + (l2/2)x² within bounds."""

    penalty: Penalty

    def step(self, numbers: Array, x: Array, slope: Array, curvature: float) -> Array:
        """Return clip(S(L x − g, l1) / (L + l2)) for slopes g and a curvature L.

        S is the soft threshold, and the result is clipped to the bounds. If L + l2 = 0,
        it is 0 if there is an l1, else x, within the bounds.
        """
        penalty = self.penalty
        if curvature + penalty.l2 == 0.0:
            end = np.zeros_like(x) if penalty.l1 else x.copy()
        else:
            end = curvature * x - slope
            end -= np.clip(end, -penalty.l1, penalty.l1)
            end /= curvature + penalty.l2
        if self.is_bounded:
            lower, upper = self.bounds(numbers)
            np.minimum(np.maximum(end, lower, out=end), upper, out=end)
        return end

    def step_one(self, number: int, x: float, slope: float, curvature: float) -> float:
        """Return `step` of a single weight."""
        l1 = self.penalty.l1
        total = curvature + self.penalty.l2
        if total == 0.0:
            end = 0.0 if l1 else x
        else:
            end = curvature * x - slope
            end = (max(end - l1, 0.0) if end > 0.0 else min(end + l1, 0.0)) / total
        if self.is_bounded:
            lower, upper = self.bounds(number)
            end = min(max(end, float(lower)), float(upper))
        return end

    @cached_property
    def is_bounded(self) -> bool:
        """Return whether some weight has a bound; cached, since every step needs it."""
        return self.penalty.is_bounded

    def bounds(self, numbers: Any) -> tuple[Any, Any]:
        """Return the lower and upper bounds of the weights with these numbers."""
        penalty = self.penalty.of(numbers)
        return penalty.lower, penalty.upper

    def conjugate(self, u: Array) -> Array:
        """Return ψ*(u) of every column, inf where u x − ψ(x) has no maximum."""
        lower, upper = self.bounds(slice(None))
        over = u - np.clip(u, -self.penalty.l1, self.penalty.l1)
        if self.penalty.l2:
            best = over / self.penalty.l2
        else:
            best = np.where(over > 0.0, np.inf, np.where(over < 0.0, -np.inf, 0.0))
        best = np.clip(best, lower, upper)
        away = np.isinf(best)
        best = np.where(away, 0.0, best)
        l1 = self.penalty.l1
        l2 = self.penalty.l2
        value = u * best - l1 * np.abs(best) - l2 / 2 * np.square(best)
        return np.where(away, np.inf, value)


@dataclass(frozen=True)
class SquaredHingeDual:
    """The ψ of dual variables α ≥ 0, one for each row: α²/(2c) − e α."""

    weights: Array  # c, mean 1
    margins: Array  # e = 1 − y · offset

    def step(self, numbers: Array, x: Array, slope: Array, curvature: float) -> Array:
        """Return max(0, (L α − g + e) / (L + 1/c)); 0 for a row without weight.

        L is the curvature, g the slope, and α the start `x`.
        """
        c = self.weights[numbers]
        end = (curvature * x - slope + self.margins[numbers]) * c
        end /= curvature * c + 1.0
        return np.maximum(end, 0.0, out=end)

    def step_one(self, number: int, x: float, slope: float, curvature: float) -> float:
        """Return `step` of a single dual variable."""
        c = float(self.weights[number])
        e = float(self.margins[number])
        return max((curvature * x - slope + e) * c / (curvature * c + 1.0), 0.0)


# Least squares with l1, l2 and bounds, column by column; ranks hold rows.
#
# With C = diag(c), mean 1, the intercept is eliminated exactly: columns and
# targets are centred by their weighted means ā and ȳ,
#
#     F(w) = ‖ρ‖² / (2n) + l1‖w‖₁ + (l2/2)‖w‖²,    ρ = C^½ [(A − 1āᵀ) w − (y − o − ȳ)]
#     β = ȳ − āᵀw
#
# so an item is a column of C^½(A − 1āᵀ), and v = ρ/n. The means take one sum of d + 1
# words before the first exchange. Without an intercept ā = 0 and ȳ = 0.

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class WeightedMeans:
    """The weighted means of columns and targets over all rows.

    A form with an intercept subtracts them.
    """

    columns: Array  # ā, (d,)
    target: float  # ȳ, offsets taken off


class Primal(Form):
    """The primal form of least squares.

    Every rank stores all weights w, and the residuals of its rows.
    """

    name = "primal"

    def __init__(self, objective: Objective, intercept: bool) -> None:
        shard = objective.shard
        grid = objective.grid
        self.objective = objective
        self.members = grid.replicas
        self.rows = shard.total_rows
        self.scale = 1.0 / shard.total_rows
        self.separable: ElasticNet = ElasticNet(objective.penalty)
        self.intercept = intercept
        self.means = self._means(shard)
        roots = np.sqrt(weights_of(shard))
        self.items = _items(
            shard,
            None if shard.weights is None else roots,
            self.means.columns if intercept else None,
        )
        self.target = roots * (_plain_targets(shard) - self.means.target)
        word = np.array([self.target @ self.target])
        self.members.sum(word, "control")
        self.worst = float(word[0]) / (2 * self.rows)

    def begin(self, weights: Array | None = None) -> CoordinatePoint:
        """Return the point of `weights`, or of w = 0, clipped to the bounds."""
        x = np.zeros(self.items.count) if weights is None else weights[:, 0].copy()
        self.objective.penalty.prox(x, 0.0)
        v = -self.scale * self.target
        if x.any():
            v += self.scale * self.items.combined(x)
        return CoordinatePoint(x, v)

    def become(self, penalty: Penalty, point: CoordinatePoint) -> None:
        """Change the penalty; the weights w and their residuals stay as they are."""
        self.objective = replace(self.objective, penalty=penalty)
        self.separable = ElasticNet(penalty)

    def model(self, point: CoordinatePoint) -> tuple[Array, Array | None]:
        """Return w, (d, 1), and the intercept that is optimal for w, or None."""
        if not self.intercept:
            return point.x[:, None], None
        shift = self.means.target - self.means.columns @ point.x
        return point.x[:, None], np.array([shift])

    def evaluate(self, point: CoordinatePoint) -> FormModel:
        """Return loss, gradient norm and gap of the model at a point. Collective.

        One pass over the rows computes them, in float64, on exact values.
        """
        weights, intercept = self.model(point)
        slope = self.objective.slope(weights, intercept)
        gradient = self.objective.norm(slope)
        gap = self._gap(point.x, slope)
        return FormModel(slope.loss, gradient, gap)

    def _gap(self, w: Array, slope: Slope) -> float | None:
        """Return F(w) − D(θ) at a dual point θ; None if none is known to be feasible.

        θ is τ times the residuals, with a τ that makes D finite and large. P = R/2 +
        Σψ(w) and D(τ) = −τ²R/2 + τ(R − g·w) − Σψ*(−τg), where R = ‖ρ‖²/n and g is the
        slope of the squares.
        """
        penalty = self.objective.penalty
        drift = 0.0 if slope.intercept is None else float(slope.intercept[0])
        added = penalty.value(w)
        squares = 2 * (slope.loss - added) - drift**2  # R of the best intercept
        g = slope.weights[:, 0] - penalty.l2 * w
        if slope.intercept is not None:
            g = g - self.means.columns * drift
        tau = self._largest_scale(g)
        if tau == 0.0:
            return None  # without l1, l2 and bounds no θ is known to be feasible
        free = squares - float(g @ w)
        if penalty.l2 == 0.0 and squares > 0.0:  # D is a parabola where ψ* is 0
            tau = min(tau, max(free / squares, 0.0)) if not penalty.is_bounded else tau
        conjugate = float(np.sum(self.separable.conjugate(-tau * g)))
        dual = -(tau**2) * squares / 2 + tau * free - conjugate
        gap = max(slope.loss - dual, EPS * slope.loss)  # no fewer digits than F has
        if not penalty.l2:
            return gap
        # F is strongly convex by l2, and in this bound no digits cancel.
        least = penalty.least(w, g + penalty.l2 * w)
        return min(gap, float(least @ least) / (2 * penalty.l2) + drift**2 / 2)

    def _largest_scale(self, g: Array) -> float:
        """Return the largest τ ≤ 1 for which ψ*(−τg) is finite in every column."""
        penalty = self.objective.penalty
        if penalty.l2:
            return 1.0
        lower, upper = self.separable.bounds(slice(None))
        endless = ((g < 0.0) & np.isinf(upper)) | ((g > 0.0) & np.isinf(lower))
        largest = float(np.abs(g[endless]).max(initial=0.0))
        # Slightly less than the limit, which rounding could exceed otherwise.
        return 1.0 if largest <= penalty.l1 else penalty.l1 / largest * (1 - 1e-15)

    def _means(self, shard: Shard) -> WeightedMeans:
        sums = np.zeros(shard.width + 1)
        if not self.intercept:
            return WeightedMeans(sums[:-1], 0.0)
        c = weights_of(shard)
        matrix = _all_rows(shard)
        for first in range(0, shard.height, BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            sums[:-1] += matrix[rows].T.astype(np.float64) @ c[rows]
        sums[-1] = c @ _plain_targets(shard)
        self.members.sum(sums, "control")
        sums /= shard.total_rows
        return WeightedMeans(sums[:-1], float(sums[-1]))


def _all_rows(shard: Shard) -> Any:
    """Return the local rows as NumPy or SciPy multiplies them."""
    return shard.matrix.operand(slice(0, shard.height))


def _plain_targets(shard: Shard) -> Array:
    """Return y − o of this rank's rows, in float64."""
    targets: Array = shard.targets[:, 0].astype(np.float64)
    return targets if shard.offsets is None else targets - shard.offsets[:, 0]


def weights_of(shard: Shard) -> Array:
    """Return the weights c of this rank's rows, in float64."""
    if shard.weights is None:
        return np.ones(shard.height)
    weights: Array = shard.weights[:, 0].astype(np.float64)
    return weights


TURNED = 64  # rows that are turned together: they stay in the cache


def columns_of(shard: Shard) -> Any:
    """Return the local columns of the data as rows, in their dtype.

    Sparse columns stay sparse.
    """
    rows = _all_rows(shard)
    if shard.is_sparse:
        return rows.T.tocsr()
    turned = np.empty((rows.shape[1], rows.shape[0]), rows.dtype)
    for first in range(0, len(rows), TURNED):
        turned[:, first : first + TURNED] = rows[first : first + TURNED].T
    return turned


def _items(shard: Shard, roots: Array | None, means: Array | None) -> Items:
    """Return the columns as items; dense columns are centred and weighted once.

    `roots` are the square roots of sample weights, `means` those of the columns.
    """
    turned = columns_of(shard)
    if shard.is_sparse:
        return Items(turned, means, roots)
    if means is not None:
        np.subtract(turned, means[:, None], out=turned, casting="same_kind")
    if roots is not None:
        np.multiply(turned, roots.astype(turned.dtype), out=turned)
    return Items(turned)


# The squared-hinge machine by its dual, row by row; ranks hold columns.
#
#   F(w) = (1/n) Σ c_i max(0, 1 − y_i (a_i·w + o_i))² / 2 + (λ/2)‖w‖²
#   D(α) = (1/n) Σ (e_i α_i − α_i² / (2 c_i)) − (λ/2)‖w‖²,   α ≥ 0,   e_i = 1 − y_i o_i
#   w = (1/(λ n)) Σ α_i y_i a_i
#
# An item is y_i a_i, and v is w itself, up to date on every rank for its columns.
# There is no intercept: unpenalised, it would couple all α by Σ α y = 0.


class Dual(Form):
    """The dual form of the squared-hinge machine.

    Every rank stores all dual variables α, and its columns of the weights w.
    """

    name = "dual"

    def __init__(self, objective: Objective) -> None:
        shard = objective.shard
        grid = objective.grid
        self.objective = objective
        self.members = grid.members
        self.rows = shard.total_rows
        signs = shard.targets[:, 0].astype(np.float64)
        c = np.ones(self.rows)
        e = np.ones(self.rows)
        if shard.weights is not None:
            c = shard.weights[:, 0].astype(np.float64)
        if shard.offsets is not None:
            e -= signs * shard.offsets[:, 0]
        self.separable: SquaredHingeDual = SquaredHingeDual(c, e)
        self.items = Items(_signed(shard, signs))
        self.scale = 1.0 / (objective.penalty.l2 * self.rows)
        self.worst = float(c @ np.square(np.maximum(e, 0.0))) / (2 * self.rows)

    def begin(self, weights: Array | None = None) -> CoordinatePoint:
        """Return the point of the α that the scores of `weights` determine.

        Without `weights` it is α = 0, w = 0.
        """
        x = np.zeros(self.items.count)
        v = np.zeros(self.items.width)
        if weights is None:
            return CoordinatePoint(x, v)
        scores = self.items.products(weights[:, 0])
        self.members.sum(scores, "control")
        hinge = self.separable
        x = hinge.weights * np.maximum(hinge.margins - scores, 0.0)
        return CoordinatePoint(x, self.scale * self.items.combined(x))

    def become(self, penalty: Penalty, point: CoordinatePoint) -> None:
        """Change the penalty: α stays as it is, and w changes with λ."""
        point.v *= self.objective.penalty.l2 / penalty.l2
        self.objective = replace(self.objective, penalty=penalty)
        self.scale = 1.0 / (penalty.l2 * self.rows)

    def model(self, point: CoordinatePoint) -> tuple[Array, Array | None]:
        """Return w, (d_c, 1), and None for the intercept."""
        return point.v[:, None], None

    def evaluate(self, point: CoordinatePoint) -> FormModel:
        """Return loss, gradient norm and gap of the model at a point. Collective.

        One pass over the rows computes them, in float64, on exact values. The gap is
        F(w) − D(α) at the α that belongs to the scores t of w, α_i = c_i max(0, 1 − y_i
        t_i). It is ‖∇F‖² / (2λ). It holds for exact values, even if the descent used
        rounded values.
        """
        slope = self.objective.slope(point.v[:, None], None)
        gradient = self.objective.norm(slope)
        return FormModel(
            slope.loss, gradient, gradient**2 / (2 * self.objective.penalty.l2)
        )


def _signed(shard: Shard, signs: Array) -> Any:
    """Return the rows y_i a_i of the data times their targets ±1, in their dtype."""
    matrix = shard.matrix
    if matrix.is_sparse:
        data = matrix.data * np.repeat(signs, matrix.lengths).astype(matrix.data.dtype)
        return matrix.with_data(data).to_scipy()
    return _all_rows(shard) * signs.astype(matrix.dtype)[:, None]


# Items of a model with K scores a row: weights (j, k), as vectors of n K numbers.
#
# With the shares p_i of the classes and the weight c_i of row i, the curvature in its
# scores is H_i = c_i (diag(p_i) − p_i p_iᵀ) = R_iᵀ R_i where
#
#     R_i = √c_i diag(√p_i) (1 − 1 p_iᵀ)
#
# so that item (j, k) has a_ij R_i e_k in the K places of row i, and inner products of
# items are those of the quadratic model. The intercept takes K such vectors, R_i e_l.


@dataclass(frozen=True)
class SampledClasses(SampledItems):
    """Some items (j, k) of column j and class k, less multiples of K vectors.

    The multiples `shift` are (m, K), and the vectors `along` are (n K, K).
    """

    def gram(self) -> Array:
        """Return this rank's part of the inner products of all pairs, (m, m)."""
        product = self.wide @ self.wide.T
        gram = np.asarray(product.toarray() if hasattr(product, "tocsr") else product)
        if self.shift is None:
            return gram
        crossed = self.shift @ (self.wide @ self.along).T
        square = self.shift @ (self.along.T @ self.along) @ self.shift.T
        return np.asarray(gram - (crossed + crossed.T - square))

    def products(self, vector: Array) -> Array:
        """Return this rank's part of the inner products with `vector`, (m,)."""
        products: Array = self.wide @ vector
        if self.shift is not None:
            products = products - self.shift @ (self.along.T @ vector)
        return products

    def combined(self, factors: Array) -> Array:
        """Return Σ_i factors_i item_i, the sum of multiples of the items, (n K,)."""
        combination: Array = self.wide.T @ factors
        if self.shift is not None:
            combination = combination - self.along @ (factors @ self.shift)
        return combination


@dataclass(frozen=True, kw_only=True)
class ClassItems(Items):
    """Items (j, k) by their number j K + k; each is computed when it is taken.

    Parameters
    ----------
    matrix : the columns of the data, (d, n)
    shift : ndarray, (m K, K), of the items of m columns, or None
    roots : ndarray, (n, K), √(c p)
    shares : ndarray, (n, K), p
    columns : ndarray, (m,), the columns that `shift` is of, ascending
    """

    roots: Array
    shares: Array
    columns: Array

    @property
    def count(self) -> int:
        """Return the number of items, d K."""
        return int(self.matrix.shape[0]) * int(self.shares.shape[1])

    @property
    def width(self) -> int:
        """Return the length of an item's part on this rank, n K."""
        return int(self.shares.size)

    def vectors(self) -> Array:
        """Return the K vectors that the intercept takes, (n K, K).

        In the places of row i vector l is R_i e_l, with R_i = √c_i diag(√p_i) (1 − 1
        p_iᵀ).
        """
        eye = np.eye(self.shares.shape[1])
        whole = self.roots[:, :, None] * (eye[None] - self.shares[:, None, :])
        return whole.reshape(self.width, -1)

    def take(self, numbers: Any) -> SampledClasses:
        """Return the items with these numbers, computed anew."""
        classes = self.shares.shape[1]
        columns, k = np.divmod(np.asarray(numbers), classes)
        rows = self.matrix[columns]
        wide = self._lifted(rows, k)
        if self.shift is None:
            return SampledClasses(wide, wide, None, np.empty(0))
        places = np.searchsorted(self.columns, columns) * classes + k
        return SampledClasses(wide, wide, self.shift[places], self.vectors())

    def _lifted(self, rows: Any, k: Array) -> Any:
        """Return items from the columns of their values, (m, n), as (m, n K).

        `k` are the classes of the items. In the places of row i an item is a_ij R_i
        e_k.
        """
        classes = self.shares.shape[1]
        eye = np.eye(classes)
        if not hasattr(rows, "tocsr"):
            turned = self.shares.T[k][:, :, None]  # p_ik of every item, (m, n, 1)
            lift = self.roots[None] * (eye[k][:, None, :] - turned)
            return (np.asarray(rows, np.float64)[:, :, None] * lift).reshape(len(k), -1)
        from scipy.sparse import csr_array

        rows = rows.tocsr()
        item = np.repeat(np.arange(len(k)), np.diff(rows.indptr))
        i = rows.indices
        lift = self.roots[i] * (eye[k[item]] - self.shares[i, k[item]][:, None])
        data = (rows.data.astype(np.float64)[:, None] * lift).reshape(-1)
        places = i.astype(np.int64)[:, None] * classes + np.arange(classes)
        edges = rows.indptr.astype(np.int64) * classes
        return csr_array((data, places.reshape(-1), edges), (len(k), self.width))


# Sweeps over the columns of a quadratic model on one process, compiled.
#
# One process sends no messages: instead of a Gram matrix, the residuals are kept up to
# date after every single step, and a column costs as much as it has values
# (`kernels/cpu/sweep.c`). A step is that of an exchange with blocks of one; the items
# that are not 0 take more sweeps than the others, and sweeps are extrapolated.

KINDS = {"f": "_f32", "d": "_f64"}
KEPT = 6  # points that an extrapolation needs; KEPT + 1 of kernels/cpu/sweep.c
_POINTERS = (
    *("columns", "edges", "rows", "values", "h", "shares", "residuals", "v"),
    *("moves", "mixed", "shift", "bends", "means", "curvatures", "x"),
    *("lower", "upper", "active", "kept"),
)


class _Quadratic(ctypes.Structure):
    """The struct `quadratic` of kernels/cpu/sweep.c."""

    _fields_ = (
        ("height", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("scale", ctypes.c_double),
        ("l1", ctypes.c_double),
        ("l2", ctypes.c_double),
        ("uniform", ctypes.c_double),
        ("still", ctypes.c_double),
        ("farthest", ctypes.c_double),
        ("steps", ctypes.c_int64),
        ("sweeps", ctypes.c_int64),
        ("is_still", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Values:
    """The values of the columns of the data, one column after another.

    Parameters
    ----------
    values : ndarray, (stored,), or (d, n) where they are dense; float32 or float64
    edges : ndarray of int64, (d + 1,), where each column begins; None: dense
    rows : ndarray of int32, (stored,), the row of each value; None: dense
    source : ndarray, (n, d), the rows from which a dense column is copied before its
        first use; None: all values are in place
    is_copied : ndarray of bool, (d,), the columns that are in place
    """

    values: Array
    edges: Array | None
    rows: Array | None
    source: Array | None = None
    is_copied: Array = field(default_factory=lambda: np.empty(0, dtype=bool))

    def __len__(self) -> int:
        """Return the number of columns, d."""
        return len(self.values if self.edges is None else self.edges[1:])

    def need(self, columns: Array) -> None:
        """Put these columns (int64) into place, if they are not there yet."""
        if self.source is None:
            return
        missing = columns[~self.is_copied[columns]]
        if not len(missing):
            return
        gather = functions()["gather_columns" + KINDS[self.values.dtype.char]]
        height = len(self.source)
        stride = stride_of(self.source)
        gather(self.source, stride, height, missing, len(missing), self.values)
        self.is_copied[missing] = True

    def moments(self, columns: Array, h: Array) -> tuple[Array, Array]:
        """Return Σ_i h_ik a_ij and Σ_i h_ik a_ij² of m columns, (m, K) each.

        `columns` are their numbers (int64), and `h` are the weights of rows, (n, K).
        """
        self.need(columns)
        first = np.empty((len(columns), h.shape[1]))
        second = np.empty_like(first)
        moments = functions()["column_moments" + KINDS[self.values.dtype.char]]
        moments(
            self.values,
            self.edges,
            self.rows,
            *h.shape,
            columns,
            len(columns),
            h,
            first,
            second,
        )
        return first, second

    def add(self, factors: Array, out: Array) -> None:
        """Compute out ← out + Σ_j a_j factors_j over all columns; `out` is (n,)."""
        columns = np.flatnonzero(factors)
        self.need(columns)
        nonzero = np.ascontiguousarray(factors[columns])
        add = functions()["add_columns" + KINDS[self.values.dtype.char]]
        add(
            self.values,
            self.edges,
            self.rows,
            len(out),
            columns,
            len(columns),
            nonzero,
            out,
        )


def columns_of_rows(rows: Array) -> Values:
    """Return the columns of dense rows, which are copied when they are needed."""
    height, width = rows.shape
    if rows.T.flags.c_contiguous:
        return Values(rows.T, None, None)
    if rows.strides[1] != rows.itemsize:
        rows = np.ascontiguousarray(rows)
    values = np.empty((width, height), dtype=rows.dtype)
    return Values(values, None, None, rows, np.zeros(width, dtype=bool))


def values_of(columns: Any) -> Values:
    """Return the values of columns that are stored as rows, dense or SciPy CSR."""
    if not hasattr(columns, "tocsr"):
        return Values(np.ascontiguousarray(columns), None, None)
    edges = columns.indptr.astype(np.int64)
    return Values(columns.data, edges, columns.indices.astype(np.int32, copy=False))


@dataclass(frozen=True)
class QuadraticModel:
    """A quadratic model about a point, for m columns with K items each.

    Parameters
    ----------
    columns : ndarray of int64, (m,), their numbers in the data
    residuals : ndarray, (n, K), c r
    h : ndarray, (n, K), ∂r/∂t times c; of classes c p
    shares : ndarray, (n, K), p of classes; None: one score a row
    bends : ndarray, (m K, K), Σ_i a_ij H_i e_k; zeros without an intercept
    means : ndarray, (m K, K), `bends` times S⁺, for S = Σ_i H_i
    pull : ndarray, (K,), S⁺ Σ_i c_i r_i: the intercept moves by −pull if w does not
    squares : ndarray, (m, K), Σ_i a_ij² ∂r_ik/∂t_ik c_i
    """

    columns: Array
    residuals: Array
    h: Array
    shares: Array | None
    bends: Array
    means: Array
    pull: Array
    squares: Array

    def curvatures(self) -> Array:
        """Return the curvature of every item, less what centring subtracts, (m K,)."""
        taken = np.einsum("ij,ij->i", self.bends, self.means)
        curvatures: Array = np.maximum(self.squares.reshape(-1) - taken, 0.0)
        return curvatures


@dataclass(frozen=True)
class SweepProgress:
    """The steps and sweeps that a `Sweeper` took in one call."""

    steps: int
    sweeps: int
    is_still: bool  # another sweep would hardly move the items


class Sweeper:
    """Steps over the items of a model, one exact minimum after the other.

    Parameters
    ----------
    values : Values
    model : QuadraticModel
    x : ndarray, (m K,), where the items begin; changed in place
    penalty : Penalty, of all items of the model
    scale : float, σ
    still : float, the share of the largest move at which sweeps end
    """

    def __init__(
        self,
        values: Values,
        model: QuadraticModel,
        x: Array,
        penalty: Penalty,
        scale: float,
        still: float,
    ) -> None:
        height, classes = model.residuals.shape
        self._kind = KINDS[values.values.dtype.char]
        empty = np.empty(0)
        count = len(x)
        is_one = model.shares is None
        low = float(model.h.min(initial=np.inf))
        is_uniform = is_one and low == model.h.max(initial=0.0)
        is_combined = is_one and not penalty.is_bounded
        self._arrays: dict[str, Array | None] = {
            "columns": model.columns,
            "edges": values.edges,
            "rows": values.rows,
            "values": values.values,
            "h": np.ascontiguousarray(model.h),
            "shares": model.shares,
            "residuals": np.ascontiguousarray(model.residuals),
            "v": np.array(model.residuals, order="C"),
            "moves": empty if is_one else np.zeros((height, classes)),
            "mixed": empty if is_one else np.zeros(height),
            "shift": -model.pull,
            "bends": np.ascontiguousarray(model.bends),
            "means": np.ascontiguousarray(model.means),
            "curvatures": model.curvatures(),
            "x": x,
            "lower": self._bound(penalty.lower, count),
            "upper": self._bound(penalty.upper, count),
            "active": np.empty(count, dtype=np.int64),
            "kept": np.empty(KEPT * (count + 1 + height)) if is_combined else None,
        }
        places = {
            name: None if array is None else array.ctypes.data
            for name, array in self._arrays.items()
        }
        self._quadratic = _Quadratic(
            height=height,
            classes=classes,
            scale=scale,
            l1=penalty.l1,
            l2=penalty.l2,
            uniform=low if is_uniform else 0.0,
            still=still,
            **places,
        )
        stored = values.values.size / max(len(values), 1)
        self._cost = max(stored * classes, 1.0)  # values that a step reads

    def descend(self, order: Array, most: int) -> "SweepProgress":
        """Take steps over the items `order` (int64, contiguous), sweep after sweep.

        It ends where a sweep over all of them moves them little, after `most` sweeps,
        or after `AT_A_TIME` values were read: a run looks for signals in between.
        Return the numbers of steps and sweeps of this call.
        """
        bulk = int(AT_A_TIME / (self._cost * max(len(order), 1)))
        descend = functions()[f"descend{self._kind}"]
        place = ctypes.addressof(self._quadratic)
        descend(place, order, len(order), max(min(most, bulk), 1))
        done = self._quadratic
        return SweepProgress(done.steps, done.sweeps, bool(done.is_still))

    @staticmethod
    def _bound(bound: Any, count: int) -> Array | None:
        if np.ndim(bound) == 0 and np.isinf(bound):
            return None
        return np.broadcast_to(np.asarray(bound, dtype=np.float64), count).copy()


# Sweeps over a few items whose whole Gram every rank has: one message for all.

MOST_SWEEPS = 500  # where a sweep sends nothing
AT_A_TIME = 2.0**26  # values that are read between two looks at signals: 0.1 s
STILL = 1e-2  # of the first sweep's moves: another sweep adds little
# The same on one process from the null model, whose slopes tell little of the working
# set: for the first model, and for the others.
STILL_COLD = (1e-1, 3e-2)


@dataclass(frozen=True)
class WholeGram:
    """The quadratic model of some items, on every rank.

    Parameters
    ----------
    order : ndarray of int64, (m,), the items
    gram : ndarray, (m, m), their inner products over all ranks
    slopes : ndarray, (m,), slopes of the model before any item has moved
    """

    order: Array
    gram: Array
    slopes: Array

    def sweep(self, x: Array, separable: ElasticNet, scale: float) -> int:
        """Change x of the items, sweep after sweep, until moves are small.

        There are at most `MOST_SWEEPS` sweeps. Return the number of steps.
        """
        slopes = self.slopes.copy()
        first = 0.0
        sweeps = 0
        curvatures = scale * np.diag(self.gram)
        for _ in range(MOST_SWEEPS):
            sweeps += 1
            farthest = 0.0
            for place, item in enumerate(self.order.tolist()):
                before = float(x[item])
                curvature = float(curvatures[place])
                slope = float(slopes[place])
                move = separable.step_one(item, before, slope, curvature) - before
                if move:
                    x[item] = before + move
                    slopes += (scale * move) * self.gram[place]
                    farthest = max(farthest, curvature * abs(move))
            first = max(first, farthest)
            if farthest <= STILL * first:
                break
        return sweeps * len(self.order)


def sum_gram(
    members: Communicator, sampled: SampledItems, order: Array, v: Array
) -> WholeGram:
    """Return the Gram of the items `order`, and their slopes. Collective.

    One message contains the lower triangle of the Gram, and the slopes: m (m + 1)/2 + m
    words for m items.
    """
    m = len(order)
    triangle = np.tril_indices(m)
    words = np.concatenate([sampled.products(v), sampled.gram()[triangle]])
    members.sum(words, "products")
    gram = np.empty((m, m))
    gram[triangle] = words[m:]
    gram.T[triangle] = words[m:]
    return WholeGram(order, gram, words[:m].copy())


# Any family with l1, l2 and bounds: a quadratic model again and again.
#
# About weights w and intercept β, with scores t, residuals r and curvatures H = ∂r/∂t
# (K × K for K classes, one number otherwise) of the rows,
#
#   F(u, γ) ≈ (1/n) Σ c_i (r_i·δ_i + δ_i·H_i δ_i/2) + penalty(u),  δ = A(u − w) + γ − β
#
# is least squares with weights c H (proximal Newton: Lee, Sun and Saunders, 2014, SIAM
# J. Optim. 24(3), section 2). Its items are the weights (j, k), less what the intercept
# takes of them: with H_i the curvature of a row, weights included,
#
#     b = Σ_i a_ij H_i e_k      S = Σ_i H_i      γ − β = −S⁺ (Σ_i c_i r_i + Σ b (u − w))
#
# An epoch makes the model (one sum of m K² + K² + K words for m columns), takes
# `SWEEPS` sweeps over items, and goes from w towards where they end, all the way or a
# half, a quarter, ... of it, until F is lower enough (one sum of `TRIALS` + 2 words,
# and a word, the length).
#
# With l1 an epoch takes a working set alone: the weights that are not 0, and those
# whose slope is above `NEAR` l1 (`NEAR_COLD` on one process). Every other weight is 0
# and meets the condition of a minimum; since every epoch computes the slopes of all
# weights, none is missed (the check of the strong rules: Tibshirani et al., 2012, J. R.
# Stat. Soc. B 74(2), section 7). The Gram of a working set of up to `MOST_GRAM` items
# is one message for all sweeps of an epoch (m (m + 1)/2 + m words), whatever the number
# of steps.

SWEEPS = 4  # larger = better steps, more messages for each
MOST_GRAM = 2048  # items of a working set whose Gram is summed at once
TRIALS = 12  # lengths 1, 1/2, 1/4, ... of a step
ENOUGH = 1e-2  # of the fall that the model promises
SLACK = 1e-14  # of F: what rounding hides
KINKED = ("huber", "squared-hinge")  # losses that are straight where ∂r/∂t is 0
LEAST_BEND = 1e-3  # of their largest curvature: rows beyond a kink still count
FLOOR = 1e-10  # of the largest curvature
LEAST_SHARE = 1e-12  # of a class: what keeps its curvature off zero
SINGULAR = 1e-12  # of the largest curvature of the intercept
FEW = 256  # weights up to which a working set costs more messages than it saves
NEAR = 0.9  # of l1: weights at 0 with such a slope may leave it next
NEAR_COLD = 0.5  # the same on one process from the null model
COPY_COST = 4  # times that of multiplying a column


@dataclass(frozen=True)
class NullModel:
    """The model of w = 0 with the best intercept `shift`, and its evaluation."""

    shift: Array
    seen: FormModel
    slope: Array
    level: InterceptLevel | None


class NewtonForm(Form):
    """The Newton form of any family: a quadratic model in every epoch.

    Every rank stores all weights w, and the scores of its rows.
    """

    name = "newton"
    sweeps = SWEEPS
    renews = True

    def __init__(
        self,
        objective: Objective,
        intercept: bool,
        classes: int,
        one_by_one: bool,
        moments: WeightedMoments | None = None,
    ) -> None:
        """Make the form; `moments` are those of the columns, if they are known.

        Their row weights are the shares of the rows.
        """
        shard = objective.shard
        grid = objective.grid
        self.objective = objective
        self.moments = moments
        self.members = grid.replicas
        self.scale = 1.0 / shard.total_rows
        self.classes = classes
        self.separable: ElasticNet = ElasticNet(_of_items(objective.penalty, classes))
        self.intercept = intercept
        self.weights = weights_of(shard)
        self.targets = shard.targets.astype(np.float64)
        self.values: Values | None = None
        if one_by_one and self.members.size == 1 and available():
            self.values = self._values(shard)
            self.sweeps = MOST_SWEEPS
        # Whether sweeps without messages descend from the null model.
        self.is_cold = self.values is not None
        self.has_begun = False  # whether an epoch has begun
        self.one_by_one = one_by_one
        self.whole: WholeGram | None = None  # of the working set, over several ranks
        self.slope: Array | None = None  # of the smooth part, (d, K), where it is known
        self.rows = open_rows(objective)
        # Scores are added up step by step; where columns are as exact as the rows that
        # an evaluation reads, they are those of the weights.
        self.has_exact_scores = shard.matrix.dtype == np.float64
        self.null: NullModel | None = None
        self.level: InterceptLevel | None = None  # of the scores, where it is known
        self.terms: LossTerms | None = None  # of the scores, where they are known
        seen = self.evaluate(self.begin())
        assert self.slope is not None
        self.null = NullModel(self.shift, seen, self.slope, self.level)
        self.worst = seen.loss - self._least()
        # Of the smooth part: the smallest subgradient would differ for each l1.
        self.steep = self.objective.norm(Slope(seen.loss, self.slope, None, 0))

    @property
    def is_alone(self) -> bool:
        """Return whether the sweeps of this epoch need no exchange for each group."""
        return self.values is not None or self.whole is not None

    @property
    def count(self) -> int:
        """Return the number of items, d K."""
        return self.objective.shard.width * self.classes

    @cached_property
    def columns(self) -> Items:
        """The local columns of the data, all of them copied at once.

        One process with dense rows and one score a row needs `values` alone.
        """
        return Items(columns_of(self.objective.shard))

    def _values(self, shard: Shard) -> Values:
        """Return the values of the columns as the compiled sweeps read them."""
        if shard.is_sparse or self.classes > 1:
            return values_of(self.columns.matrix)
        return columns_of_rows(_all_rows(shard))

    def _least(self) -> float:
        """Return the mean over all rows of the least loss at any score. Collective.

        It is below 0 for log links.
        """
        least = least_losses(self.objective.family, self.targets[:, 0])
        word = np.array([self.weights @ least])
        self.members.sum(word, "control")
        return float(word[0]) * self.scale

    def begin(self, weights: Array | None = None) -> CoordinatePoint:
        """Return the point of `weights`, or of w = 0, clipped to the bounds.

        The intercept, if there is one, is the best for these weights. Collective.
        """
        shard = self.objective.shard
        shape = (shard.width, self.classes)
        x = np.zeros(shape) if weights is None else weights.copy()
        self.objective.penalty.prox(x, 0.0)
        if weights is None and self.null is not None:
            self._stand(x, self.null.shift)
            self.slope = self.null.slope
            self.level = self.null.level
            self.terms = None if self.level is None else self.level.terms
        else:
            self._stand(x, np.zeros(self.classes))
            self._level()
        self.is_cold = self.is_cold and weights is None
        return CoordinatePoint(x.reshape(-1), np.zeros(shard.height * self.classes))

    def _stand(self, weights: Array, shift: Array) -> None:
        """Set the intercept to `shift`, and the scores to those of `weights`.

        The scores are those of the rows of this rank.
        """
        self.shift = shift
        self.slope = None
        self.level = None
        self.terms = None
        if weights.any():
            self.scores = self._combined(weights) + shift
        else:
            height = self.objective.shard.height
            self.scores = np.full((height, self.classes), shift)
        if self.objective.shard.offsets is not None:
            self.scores += self.objective.shard.offsets

    def _level(self) -> None:
        """Move the intercept, if there is one, to the best for the weights. Collective.

        `self.level` then states that no shift is left.
        """
        if self.intercept:
            best = level(self.rows, self.scores, self.terms)
            self.terms = best.terms
            self.shift = self.shift + best.shift
            self.scores += best.shift
            self.level = replace(best, shift=np.zeros(self.classes), gain=0.0)

    def become(self, penalty: Penalty, point: CoordinatePoint) -> None:
        """Change the penalty; weights and scores stay as they are."""
        ridge = penalty.l2 - self.objective.penalty.l2
        self.objective = replace(self.objective, penalty=penalty)
        self.separable = ElasticNet(_of_items(penalty, self.classes))
        self.is_cold = False
        if self.values is None or self.slope is None:
            self.slope = None  # ranks sum it
        else:
            self.slope = self.slope + ridge * point.x.reshape(-1, self.classes)
        self.null = None

    def model(self, point: CoordinatePoint) -> tuple[Array, Array | None]:
        """Return copies of the weights, (d, K), and of the intercept, (K,), or None."""
        intercept = self.shift.copy() if self.intercept else None
        return point.x.reshape(-1, self.classes).copy(), intercept

    def evaluate(self, point: CoordinatePoint) -> FormModel:
        """Evaluate loss, gradient norm and gap of the point. Collective.

        One pass computes gradients, and another one scores, unless the scores at hand
        are exact. Without l1 and l2 no gap is known, and one pass is enough. The null
        model is evaluated once.
        """
        # `begin` puts the slope of the null model back; every step takes it away.
        if self.null is not None and self.slope is self.null.slope:
            return self.null.seen
        weights, intercept = self.model(point)
        penalty = self.objective.penalty
        if penalty.l2 or penalty.l1:
            rows = replace(self.rows, objective=self.objective)
            if self.has_exact_scores:
                scores, best = self.scores, self.level
            else:
                scores, best = rows.start(weights, intercept), None
            optimality = gap_at(rows, weights, intercept, scores, best=best)
            self.slope = optimality.slope
            terms = self.terms if self.has_exact_scores else None
            loss, _ = rows.value(scores, weights, terms)
            return FormModel(loss, optimality.gradient, optimality.gap)
        slope = self.objective.slope(weights, intercept)
        self.slope = slope.weights
        return FormModel(slope.loss, self.objective.norm(slope), None)

    def prepare(self, point: CoordinatePoint, order: Array) -> Array:
        """Make the quadratic model about the point. Collective.

        Return the items of this epoch.
        """
        self.anchor = point.x.reshape(-1, self.classes).copy()
        c = self.weights[:, None]
        with np.errstate(all="ignore"):
            terms = self.terms or self.rows.terms(self.scores)
        self.terms = terms
        residuals = c * terms.residuals
        self.residuals = residuals
        order = self._working_set(order)
        self.chosen = np.unique(order // self.classes)
        shares = self._shares()
        h = self._curvatures(terms) if shares is None else c * shares
        first, squares = self._moments(h, shares)
        bends, self.means, self.pull = self._centre(h, shares, first)
        if self.values is not None:
            numbers = self._numbers()
            self.x = point.x[numbers]
            model = QuadraticModel(
                columns=self.chosen,
                residuals=residuals,
                h=h,
                shares=shares,
                bends=bends,
                means=self.means,
                pull=self.pull,
                squares=squares,
            )
            penalty = self.separable.penalty.of(numbers)
            still = STILL
            if self.is_cold:
                still = STILL_COLD[self.has_begun]
            self.sweeper = Sweeper(
                self.values, model, self.x, penalty, self.scale, still
            )
            self.has_begun = True
            places = np.empty(self.count, dtype=np.int64)
            places[numbers] = np.arange(len(numbers))
            self.order = places[order]
            self.numbers = numbers
            self.left = MOST_SWEEPS
            return order
        roots = np.sqrt(h)
        scaled_residuals = np.divide(
            residuals, roots, out=np.zeros_like(h), where=h > 0.0
        )
        if shares is None:
            self.items = Items(self.columns.matrix, self._shift(), roots[:, 0])
            scaled_residuals -= self.pull * roots
        else:
            items = ClassItems(
                matrix=self.columns.matrix,
                shift=self.means if self.intercept else None,
                roots=roots,
                shares=shares,
                columns=self.chosen,
            )
            self.items = items
            scaled_residuals -= (items.vectors() @ self.pull).reshape(
                scaled_residuals.shape
            )
        point.v[...] = self.scale * scaled_residuals.reshape(-1)
        self.whole = None
        if self.one_by_one and self._chooses and 0 < len(order) <= MOST_GRAM:
            self.whole = sum_gram(self.members, self.items.take(order), order, point.v)
        return order

    def sweep(self, point: CoordinatePoint) -> SweepProgress:
        """Take sweeps over the items of the epoch, until moves are small.

        Without a whole Gram, a call may return earlier, so that a run can look for
        signals.
        """
        if self.whole is not None:
            return SweepProgress(self._sweep_gram(self.whole, point), 1, is_still=True)
        done = self.sweeper.descend(self.order, self.left)
        self.left -= done.sweeps
        point.x[self.numbers] = self.x
        return done

    def _sweep_gram(self, whole: WholeGram, point: CoordinatePoint) -> int:
        """Sweep on rank 0, broadcast its x to all ranks, and return the steps.

        Collective over the members.
        """
        words = np.empty(len(whole.order) + 1)
        if self.members.rank == 0:
            words[-1] = whole.sweep(point.x, self.separable, self.scale)
            words[:-1] = point.x[whole.order]
        self.members.broadcast(words, 0, "products")
        point.x[whole.order] = words[:-1]
        return int(words[-1])

    @property
    def _is_quadratic(self) -> bool:
        """Return whether the loss is quadratic: its curvature is 1 at every score."""
        return self.objective.family.name == "gaussian"

    @property
    def _chooses(self) -> bool:
        """Return whether an epoch takes a working set.

        It does with l1 and more than `FEW` items.
        """
        return bool(self.objective.penalty.l1) and self.count > FEW

    def _working_set(self, order: Array) -> Array:
        """Return the items of `order` that a sweep may move, the same on all ranks."""
        if not self._chooses:
            return order
        slope = self._slope()
        share = NEAR_COLD if self.is_cold else NEAR
        near = np.abs(slope) >= share * self.objective.penalty.l1
        taken = (near | (self.anchor != 0.0)).reshape(-1)
        chosen: Array = order[taken[order]]
        if self.members.size == 1:
            return chosen
        count = np.array([float(len(chosen))])
        self.members.broadcast(count, 0, "products")
        numbers = np.zeros(int(count[0]))
        if self.members.rank == 0:
            numbers[...] = chosen
        if len(numbers):
            self.members.broadcast(numbers, 0, "products")
        return numbers.astype(np.int64)

    def _slope(self) -> Array:
        """Return the gradient of the smooth part of F at the anchor, (d, K).

        It is that of the last evaluation if it is known; otherwise ranks sum it.
        """
        if self.slope is not None:
            return self.slope
        if self.values is None:
            sums = self.columns.products(self.residuals)
        else:
            sums = np.zeros(self.anchor.shape)
            for rows, block in self.rows.read_blocks():
                add_combined(block, self.residuals[rows], sums)
        self.members.sum(sums, "products")
        return self.scale * sums + self.objective.penalty.l2 * self.anchor

    def _numbers(self) -> Array:
        """Return the numbers of all items of the chosen columns, (m K,)."""
        every = np.arange(self.classes)
        numbers: Array = (self.chosen[:, None] * self.classes + every).reshape(-1)
        return numbers

    def _curvatures(self, terms: LossTerms) -> Array:
        """Return the curvature c ∂r/∂t of each row, kept off zero, (n, 1).

        It serves families with one score a row.
        """
        family = self.objective.family
        c = self.weights[:, None]
        with np.errstate(all="ignore"):
            h: Array = bends(family, self.scores, self.targets, terms)[:, :, 0].copy()
        if family.name in KINKED:
            h += LEAST_BEND * family.curvature
        h = c * h
        top = h.max(initial=0.0)
        least = FLOOR * top + np.finfo(float).tiny
        return np.where(c > 0.0, np.maximum(h, least), 0.0)

    def _shares(self) -> Array | None:
        """Return the probabilities of the classes, kept off zero, (n, K).

        Return None for families with one score a row.
        """
        if self.objective.family.targets != "classes":
            return None
        shares = np.maximum(self.objective.family.mean(self.scores), LEAST_SHARE)
        shares /= shares.sum(axis=1, keepdims=True)
        return shares

    def _moments(self, h: Array, shares: Array | None) -> tuple[Array | None, Array]:
        """Return Σ a h and Σ a² h (1 − p) of chosen columns, by the compiled kernel.

        Both are (m, K). The first is None for classes. If columns are not stored for
        the kernel, the first is None and the second is empty.
        """
        if self.values is None:
            return None, np.empty(0)
        known = self.moments
        if known is not None and self.has_exact_scores and self._is_quadratic:
            self.values.need(self.chosen)
            total = self.weights.sum()
            return total * known.first[self.chosen], total * known.second[self.chosen]
        bent = h if shares is None else h * (1.0 - shares)
        first, squares = self.values.moments(self.chosen, np.ascontiguousarray(bent))
        return first if shares is None else None, squares

    def _centre(
        self, h: Array, shares: Array | None, first: Array | None
    ) -> tuple[Array, Array, Array]:
        """Return b, S⁺ b and S⁺ Σ c r, by which the intercept is eliminated.

        b = Σ_i a_ij H_i e_k and S⁺ b are (m K, K), for the items of chosen columns,
        with S = Σ_i H_i. S⁺ Σ c r is (K,). `first` is b of one score a row if it is
        known. Collective.
        """
        m = len(self.chosen)
        K = self.classes
        if not self.intercept:
            nothing = np.zeros((m * K, K))
            return nothing, nothing, np.zeros(K)
        sums = np.empty(m * K * K + K + K * K)
        bends = sums[: m * K * K].reshape(m, K, K)
        total = sums[m * K * K + K :].reshape(K, K)
        for k in range(K):
            row = h[:, k : k + 1]
            if shares is not None:
                row = row * (np.eye(K)[k] - shares)  # H_i e_k of all rows
            bends[:, k] = self._products_of_chosen(row) if first is None else first
            total[k] = row.sum(axis=0)
        sums[m * K * K : m * K * K + K] = self.residuals.sum(axis=0)
        self.members.sum(sums, "products")
        pull = sums[m * K * K : m * K * K + K]
        flat = bends.reshape(m * K, K)
        if K == 1:
            return flat, flat / total, pull / total[0]
        inverse = np.linalg.pinv(total, SINGULAR, hermitian=True)
        return flat, flat @ inverse, inverse @ pull

    def _products_of_chosen(self, vectors: Array) -> Array:
        """Return inner products of chosen columns with `vectors`, (m, K).

        To multiply all columns takes less time than to copy many of them.
        """
        if len(self.chosen) * COPY_COST > self.columns.count:
            products: Array = self.columns.products(vectors)[self.chosen]
            return products
        return Items(self.columns.matrix[self.chosen]).products(vectors)

    def _combined_of_chosen(self, move: Array) -> Array:
        """Return the change of scores by a move of the weights.

        The move is 0 outside chosen columns.
        """
        is_kernel = self.values is not None and self.classes == 1
        if is_kernel or len(self.chosen) * COPY_COST > self.columns.count:
            return self._combined(move)
        return Items(self.columns.matrix[self.chosen]).combined(move[self.chosen])

    def _combined(self, weights: Array) -> Array:
        """Return the scores of local rows by these weights alone, (n, K)."""
        if self.values is None or self.classes > 1:
            return self.columns.combined(weights)
        scores = np.zeros((self.objective.shard.height, 1))
        self.values.add(weights[:, 0], scores[:, 0])
        return scores

    def _shift(self) -> Array | None:
        """Return the means of all columns, (d,), or None without an intercept.

        They are 0 for columns that are not chosen.
        """
        if not self.intercept:
            return None
        whole = np.zeros(self.objective.shard.width)
        whole[self.chosen] = self.means[:, 0]
        return whole

    def settle(self, point: CoordinatePoint) -> None:
        """Move from the anchor towards the point. Collective.

        The end of the move is written into the point. The whole way is tried first,
        then its half, its quarter and so on, until F is enough below its value at the
        anchor.
        """
        end = point.x.reshape(self.anchor.shape).copy()
        move = end - self.anchor
        lift = np.zeros(self.classes)
        if self.intercept:
            lift = -(move[self.chosen].reshape(-1) @ self.means + self.pull)
        away = self._combined_of_chosen(move) + lift
        length, self.terms = self._length(end, move, away)
        self.shift = self.shift + length * lift
        self.scores += length * away
        if length != 1.0:  # else zeros and bounds stay exact
            end = self.anchor + length * move
        point.x[...] = end.reshape(-1)
        self.slope = None
        self.level = None
        self._level()

    def _length(
        self, end: Array, move: Array, away: Array
    ) -> tuple[float, LossTerms | None]:
        """Return the largest trial length at which F falls enough. Collective.

        It is 0 if there is none, and the same on all ranks. The loss terms of the local
        rows at its end follow it; None: they are not known.
        """
        penalty = self.objective.penalty
        lengths = 0.5 ** np.arange(TRIALS)
        terms = self.terms or self.rows.terms(self.scores)
        words = np.array([terms.loss / self.scale, np.vdot(self.residuals, away)])
        if self.members.size > 1:  # one message has the losses at all lengths
            more = [self._trial(length, away).loss / self.scale for length in lengths]
            words = np.concatenate([words, more])
            self.members.sum(words, "products")
        words *= self.scale
        before = penalty.value(self.anchor)
        here = words[0] + before
        promised = words[1] + penalty.value(end) - before
        for number, length in enumerate(lengths):
            if self.members.size > 1:
                loss = words[2 + number]
            else:
                terms = self._trial(length, away)
                loss = self.scale * (terms.loss / self.scale)
            limit = here + ENOUGH * length * min(promised, 0.0) + SLACK * abs(here)
            if loss + penalty.value(self.anchor + length * move) <= limit:
                break
        else:
            length = 0.0
        chosen = np.array([length])
        self.members.broadcast(chosen, 0, "products")
        is_known = self.members.size == 1 and length > 0.0
        return float(chosen[0]), terms if is_known else None

    def _trial(self, length: float, away: Array) -> LossTerms:
        """Return the loss terms of the local rows after `length` times the move `away`.

        The move is that of the scores.
        """
        with np.errstate(all="ignore"):
            return self.rows.terms(self.scores + length * away)


def _of_items(penalty: Penalty, classes: int) -> Penalty:
    """Return the penalty with a bound for every item (j, k) instead of every column."""
    bounds: list[Any] = [
        bound if np.ndim(bound) == 0 else np.repeat(bound, classes)
        for bound in (penalty.lower, penalty.upper)
    ]
    return Penalty(penalty.l2, penalty.l1, bounds[0], bounds[1])

"""One exchange with exact inputs, and the path that exact SGD takes through it.

Everything here is float64: the rows, the weights before the exchange, and the results
of its s steps.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from hpcsgd.backends.base import StepBatch
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array
from hpcsgd.glm import make_update, unroll
from hpcsgd.glm.families import Family, steepest_slopes
from hpcsgd.glm.unrolling import Blocks, UnrolledSteps, blocks_of

SMALL = 512  # rows or columns up to which a spectral norm is computed
ROOM = 0.5  # how far a score may be off where the curvature of the loss has no bound


@dataclass(frozen=True)
class SgdSteps:
    """The s steps of one exchange of plain SGD, and their coefficients.

    Parameters
    ----------
    sizes : b_0 .. b_{s-1}, the rows of each batch
    rates : η_0 .. η_{s-1}
    l2 : λ
    momentum : must be 0: the theory covers plain SGD
    """

    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    l2: float = 0.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.momentum:
            raise ConfigError(
                "the error bound covers plain SGD only, since with momentum errors may"
                " grow in ways that it does not include; use [update] kind = 'sgd'"
            )

    @property
    def blocks(self) -> Blocks:
        """Return the batches with their sizes and the numbers of their first rows."""
        return blocks_of(self.sizes)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Return the rows of each batch as a slice."""
        return tuple(slice(a, b) for a, b in pairwise(self.blocks.starts))

    @cached_property
    def per_row(self) -> Array:
        """Return h = η/b, the rate over the batch size, of every batch, (s,)."""
        return np.asarray(np.array(self.rates) / np.array(self.sizes))

    @cached_property
    def unrolled(self) -> UnrolledSteps:
        """Return the coefficients of all s steps together."""
        return unroll(make_update("sgd", 0.0), self.rates, self.sizes, self.l2)

    @cached_property
    def coupling(self) -> Array:
        """Return the factor of each residual, times its Gram entry, in each margin.

        It is (m, m): −h_i P_{i+1..j} from batch i to a batch j > i, and 0 elsewhere,
        where h = η/b and P is the product of 1 − ηλ over the steps between them.
        """
        steps = np.zeros((len(self.sizes), len(self.sizes)))
        for j, couple in enumerate(self.unrolled.couple):
            steps[j, :j] = couple
        return np.repeat(np.repeat(steps, self.sizes, axis=0), self.sizes, axis=1)

    @cached_property
    def lead(self) -> Array:
        """Return the absolute factor of a row's first margin in its score, (m, 1).

        It is |P_{0..j}|, the product of 1 − ηλ over the steps before batch j.
        """
        return np.repeat(np.abs(self.unrolled.lead[:, 0]), self.sizes)[:, None]

    @cached_property
    def gain(self) -> Array:
        """Return the factor of each row times its residual in the last weights, (m, 1).

        It is −h_i P_{i+1..s}, where h = η/b and P is the product of 1 − ηλ over the
        later steps.
        """
        return np.repeat(self.unrolled.gain[:, 0], self.sizes)[:, None]

    @cached_property
    def begins(self) -> Array:
        """Return for every row the number of rows before its batch, (m, 1)."""
        return np.repeat(self.blocks.starts[:-1], self.sizes)[:, None]


@dataclass(frozen=True)
class ExactExchange:
    """The rows of the s batches of one exchange, and the weights that they meet.

    Parameters
    ----------
    rows : (m, d), the sampled rows, all columns
    batch : targets of the rows, encoded for the family, with weights and offsets
    steps : batch sizes, which add up to m, rates and penalty
    before : (d, K), the weights as they are held before the exchange
    family : the GLM
    intercept : (K,), or None
    parts : the columns of every member, in rank order; empty: one member has all
    exponents : (d,), k for a column that is stored times 2ᵏ, or None
    loss_scale : what residuals of a format with few exponents are stored times
    """

    rows: Array
    batch: StepBatch
    steps: SgdSteps
    before: Array
    family: Family
    intercept: Array | None = None
    parts: tuple[slice, ...] = ()
    exponents: Array | None = None
    loss_scale: float = 1.0

    def __post_init__(self) -> None:
        count = sum(self.steps.sizes)
        if self.rows.shape != (count, len(self.before)):
            raise ConfigError(
                f"rows of shape {self.rows.shape} do not match batches of {count} rows"
                f" and {len(self.before)} weights; give a row for each row of the"
                " batches and a column for each weight"
            )
        if not self.parts:
            object.__setattr__(self, "parts", (slice(0, len(self.before)),))

    @cached_property
    def gram(self) -> Array:
        """Return the whole Gram G = Y Yᵀ of the rows, (m, m)."""
        return self.rows @ self.rows.T

    @cached_property
    def norms(self) -> "Norms":
        """Return the spectral norm ‖Y_j‖₂ of every batch."""
        return norms_of(self)

    @cached_property
    def slopes(self) -> Array:
        """Return l_i, a bound of ∂r/∂t for every row, (m, 1).

        It includes the sample weight of the row.
        """
        return slopes_of(self)

    @cached_property
    def steepest(self) -> Array:
        """Return l_j, the largest bound l_i of the rows of every batch, (s,)."""
        return np.array([self.slopes[part].max() for part in self.steps.slices])

    @cached_property
    def growth(self) -> Array:
        """Return bounds of the growth of an error of each step until the end, (s,)."""
        return growth_of(self)

    @cached_property
    def path(self) -> "ExactPath":
        """Return all values of the exact exchange, step by step."""
        return run_exact_steps(self)


@dataclass(frozen=True)
class ExactPath:
    """All values of an exchange of exact SGD."""

    margins: Array  # z = Y w before, (m, K)
    scores: Array  # t, (m, K)
    residuals: Array  # r, sample weights included, (m, K)
    bare: Array  # r without them, (m, K)
    intercepts: Array  # before every row's step, (m, K); zeros without an intercept
    iterates: tuple[Array, ...]  # w_j before every step, (d, K)
    after: Array  # w⁺, (d, K)

    def update(self, before: Array) -> float:
        """Return ‖Δw‖, the norm of the change of the weights from `before`."""
        return float(np.linalg.norm(self.after - before))


def run_exact_steps(exchange: ExactExchange) -> ExactPath:
    """Take the textbook SGD steps on the rows of the exchange, in float64."""
    w = exchange.before.astype(np.float64)
    shape = (len(exchange.rows), -1)
    beta = np.zeros(w.shape[1]) if exchange.intercept is None else exchange.intercept
    history: dict[str, list[Array]] = {
        name: [] for name in ("scores", "residuals", "bare", "intercepts")
    }
    iterates = []
    steps = exchange.steps
    for part, rate in zip(steps.slices, steps.rates, strict=True):
        Y = exchange.rows[part]
        batch = exchange.batch.part(part)
        t = Y @ w + beta + (0 if batch.offsets is None else batch.offsets)
        bare = exchange.family.residual(t.copy(), batch.targets)
        r = bare if batch.weights is None else bare * batch.weights
        arrays = (t, r, bare, np.broadcast_to(beta, t.shape))
        for name, values in zip(history, arrays, strict=True):
            history[name].append(values)
        iterates.append(w)
        w = (1 - rate * steps.l2) * w - rate / len(Y) * (Y.T @ r)
        if exchange.intercept is not None:
            beta = beta - rate / len(Y) * r.sum(axis=0)
    joined = {name: np.concatenate(v).reshape(shape) for name, v in history.items()}
    z = exchange.rows @ exchange.before
    return ExactPath(margins=z, iterates=tuple(iterates), after=w, **joined)


@dataclass(frozen=True)
class Norms:
    """‖Y_j‖₂ of every batch; `exact` is False where some are upper bounds."""

    values: Array
    exact: bool


def norms_of(exchange: ExactExchange) -> Norms:
    """Return the spectral norm of every batch; an intercept is a column of ones."""
    norms = [_norm(_extended(exchange, part)) for part in exchange.steps.slices]
    return Norms(np.array([value for value, _ in norms]), all(ok for _, ok in norms))


def _extended(exchange: ExactExchange, part: slice) -> Array:
    Y = exchange.rows[part]
    return Y if exchange.intercept is None else np.hstack([Y, np.ones((len(Y), 1))])


def _norm(Y: Array) -> tuple[float, bool]:
    """Return (‖Y‖₂, True), or (a bound of it, False) if both sides of Y are large.

    The norm is computed from the smaller of the Grams Y Yᵀ and YᵀY.
    """
    if min(Y.shape) <= SMALL:
        square = Y @ Y.T if len(Y) <= Y.shape[1] else Y.T @ Y
        return float(np.sqrt(max(np.linalg.eigvalsh(square)[-1], 0.0))), True
    sums = np.abs(Y).sum(axis=0).max() * np.abs(Y).sum(axis=1).max()
    return min(float(np.sqrt(sums)), float(np.linalg.norm(Y))), False


def slopes_of(exchange: ExactExchange) -> Array:
    """Return a bound l_i of ∂r/∂t for every row, (m, 1).

    It is the bound of the family's curvature if it has one, else a bound of the slopes
    within `ROOM` of the exact score; both are multiplied by the weight of the row.
    """
    family = exchange.family
    path = exchange.path
    batch = exchange.batch
    c = np.ones_like(batch.targets) if batch.weights is None else batch.weights
    if np.isfinite(family.curvature):
        return c * family.curvature
    return c * steepest_slopes(family, path.scores, batch.targets, ROOM)


def largest_safe_rate(exchange: ExactExchange) -> float:
    """Return the largest rate at which no error grows: min_j 2/(λ + l ‖Y_j‖²/b).

    Up to this rate every step I − η(λ + YᵀDY/b) has a norm of at most 1, where D
    contains the slopes of the rows, at most l. It is inf if λ and all slopes are 0.
    """
    squares = exchange.norms.values**2 / np.array(exchange.steps.sizes)
    steepest = exchange.steps.l2 + exchange.steepest * squares
    return float(2.0 / steepest.max()) if steepest.max() > 0 else float("inf")


def growth_of(exchange: ExactExchange) -> Array:
    """Return bounds of the growth of an error of step j in the steps after it, (s,).

    One step multiplies an error by at most max(|ρ|, |ρ − h l ‖Y‖²|), where ρ = 1 − ηλ
    and h = η/b. An intercept is not penalised, so that the first ρ is then 1.
    """
    steps = exchange.steps
    rho = 1.0 - np.array(steps.rates) * steps.l2
    low = rho - steps.per_row * exchange.steepest * exchange.norms.values**2
    high = rho if exchange.intercept is None else np.ones_like(rho)
    stretch = np.maximum(np.abs(high), np.abs(low))
    return np.append(np.cumprod(stretch[::-1])[::-1][1:], 1.0)

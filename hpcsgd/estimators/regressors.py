"""Regressors for scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from scipy.optimize import brentq
from sklearn.base import RegressorMixin

from hpcsgd.errors import ConfigError
from hpcsgd.estimators.base import (
    FitRanks,
    Learner,
    Solution,
    check_targets,
    opened,
    passes_of,
)
from hpcsgd.estimators.fit import documented
from hpcsgd.estimators.inputs import FitRows
from hpcsgd.estimators.saved import Formula
from hpcsgd.formats import Array
from hpcsgd.glm.families import Family
from hpcsgd.runs.defaults import FitArguments, overlay_tables
from hpcsgd.runs.inference import FitSummary, InferenceRequest

# The part of the deviance that a regressor explains, for models with offsets too.
#
#     D² = 1 − Σ c dev(y, μ) / Σ c dev(y, μ₀)
#
# μ₀ is the best model without columns: an intercept, and the same offsets. Without
# offsets this is scikit-learn's score: R² for squared errors, D² for the others.

LARGEST_SHIFT = 700.0  # of the null model's intercept from the first bracket


def explained(
    family: Family, y: Array, mean: Array, weights: Array | None, offset: Array | None
) -> float:
    """Return D² of the predictions `mean`, (n,), the explained share of deviance."""
    weights = np.ones(len(y)) if weights is None else weights
    null = _null_mean(family, y, weights, offset)
    left = float(weights @ _deviance(family, y, mean))
    whole = float(weights @ _deviance(family, y, null))
    if whole == 0.0:  # nothing to explain: scikit-learn's convention
        return 1.0 if left == 0.0 else 0.0
    return 1.0 - left / whole


def _deviance(family: Family, y: Array, mean: Array) -> Array:
    """Return the deviance of every row, 0 where the mean is the target.

    For a family without a deviance it is the squared error.
    """
    deviance: Callable[[Array, Array], Array] | None
    deviance = getattr(family, "deviance", None)
    if deviance is None:
        return np.asarray(np.square(y - mean))
    with np.errstate(divide="ignore", invalid="ignore"):  # at y = μ = 0
        return np.where(y == mean, 0.0, deviance(y, mean))


def _null_mean(family: Family, y: Array, c: Array, offset: Array | None) -> Array:
    """Return the means (n,) of the best model of an intercept and the offsets."""
    if offset is None:
        return np.full(len(y), (c @ y) / c.sum())
    if not hasattr(family, "deviance"):
        return np.asarray(offset + (c @ (y - offset)) / c.sum())

    def slope(intercept: float) -> float:
        t = (offset + intercept)[:, None]
        return float(c @ family.residual(t, y[:, None])[:, 0])

    # The slope rises with the intercept; without a root the mean is at an end.
    low = -1.0
    high = 1.0
    while slope(low) > 0.0 and low > -LARGEST_SHIFT:
        low *= 2.0
    while slope(high) < 0.0 and high < LARGEST_SHIFT:
        high *= 2.0
    if slope(low) > 0.0 or slope(high) < 0.0:
        root = low if slope(low) > 0.0 else high
    else:
        root = brentq(slope, low, high, xtol=1e-14)
    return family.mean(offset + root)


# The base class of regressors: `fit`, `predict` and `score`.


class Regressor(RegressorMixin, Learner):  # type: ignore[misc]
    """Base class of regressors: fits, predictions and their score."""

    @documented
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> Self:
        """Fit the model. Collective.

        All ranks of `comm` must call it.

        Returns
        -------
        self : object
            The fitted estimator, the same on all ranks.
        """
        self._fit(FitRows(X, y, sample_weight), opened(comm, layout, grid))
        return self

    @documented
    def partial_fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> Self:
        """Run one epoch of CA-SGD from the current coefficients. Collective.

        All ranks of `comm` must call it.

        Returns
        -------
        self : object
            The fitted estimator, the same on all ranks.
        """
        self._partial_fit(FitRows(X, y, sample_weight), opened(comm, layout, grid))
        return self

    @documented
    def predict(self, X: Any) -> Array:
        """Return the predicted mean of the target of each row.

        Returns
        -------
        ndarray of shape (n,)
        """
        X, _ = self._rows(X)
        return self._formula().means(X)

    @documented
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² of the predictions.

        Returns
        -------
        float
            1 − Σc(y − μ)²/Σc(y − ȳ)².
        """
        return self._explained(X, y, sample_weight)

    def _explained(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        offset: Any = None,
        exposure: Any = None,
    ) -> float:
        X, total = self._rows(X, offset, exposure)
        y, weights = check_targets(y, sample_weight, X)
        mean = self._formula().means(X, total)
        return explained(self._loss(), y, mean, weights, total)


# Regressors of squared errors: least squares, ridge, and Huber for outliers.


@documented
class LinearRegression(Regressor):
    """Least squares without a penalty.

    It minimises F(w, β) = (1/Σc) Σ c_i (a_i·w + β − y_i)² / 2, as scikit-learn's class
    of this name does.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Coefficients.

    Notes
    -----
    If columns are linearly dependent, many w have the same F. The fit starts at zero
    and returns one of them.

    Examples
    --------
    >>> from hpcsgd import LinearRegression
    >>> model = LinearRegression().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> model.coef_.round(6)
    array([2.])
    """

    family = "gaussian"
    alpha = 0.0
    l1_ratio = 0.0
    _instead = dict.fromkeys(
        ("C", "alpha", "penalty", "l1_ratio"),
        "take Ridge, which has alpha and l1_ratio",
    )

    def __init__(
        self,
        *,
        fit_intercept: bool = True,
        bounds: Any = None,
        max_iter: int | None = None,
        tol: float = 1e-9,
        batch: int | None = None,
        steps: int | str = "auto",
        rate: float | str = "auto",
        solver: str = "auto",
        average: str = "auto",
        polish: bool | str = "auto",
        hold_out: float = 0.0,
        patience: int = 5,
        precision: str | None = None,
        device: str = "cpu",
        warm_start: bool = False,
        random_state: Any = 0,
        callbacks: Any = None,
        verbose: int = 0,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._set_parameters(locals())


@documented
class Ridge(Regressor):
    """Least squares with a penalty: ridge, lasso and elastic net.

    It minimises ::

        F(w, β) = (1/Σc) Σ c_i (a_i·w + β − y_i)² / 2
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    `l1_ratio=0` is ridge regression, `l1_ratio=1` the lasso, and a value between them
    the elastic net.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Coefficients.

    Notes
    -----
    scikit-learn's Ridge has the same minimiser at alpha Σc (Σc = n without weights);
    its Lasso and ElasticNet have it at the same alpha and l1_ratio.

    Examples
    --------
    >>> from hpcsgd import Ridge
    >>> model = Ridge(alpha=0.1).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> model.coef_.round(3)
    array([1.739])
    """

    family = "gaussian"


# The scale of residuals, by which HuberRegressor tells outliers from the others.
#
# With weights c it is the σ of
#
#     Σ c_i min((e_i/σ)², epsilon²) = Σ c_i
#
# (Huber, 1964, Ann. Math. Stat. 35(1), "Proposal 2"; Owen, 2007, Contemp. Math. 443,
# section 4, whose joint minimum over w and σ is what scikit-learn finds). The left side
# is concave and piecewise linear in 1/σ²: Newton's method from the root mean square,
# where it is too small, goes up to the root in finitely many steps. Where more than
# Σc (1 − 1/epsilon²) belong to rows without an error there is no root, and σ is 0.

SCALE_ROUNDS = 30  # most fits; four are usual, twenty where the scale is near 0
SCALE_TOL = 1e-6  # relative change of the scale that ends them
LONGEST = 50.0  # largest ratio of a secant step to r
LEAST_SCALE = 1e-6  # of the root mean square of the targets about their mean
ROUND_TOL = 1e-6  # of fits of which only the residuals are needed


def robust_scale(errors: Array, c: Array, epsilon: float, ranks: FitRanks) -> float:
    """Return σ of the errors of all ranks: Σ c min((e/σ)², epsilon²) = Σ c. Collective.

    `errors` and the weights `c`, (n,), are of the rows of this rank. If there is no
    such σ, return 0.
    """
    squares = np.square(errors)
    variance = _mean(squares, c, ranks)
    while variance > 0.0:
        inside = squares <= epsilon**2 * variance
        local_sums = np.array([c.sum(), c[~inside].sum(), (c * squares)[inside].sum()])
        total, outside, square = np.sum(ranks.of_rows(local_sums), axis=0)
        lower = square / (total - epsilon**2 * outside)
        # Without a root the last steps take away all errors that are not 0.
        if not 0.0 <= lower < variance * (1.0 - 1e-12):
            break
        variance = lower
    return float(np.sqrt(variance))


def _mean(values: Array, c: Array, ranks: FitRanks) -> float:
    """Return Σ c values/Σ c over the rows of all ranks. Collective."""
    total, moment = np.sum(ranks.of_rows(np.array([c.sum(), c @ values])), axis=0)
    return float(moment / total)


class ScaleSearch:
    """The search for σ, the scale of the residuals of a fit at delta = epsilon·σ.

    With s = log σ and r(s) the logarithm of the scale of the residuals minus s, it is a
    root of r. The first step goes to s + r. The next ones are secant steps, or r again
    if a secant step has the sign of −r or is longer than `LONGEST` times r. If a step
    leaves the interval that is known to contain the root, the interval is halved.
    """

    def __init__(self, scale: float) -> None:
        self._at = float(np.log(scale))
        self._before: tuple[float, float] | None = None
        self._low = -np.inf
        self._high = np.inf

    @property
    def scale(self) -> float:
        """Return the scale to try next; after the search, the root."""
        return float(np.exp(self._at))

    def is_done(self, scale: float) -> bool:
        """Take a step of the search; return True if the root is found.

        `scale` is that of the residuals of the fit at the scale that was tried.
        """
        s = self._at
        r = float(np.log(scale)) - self._at
        if r > 0.0:
            self._low = max(self._low, s)
        else:
            self._high = min(self._high, s)
        step = r
        if self._before is not None and r != self._before[1]:
            step = -r * (s - self._before[0]) / (r - self._before[1])
        self._before = s, r
        if abs(r) <= SCALE_TOL:
            return True
        if step * r < 0.0 or abs(step) > LONGEST * abs(r):
            step = r
        self._at = s + step
        if not self._low < self._at < self._high:
            self._at = (self._low + self._high) / 2
        return self._high - self._low <= SCALE_TOL


@documented
class HuberRegressor(Regressor):
    """Regression in which outliers count linearly.

    It minimises ::

        F(w, β) = (1/Σc) Σ c_i h(a_i·w + β − y_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    with h(e) = e²/2 for abs(e) ≤ delta, else h(e) = delta (abs(e) − delta/2). If
    `delta` is None, it is `epsilon` times `scale_`. The scale is the σ of the residuals
    e of the minimum: Σ c_i min((e_i/σ)², epsilon²) = Σc.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Coefficients.
    delta_ : float
        The delta of F.
    scale_ : float
        Scale of the residuals, if no `delta` was given.
    n_iter_ : int
        Passes over the data, of the last fit and of those that the search for the
        scale needs.
    result_ : hpcsgd.Result
        The last run, in units of `delta_`.

    Notes
    -----
    scikit-learn's class of this name has the same minimiser and the same `scale_` at
    the same epsilon and at its alpha = alpha Σc/σ. `partial_fit` takes the scale from
    its own rows before the epoch.

    References
    ----------
    .. [1] P. J. Huber, "Robust estimation of a location parameter", Annals of
       Mathematical Statistics 35(1), 1964.
    .. [2] A. B. Owen, "A robust hybrid of lasso and ridge regression", Contemporary
       Mathematics 443, 2007.

    Examples
    --------
    >>> from hpcsgd import HuberRegressor
    >>> X = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]]
    >>> y = [0.1, 0.9, 2.1, 2.9, 4.1, 90.0]
    >>> HuberRegressor().fit(X, y).predict([[5.0]]).round()
    array([5.])
    """

    family = "huber"
    epsilon: float
    delta: float | None
    delta_: float
    scale_: float

    def __init__(
        self,
        *,
        epsilon: float = 1.35,
        delta: float | None = None,
        alpha: float = 1e-4,
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
        bounds: Any = None,
        max_iter: int | None = None,
        tol: float = 1e-9,
        batch: int | None = None,
        steps: int | str = "auto",
        rate: float | str = "auto",
        solver: str = "auto",
        average: str = "auto",
        polish: bool | str = "auto",
        hold_out: float = 0.0,
        patience: int = 5,
        precision: str | None = None,
        device: str = "cpu",
        warm_start: bool = False,
        random_state: Any = 0,
        callbacks: Any = None,
        verbose: int = 0,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._set_parameters(locals())

    def _learn(
        self, rows: FitRows, ranks: FitRanks, starts: list[Any] | None, **changed: Any
    ) -> None:
        """Fit with `delta`; if it is None, with epsilon times the residuals' scale."""
        self._check(rows)
        passes = 0
        if self.delta is None:
            # `partial_fit` passes changed settings: its scale needs no fits.
            rounds = 0 if changed else SCALE_ROUNDS
            starts, passes = self._find_scale(rows, ranks, starts, rounds)
            self.delta_ = self.epsilon * self.scale_
        else:
            self.delta_ = float(self.delta)
            if hasattr(self, "scale_"):  # of an earlier fit
                del self.scale_
        super()._learn(rows, ranks, starts, **changed)
        self.n_iter_ += passes

    def _find_scale(
        self, rows: FitRows, ranks: FitRanks, starts: list[Any] | None, rounds: int
    ) -> tuple[list[Any] | None, int]:
        """Set `scale_` by at most `rounds` fits.

        Return the weights and intercept at which the last fit ended, or `starts`
        without a fit, and the passes over the data of all fits.
        """
        c = np.ones(len(rows.y)) if rows.weights is None else rows.weights
        away = rows.y - _mean(rows.y, c, ranks)
        spread = np.sqrt(_mean(np.square(away), c, ranks))
        passes = 0
        errors = self._errors(rows, ranks, *starts[0]) if starts else away
        search = ScaleSearch(self._scale(errors, c, ranks, spread))
        tol = max(self.tol, ROUND_TOL)
        for _ in range(rounds):
            self.delta_ = self.epsilon * search.scale
            start = starts[0] if starts else None
            solution = self._solve(rows, ranks, start, is_silent=True, tol=tol)
            passes += passes_of(solution.result)
            starts = [(solution.weights, solution.intercept)]
            errors = self._errors(rows, ranks, *starts[0])
            if search.is_done(self._scale(errors, c, ranks, spread)):
                break
        self.scale_ = search.scale
        return starts, passes

    def _scale(self, errors: Array, c: Array, ranks: FitRanks, spread: float) -> float:
        """Return the scale of the errors of all ranks, alike on all ranks. Collective.

        It is at least `LEAST_SCALE` times `spread`, the root mean square of the targets
        about their mean; if both are 0, it is 1/epsilon.
        """
        scale = robust_scale(errors, c, self.epsilon, ranks)
        scale = max(scale, LEAST_SCALE * spread) or 1.0 / self.epsilon
        return float(ranks.world.share_object(scale))

    def _errors(
        self, rows: FitRows, ranks: FitRanks, weights: Array, intercept: Array
    ) -> Array:
        """Return prediction minus target of each row of this rank, (n,). Collective."""
        world = ranks.world
        X = rows.X
        if not X.shape[0]:
            return np.empty(0)
        if ranks.layout != "columns" or world.size == 1:
            formula = Formula(self.family, weights[:, 0], float(intercept[0]))
            return np.asarray(formula.means(X) - rows.y)
        widths = world.exchange_objects(X.shape[1])
        first = sum(widths[: world.rank])
        own_weights = weights[first : first + X.shape[1], 0]
        scores = Formula(self.family, own_weights, 0.0).means(X)
        world.sum(scores, "control")
        return np.asarray(scores + intercept[0] - rows.y)

    def _check(self, rows: FitRows) -> None:
        """Raise ConfigError for a bad delta or epsilon.

        Also raise it if the targets are in a file and delta is not 1, since they must
        be scaled.
        """
        if self.delta is not None and not 0.0 < self.delta < float("inf"):
            raise ConfigError(
                f"delta = {self.delta!r} must be positive and finite, or None, which"
                " takes epsilon times the scale of the residuals"
            )
        if not 1.0 < self.epsilon < float("inf"):
            raise ConfigError(
                f"epsilon = {self.epsilon!r} must be above 1 and finite; 1.35 is usual"
            )
        if rows.y is None and self.delta != 1.0:
            raise ConfigError(
                f"delta = {self.delta!r} cannot be used with y in a file, because y"
                " must be scaled in memory; set delta=1 and scale y in the file, or"
                " give X and y as arrays"
            )

    def _solve(
        self,
        rows: FitRows,
        ranks: FitRanks,
        start: Any = None,
        is_silent: bool = False,
        **changed: Any,
    ) -> Solution:
        """Run a fit with targets and coefficients in units of delta, where delta is 1.

        F is delta² times its value in these units. The ridge penalty scales as F, so l2
        is the same; l1 is divided by delta.
        """
        unit = self.delta_
        if start is not None:
            start = tuple(part / unit for part in start)
        changed = {**self._penalty_in(unit), **changed}
        rows = _in(unit, rows)
        solution = super()._solve(rows, ranks, start, is_silent, **changed)
        solution.result.report["delta"] = unit
        return replace(
            solution,
            weights=solution.weights * unit,
            intercept=solution.intercept * unit,
        )

    def _summarize(
        self, rows: FitRows, ranks: FitRanks, request: InferenceRequest
    ) -> FitSummary:
        """Return the summary in units of y; those of the run are units of delta."""
        self._check(rows)
        return (
            super()
            ._summarize(_in(self.delta_, rows), ranks, request)
            .in_units(self.delta_)
        )

    def _keep(self, solutions: list[Solution]) -> None:
        super()._keep(solutions)
        powers = {"loss": 2, "gap": 2, "held": 2, "gradient": 1}
        for record in self.history_:
            for name in powers.keys() & record.keys():
                if record[name] is not None:
                    record[name] *= self.delta_ ** powers[name]

    def _penalty_in(self, unit: float) -> dict[str, Any]:
        """Return the arguments of a fit whose coefficients are in units of `unit`."""
        problem = FitArguments(
            alpha=self.alpha, l1_ratio=self.l1_ratio, bounds=self.bounds
        ).problem()
        l1 = problem["l1"] / unit
        l2 = problem["l2"]
        bounds = tuple(
            np.asarray(problem[end]) / unit if end in problem else None
            for end in ("lower", "upper")
        )
        ratio = l1 / (l1 + l2) if l1 else 0.0
        return {"alpha": l1 + l2, "l1_ratio": ratio, "bounds": bounds}


def _in(unit: float, rows: FitRows) -> FitRows:
    """Return `rows` with targets divided by `unit`; if it is 1, y may be in a file."""
    return rows if unit == 1.0 else replace(rows, y=np.asarray(rows.y) / unit)


# Regressors with a log link: counts, amounts, and their rates.


class RateRegressor(Regressor):
    """Base class of regressors with a log link, which take offsets and exposures."""

    @documented
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> Self:
        """Fit the model. Collective.

        All ranks of `comm` must call it.

        Returns
        -------
        self : object
            The fitted estimator, the same on all ranks.
        """
        rows = FitRows(X, y, sample_weight, offset, exposure)
        self._fit(rows, opened(comm, layout, grid))
        return self

    @documented
    def partial_fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> Self:
        """Run one epoch of CA-SGD from the current coefficients. Collective.

        All ranks of `comm` must call it.

        Returns
        -------
        self : object
            The fitted estimator, the same on all ranks.
        """
        rows = FitRows(X, y, sample_weight, offset, exposure)
        self._partial_fit(rows, opened(comm, layout, grid))
        return self

    @documented
    def predict(self, X: Any, offset: Any = None, exposure: Any = None) -> Array:
        """Return the predicted mean of the target of each row.

        Returns
        -------
        ndarray of shape (n,)
            Rates; with an exposure, the expected total of each row.
        """
        X, total = self._rows(X, offset, exposure)
        return self._formula().means(X, total)

    @documented
    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
    ) -> float:
        """Return D², the part of the deviance that the columns explain.

        Returns
        -------
        float
            1 − Σc dev(y, μ)/Σc dev(y, μ₀), with μ₀ the best model without columns.
        """
        return self._explained(X, y, sample_weight, offset, exposure)


@documented
class PoissonRegressor(RateRegressor):
    """Regression of counts, or of rates of counts, with a log link.

    It minimises, with t_i = a_i·w + β + offset_i + log(exposure_i) ::

        F(w, β) = (1/Σc) Σ c_i (exp(t_i) − y_i t_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Coefficients.

    Notes
    -----
    Up to a constant the loss is half the Poisson deviance. scikit-learn's class of this
    name has the same minimiser at the same alpha. With an exposure e_i, y_i are counts
    and the model is one of rates: y_i/e_i with sample_weight e_i gives the same fit at
    alpha n/Σe.

    Examples
    --------
    >>> from hpcsgd import PoissonRegressor
    >>> X, claims, years = [[0.0], [1.0], [2.0]], [1, 2, 9], [1.0, 0.5, 1.0]
    >>> model = PoissonRegressor().fit(X, claims, exposure=years)
    >>> model.predict(X).shape  # claims a year
    (3,)
    """

    family = "poisson"


@documented
class GammaRegressor(RateRegressor):
    """Regression of positive amounts with a log link.

    It minimises, with t_i = a_i·w + β + offset_i + log(exposure_i) ::

        F(w, β) = (1/Σc) Σ c_i (y_i exp(−t_i) + t_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Coefficients.

    Notes
    -----
    Up to a constant the loss is half the gamma deviance. scikit-learn's class of this
    name has the same minimiser at the same alpha.

    Examples
    --------
    >>> from hpcsgd import GammaRegressor
    >>> GammaRegressor().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 5.0]).coef_.shape
    (1,)
    """

    family = "gamma"


@documented
class TweedieRegressor(RateRegressor):
    """Regression of amounts of which many are 0, with a log link.

    It minimises, with t_i = a_i·w + β + offset_i + log(exposure_i) and p = `power` ::

        F(w, β) = (1/Σc) Σ c_i (exp((2 − p) t_i)/(2 − p) + y_i exp((1 − p) t_i)/(p − 1))
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    The targets are at least 0, and their variance grows as μᵖ.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Coefficients.

    Notes
    -----
    Up to a constant the loss is half the Tweedie deviance. scikit-learn's class of this
    name has the same minimiser at the same power and alpha. Its powers 0, 1, 2 are
    `Ridge`, `PoissonRegressor` and `GammaRegressor`.

    Examples
    --------
    >>> from hpcsgd import TweedieRegressor
    >>> X, losses = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.5, 0.0, 6.0]
    >>> TweedieRegressor(power=1.7).fit(X, losses).coef_.shape
    (1,)
    """

    family = "tweedie"
    power: float

    def __init__(
        self,
        *,
        power: float = 1.5,
        alpha: float = 1e-4,
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
        bounds: Any = None,
        max_iter: int | None = None,
        tol: float = 1e-9,
        batch: int | None = None,
        steps: int | str = "auto",
        rate: float | str = "auto",
        solver: str = "auto",
        average: str = "auto",
        polish: bool | str = "auto",
        hold_out: float = 0.0,
        patience: int = 5,
        precision: str | None = None,
        device: str = "cpu",
        warm_start: bool = False,
        random_state: Any = 0,
        callbacks: Any = None,
        verbose: int = 0,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._set_parameters(locals())

    def _settings(self) -> Mapping[str, Mapping[str, Any]] | None:
        return overlay_tables({"problem": {"power": self.power}}, self.config)


@documented
class NegativeBinomialRegressor(RateRegressor):
    """Regression of counts that vary more than Poisson's, with a log link.

    It minimises, with t_i = a_i·w + β + offset_i + log(exposure_i) and δ =
    `dispersion` ::

        F(w, β) = (1/Σc) Σ c_i ((y_i + 1/δ) log(1 + δ exp(t_i)) − y_i t_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    The variance of a count is μ + δ μ². `alpha` is the penalty.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Coefficients.

    Notes
    -----
    Up to a constant the loss is half the deviance. `PoissonRegressor` is the limit of a
    small dispersion, which this class takes as it is given and does not estimate.

    Examples
    --------
    >>> from hpcsgd import NegativeBinomialRegressor
    >>> X, visits = [[0.0], [1.0], [2.0], [3.0]], [0, 4, 1, 12]
    >>> NegativeBinomialRegressor(dispersion=0.5).fit(X, visits).coef_.shape
    (1,)
    """

    family = "negative-binomial"
    dispersion: float

    def __init__(
        self,
        *,
        dispersion: float = 1.0,
        alpha: float = 1e-4,
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
        bounds: Any = None,
        max_iter: int | None = None,
        tol: float = 1e-9,
        batch: int | None = None,
        steps: int | str = "auto",
        rate: float | str = "auto",
        solver: str = "auto",
        average: str = "auto",
        polish: bool | str = "auto",
        hold_out: float = 0.0,
        patience: int = 5,
        precision: str | None = None,
        device: str = "cpu",
        warm_start: bool = False,
        random_state: Any = 0,
        callbacks: Any = None,
        verbose: int = 0,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._set_parameters(locals())

    def _settings(self) -> Mapping[str, Mapping[str, Any]] | None:
        return overlay_tables({"problem": {"dispersion": self.dispersion}}, self.config)

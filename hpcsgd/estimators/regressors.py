"""Regressors for scikit-learn."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy
from sklearn.base import RegressorMixin

from hpcsgd.errors import ConfigError
from hpcsgd.estimators.base import FitRanks, FitRows, Learner, Solution, check_targets

# The part of the deviance that a regressor explains, for models with offsets too.
#
#     D² = 1 − Σ c dev(y, μ) / Σ c dev(y, μ₀)
#
# μ₀ is the best model without columns: an intercept, and the same offsets. Without
# offsets this is scikit-learn's score: R² for squared errors, D² for the others.

Array = NDArray[Any]


def explained(
    family: str, y: Array, mean: Array, weights: Array | None, offset: Array | None
) -> float:
    """D² of `mean` (n,)."""
    weights = np.ones(len(y)) if weights is None else weights
    null = _null_mean(family, y, weights, offset)
    left = float(weights @ _deviance(family, y, mean))
    whole = float(weights @ _deviance(family, y, null))
    if whole == 0.0:  # nothing to explain: scikit-learn's convention
        return 1.0 if left == 0.0 else 0.0
    return 1.0 - left / whole


def _deviance(family: str, y: Array, mean: Array) -> Array:
    if family == "poisson":
        return np.asarray(2.0 * (xlogy(y, y / mean) - y + mean))
    if family == "gamma":
        return np.asarray(2.0 * (np.log(mean / y) + y / mean - 1.0))
    return np.asarray(np.square(y - mean))


def _null_mean(family: str, y: Array, c: Array, offset: Array | None) -> Array:
    """The best mean that knows the offsets alone."""
    offset = np.zeros(len(y)) if offset is None else offset
    if family == "poisson":
        exposure = np.exp(offset)
        return np.asarray(exposure * (c @ y) / (c @ exposure))
    if family == "gamma":
        exposure = np.exp(offset)
        return np.asarray(exposure * (c @ (y / exposure)) / c.sum())
    return np.asarray(offset + (c @ (y - offset)) / c.sum())


# What regressors have in common: `fit`, `predict` and `score`.


class Regressor(RegressorMixin, Learner):  # type: ignore[misc]
    """What regressors have in common."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> "Regressor":
        """Fit the model.

        Parameters
        ----------
        X : array, frame, CSR or array of a GPU, (n, d); or the path of a file, y too
        y : (n,), targets
        sample_weight : (n,), c_i >= 0
        comm : communicator of mpi4py, or one of this package; all its ranks call `fit`
        layout : what each rank gives: "replicated", "rows", "columns" or "hdf5"
        grid : (replicas, members) of the ranks

        Returns
        -------
        the estimator itself, the same on all ranks
        """
        self._fit(X, y, sample_weight, where=(comm, layout, grid))
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> "Regressor":
        """One epoch of CA-SGD over these rows, from where the model stands."""
        self._partial_fit(X, y, sample_weight, where=(comm, layout, grid))
        return self

    def predict(self, X: Any) -> Array:
        """Means of the rows, (n,)."""
        X, _ = self._rows(X)
        return self._formula().means(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the predictions."""
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
        return explained(self.family, y, mean, weights, total)


# Regressors of squared errors: least squares, ridge, and Huber for outliers.


class LinearRegression(Regressor):
    """Least squares, without a penalty.

    Minimises F(w, β) = (1/Σc) Σ c_i (a_i·w + β − y_i)² / 2, as scikit-learn's class of
    this name does. Where columns depend on each other, many w are as good; this one is
    reached from zero.

    Attributes
    ----------
    coef_ : ndarray, (d,)
    intercept_ : float
    n_iter_ : int, passes over the data
    history_ : list of records, one a pass: loss, gradient, gap ...
    result_ : `hpcsgd.Result`, the run itself
    n_features_in_, feature_names_in_ : as scikit-learn has them

    Examples
    --------
    >>> import numpy as np
    >>> from hpcsgd import LinearRegression
    >>> model = LinearRegression().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> bool(np.isclose(model.coef_[0], 2.0))
    True
    """

    family = "gaussian"

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
        super().__init__(
            alpha=0.0,
            l1_ratio=0.0,
            fit_intercept=fit_intercept,
            bounds=bounds,
            max_iter=max_iter,
            tol=tol,
            batch=batch,
            steps=steps,
            rate=rate,
            solver=solver,
            average=average,
            polish=polish,
            hold_out=hold_out,
            patience=patience,
            precision=precision,
            device=device,
            warm_start=warm_start,
            random_state=random_state,
            callbacks=callbacks,
            verbose=verbose,
            config=config,
        )


class Ridge(Regressor):
    """Least squares with a penalty: ridge, lasso (l1_ratio=1) and elastic net.

    Minimises F(w, β) = (1/Σc) Σ c_i (a_i·w + β − y_i)² / 2
                        + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²).
    scikit-learn's Ridge has the same minimiser at alpha·Σc (Σc = n without weights),
    its ElasticNet at the same alpha and l1_ratio.

    Attributes
    ----------
    coef_ : ndarray, (d,)
    intercept_ : float
    n_iter_, history_, result_, n_features_in_, feature_names_in_ : as LinearRegression

    Examples
    --------
    >>> from hpcsgd import Ridge
    >>> Ridge(alpha=0.1).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).coef_.shape
    (1,)
    """

    family = "gaussian"


class HuberRegressor(Regressor):
    """Regression that outliers pull linearly, not quadratically.

    Minimises F(w, β) = (1/Σc) Σ c_i h(a_i·w + β − y_i)
                        + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)
    with h(e) = e²/2 for |e| ≤ delta, else delta (|e| − delta/2). scikit-learn's class
    of this name also estimates a scale σ (`scale_`); at delta = epsilon·σ and
    alpha_sklearn = alpha·Σc/σ the minimisers are the same.

    Parameters
    ----------
    delta : residuals beyond it count linearly; in the units of y

    Attributes
    ----------
    coef_ : ndarray, (d,)
    intercept_ : float
    result_ : `hpcsgd.Result`, the run itself, in units of delta
    n_iter_, history_, n_features_in_, feature_names_in_ : as LinearRegression

    Examples
    --------
    >>> from hpcsgd import HuberRegressor
    >>> model = HuberRegressor(delta=0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 90.0])
    >>> model.predict([[1.0]]).shape
    (1,)
    """

    family = "huber"

    def __init__(
        self,
        *,
        delta: float = 1.35,
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
        super().__init__(
            alpha=alpha,
            l1_ratio=l1_ratio,
            fit_intercept=fit_intercept,
            bounds=bounds,
            max_iter=max_iter,
            tol=tol,
            batch=batch,
            steps=steps,
            rate=rate,
            solver=solver,
            average=average,
            polish=polish,
            hold_out=hold_out,
            patience=patience,
            precision=precision,
            device=device,
            warm_start=warm_start,
            random_state=random_state,
            callbacks=callbacks,
            verbose=verbose,
            config=config,
        )
        self.delta = delta

    def _solve(
        self,
        given: FitRows,
        family: str,
        place: FitRanks,
        start: Any = None,
        **changed: Any,
    ) -> Solution:
        """The family's delta is 1: targets and coefficients in units of ours.

        F is delta² times what it is in these units; the ridge is the same part of it,
        l1 is not.
        """
        unit = self._unit()
        if start is not None:
            start = tuple(part / unit for part in start)
        inner = {**self._penalty_in(unit), **changed}
        found = super()._solve(_in(unit, given), family, place, start, **inner)
        return replace(
            found, weights=found.weights * unit, intercept=found.intercept * unit
        )

    def _keep(self, found: list[Solution]) -> None:
        super()._keep(found)
        powers = {"loss": 2, "gap": 2, "held": 2, "gradient": 1}
        for record in self.history_:
            for name in powers.keys() & record.keys():
                if record[name] is not None:
                    record[name] *= self._unit() ** powers[name]

    def _unit(self) -> float:
        if not 0.0 < self.delta < float("inf"):
            raise ConfigError(
                f"delta = {self.delta!r} must be positive and finite; 1.35 times the"
                " usual size of a residual is usual"
            )
        return float(self.delta)

    def _penalty_in(self, unit: float) -> dict[str, Any]:
        """The arguments of `fit` that depend on the unit of coefficients."""
        l1, l2 = self.alpha * self.l1_ratio / unit, self.alpha * (1 - self.l1_ratio)
        bounds = self.bounds
        if bounds is not None:
            bounds = tuple(np.asarray(bound) / unit for bound in bounds)
        ratio = l1 / (l1 + l2) if l1 else 0.0
        return {"alpha": l1 + l2, "l1_ratio": ratio, "bounds": bounds}


def _in(unit: float, given: FitRows) -> FitRows:
    """Targets and offsets in a unit; those of a file stay as they are."""
    if unit == 1.0:
        return given
    if given.y is None:
        raise ConfigError(
            "a delta other than 1 needs y in memory; set delta=1 and scale y in the"
            " file, or read it"
        )
    offset = None if given.offset is None else given.offset / unit
    return replace(given, y=np.asarray(given.y) / unit, offset=offset)


# Regressors with a log link: counts, amounts, and their rates.


class RateRegressor(Regressor):
    """Regressors with a log link: with offsets, and exposures to multiply rates."""

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
    ) -> "RateRegressor":
        """Fit the model.

        Parameters
        ----------
        X : array, frame, CSR or array of a GPU, (n, d); or the path of a file, y too
        y : (n,), targets: what was counted or measured in the whole exposure
        sample_weight : (n,), c_i >= 0
        offset : (n,), added to every score
        exposure : (n,), above 0: how long, how many or how much each row stands for;
            the same as an offset of log(exposure)
        comm : communicator of mpi4py, or one of this package; all its ranks call `fit`
        layout : what each rank gives: "replicated", "rows", "columns" or "hdf5"
        grid : (replicas, members) of the ranks

        Returns
        -------
        the estimator itself, the same on all ranks
        """
        given = X, y, sample_weight, offset, exposure
        self._fit(*given, where=(comm, layout, grid))
        return self

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
    ) -> "RateRegressor":
        """One epoch of CA-SGD over these rows, from where the model stands."""
        given = X, y, sample_weight, offset, exposure
        self._partial_fit(*given, where=(comm, layout, grid))
        return self

    def predict(self, X: Any, offset: Any = None, exposure: Any = None) -> Array:
        """Means of the rows, (n,): rates, or what is expected of each exposure."""
        X, total = self._rows(X, offset, exposure)
        return self._formula().means(X, total)

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
    ) -> float:
        """D²: the part of the deviance that the columns explain."""
        return self._explained(X, y, sample_weight, offset, exposure)


class PoissonRegressor(RateRegressor):
    """Counts, or rates of counts, with a log link.

    Minimises, with t_i = a_i·w + β + offset_i + log(exposure_i),

        F(w, β) = (1/Σc) Σ c_i (exp(t_i) − y_i t_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    which is half the Poisson deviance but for a constant: scikit-learn's class of this
    name has the same minimiser at the same alpha. With an exposure e_i, y_i are counts
    and the model is of their rate; y_i/e_i with sample_weight e_i is the same fit.

    Attributes
    ----------
    coef_ : ndarray, (d,)
    intercept_ : float
    n_iter_, history_, result_, n_features_in_, feature_names_in_ : as LinearRegression

    Examples
    --------
    >>> from hpcsgd import PoissonRegressor
    >>> X, claims, years = [[0.0], [1.0], [2.0]], [1, 2, 9], [1.0, 0.5, 1.0]
    >>> model = PoissonRegressor().fit(X, claims, exposure=years)
    >>> model.predict(X).shape  # claims a year
    (3,)
    """

    family = "poisson"


class GammaRegressor(RateRegressor):
    """Positive amounts with a log link.

    Minimises, with t_i = a_i·w + β + offset_i + log(exposure_i),

        F(w, β) = (1/Σc) Σ c_i (y_i exp(−t_i) + t_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    which is half the gamma deviance but for a constant: scikit-learn's class of this
    name has the same minimiser at the same alpha.

    Attributes
    ----------
    coef_ : ndarray, (d,)
    intercept_ : float
    n_iter_, history_, result_, n_features_in_, feature_names_in_ : as LinearRegression

    Examples
    --------
    >>> from hpcsgd import GammaRegressor
    >>> GammaRegressor().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 5.0]).coef_.shape
    (1,)
    """

    family = "gamma"

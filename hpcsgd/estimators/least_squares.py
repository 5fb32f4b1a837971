"""Regressors of squared errors: least squares, ridge, and Huber for outliers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError
from hpcsgd.estimators.base import Solution
from hpcsgd.estimators.given import Given, Place
from hpcsgd.estimators.regressor import Regressor

Array = NDArray[Any]


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
        given: Given,
        family: str,
        place: Place,
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


def _in(unit: float, given: Given) -> Given:
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

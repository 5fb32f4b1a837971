"""Regressors with a log link: counts, amounts, and their rates."""

from typing import Any

from numpy.typing import NDArray

from hpcsgd.estimators.regressor import Regressor

Array = NDArray[Any]


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

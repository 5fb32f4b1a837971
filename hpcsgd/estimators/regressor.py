"""What regressors have in common: `fit`, `predict` and `score`."""

from typing import Any

from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from hpcsgd.estimators.given import check_targets
from hpcsgd.estimators.learning import Learner
from hpcsgd.estimators.scores import explained

Array = NDArray[Any]


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

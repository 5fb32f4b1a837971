"""A saved model where there is no scikit-learn: it predicts all the same."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.frames import to_matrix
from hpcsgd.data.prepared import check_names
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators.formula import LOG_LINK, PROBABLE, Formula, total_offset
from hpcsgd.result import Result

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Predictor:
    """What `hpcsgd.load` gives without scikit-learn: predictions, and what is known.

    Attributes
    ----------
    name : class of the estimator that was saved
    parameters : its parameters
    coef_, intercept_, classes_ : as the estimator has them
    feature_names_in_ : names of the columns, or None
    result_ : `Result` of the run, or a list of them
    attributes : everything else that the fit had left
    """

    name: str
    formula: Formula
    parameters: dict[str, Any]
    feature_names_in_: Array | None = None
    result_: Result | list[Result] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def coef_(self) -> Array:
        """Coefficients, (d,) or (K, d)."""
        return self.formula.coef

    @property
    def intercept_(self) -> Any:
        """Intercept, a number or (K,)."""
        return self.formula.intercept

    @property
    def classes_(self) -> Array | None:
        """Labels in ascending order, of a classifier."""
        return self.formula.classes

    def predict(self, X: Any, offset: Any = None, exposure: Any = None) -> Array:
        """Means of the rows, or their likeliest classes, (n,)."""
        X, total = self._rows(X, offset, exposure)
        if self.formula.classes is None:
            return self.formula.means(X, total)
        return self.formula.labels(X, total)

    def decision_function(self, X: Any, offset: Any = None) -> Array:
        """Scores of a classifier: (n,) of the second of two classes, else (n, K)."""
        self._need(self.formula.classes is not None, "decision function")
        return self.formula.decision(*self._rows(X, offset))

    def predict_proba(self, X: Any, offset: Any = None) -> Array:
        """Probabilities, a column for each class."""
        self._need(self.formula.family in PROBABLE, "probabilities")
        return self.formula.probabilities(*self._rows(X, offset))

    def predict_log_proba(self, X: Any, offset: Any = None) -> Array:
        """Their logarithms."""
        self._need(self.formula.family in PROBABLE, "probabilities")
        return self.formula.log_probabilities(*self._rows(X, offset))

    def _rows(
        self, X: Any, offset: Any = None, exposure: Any = None
    ) -> tuple[Any, Array | None]:
        if exposure is not None:
            self._need(self.formula.family in LOG_LINK, "exposure")
        matrix = to_matrix(X)
        X, known = matrix.X, self.feature_names_in_
        wanted = None if known is None else known.tolist()
        check_names(wanted, matrix.names, "give them in the order of feature_names_in_")
        if X is None or X.ndim != 2:
            raise DataError(f"X has shape {np.shape(X)}; give rows and columns, (n, d)")
        return X, total_offset(offset, exposure, X.shape[0])

    def _need(self, is_there: bool, what: str) -> None:
        if not is_there:
            raise ConfigError(f"a {self.formula.family} model has no {what}; predict")

"""What generic estimators have in common: they are what their family is."""

from typing import Any

from numpy.typing import NDArray
from sklearn.metrics import accuracy_score
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if

from hpcsgd.errors import ConfigError
from hpcsgd.estimators.formula import LOG_LINK, PROBABLE
from hpcsgd.estimators.given import check_targets
from hpcsgd.estimators.learning import Learner
from hpcsgd.estimators.scores import explained
from hpcsgd.families import get_family

Array = NDArray[Any]


def _labels(model: "Generic") -> bool:
    return model._labelled


def _probabilities(model: "Generic") -> bool:
    return model.family in PROBABLE


class Generic(Learner):
    """A classifier or a regressor, as its family is."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self._labelled:
            tags.estimator_type = "classifier"
            tags.classifier_tags = ClassifierTags(multi_class=self.family == "softmax")
        else:
            tags.estimator_type = "regressor"
            tags.regressor_tags = RegressorTags()
        return tags

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
    ) -> "Generic":
        """Fit the model.

        Parameters
        ----------
        X : array, frame, CSR or array of a GPU, (n, d); or the path of a file, y too
        y : (n,), targets: numbers, or labels of any kind
        sample_weight : (n,), c_i >= 0
        offset : (n,), added to every score; softmax has no use for one
        exposure : (n,), above 0, of poisson and gamma: an offset of log(exposure)
        comm : communicator of mpi4py, or one of this package; all its ranks call `fit`
        layout : what each rank gives: "replicated", "rows", "columns" or "hdf5"
        grid : (replicas, members) of the ranks

        Returns
        -------
        the estimator itself, the same on all ranks
        """
        self._check_family(offset, exposure)
        given = X, y, sample_weight, offset, exposure
        self._fit(*given, where=(comm, layout, grid))
        return self

    def predict(self, X: Any, offset: Any = None, exposure: Any = None) -> Array:
        """Means of the rows, or their likeliest classes, (n,)."""
        self._check_family(offset, exposure)
        X, total = self._rows(X, offset, exposure)
        formula = self._formula()
        return formula.labels(X, total) if self._labelled else formula.means(X, total)

    @available_if(_labels)  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any, offset: Any = None) -> Array:
        """Scores of a classifier: (n,) of the second of two classes, else (n, K)."""
        X, total = self._rows(X, offset)
        return self._formula().decision(X, total)

    @available_if(_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, offset: Any = None) -> Array:
        """Probabilities, a column for each class."""
        X, total = self._rows(X, offset)
        return self._formula().probabilities(X, total)

    @available_if(_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any, offset: Any = None) -> Array:
        """Their logarithms."""
        X, total = self._rows(X, offset)
        return self._formula().log_probabilities(X, total)

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
    ) -> float:
        """Accuracy of a classifier, D² of a regressor: R² but for log links."""
        if self._labelled:
            found = self.predict(X, offset)
            return float(accuracy_score(y, found, sample_weight=sample_weight))
        self._check_family(offset, exposure)
        X, total = self._rows(X, offset, exposure)
        y, weights = check_targets(y, sample_weight, X)
        mean = self._formula().means(X, total)
        return explained(self.family, y, mean, weights, total)

    def _check_family(self, offset: Any, exposure: Any) -> None:
        get_family(self.family)
        if exposure is not None and self.family not in LOG_LINK:
            raise ConfigError(
                f"exposure needs a log link and {self.family} has another; give offset,"
                f" or choose one of {', '.join(LOG_LINK)}"
            )
        if offset is not None and self.family == "softmax":
            raise ConfigError(
                "one offset a row adds the same to every class of softmax; leave it out"
            )

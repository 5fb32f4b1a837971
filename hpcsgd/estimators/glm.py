"""`GLM`: any family as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from sklearn.metrics import accuracy_score
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if

from hpcsgd.errors import ConfigError
from hpcsgd.estimators.base import Learner, check_targets, opened
from hpcsgd.estimators.fit import documented
from hpcsgd.estimators.inputs import FitRows
from hpcsgd.estimators.regressors import explained
from hpcsgd.estimators.saved import LOG_LINK, PROBABLE
from hpcsgd.formats import Array
from hpcsgd.glm import get_family

# The base of generic estimators: regressors or classifiers, depending on the family.


def _labels(model: Generic) -> bool:
    return model._labelled


def _probabilities(model: Generic) -> bool:
    return model.family in PROBABLE


class Generic(Learner):
    """Base class of estimators whose family makes them classifiers or regressors."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self._labelled:
            tags.estimator_type = "classifier"
            tags.classifier_tags = ClassifierTags(multi_class=self.family == "softmax")
        else:
            tags.estimator_type = "regressor"
            tags.regressor_tags = RegressorTags()
        return tags

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
        self._check_family(offset, exposure)
        rows = FitRows(X, y, sample_weight, offset, exposure)
        self._fit(rows, opened(comm, layout, grid))
        return self

    @documented
    def predict(self, X: Any, offset: Any = None, exposure: Any = None) -> Array:
        """Return the predicted class of each row, or the mean of a regressor's target.

        Returns
        -------
        ndarray of shape (n,)
        """
        self._check_family(offset, exposure)
        X, total = self._rows(X, offset, exposure)
        formula = self._formula()
        return formula.labels(X, total) if self._labelled else formula.means(X, total)

    @available_if(_labels)  # type: ignore[untyped-decorator]
    @documented
    def decision_function(self, X: Any, offset: Any = None) -> Array:
        """Return the scores of the rows.

        Returns
        -------
        ndarray of shape (n,) or (n, K)
            Of two classes the score of the second one.
        """
        X, total = self._rows(X, offset)
        return self._formula().decision(X, total)

    @available_if(_probabilities)  # type: ignore[untyped-decorator]
    @documented
    def predict_proba(self, X: Any, offset: Any = None) -> Array:
        """Return the probability of every class.

        Returns
        -------
        ndarray of shape (n, K)
            A column for each class, in the order of `classes_`.
        """
        X, total = self._rows(X, offset)
        return self._formula().probabilities(X, total)

    @available_if(_probabilities)  # type: ignore[untyped-decorator]
    @documented
    def predict_log_proba(self, X: Any, offset: Any = None) -> Array:
        """Return the logarithms of the probabilities.

        Returns
        -------
        ndarray of shape (n, K)
            Finite where a probability is too small for a float.
        """
        X, total = self._rows(X, offset)
        return self._formula().log_probabilities(X, total)

    @documented
    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
    ) -> float:
        """Return the accuracy of a classifier, or D² of a regressor.

        Returns
        -------
        float
            D² is the share of the deviance that the columns explain; for gaussian and
            huber it is R².
        """
        if self._labelled:
            labels = self.predict(X, offset)
            return float(accuracy_score(y, labels, sample_weight=sample_weight))
        self._check_family(offset, exposure)
        X, total = self._rows(X, offset, exposure)
        y, weights = check_targets(y, sample_weight, X)
        mean = self._formula().means(X, total)
        return explained(self._loss(), y, mean, weights, total)

    def _check_family(self, offset: Any, exposure: Any) -> None:
        get_family(self.family)
        if exposure is not None and self.family not in LOG_LINK:
            raise ConfigError(
                f"exposure needs a log link and the family {self.family} has another"
                f" link; leave it out, or choose one of {', '.join(LOG_LINK)}"
            )
        if offset is not None and self.family == "softmax":
            raise ConfigError(
                "offset cannot be used with family softmax, because it adds the same to"
                " the scores of all classes; leave it out"
            )


# The generic estimator: any family by its name.


@documented
class GLM(Generic):
    """Generalized linear model of any family.

    It minimises, with t_i = a_i·w + β + offset_i + log(exposure_i) ::

        F(w, β) = (1/Σc) Σ c_i ℓ(t_i, y_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    =================  ===========  ================================================
    family             y            ℓ(t, y)
    =================  ===========  ================================================
    gaussian           numbers      (t − y)²/2
    huber              numbers      e²/2 if abs(e) ≤ 1, else abs(e) − 1/2; e = t − y
    poisson            counts ≥ 0   eᵗ − y t
    gamma              numbers > 0  y e⁻ᵗ + t
    tweedie            numbers ≥ 0  e^{(2−p)t}/(2−p) + y e^{−(p−1)t}/(p−1)
    negative-binomial  counts ≥ 0   (y + 1/α) log(1 + α eᵗ) − y t
    binomial           0 ≤ y ≤ 1    log(1 + eᵗ) − y t, sample_weight trials
    logistic           two classes  log(1 + eᵗ) − y t
    probit             two classes  −log Φ(±t)
    squared-hinge      two classes  max(0, 1 ∓ t)²/2
    softmax            K classes    log Σ_k e^{t_k} − t_y
    =================  ===========  ================================================

    p = 1.5 and α = 1 unless `config` has {"problem": {"power": p}} for tweedie, or
    {"problem": {"dispersion": α}} for negative-binomial.

    The family makes it a classifier or a regressor. Methods, tags and shapes of the
    attributes are those of scikit-learn's classifiers or regressors.

    Attributes
    ----------
    coef_ : ndarray of shape (d,), (1, d) or (K, d)
        Coefficients: of a regressor, of two classes, of softmax.
    intercept_ : float, or ndarray of shape (1,) or (K,)
        Intercept of the same; 0.0 without one.
    classes_ : ndarray of shape (K,)
        Labels in ascending order, of a classifier.

    See Also
    --------
    hpcsgd.glm.register : Add a family of your own.

    Examples
    --------
    >>> from hpcsgd import GLM
    >>> X, y = [[0.0], [1.0], [2.0]], ["no", "no", "yes"]
    >>> GLM(family="probit").fit(X, y).predict(X).tolist()
    ['no', 'no', 'yes']
    """

    def __init__(
        self,
        *,
        family: str = "gaussian",
        alpha: float = 1e-4,
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
        class_weight: Any = None,
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
    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
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
        self._check_family(offset, exposure)
        rows = FitRows(X, y, sample_weight, offset, exposure)
        self._partial_fit(rows, opened(comm, layout, grid), classes)
        return self

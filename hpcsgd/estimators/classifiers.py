"""Classifiers: logistic regression and support vector machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin

from hpcsgd.estimators.base import Learner, opened
from hpcsgd.estimators.fit import documented
from hpcsgd.estimators.inputs import FitRows
from hpcsgd.formats import Array


class Classifier(ClassifierMixin, Learner):  # type: ignore[misc]
    """Base class of classifiers: parameters, fits, scores and labels."""

    def __init__(
        self,
        *,
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
        classes: Any = None,
        sample_weight: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> Self:
        """Run one epoch of s-step SGD from the current coefficients. Collective.

        All ranks of `comm` must call it.

        Returns
        -------
        self : object
            The fitted estimator, the same on all ranks.
        """
        rows = FitRows(X, y, sample_weight)
        self._partial_fit(rows, opened(comm, layout, grid), classes)
        return self

    @documented
    def decision_function(self, X: Any) -> Array:
        """Return the scores of the rows.

        Returns
        -------
        ndarray of shape (n,) or (n, K)
            Of two classes the score of the second one.
        """
        X, _ = self._rows(X)
        return self._formula().decision(X)

    @documented
    def predict(self, X: Any) -> Array:
        """Return the predicted class of each row, by the largest score.

        Returns
        -------
        ndarray of shape (n,)
        """
        X, _ = self._rows(X)
        return self._formula().labels(X)


@documented
class LogisticRegression(Classifier):
    """Logistic regression of two classes, multinomial of more.

    It minimises, with c_i the sample weight times the weight of the class of row i ::

        F(w, β) = (1/Σc) Σ c_i ℓ(a_i·w + β, y_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    The loss depends on the score t = a_i·w + β. For two classes ℓ = log(1 + eᵗ) − y t,
    with y = 1 for the second class. For K classes ℓ = log Σ_k e^{t_k} − t_y.

    Attributes
    ----------
    coef_ : ndarray of shape (1, d) or (K, d)
        Coefficients; one row for two classes.
    intercept_ : ndarray of shape (1,) or (K,)
        Intercepts; 0.0 without one.
    classes_ : ndarray of shape (K,)
        Labels in ascending order.
    n_iter_ : ndarray of shape (1,)
        Passes over the data.

    Notes
    -----
    scikit-learn's class of this name has the same minimiser at C = 1/(alpha Σc), where
    Σc = n without weights.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from hpcsgd import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> LogisticRegression().fit(X, y).coef_.shape
    (3, 4)
    """

    family = "logistic"
    more_classes = "softmax"

    @documented
    def predict_proba(self, X: Any) -> Array:
        """Return the probability of every class.

        Returns
        -------
        ndarray of shape (n, K)
            A column for each class, in the order of `classes_`.
        """
        X, _ = self._rows(X)
        return self._formula().probabilities(X)

    @documented
    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of the probabilities.

        Returns
        -------
        ndarray of shape (n, K)
            Finite where a probability is too small for a float.
        """
        X, _ = self._rows(X)
        return self._formula().log_probabilities(X)

    def _count(self, passes: int) -> Array:
        return np.array([passes])


@documented
class LinearSVC(Classifier):
    """Support vector machine with squared hinge loss.

    It minimises for each class, with y_i = 1 in the class and −1 outside ::

        F(w, β) = (1/Σc) Σ c_i max(0, 1 − y_i (a_i·w + β))² / 2
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    Two classes need one model. More classes need one model each, against all others.

    Attributes
    ----------
    coef_ : ndarray of shape (1, d) or (K, d)
        Coefficients; one row for two classes.
    intercept_ : ndarray of shape (1,) or (K,)
        Intercepts; 0.0 without one.
    classes_ : ndarray of shape (K,)
        Labels in ascending order.
    n_iter_ : int
        Passes over the data, of the longest run.
    history_ : list of dict
        One record for each evaluation. With more than two classes, `"class"` is the
        number of the class.
    result_ : hpcsgd.Result or list of hpcsgd.Result
        The run of the fit; a list with more than two classes.

    Notes
    -----
    scikit-learn's class of this name minimises ‖(w, β)‖²/2 + C Σ max(0, ...)². It has
    no factor 1/2 in the loss and penalises the intercept. The minimiser is the same at
    C = 1/(2 alpha Σc) with fit_intercept=False.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from hpcsgd import LinearSVC
    >>> X, y = load_iris(return_X_y=True)
    >>> LinearSVC().fit(X, y).decision_function(X).shape
    (150, 3)
    """

    family = "squared-hinge"
    _instead = {"C": "give alpha = 1/(2·C·n) for n rows"}
    more_classes = "one-vs-rest"

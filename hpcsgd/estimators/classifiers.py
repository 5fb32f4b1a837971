"""Classifiers: logistic regression and support vector machines."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin

from hpcsgd.estimators.base import Learner

Array = NDArray[Any]


class Classifier(ClassifierMixin, Learner):  # type: ignore[misc]
    """What classifiers have in common."""

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
        self.class_weight = class_weight

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> "Classifier":
        """Fit the model.

        Parameters
        ----------
        X : array, frame, CSR or array of a GPU, (n, d); or the path of a file, y too
        y : (n,), labels: numbers, strings or truth values
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
        classes: Any = None,
        sample_weight: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> "Classifier":
        """One epoch of CA-SGD over these rows, from where the model stands.

        `classes` are all labels there will ever be; needed at the first call only.
        """
        given = X, y, sample_weight
        self._partial_fit(*given, where=(comm, layout, grid), classes=classes)
        return self

    def decision_function(self, X: Any) -> Array:
        """Scores: (n,) of the second of two classes, else (n, K)."""
        X, _ = self._rows(X)
        return self._formula().decision(X)

    def predict(self, X: Any) -> Array:
        """The likeliest class of each row, (n,)."""
        X, _ = self._rows(X)
        return self._formula().labels(X)


class LogisticRegression(Classifier):
    """Logistic regression of two classes, multinomial of more.

    Minimises, with c_i the sample weight times the weight of the class of row i,

        F(w, β) = (1/Σc) Σ c_i ℓ(a_i·w + β, y_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    with ℓ = log(1 + eᵗ) − y t for two classes (y = 1 for the second) and
    ℓ = log Σ_k e^{t_k} − t_y for more. scikit-learn's class of this name has the same
    minimiser at C = 1/(alpha Σc), where Σc = n without weights.

    Attributes
    ----------
    coef_ : ndarray, (1, d) for two classes, else (K, d)
    intercept_ : ndarray, (1,) or (K,)
    classes_ : ndarray, (K,), labels in ascending order
    n_iter_ : ndarray, (1,), passes over the data
    history_ : list of records, one a pass: loss, gradient, gap ...
    result_ : `hpcsgd.Result`, the run itself
    n_features_in_, feature_names_in_ : as scikit-learn has them

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

    def predict_proba(self, X: Any) -> Array:
        """Probabilities, a column for each class."""
        X, _ = self._rows(X)
        return self._formula().probabilities(X)

    def predict_log_proba(self, X: Any) -> Array:
        """Their logarithms."""
        X, _ = self._rows(X)
        return self._formula().log_probabilities(X)

    def _count(self, passes: int) -> Array:
        return np.array([passes])


class LinearSVC(Classifier):
    """Support vector machine with squared hinge loss; one against the rest for more.

    Minimises for each class, with y_i = 1 in the class and −1 outside,

        F(w, β) = (1/Σc) Σ c_i max(0, 1 − y_i (a_i·w + β))² / 2
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    scikit-learn's class of this name minimises ‖(w, β)‖²/2 + C Σ max(0, ...)², without
    the half and with the intercept penalised: the same minimiser at
    C = 1/(2 alpha Σc) with fit_intercept=False.

    Attributes
    ----------
    coef_ : ndarray, (1, d) for two classes, else (K, d)
    intercept_ : ndarray, (1,) or (K,)
    classes_ : ndarray, (K,), labels in ascending order
    n_iter_ : int, passes over the data, of the longest run
    history_ : list of records; of more than two classes each with its "class"
    result_ : `hpcsgd.Result`, or a list of them where there are more than two classes
    n_features_in_, feature_names_in_ : as scikit-learn has them

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

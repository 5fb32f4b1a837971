"""Penalties by cross-validation: alphas × folds through one Gram, then the best."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators.folds import check_rows, count_folds, folds_of
from hpcsgd.estimators.generic import Generic
from hpcsgd.estimators.given import Given, Place
from hpcsgd.fitting.many import fit_many
from hpcsgd.fitting.wanted import Wanted
from hpcsgd.sweeps.outcome import Sweep

Array = NDArray[Any]


class GLM_CV(Generic):
    """A generalized linear model whose ridge penalty is chosen by cross-validation.

    All alphas × folds, and each alpha on all rows, are trained together by CA-SGD: they
    share the rows, ONE Gram and one message an exchange (`hpcsgd.sweep`). The alpha
    with the least mean loss ℓ on held-out rows is fitted on all rows, from where its
    model stands, to the minimum of

        F(w, β) = (1/Σc) Σ c_i ℓ(a_i·w + β + offset_i, y_i) + (alpha_/2) ‖w‖²

    with ℓ of the family as in `GLM`.

    Parameters
    ----------
    family : name of the family
    alphas : strengths of the ridge penalty to choose from
    cv : number of folds, to which rows are dealt by their number and `random_state`,
        the same on any ranks; or a splitter of scikit-learn, or (train, test) pairs,
        that hold every row out at most once
    class_weight : dict or "balanced", of families with classes
    others : as `GLM` has them

    Attributes
    ----------
    alpha_ : float, the one with the least mean loss on held-out rows
    cv_results_ : dict of arrays: `alphas` (A,), `held` (A, folds), the mean loss of
        each model on its held-out rows, and `mean_held` (A,)
    cv_ledger_ : dict, what all of them together sent, by purpose
    coef_, intercept_, classes_, n_iter_, history_, result_, n_features_in_,
        feature_names_in_ : of the fit on all rows, as `GLM` has them

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import StandardScaler
    >>> from hpcsgd import GLM_CV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = StandardScaler().fit_transform(X)
    >>> model = GLM_CV(family="logistic", alphas=(1e-4, 1e-2, 1.0)).fit(X, y)
    >>> model.alpha_
    0.01
    """

    def __init__(
        self,
        *,
        family: str = "gaussian",
        alphas: Sequence[float] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        cv: Any = 5,
        class_weight: Any = None,
        fit_intercept: bool = True,
        max_iter: int | None = None,
        tol: float = 1e-9,
        batch: int = 32,
        steps: int | str = "auto",
        rate: float | str = "auto",
        precision: str | None = None,
        random_state: Any = 0,
        callbacks: Any = None,
        verbose: int = 0,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            alpha=0.0,
            l1_ratio=0.0,
            fit_intercept=fit_intercept,
            bounds=None,
            max_iter=max_iter,
            tol=tol,
            batch=batch,
            steps=steps,
            rate=rate,
            solver="sgd",
            average="auto",
            polish="auto",
            hold_out=0.0,
            patience=5,
            precision=precision,
            device="cpu",
            warm_start=False,
            random_state=random_state,
            callbacks=callbacks,
            verbose=verbose,
            config=config,
        )
        self.family = family
        self.alphas = alphas
        self.cv = cv
        self.class_weight = class_weight

    def _learn(
        self, given: Given, place: Place, starts: list[Any] | None, **changed: Any
    ) -> None:
        task = self._label_tasks(given, place)[0] if self._labelled else given
        found, folds = self._compare(task, place)
        self._choose(found, folds)
        best = found.best
        weights, intercepts = found.weights[:, best], found.intercepts
        start = weights if intercepts is None else (weights, intercepts[best])
        self._keep([self._solve(task, self._family(), place, start, **changed)])
        self._name_columns(place)

    def _compare(self, task: Given, place: Place) -> tuple[Sweep, int]:
        """All models at once, and the number of folds."""
        folds, fold_of = place.together(lambda: count_folds(self.cv)), None
        if self._labelled:
            _check_classes(task, place)
        if folds is None:
            fold_of = folds_of(self.cv, task, place, self._labelled)
            folds = int(fold_of.max()) + 1
        elif task.y is not None:
            total = sum(place.of_rows(len(task.y)))
            check_rows(total, folds)
        sides = {"y": task.y, "sample_weight": task.weights, "offset": task.offset}
        found = fit_many(
            self._wanted(place),
            task.X,
            sides,
            alphas=self._alphas(),
            folds=folds,
            fold_of=fold_of,
            labels=task.labels,
            world=place.world,
            layout=place.layout,
        )
        return found, folds

    def _wanted(self, place: Place) -> Wanted:
        """The arguments of `fit` for all of them."""
        given = {**self._settings(), "alpha": 0.0}
        given |= {"family": self._family(), "seed": self._seed(place)}
        given |= {"update": "sgd", "momentum": 0.0, "grid": place.grid}
        known = {field.name for field in fields(Wanted)}
        return Wanted(**{name: given[name] for name in known})

    def _alphas(self) -> list[float]:
        alphas = [float(alpha) for alpha in np.atleast_1d(np.asarray(self.alphas))]
        if not alphas:
            raise ConfigError("alphas names none; give some, as (1e-4, 1e-2, 1)")
        return alphas

    def _choose(self, found: Sweep, folds: int) -> None:
        """The attributes of the comparison."""
        alphas = self._alphas()
        own = [m.fold is not None for m in found.models]
        held = found.held[own].reshape(len(alphas), folds)
        mean = held.mean(axis=1)
        self.alpha_ = found.models[found.best].l2
        self.cv_results_ = {"alphas": np.array(alphas), "held": held, "mean_held": mean}
        self.cv_ledger_ = found.ledger

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"alpha": getattr(self, "alpha_", 0.0)}


def _check_classes(task: Given, place: Place) -> None:
    """A class whose rows all weigh nothing cannot be compared."""
    if task.y is None:
        return
    seen = task.y if task.weights is None else task.y[task.weights > 0]
    if len(np.unique(np.concatenate(place.of_rows(np.unique(seen))))) < 2:
        raise DataError(
            "one class alone has rows with a weight above 0, so that there is nothing"
            " to validate; add rows of another"
        )

"""Penalties by cross-validation: alphas × folds through one Gram, then the best."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators.folds import Dealt, deal
from hpcsgd.estimators.generic import Generic
from hpcsgd.estimators.given import Given, Place
from hpcsgd.fitting.many import fit_many
from hpcsgd.fitting.wanted import Wanted
from hpcsgd.sweeps.outcome import Sweep

Array = NDArray[Any]
LOOSE = 1e-5  # tol of models that are only compared
SILENT = {"callbacks": None, "verbose": 0}


class GLM_CV(Generic):
    """A generalized linear model whose ridge penalty is chosen by cross-validation.

    All alphas × folds, and each alpha on all rows, are trained together by CA-SGD: they
    share the rows, ONE Gram and one message an exchange (`hpcsgd.sweep`). From there
    each goes on to its own minimum. The alpha with the least mean loss ℓ on held-out
    rows is fitted on all rows, from where its model stands, to the minimum of

        F(w, β) = (1/Σc) Σ c_i ℓ(a_i·w + β + offset_i, y_i) + (alpha_/2) ‖w‖²

    with ℓ of the family as in `GLM`.

    Parameters
    ----------
    family : name of the family
    alphas : strengths of the ridge penalty to choose from
    cv : number of folds, to which rows are dealt by their number and `random_state`,
        the same on any ranks; or a splitter of scikit-learn, or (train, test) pairs,
        that hold every row out at most once
    polish : "all": what is compared are minima, each model takes some passes of its
        own; "best": models are compared as CA-SGD leaves them, and only the one that is
        chosen goes on, which is cheaper and favours small alphas (rows of a file are
        always compared so)
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
        polish: str = "all",
        class_weight: Any = None,
        fit_intercept: bool = True,
        max_iter: int | None = None,
        tol: float = 1e-8,
        batch: int | None = None,
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
            polish=polish,
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
        self.polish = polish
        self.class_weight = class_weight

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
        groups: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> "GLM_CV":
        """Choose alpha and fit the model.

        Parameters
        ----------
        X : array, frame, CSR or array of a GPU, (n, d); or the path of a file, y too
        y : (n,), targets: numbers, or labels of any kind
        sample_weight : (n,), c_i >= 0
        offset : (n,), added to every score; softmax has no use for one
        exposure : (n,), above 0, of poisson and gamma: an offset of log(exposure)
        groups : (n,), which rows stay together, for a `cv` that asks: GroupKFold
        comm : communicator of mpi4py, or one of this package; all its ranks call `fit`
        layout : what each rank gives: "replicated", "rows", "columns" or "hdf5"
        grid : (replicas, members) of the ranks

        Returns
        -------
        the estimator itself, the same on all ranks
        """
        self._check_family(offset, exposure)
        given = X, y, sample_weight, offset, exposure
        self._fit(*given, where=(comm, layout, grid), groups=groups)
        return self

    def _learn(
        self,
        given: Given,
        place: Place,
        starts: list[Any] | None,
        groups: Any = None,
        **changed: Any,
    ) -> None:
        task = self._label_tasks(given, place)[0] if self._labelled else given
        rows = self._deal(task, place, groups)
        found = self._compare(task, place, rows)
        held = found.held
        if self.polish == "all" and task.y is not None:
            held = self._held_at_minima(task, place, rows, found)
        # Sums need not give all ranks the same last bits, and all must go on with one.
        best = self._choose(found, place.world.exchange_objects(held)[0])
        self._keep([self._solve(task, self._family(), place, _start(found, best))])
        self._name_columns(place)

    def _deal(self, task: Given, place: Place, groups: Any) -> Dealt:
        """The rows of every fold."""
        if self.polish not in ("all", "best"):
            raise ConfigError(f"polish = {self.polish!r}; known: 'all', 'best'")
        if self._labelled:
            _check_classes(task, place)
        seed = self._seed(place)
        return deal(self.cv, task, place, self._labelled, seed, groups)

    def _compare(
        self, task: Given, place: Place, rows: Dealt, start: Any = None
    ) -> Sweep:
        """All models at once."""
        sides = {"y": task.y, "sample_weight": task.weights, "offset": task.offset}
        wanted = self._wanted(place)
        return fit_many(
            wanted if start is None else replace(wanted, epochs=1),
            task.X,
            sides,
            alphas=self._alphas(),
            folds=rows.folds,
            fold_of=rows.known,
            labels=task.labels,
            world=place.world,
            layout=place.layout,
            start=start,
        )

    def _held_at_minima(
        self, task: Given, place: Place, rows: Dealt, found: Sweep
    ) -> Array:
        """Held losses of models that each went on to its minimum."""
        weights, intercepts = found.weights.copy(), found.intercepts
        intercepts = None if intercepts is None else intercepts.copy()
        c = np.ones(len(task.y)) if task.weights is None else task.weights
        for number, model in enumerate(found.models):
            if model.fold is None:
                continue
            without = replace(task, weights=c * (rows.own != model.fold))
            how = {"alpha": model.l2, "tol": LOOSE, "epochs": 1, **SILENT}
            start = _start(found, number)
            one = self._solve(without, self._family(), place, start, **how)
            weights[:, number] = one.weights.reshape(weights[:, number].shape)
            if intercepts is not None:
                intercepts[number] = one.intercept.reshape(intercepts[number].shape)
        start = weights.reshape(len(weights), -1)
        if intercepts is not None:
            start = (start, intercepts.reshape(-1))
        # The first look of a sweep is at where it begins.
        held = self._compare(task, place, rows, start).history[0]["held"]
        return np.array([np.nan if one is None else one for one in held])

    def _wanted(self, place: Place) -> Wanted:
        """The arguments of `fit` for all of them."""
        given = {**self._settings(), "alpha": 0.0}
        given |= {"family": self._family(), "seed": self._seed(place)}
        given |= {"update": "sgd", "momentum": 0.0, "grid": place.grid}
        given |= SILENT | {"polish": False, "layout": place.layout}
        known = {field.name for field in fields(Wanted)}
        return Wanted(**{name: given[name] for name in known & given.keys()})

    def _alphas(self) -> list[float]:
        alphas = [float(alpha) for alpha in np.atleast_1d(np.asarray(self.alphas))]
        if not alphas:
            raise ConfigError("alphas names none; give some, as (1e-4, 1e-2, 1)")
        return alphas

    def _choose(self, found: Sweep, held: Array) -> int:
        """The attributes of the comparison; the number of the model to go on with."""
        alphas = self._alphas()
        own = [model.fold is not None for model in found.models]
        each = held[own].reshape(len(alphas), -1)
        mean = each.mean(axis=1)
        best = int(np.argmin(np.where(np.isfinite(mean), mean, np.inf)))
        self.alpha_ = alphas[best]
        self.cv_results_ = {"alphas": np.array(alphas), "held": each, "mean_held": mean}
        self.cv_ledger_ = found.ledger
        return best * (each.shape[1] + 1) + each.shape[1]

    def _settings(self) -> dict[str, Any]:
        more = {"alpha": getattr(self, "alpha_", 0.0), "polish": "auto"}
        return super()._settings() | more


def _start(found: Sweep, number: int) -> Any:
    """Where one of the models stands."""
    weights, intercepts = found.weights[:, number], found.intercepts
    return weights if intercepts is None else (weights, intercepts[number])


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

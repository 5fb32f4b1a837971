"""From rows and targets to coefficients: what every estimator does with what it has."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from hpcsgd.agreement.plan_check import check_same
from hpcsgd.backends.blas import one_thread
from hpcsgd.errors import DataError
from hpcsgd.estimators.base import LinearEstimator, Solution
from hpcsgd.estimators.formula import (
    Formula,
    is_labelled,
    preparation_of_runs,
    total_offset,
)
from hpcsgd.estimators.given import (
    Given,
    Place,
    check_alike,
    opened,
    take,
    take_rows,
)
from hpcsgd.estimators.labels import check_classes, encode, find_classes, weigh
from hpcsgd.estimators.progress import history_of, passes_of, warn_unless_converged
from hpcsgd.fitting.agreed import agree_on_names
from hpcsgd.fitting.settings import laid_over

Array = NDArray[Any]
# One epoch of CA-SGD and nothing else.
ONE_EPOCH = {"epochs": 1, "polish": False, "average": "none", "hold_out": 0.0}
# A rate that no batch is too steep for, however few rows come: nothing is averaged.
# No goal: an epoch is an epoch, and a gap of these rows would cost more than it.
ANY_ROWS = {"rate": {"norm": "rows"}, "stop": {"on": "none"}}


class Learner(LinearEstimator):
    """Fits of numbers and of labels; what differs is the family."""

    family: str
    more_classes = ""  # with three or more: "softmax", "one-vs-rest", or refused
    class_weight: Any = None  # a parameter of those that learn labels
    n_iter_: Any
    history_: list[dict[str, Any]]

    @property
    def _labelled(self) -> bool:
        return is_labelled(self.family)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.positive_only = self.family in ("poisson", "gamma")
        return tags

    @one_thread()
    def _fit(self, *given: Any, where: tuple[Any, str, Any], **more: Any) -> None:
        """`given`: X, y, sample_weight, and offset and exposure where there are."""
        with opened(*where) as place:
            taken = self._take(given, place)
            if self._labelled:
                self.classes_ = find_classes(taken.X, taken.y, place)
                self._check_count()
            starts = self._starts() if self.warm_start else None
            self._learn(taken, place, starts, **more)
            warn_unless_converged(self, place.world.rank)

    @one_thread()
    def _partial_fit(
        self, *given: Any, where: tuple[Any, str, Any], classes: Any = None
    ) -> None:
        """One epoch from where the model stands."""
        is_first = not hasattr(self, "coef_")
        done, before = (0, []) if is_first else (self.n_iter_, self.history_)
        with opened(*where) as place:
            taken = self._take(given, place, reset=is_first)
            if self._labelled:
                self.classes_ = place.together(lambda: check_classes(self, classes))
                names = {"classes": repr(self.classes_.tolist())}
                check_same(place.world, names)
                self._check_count()
            # Another order of rows in every epoch.
            seed = self._seed(place) + int(np.max(done))
            config = laid_over(ANY_ROWS, self.config)
            # Exact steps would fit these rows and forget those before.
            solver = "sgd" if self.solver == "auto" else self.solver
            changed = {"seed": seed, "config": config, "solver": solver, **ONE_EPOCH}
            self._learn(taken, place, self._starts(), **changed)
        self.history_ = before + self.history_
        self.n_iter_ = done + self.n_iter_

    def _take(self, given: Any, place: Place, reset: bool = True) -> Given:
        check_alike(self, given[0], place)
        labelled, given = self._labelled, place.share(*given)
        taken = place.together(
            lambda: take(self, *given, is_labelled=labelled, reset=reset, place=place)
        )
        own = getattr(self, "feature_names_in_", None)
        names = agree_on_names(place.world, own, place.layout)
        if own is None and names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return taken

    def _check_count(self) -> None:
        """Refuse more classes than the family can tell apart."""
        count = len(self.classes_)
        if count > 2 and not (self.more_classes or self.family == "softmax"):
            raise DataError(
                "Only binary classification is supported. The type of the target is"
                f" multiclass: {count} classes; choose family='softmax'"
            )

    def _learn(
        self, given: Given, place: Place, starts: list[Any] | None, **changed: Any
    ) -> None:
        tasks = self._label_tasks(given, place) if self._labelled else [given]
        starts = starts or [None] * len(tasks)
        found = [
            self._solve(task, self._family(), place, start, **changed)
            for task, start in zip(tasks, starts, strict=True)
        ]
        self._keep(found)
        self._name_columns(place)
        if isinstance(given.X, str):
            self._take_names(found[0].result.feature_names)

    def _take_names(self, names: list[str] | None) -> None:
        """Names of the columns of a file, in the place of those of an earlier fit."""
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _label_tasks(self, given: Given, place: Place) -> list[Given]:
        """Rows with labels as numbers: once, or for each class against all others."""
        if given.y is None:  # the labels of a file are encoded where it is read
            return [given]
        codes = place.together(lambda: encode(given.y, self.classes_))
        weights = weigh(codes, self.classes_, self.class_weight, given.weights, place)
        places = range(len(self.classes_))
        given = replace(given, y=codes, weights=weights, labels=places)
        if not self._is_one_vs_rest():
            return [given]
        pair = replace(given, labels=range(2))
        return [replace(pair, y=(codes == k).astype(float)) for k in places]

    def _is_one_vs_rest(self) -> bool:
        return self.more_classes == "one-vs-rest" and len(self.classes_) > 2

    def _family(self) -> str:
        """The family that is fitted, which may depend on the number of classes."""
        if self.more_classes == "softmax" and len(self.classes_) > 2:
            return "softmax"
        return self.family

    def _keep(self, found: list[Solution]) -> None:
        """The attributes that a fit leaves, in scikit-learn's shapes."""
        coef = np.hstack([one.weights for one in found]).T
        intercept = np.concatenate([one.intercept for one in found])
        self.coef_ = coef if self._labelled else coef[0]
        self.intercept_ = intercept if self._labelled else float(intercept[0])
        results = [one.result for one in found]
        self.result_ = results if self._is_one_vs_rest() else results[0]
        self.history_ = [
            record
            for number, result in enumerate(results)
            for record in history_of(result, number if len(results) > 1 else None)
        ]
        self.n_iter_ = self._count(max(passes_of(result) for result in results))

    def _count(self, passes: int) -> Any:
        """`n_iter_` as scikit-learn's class of the same name has it."""
        return passes

    def _starts(self) -> list[Any] | None:
        """Where each run begins: at the coefficients there are, if they still suit."""
        if not hasattr(self, "coef_"):
            return None
        coef = np.atleast_2d(np.asarray(self.coef_, dtype=np.float64))
        intercept = np.atleast_1d(np.asarray(self.intercept_, dtype=np.float64))
        if coef.shape[1] != self.n_features_in_:
            return None
        if self._labelled and len(coef) != self._rows_of_coef():
            return None
        if self._labelled and self._is_one_vs_rest():
            return [(coef[k][:, None], intercept[k : k + 1]) for k in range(len(coef))]
        return [(coef.T, intercept)]

    def _rows_of_coef(self) -> int:
        count = len(self.classes_)
        return count if count > 2 or self._family() == "softmax" else 1

    def _name_columns(self, place: Place) -> None:
        """Columns of the whole data, where each rank has given some of them."""
        self.n_features_in_ = np.atleast_2d(self.coef_).shape[1]
        if place.layout != "columns":
            return
        parts = place.world.exchange_objects(getattr(self, "feature_names_in_", None))
        if all(part is not None for part in parts):
            self.feature_names_in_ = np.concatenate(parts)

    def _formula(self) -> Formula:
        check_is_fitted(self)
        classes = self.classes_ if self._labelled else None
        family = self._family() if self._labelled else self.family
        preparation = preparation_of_runs(vars(self).get("result_"))
        return Formula(family, self.coef_, self.intercept_, classes, preparation)

    def _rows(
        self, X: Any, offset: Any = None, exposure: Any = None
    ) -> tuple[Any, Array | None]:
        """Checked rows, and what is added to their scores."""
        check_is_fitted(self)
        X = take_rows(self, X)
        return X, total_offset(offset, exposure, X.shape[0])

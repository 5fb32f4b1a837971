"""Base class, checks and labels that all scikit-learn estimators share."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    check_classification_targets,
)
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from hpcsgd.agreements.base import check_same
from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.comm.communicator import Communicator
from hpcsgd.data.frames import to_column, to_matrix
from hpcsgd.data.readers import open_reader
from hpcsgd.data.targets import MOST_CLASSES
from hpcsgd.errors import ConfigError, DataError, HpcsgdError
from hpcsgd.estimators.fit import (
    OTHER_NAMES,
    agree_on_names,
    documented,
    ranks_of,
    run_fit,
)
from hpcsgd.estimators.inputs import FitRows, facts_of_fit, open_data
from hpcsgd.estimators.saved import (
    LOG_LINK,
    Formula,
    column,
    is_labelled,
    is_on_device,
    preparation_of_runs,
    save,
    total_offset,
)
from hpcsgd.formats import Array
from hpcsgd.glm import get_family
from hpcsgd.glm.families import Family
from hpcsgd.runs.defaults import FitArguments, grid_on, overlay_tables
from hpcsgd.runs.figures import (
    coefficient_rows,
    plot_coefficients,
    plot_losses,
    to_frame,
)
from hpcsgd.runs.inference import FitSummary, InferenceRequest
from hpcsgd.runs.result import Result, asks_for_history

# The rows of a fit, checked as scikit-learn does it, on all ranks together.

T = TypeVar("T")
# Parameters that may differ between ranks; the seed is that of rank 0.
OWN = ("callbacks", "verbose", "random_state")
# Whole numbers become the first dtype, float64; float32 is not copied.
CHECKS = {"accept_sparse": "csr", "dtype": (np.float64, np.float32)}


@dataclass(frozen=True)
class FitRanks:
    """The ranks of a fit, the layout of their rows, and the grid."""

    world: Communicator
    layout: str = "replicated"
    grid: Any = None

    def together(self, action: Callable[[], T]) -> T:
        """Return the result of `action`; raise an error of one rank on all ranks."""
        if self.world.size == 1:
            return action()
        return self.world.together(lambda: _as_data_error(action))

    def of_root(self, action: Callable[[], T]) -> T:
        """Return on all ranks the result of `action` on rank 0, or raise its error."""
        result = self.together(lambda: None if self.world.rank else action())
        shared: T = self.world.share_object(result)
        return shared

    def of_rows(self, item: Any) -> list[Any]:
        """Return the items of all ranks with layout "rows"; else a list of `item`."""
        return self.world.exchange_objects(item) if self.layout == "rows" else [item]

    def share(self, rows: FitRows) -> FitRows:
        """Return `rows`; with layout "columns", with the targets and weights of rank 0.

        These are y, weights, offset and exposure, which other ranks may leave out. They
        are sent if a rank has no y; otherwise `rows` are not changed. Collective.
        """
        if self.layout != "columns" or self.world.size == 1:
            return rows
        if not self.world.max_flag(int(rows.y is None)):
            return rows
        sides = (rows.y, rows.weights, rows.offset, rows.exposure)
        return FitRows(rows.X, *self.world.share_object(sides))

    @property
    def fewest_rows(self) -> int:
        """Fewest rows that a rank may pass.

        It is 0 with layout "rows" on several ranks, else 1.
        """
        return 0 if self.layout == "rows" and self.world.size > 1 else 1


@contextmanager
def opened(comm: Any, layout: str, grid: Any) -> Iterator[FitRanks]:
    """Return a context with the ranks of `comm`, of this package or of mpi4py.

    None is this process alone.
    """
    with ranks_of(comm) as world:
        yield FitRanks(world, layout, grid)


def check_alike(estimator: Any, X: Any, ranks: FitRanks) -> None:
    """Refuse ranks that pass different estimators, parameters, layouts or grids.

    All ranks or none must pass the path of a file as `X`. Of `cv` only numbers and
    types are compared. Collective.
    """
    if ranks.world.size == 1:
        return
    kind = "a path" if isinstance(X, str | PathLike) else "no path"
    facts = {"class": type(estimator).__name__, "X": kind, "grid": repr(ranks.grid)}
    facts["layout"] = repr(ranks.layout)
    for name, value in estimator.get_params(deep=False).items():
        if name not in OWN:
            # Rank 0 draws the folds of a splitter: its type is compared, not its state.
            is_plain = name != "cv" or isinstance(value, int)
            facts[name] = repr(value) if is_plain else type(value).__name__
    check_same(ranks.world, facts)


def take(
    estimator: Any,
    rows: FitRows,
    ranks: FitRanks,
    *,
    is_labelled: bool,
    reset: bool = True,
) -> FitRows:
    """Return `rows` after scikit-learn's checks, with log(exposure) in the offset.

    X is not checked if it is the path of a file. `reset`: set the estimator's number
    and names of columns, instead of a check against those it has.
    """
    X = rows.X
    y = rows.y
    weights = rows.weights
    offset = rows.offset
    if ranks.layout == "hdf5" and not isinstance(X, str | PathLike):
        raise DataError("layout = 'hdf5' needs the path of a file as X; give one")
    if isinstance(X, str | PathLike):
        if rows.exposure is not None:
            offset = total_offset(offset, rows.exposure, len(rows.exposure))
        return FitRows(str(X), y, weights, offset)
    how = {"reset": reset, "ensure_min_samples": ranks.fewest_rows}
    X, y = _checked(estimator, X, y, is_labelled, **how)
    count = X.shape[0]
    if weights is not None:
        weights = _check_sample_weight(weights, np.empty((count, 0)), dtype=np.float64)
    return FitRows(X, y, weights, total_offset(offset, rows.exposure, count))


def take_rows(estimator: Any, X: Any) -> Any:
    """Return the rows of X for a prediction, checked as in a fit."""
    if is_on_device(X):
        return _as_fitted(estimator, X)
    with _naming_text(X):
        return validate_data(estimator, X, reset=False, **CHECKS)


@contextmanager
def _naming_text(X: Any, y: Any = None) -> Iterator[None]:
    """Name the column in errors on text; scikit-learn shows only the value."""
    try:
        yield
    except ValueError as error:
        if "could not convert" in str(error):
            to_matrix(X)
            to_column("y", y)
        raise


def _checked(
    estimator: Any, X: Any, y: Any, is_labelled: bool, **how: Any
) -> tuple[Any, Array]:
    if is_on_device(X):
        y = column(y.get() if is_on_device(y) else y, X.shape[0], "y")
        if how["reset"]:
            estimator.n_features_in_ = X.shape[1]
        return _as_fitted(estimator, X), y
    with _naming_text(X, None if is_labelled else y):
        how["y_numeric"] = not is_labelled
        X, y = validate_data(estimator, X, y, **how, **CHECKS)
    if is_labelled and len(y):
        check_classification_targets(y)
    return X, y


def _as_fitted(estimator: Any, X: Any) -> Any:
    """Return X on a GPU if it has the fitted columns; else raise DataError.

    scikit-learn's checks would copy the rows to the host.
    """
    if X.ndim != 2 or X.shape[1] != estimator.n_features_in_:
        raise DataError(
            f"X has shape {X.shape} and the model was trained on"
            f" {estimator.n_features_in_} columns; give rows with the columns of the"
            " training data"
        )
    return X


def _as_data_error(action: Callable[[], T]) -> T:
    """Return the result of `action`; raise errors of scikit-learn as DataError.

    `Communicator.together` then raises the error of one rank on all ranks.
    """
    try:
        return action()
    except HpcsgdError:
        raise
    except (ValueError, TypeError) as error:
        raise DataError(str(error)) from error


def check_targets(y: Any, sample_weight: Any, X: Any) -> tuple[Array, Array | None]:
    """Return `y` and `sample_weight` (or None) of a `score` method, (n,) in float64."""
    y = column_or_1d(y, dtype=np.float64)
    rows = X.shape[0]
    if sample_weight is None:
        return column(y, rows, "y"), None
    return column(y, rows, "y"), column(sample_weight, rows, "sample_weight")


# Arguments of scikit-learn's classes, and their counterparts in this package.

OF_CLASS = "choose it by the class, or by GLM(family=...)"
# `hpcsgd.fit` refuses these arguments as well, with the same remedies.
OF_BOTH = ("C", "penalty", "positive", "learning_rate", "eta0", "batch_size")
# argument -> what to do instead
FOREIGN = {
    **{name: f"give {OTHER_NAMES[name]}" for name in OF_BOTH},
    "Cs": "give GLM_CV(family=...) alphas, each of them 1/(C·n) for n rows",
    "alphas": "take GLM_CV(family=..., alphas=...), where family='logistic' classifies",
    "cv": "take GLM_CV(family=..., cv=...), where family='logistic' classifies",
    "epsilon": "take HuberRegressor(epsilon=...)",
    "loss": OF_CLASS,
    "link": OF_CLASS,
    "multi_class": OF_CLASS,
    "class_weight": "give fit a sample_weight",
    "intercept_scaling": "leave it out, the intercept is not penalised",
    "dual": "leave it out, the solver chooses a form",
    "selection": "leave it out, random_state shuffles",
    "precompute": "leave it out, a Gram is taken where it pays",
    "copy_X": "leave it out, X is never changed",
    "normalize": "put a StandardScaler before the estimator",
    "n_jobs": "start ranks of MPI, and give fit their comm",
    "epochs": "give max_iter",
    "seed": "give random_state",
    "early_stopping": "give hold_out, the share of rows that ends a fit early",
    "validation_fraction": "give hold_out",
    "n_iter_no_change": "give patience",
}


class Arguments:
    """Mixin that refuses arguments of scikit-learn's classes and names counterparts.

    It is the last base class of the estimators, whose `__init__` has the signature. It
    refuses only names that are no parameters of the estimator.
    """

    _instead: ClassVar[Mapping[str, str]] = {}  # of this class; precedes FOREIGN

    def __new__(cls, *positional: Any, **named: Any) -> Arguments:
        """Raise TypeError for an argument of scikit-learn, with its counterpart."""
        for name in named:
            remedy = cls._remedy(name)
            if remedy:
                raise TypeError(remedy)
        return super().__new__(cls)

    @classmethod
    def _remedy(cls, name: str) -> str:
        """Return a sentence on an argument of scikit-learn; "" for any other name."""
        instead = cls._instead.get(name, FOREIGN.get(name, ""))
        if not instead or name in cls._get_param_names():  # type: ignore[attr-defined]
            return ""
        return f"{cls.__name__} has no argument {name}; {instead}"


# The base class of all estimators: parameters, the call of `hpcsgd.fit`, attributes.

# scikit-learn must not route these as metadata: they choose the ranks of a fit.
NOT_ROUTED = {"comm": UNUSED, "layout": UNUSED, "grid": UNUSED}


@dataclass(frozen=True)
class Solution:
    """The coefficients of one run, as (d, K) and (K,), and its Result."""

    weights: Array  # (d, K) float64
    intercept: Array  # (K,) float64; zeros without one
    result: Result


# Labels of any kind as numbers 0..K-1, the same on all ranks, and their weights.

NUMBERS = "biuf"  # kinds of dtypes
ROWS = 2**20  # targets of a file that are read at once


def find_classes(X: Any, y: Any, ranks: FitRanks) -> Array:
    """Return the distinct labels of all rows in ascending order. Collective.

    With layout "rows" the ranks exchange their labels once. Without y, rank 0 reads
    the labels of the file X.
    """
    if y is None:
        return _of_file(X, ranks)
    # The type of the labels is unknown on a rank without rows.
    parts = [labels for labels in ranks.of_rows(np.unique(y)) if len(labels)]
    if not parts:
        raise DataError("no rank has a row; give rows to one of them at least")
    if len({part.dtype.kind in NUMBERS for part in parts}) > 1:
        raise DataError(
            "the labels of one rank are numbers and those of another are not; give all"
            " ranks labels of one kind"
        )
    classes = np.unique(np.concatenate(parts))
    if len(classes) < 2:
        raise DataError(
            f"y has one class only ({classes.tolist()[0]!r}) and a classifier needs"
            " two; add rows of another"
        )
    return classes


def _of_file(path: Any, ranks: FitRanks) -> Array:
    """Return the distinct labels of a file in ascending order. Collective.

    Rank 0 reads them and sends them to all ranks, at most `MOST_CLASSES` + 1 of them.
    """

    def read() -> Array:
        labels: Array = np.empty(0)
        reader = open_reader(Path(path))
        for first in range(0, reader.rows, ROWS):
            part = reader.targets(slice(first, min(first + ROWS, reader.rows)))
            labels = np.union1d(labels, part)[: MOST_CLASSES + 1]
        reader.close()
        return labels

    return ranks.of_root(read)


def check_classes(estimator: Any, classes: Any) -> Array:
    """Return all classes, which the first call of `partial_fit` must name."""
    _check_partial_fit_first_call(estimator, classes)
    return np.asarray(estimator.classes_)


def encode(y: Array, classes: Array) -> Array:
    """Return the index of each label of `y` in `classes`, (n,) in float64."""
    places = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    strange = np.flatnonzero(classes[places] != y)
    if len(strange):
        raise DataError(
            f"y has {y[strange[:1]].tolist()[0]!r} at row {strange[0]} and the model"
            f" has the classes {classes.tolist()} only; drop that row, or name every"
            " class in the first call of partial_fit"
        )
    return places.astype(np.float64)


def weigh(
    codes: Array,
    classes: Array,
    class_weight: Any,
    weights: Array | None,
    ranks: FitRanks,
) -> Array | None:
    """Return sample weights times the weights of their classes, (n,); None = all 1.

    The weight of class k with "balanced" is Σc / (K Σ_k c): c are the sample weights,
    K is the number of classes, and the sums are over all rows and the rows of class k.
    """
    if class_weight is None:
        return weights
    sample_weights = np.ones(len(codes)) if weights is None else weights
    places = codes.astype(np.intp)
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(places, sample_weights, minlength=len(classes))
        counts = np.sum(ranks.of_rows(counts), axis=0)
        # The factor of a class of total weight 0 has no effect.
        factors = counts.sum() / (len(classes) * np.where(counts > 0, counts, 1.0))
    else:
        factors = compute_class_weight(class_weight, classes=classes, y=classes)
    return np.asarray(sample_weights * factors[places])


# The progress of a fit: passes, records, and a warning if it did not converge.


def passes_of(result: Result) -> int:
    """Return the epochs of a run plus the passes of its refinement, at least 1."""
    last = result.history[-1] if result.history else {}
    return max(int(last.get("epoch", 0)) + int(last.get("passes", 0)), 1)


def history_of(result: Result, number: int | None) -> list[dict[str, Any]]:
    """Return the records of `result`, each with class `number` unless that is None."""
    more = {} if number is None else {"class": number}
    return [{**more, **record} for record in result.history]


def warn_unless_converged(estimator: Any, rank: int) -> None:
    """Issue a ConvergenceWarning on rank 0 if a run of the fit has advice."""
    results = estimator.result_
    results = results if isinstance(results, list) else [results]
    advice = dict.fromkeys(result.advice for result in results if result.advice)
    if advice and rank == 0:
        sentence = f"{type(estimator).__name__}: {'; '.join(advice)}"
        # The advice names the argument of `hpcsgd.fit`; here it is scikit-learn's.
        sentence = sentence.replace("raise epochs", "raise max_iter")
        if getattr(estimator, "max_iter", None) is not None:
            sentence = sentence.replace("raise polish.passes", "raise max_iter")
        warnings.warn(sentence, ConvergenceWarning, stacklevel=5)


# From rows and targets to coefficients: the fit of every estimator.

# One epoch of CA-SGD and nothing else.
ONE_EPOCH = {"epochs": 1, "polish": False, "average": "none", "hold_out": 0.0}
# The rate is derived from the longest row: it is stable for any batch, however few the
# rows. There is no stopping test: a gap of these rows would cost more than the epoch.
ANY_ROWS = {"rate": {"norm": "rows"}, "stop": {"on": "none"}}


class WeakRows:
    """Weak references to the arrays of a fit, which keep none of them alive.

    Parameters
    ----------
    rows : FitRows or None
        What the caller passed to the fit; None: no rows are known. A pickle has none.
    """

    def __init__(self, rows: FitRows | None = None) -> None:
        self._sides: dict[str, Callable[[], Any]] = {}
        for name, value in ({} if rows is None else vars(rows)).items():
            self._sides[name] = _weak(value)
        self._present = (
            []
            if rows is None
            else [name for name, value in vars(rows).items() if value is not None]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the pickle of an object without rows: arrays are not pickled."""
        return WeakRows, ()

    def take(self) -> FitRows | None:
        """Return the rows, or None if there are none or one array is not alive."""
        values = {name: side() for name, side in self._sides.items()}
        if "X" not in values or any(values[name] is None for name in self._present):
            return None
        return FitRows(**values)


def _weak(value: Any) -> Callable[[], Any]:
    """Return a function that returns `value`, or None once that has been freed.

    A list, which has no weak references, counts as freed at once.
    """
    if value is None or isinstance(value, str | PathLike):
        return lambda: value
    try:
        return weakref.ref(value)
    except TypeError:  # a list
        return lambda: None


class Learner(BaseEstimator, Arguments):  # type: ignore[misc]
    """Base class of all estimators, whose targets are numbers or labels.

    `documented` describes the parameters that every estimator has.
    """

    family: str
    more_classes = ""  # with three or more: "softmax", "one-vs-rest", or refused
    class_weight: Any = None  # a parameter of estimators of labels only
    alpha: float
    l1_ratio: float
    fit_intercept: bool
    bounds: Any
    max_iter: int | None
    tol: float
    batch: int | None
    steps: int | str
    rate: float | str
    solver: str
    average: str
    polish: bool | str
    hold_out: float
    patience: int
    precision: str | None
    device: str
    warm_start: bool
    random_state: Any
    callbacks: Any
    verbose: int
    config: Mapping[str, Mapping[str, Any]] | None
    n_iter_: Any
    result_: Result | list[Result]
    _rows_of_fit = WeakRows()  # of a model that was loaded: none
    history_: list[dict[str, Any]]

    __metadata_request__fit = NOT_ROUTED
    __metadata_request__partial_fit = NOT_ROUTED

    def __init__(
        self,
        *,
        alpha: float = 1e-4,
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
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

    def _set_parameters(self, values: Mapping[str, Any]) -> None:
        """Set the parameters of `__init__`, which passes its local variables."""
        for name, value in values.items():
            if name != "self":
                setattr(self, name, value)

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name.

        Parameters
        ----------
        **params : dict
            Names and values, as scikit-learn takes them.

        Returns
        -------
        self : object
            The estimator itself.

        Raises
        ------
        ValueError
            If the estimator has no such parameter. A name that scikit-learn's class
            has is answered with the name that it has here.
        """
        for name in params:
            remedy = self._remedy(name)
            if remedy:
                raise ValueError(remedy)
        super().set_params(**params)
        return self

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator into one HDF5 file for `hpcsgd.load`.

        The file loads without MPI, without a GPU and with any version of scikit-learn.
        Without scikit-learn it loads as a predictor. Callbacks are not saved, and
        neither are the other steps of a pipeline.

        Parameters
        ----------
        path : path-like
            The file to write. An existing file is replaced.
        """
        check_is_fitted(self)
        save(self, path)

    @documented
    def summary(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
        *,
        covariance: str = "information",
        clusters: Any = None,
        dispersion: str | float | None = None,
        level: float = 0.95,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> FitSummary:
        """Return standard errors, tests and likelihoods of the fit. Collective.

        X, y and the arrays beside them are those of the fit, whose `alpha` must be 0.
        `hpcsgd.Result.summary` has the formulas.

        Parameters
        ----------
        covariance : {"information", "sandwich", "clustered"}
            The covariance of the coefficients: by the observed information (not for
            huber and squared-hinge), robust (HC0), or robust with clusters.
        clusters : array-like of shape (n,) or None
            The cluster of each row, for "clustered".
        dispersion : {"pearson", "deviance"}, float or None
            The dispersion. None takes "pearson" for gaussian, gamma and tweedie, and 1
            for counts and classes. huber, squared-hinge and softmax refuse any other
            value than None.
        level : float
            Probability of the intervals.

        Returns
        -------
        hpcsgd.FitSummary
            Numbers as arrays, and a table as text.
        """
        check_is_fitted(self)
        request = InferenceRequest(covariance, clusters, dispersion, level)
        if exposure is not None and self.family not in LOG_LINK:
            raise ConfigError(
                "exposure needs a log link and the family"
                f" {self.family} has another link; leave it out, as in the fit"
            )
        rows = FitRows(X, y, sample_weight, offset, exposure)
        with opened(comm, layout, grid) as ranks:
            return self._summarize(rows, ranks, request)

    @property
    def summary_(self) -> FitSummary:
        """Summary of a fit on one rank, as long as the arrays of the fit are alive."""
        check_is_fitted(self)
        rows = self._rows_of_fit.take()
        if rows is None:
            raise AttributeError(
                "summary_ needs the rows of the fit, which this process does not hold"
                " completely (any more); call summary(X, y) with these rows"
            )
        return self.summary(
            rows.X,
            rows.y,
            sample_weight=rows.weights,
            offset=rows.offset,
            exposure=rows.exposure,
        )

    def _summarize(
        self, rows: FitRows, ranks: FitRanks, request: InferenceRequest
    ) -> FitSummary:
        """Check the rows, and return the summary of the run on them. Collective."""
        result = self.result_
        world = ranks.world
        if isinstance(result, list):
            raise ConfigError(
                "summary cannot be used with one-vs-rest models, because it needs one"
                " joint model of all classes; fit GLM(family='softmax')"
            )
        rows = self._take(rows, ranks, reset=False)
        if self._labelled:
            rows = self._label_tasks(rows, ranks)[0]
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            entry = {"feature_names": [str(name) for name in names]}
            result = replace(result, report={**result.report, **entry})
        arguments = self._arguments(ranks)
        placed = grid_on(world.size, arguments.grid, arguments.config)
        matrix = to_matrix(rows.X)
        facts = facts_of_fit(matrix, ranks.layout, world)
        settings = replace(arguments, grid=placed).run_config(facts)
        data = open_data(matrix, rows.sides, ranks.layout, settings)
        summary = result.summarize(request, data.open_reader, world)
        if self._family() != "softmax":
            return summary
        size = len(summary.names) // (len(self.classes_) - 1)
        bare = [name.partition(": ")[2] for name in summary.names[:size]]
        labels = [str(label) for label in self.classes_[1:]]
        return replace(
            summary, names=tuple(f"{label}: {n}" for label in labels for n in bare)
        )

    @property
    def _labelled(self) -> bool:
        return is_labelled(self.family)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.positive_only = self.family in LOG_LINK
        return tags

    @one_thread()
    def _fit(
        self, rows: FitRows, opening: AbstractContextManager[FitRanks], **more: Any
    ) -> None:
        """Fit the estimator to the rows, on the ranks of `opening`. Collective."""
        with opening as ranks:
            taken = self._take(rows, ranks)
            if self._labelled:
                self.classes_ = find_classes(taken.X, taken.y, ranks)
                self._check_count()
            starts = self._starts() if self.warm_start else None
            self._learn(taken, ranks, starts, **more)
            self._rows_of_fit = WeakRows(rows if ranks.world.size == 1 else None)
            warn_unless_converged(self, ranks.world.rank)

    @one_thread()
    def _partial_fit(
        self,
        rows: FitRows,
        opening: AbstractContextManager[FitRanks],
        classes: Any = None,
    ) -> None:
        """Run one epoch on the rows, from the current coefficients. Collective."""
        is_first = not hasattr(self, "coef_")
        done, before = (0, []) if is_first else (self.n_iter_, self.history_)
        with opening as ranks:
            taken = self._take(rows, ranks, reset=is_first)
            if self._labelled:
                self.classes_ = ranks.together(lambda: check_classes(self, classes))
                names = {"classes": repr(self.classes_.tolist())}
                check_same(ranks.world, names)
                self._check_count()
            changed = {
                # Another order of rows in every epoch.
                "seed": self._seed(ranks) + int(np.max(done)),
                "config": overlay_tables(ANY_ROWS, self._settings()),
                # Exact steps would fit these rows and forget those before.
                "solver": "sgd" if self.solver == "auto" else self.solver,
            }
            self._learn(taken, ranks, self._starts(), **changed, **ONE_EPOCH)
        self._rows_of_fit = WeakRows()  # the batches before are not known
        self.history_ = before + self.history_
        self.n_iter_ = done + self.n_iter_

    def _take(self, rows: FitRows, ranks: FitRanks, reset: bool = True) -> FitRows:
        check_alike(self, rows.X, ranks)
        labelled = self._labelled
        rows = ranks.share(rows)
        taken = ranks.together(
            lambda: take(self, rows, ranks, is_labelled=labelled, reset=reset)
        )
        local_names = getattr(self, "feature_names_in_", None)
        names = agree_on_names(ranks.world, local_names, ranks.layout)
        if local_names is None and names is not None:
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
        self, rows: FitRows, ranks: FitRanks, starts: list[Any] | None, **changed: Any
    ) -> None:
        tasks = self._label_tasks(rows, ranks) if self._labelled else [rows]
        starts = starts or [None] * len(tasks)
        solutions = [
            self._solve(task, ranks, start, **changed)
            for task, start in zip(tasks, starts, strict=True)
        ]
        self._keep(solutions)
        self._name_columns(ranks)
        if isinstance(rows.X, str):
            self._take_names(solutions[0].result.feature_names)

    def _solve(
        self,
        rows: FitRows,
        ranks: FitRanks,
        start: Any = None,
        is_silent: bool = False,
        **changed: Any,
    ) -> Solution:
        """Return the coefficients of one run, with some arguments of `fit` changed.

        `is_silent`: call no callbacks and print no progress.
        """
        arguments = replace(self._arguments(ranks), **changed)
        callbacks = self.callbacks
        if is_silent:
            arguments = replace(arguments, verbose=0)
            callbacks = None
        result = run_fit(arguments, rows, start, ranks.world, callbacks)
        result = replace(result, source=None)  # it would keep the rows alive
        weights = np.asarray(result.weights, dtype=np.float64)
        weights = weights.reshape(len(weights), -1)
        intercept = np.zeros(weights.shape[1])
        if result.intercept is not None:
            intercept[:] = result.intercept
        return Solution(weights, intercept, result)

    def _arguments(self, ranks: FitRanks) -> FitArguments:
        """Return the arguments of `hpcsgd.fit` for the parameters. Collective."""
        return FitArguments(
            family=self._family(),
            alpha=self.alpha,
            l1_ratio=self.l1_ratio,
            fit_intercept=self.fit_intercept,
            bounds=self.bounds,
            max_passes=self.max_iter,
            tol=self.tol,
            batch=self.batch,
            steps=self.steps,
            rate=self.rate,
            average=self.average,
            polish=self.polish,
            hold_out=self.hold_out,
            patience=self.patience,
            seed=self._seed(ranks),
            precision=self.precision,
            device=self.device,
            solver=self.solver,
            layout=ranks.layout,
            grid=ranks.grid,
            verbose=self.verbose,
            config=self._settings(),
        )

    def _settings(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Return the settings of a fit in addition to its arguments: `config`."""
        return self.config

    def _loss(self) -> Family:
        """Return the family, with its parameter in [problem] if it has one."""
        return get_family(
            self.family, overlay_tables({}, self._settings()).get("problem")
        )

    def _seed(self, ranks: FitRanks) -> int:
        """Return one seed for all ranks: that of rank 0. Collective."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        return int(ranks.world.share_object(seed))

    def _take_names(self, names: list[str] | None) -> None:
        """Set `feature_names_in_`; if `names` is None, delete that of the last fit."""
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _label_tasks(self, rows: FitRows, ranks: FitRanks) -> list[FitRows]:
        """Return the rows of each run, with labels as numbers.

        There is one run, or for "one-vs-rest" with three classes or more one for each
        class against all others. If y is in a file, the rows are returned unchanged.
        """
        if rows.y is None:  # the labels of a file are encoded where it is read
            self._check_file()
            return [rows]
        codes = ranks.together(lambda: encode(rows.y, self.classes_))
        weights = weigh(codes, self.classes_, self.class_weight, rows.weights, ranks)
        places = range(len(self.classes_))
        rows = replace(rows, y=codes, weights=weights, labels=places)
        if not self._is_one_vs_rest():
            return [rows]
        pair = replace(rows, labels=range(2))
        return [replace(pair, y=(codes == k).astype(float)) for k in places]

    def _check_file(self) -> None:
        """Refuse parameters and classes that need labels in memory."""
        if self.class_weight is not None:
            raise ConfigError(
                f"class_weight = {self.class_weight!r} cannot be used with y in a file,"
                " because weights of classes need the labels in memory; write the"
                " weights of the rows into the file, as sample_weight, or give X and y"
                " as arrays"
            )
        if self._is_one_vs_rest():
            raise ConfigError(
                f"{type(self).__name__} cannot be used with the {len(self.classes_)}"
                " classes of a y in a file, because a model for each class needs the"
                " labels in memory; give X and y as arrays, or fit"
                " GLM(family='softmax')"
            )

    def _is_one_vs_rest(self) -> bool:
        return self.more_classes == "one-vs-rest" and len(self.classes_) > 2

    def _family(self) -> str:
        """Return the family of the fit, which may depend on the number of classes."""
        if self.more_classes == "softmax" and len(self.classes_) > 2:
            return "softmax"
        return self.family

    def _keep(self, solutions: list[Solution]) -> None:
        """Set the attributes of a fit from its solutions, in scikit-learn's shapes."""
        coef = np.hstack([solution.weights for solution in solutions]).T
        intercept = np.concatenate([solution.intercept for solution in solutions])
        self.coef_ = coef if self._labelled else coef[0]
        self.intercept_ = intercept if self._labelled else float(intercept[0])
        results = [solution.result for solution in solutions]
        self.result_ = results if self._is_one_vs_rest() else results[0]
        self.history_ = [
            record
            for number, result in enumerate(results)
            for record in history_of(result, number if len(results) > 1 else None)
        ]
        self.n_iter_ = self._count(max(passes_of(result) for result in results))

    def _count(self, passes: int) -> Any:
        """Return `passes` as `n_iter_` of scikit-learn's class of the same name."""
        return passes

    def _starts(self) -> list[Any] | None:
        """Return the start (weights, intercept) of each run: the current coefficients.

        Return None if there are none, or if their number of columns or classes differs.
        """
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

    def _name_columns(self, ranks: FitRanks) -> None:
        """Set the number of columns, and their names with layout "columns"."""
        self.n_features_in_ = np.atleast_2d(self.coef_).shape[1]
        if ranks.layout != "columns":
            return
        parts = ranks.world.exchange_objects(getattr(self, "feature_names_in_", None))
        if all(part is not None for part in parts):
            self.feature_names_in_ = np.concatenate(parts)

    def to_frame(self, what: str = "coefficients") -> Any:
        """Return the coefficients or the loss curve as a pandas.DataFrame.

        Parameters
        ----------
        what : {"coefficients", "history"}, default="coefficients"
            One row for each feature, by its name, or one row for each evaluation.

        Raises
        ------
        MissingPackage
            If pandas is not installed.
        """
        check_is_fitted(self)
        if asks_for_history(what):
            return to_frame(self.history_)
        return to_frame(self._coefficients(), index="feature")

    def plot(
        self, what: str = "coefficients", *, over: str = "epoch", ax: Any = None
    ) -> Any:
        """Draw the largest coefficients or the loss curve with matplotlib.

        Parameters
        ----------
        what : {"coefficients", "history"}, default="coefficients"
            What is drawn.
        over : {"epoch", "seconds", "words", "messages"}, default="epoch"
            The horizontal axis of the loss curve.
        ax : matplotlib.axes.Axes, optional
            Where to draw. Without it there is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        MissingPackage
            If matplotlib is not installed.
        """
        check_is_fitted(self)
        if not asks_for_history(what):
            return plot_coefficients(self._coefficients(), ax)
        curves: dict[str, list[dict[str, Any]]] = {}
        for record in self.history_:
            number = record.get("class")
            name = self.family if number is None else f"class {self.classes_[number]}"
            curves.setdefault(name, []).append(record)
        return plot_losses(curves, over, ax)

    def _coefficients(self) -> list[dict[str, Any]]:
        """Return a row for each feature, with a column for each of several classes."""
        names = getattr(self, "feature_names_in_", None)
        weights = np.atleast_2d(self.coef_).T
        classes = self.classes_ if self._labelled and weights.shape[1] > 1 else None
        return coefficient_rows(weights, names, classes)

    def _formula(self) -> Formula:
        check_is_fitted(self)
        classes = self.classes_ if self._labelled else None
        family = self._family() if self._labelled else self.family
        preparation = preparation_of_runs(vars(self).get("result_"))
        return Formula(family, self.coef_, self.intercept_, classes, preparation)

    def _rows(
        self, X: Any, offset: Any = None, exposure: Any = None
    ) -> tuple[Any, Array | None]:
        """Return checked rows, and the offsets (n,) of their scores, or None."""
        check_is_fitted(self)
        X = take_rows(self, X)
        return X, total_offset(offset, exposure, X.shape[0])

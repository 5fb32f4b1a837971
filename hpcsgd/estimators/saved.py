"""Fitted models in files, usable without scikit-learn."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from os.path import realpath
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_expit, log_ndtr, log_softmax

from hpcsgd import __version__
from hpcsgd.data.frames import to_matrix
from hpcsgd.data.preparation import RAW, Preparation
from hpcsgd.data.readers import MemoryReader, check_names, row_words
from hpcsgd.data.targets import LABELLED, Targets
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators import __all__ as KNOWN
from hpcsgd.estimators import has_sklearn
from hpcsgd.files import check_schema, is_sealed, read_sealed, write_sealed
from hpcsgd.formats import Array
from hpcsgd.glm import FAMILIES, get_family
from hpcsgd.glm.penalties import Penalty
from hpcsgd.runs.predict import KINDS, TrainedModel, block_scores, blocks_of, rows_for
from hpcsgd.runs.result import ESTIMATOR, Result, load_result, restore, saving
from hpcsgd.runs.result import KIND as RESULT

# Predictions of a linear model. They need no scikit-learn, as a saved model needs none.
#
# Scores are t = X w + intercept + offset in float64, made block by block: rows of
# float32 are never copied as a whole.

BLOCK_BYTES = 2**23  # of rows in float64 that are in memory at once
LOG_LINK = ("poisson", "gamma", "tweedie", "negative-binomial")  # with exposures
PROBABLE = ("logistic", "probit", "softmax")  # families of labels with probabilities


def is_labelled(family: str) -> bool:
    """Return whether targets of a family are labels; False for an unknown family."""
    return family in FAMILIES and get_family(family).targets in LABELLED


@dataclass(frozen=True)
class Formula:
    """The family and the coefficients of a fitted model, which compute predictions.

    `coef` is (d,), or (K, d) with one row for each score of a row of X.
    """

    family: str
    coef: Array  # (d,) or (K, d)
    intercept: Any  # scalar or (K,)
    classes: Array | None = None
    preparation: Preparation = RAW  # of the rows of the training

    @property
    def model(self) -> TrainedModel:
        """Return the model in the form that predictions of a Result use.

        Its weights are (d, K).
        """
        family = get_family(self.family)
        coef = np.atleast_2d(np.asarray(self.coef, dtype=np.float64))
        intercept = np.asarray(self.intercept, dtype=np.float64).reshape(-1)
        labels = () if self.classes is None else tuple(range(len(self.classes)))
        weights = np.ascontiguousarray(coef.T)
        return TrainedModel(
            family,
            weights,
            intercept,
            Targets(family.targets, labels),
            Penalty(),
            self.preparation,
        )

    def scores(self, X: Any, offset: Array | None = None) -> Array:
        """Return the scores t = Xw + intercept + offset of the rows of X, (n, K)."""
        model = self.model
        if is_on_device(X):
            return _scores_there(model, X, offset)
        reader = MemoryReader(X, None, None, offset)
        prepared, _ = rows_for(model, reader)
        blocks = blocks_of(slice(0, reader.rows), row_words(prepared), BLOCK_BYTES)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return np.concatenate([block_scores(model, prepared, r) for r in blocks])

    def decision(self, X: Any, offset: Array | None = None) -> Array:
        """Return the scores by which a classifier decides, (n,) or (n, K).

        For two classes it is one score for each row, positive for the second class.
        """
        scores = self.scores(X, offset)
        if scores.shape[1] == 1:
            return scores[:, 0]
        # Only the difference of two columns of scores matters.
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def means(self, X: Any, offset: Array | None = None) -> Array:
        """Return the mean of the target of each row of X, (n,)."""
        return KINDS["mean"](self.model, self.scores(X, offset))

    def labels(self, X: Any, offset: Array | None = None) -> Array:
        """Return the label with the largest score for each row of X, (n,)."""
        decision = self.decision(X, offset)
        places = decision.argmax(axis=1) if decision.ndim > 1 else decision > 0
        return np.asarray(self.classes)[places.astype(np.intp)]

    def probabilities(self, X: Any, offset: Array | None = None) -> Array:
        """Return the probability of each class for the rows of X, (n, K)."""
        return KINDS["probability"](self.model, self.scores(X, offset))

    def log_probabilities(self, X: Any, offset: Array | None = None) -> Array:
        """Return the logarithms of the probabilities, (n, K).

        They are finite also where a probability underflows.
        """
        scores = self.scores(X, offset)
        if scores.shape[1] > 1:
            return np.asarray(log_softmax(scores, axis=1))
        logarithm = log_ndtr if self.family == "probit" else log_expit
        return np.asarray(logarithm(np.hstack([-scores, scores])))


def _scores_there(model: TrainedModel, X: Any, offset: Array | None) -> Array:
    """Return the scores (n, K), on the host, of rows X that are on a GPU.

    Blocks of scores are copied to the host; X stays on the GPU.
    """
    if X.ndim != 2 or X.shape[1] != len(model.weights):
        raise DataError(
            f"X has shape {X.shape} and the model was trained on {len(model.weights)}"
            " columns; give rows with the columns of the training data"
        )
    if model.preparation is not None and not model.preparation.is_raw:
        raise DataError(
            "X is in the memory of a GPU and the model was trained on scaled rows,"
            " which are scaled on the host only; pass X.get()"
        )
    home = sys.modules[type(X).__module__.partition(".")[0]]  # the array's library
    weights = home.asarray(model.weights)
    blocks = blocks_of(slice(0, X.shape[0]), X.shape[1], BLOCK_BYTES)
    scores = np.concatenate([home.asnumpy(X[rows] @ weights) for rows in blocks])
    if model.intercept is not None:
        scores += model.intercept
    return scores if offset is None else scores + offset[:, None]


def preparation_of_runs(results: Result | list[Result] | None) -> Preparation:
    """Return how the rows were prepared that the first of these runs trained on."""
    runs = results if isinstance(results, list) else [results]
    first = runs[0] if runs else None
    return RAW if first is None else first.preparation or RAW


def is_on_device(X: Any) -> bool:
    """Return whether X is an array in the memory of a GPU."""
    return hasattr(X, "__cuda_array_interface__")


def total_offset(offset: Any, exposure: Any, rows: int) -> Array | None:
    """Return offset + log(exposure), (rows,), or None if both are None."""
    parts = []
    if offset is not None:
        parts.append(column(offset, rows, "offset"))
    if exposure is not None:
        exposure = column(exposure, rows, "exposure")
        if not (exposure > 0).all():
            row = int(np.argmin(exposure > 0))
            raise DataError(
                f"exposure is {exposure[row]:g} at row {row} and must be above 0; give"
                " such rows a sample_weight of 0 and any exposure, or drop them"
            )
        parts.append(np.log(exposure))
    return sum(parts[1:], parts[0]) if parts else None


def column(values: Any, rows: int, name: str) -> Array:
    """Return `values` as float64 of shape (rows,).

    Raise DataError, with `name`, for another shape or a value that is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in ((rows,), (rows, 1)):
        raise DataError(
            f"{name} has shape {array.shape} and X has {rows} rows; give {rows} values"
        )
    if not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array.reshape(-1))))
        raise DataError(f"{name} is not finite at row {row}; mend it or drop that row")
    return array.reshape(-1)


# A saved model without scikit-learn: it predicts the same.


@dataclass(frozen=True, eq=False)
class Predictor:
    """A fitted model that `hpcsgd.load` returns if there is no scikit-learn.

    Attributes
    ----------
    name : class of the estimator that was saved
    parameters : its parameters
    coef_, intercept_, classes_ : as the estimator has them
    feature_names_in_ : names of the columns, or None
    result_ : `Result` of the run, or a list of them
    attributes : all other attributes of the fit
    """

    name: str
    formula: Formula
    parameters: dict[str, Any]
    feature_names_in_: Array | None = None
    result_: Result | list[Result] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return one line: the class that was saved, and the size of the model."""
        shape = " x ".join(f"{size:,}" for size in np.shape(self.coef_))
        return f"Predictor of {self.name}, {self.formula.family}, {shape} coefficients"

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
        """Labels of a classifier in ascending order; None for a regression."""
        return self.formula.classes

    def predict(self, X: Any, offset: Any = None, exposure: Any = None) -> Array:
        """Return the mean of the target of each row, or a classifier's label, (n,).

        The label is that of the largest score.
        """
        X, total = self._rows(X, offset, exposure)
        if self.formula.classes is None:
            return self.formula.means(X, total)
        return self.formula.labels(X, total)

    def decision_function(self, X: Any, offset: Any = None) -> Array:
        """Return the scores of a classifier.

        For two classes it is the score of the second one, (n,); else they are (n, K).
        """
        self._need(self.formula.classes is not None, "decision function")
        return self.formula.decision(*self._rows(X, offset))

    def predict_proba(self, X: Any, offset: Any = None) -> Array:
        """Return the probability of each class for the rows of X, (n, K)."""
        self._need(self.formula.family in PROBABLE, "probabilities")
        return self.formula.probabilities(*self._rows(X, offset))

    def predict_log_proba(self, X: Any, offset: Any = None) -> Array:
        """Return the logarithm of the probability of each class, (n, K)."""
        self._need(self.formula.family in PROBABLE, "probabilities")
        return self.formula.log_probabilities(*self._rows(X, offset))

    def _rows(
        self, X: Any, offset: Any = None, exposure: Any = None
    ) -> tuple[Any, Array | None]:
        if exposure is not None:
            self._need(
                self.formula.family in LOG_LINK, "exposure", "leave the exposure out"
            )
        matrix = to_matrix(X)
        X = matrix.X
        fitted_names = self.feature_names_in_
        expected_names = None if fitted_names is None else fitted_names.tolist()
        check_names(
            expected_names, matrix.names, "give them in the order of feature_names_in_"
        )
        if X is None or X.ndim != 2:
            raise DataError(f"X has shape {np.shape(X)}; give rows and columns, (n, d)")
        return X, total_offset(offset, exposure, X.shape[0])

    def _need(
        self, is_there: bool, what: str, remedy: str = "call its method predict"
    ) -> None:
        if not is_there:
            raise ConfigError(f"a {self.formula.family} model has no {what}; {remedy}")


# One file for a fitted model: a sealed HDF5 file that loads anywhere.
#
# It contains numbers and one JSON document, never a pickle: parameters, coefficients,
# classes, names of columns and the report of the run. No MPI, no GPU and no version of
# scikit-learn is needed to read it.

KIND = ESTIMATOR
VERSION = 1
SCHEMA = {
    "class": str,
    "family": str,
    "parameters": dict,
    "classes": (None, {"dtype": str, "values": list}),
    "feature_names": (None, [str]),
    "attributes": dict,
    "results": [dict],
    "is_list": bool,
}
PAIRS = "pairs"  # items of a dict with other keys than strings, which JSON would change
# Attributes with a place of their own in the file.
PLACED = ("coef_", "intercept_", "classes_", "feature_names_in_", "result_")


def save(estimator: Any, path: str | PathLike[str]) -> None:
    """Write a fitted estimator to the file `path`, complete or not at all."""
    results = estimator.result_
    document = {
        "class": _known_class(estimator),
        "hpcsgd": __version__,
        "family": estimator._formula().family,
        "parameters": _plain(estimator.get_params(deep=False)),
        "classes": _classes(getattr(estimator, "classes_", None)),
        "feature_names": _names(estimator),
        "attributes": {},
        "results": [],
        "is_list": isinstance(results, list),
    }
    arrays = {
        "coef": np.asarray(estimator.coef_),
        "intercept": np.asarray(estimator.intercept_, dtype=np.float64),
    }
    for number, result in enumerate(
        results if isinstance(results, list) else [results]
    ):
        document["results"].append(result.document())
        arrays |= {f"result{number}_{k}": v for k, v in result.arrays().items()}
    for name, value in vars(estimator).items():
        if not name.endswith("_") or name.startswith("_") or name in PLACED:
            continue
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
            arrays[f"attribute_{name}"] = value
        elif _is_table(value):
            arrays |= {f"table_{name}:{key}": v for key, v in value.items()}
        elif _is_plain(value):
            document["attributes"][name] = value
    with saving(Path(path)):
        write_sealed(Path(path), KIND, VERSION, document, arrays)


def load(path: str | PathLike[str]) -> Any:
    """Read a fitted estimator, or a result, from its file.

    Parameters
    ----------
    path : path-like
        The file that `save` of an estimator has written; or a run folder, or its
        `result.h5`.

    Returns
    -------
    estimator, Predictor or Result
        The fitted estimator. Without scikit-learn it is a Predictor, which predicts the
        same. A run folder gives its Result.

    Raises
    ------
    DataError
        If the file does not exist, is damaged, or holds neither.

    Examples
    --------
    >>> import tempfile
    >>> import hpcsgd
    >>> model = hpcsgd.Ridge().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model.h5")
    ...     again = hpcsgd.load(f"{folder}/model.h5")
    >>> bool((again.predict([[3.0]]) == model.predict([[3.0]])).all())
    True
    """
    path = Path(realpath(path))
    if path.is_dir() or is_sealed(path, RESULT):
        return load_result(path)
    if not path.exists():
        raise DataError(f"{path} does not exist; name a file that `save` has written")
    predictor = _read(path)
    if has_sklearn():
        return _estimator(predictor)
    warnings.warn(
        f"scikit-learn is not installed: {path} is loaded as a Predictor, which"
        f" predicts as {predictor.name} does and cannot be fitted again; for the"
        " estimator: pip install 'hpcsgd[sklearn]'",
        stacklevel=2,
    )
    return predictor


def _read(path: Path) -> Predictor:
    document, arrays = read_sealed(path, KIND, VERSION)
    check_schema(path, document, SCHEMA)
    if document["class"] not in KNOWN:
        raise DataError(
            f"{path} holds a {document['class']}, which this version does not know; use"
            f" hpcsgd {document.get('hpcsgd', '')} or a later one"
        )
    names = document["feature_names"]
    results = [
        restore(path, record, _of(arrays, f"result{number}_"))
        for number, record in enumerate(document["results"])
    ]
    return Predictor(
        name=document["class"],
        formula=_formula(path, document, arrays, preparation_of_runs(results)),
        parameters={k: _unlisted(v) for k, v in document["parameters"].items()},
        feature_names_in_=None if names is None else np.array(names, dtype=object),
        result_=results if document["is_list"] else next(iter(results), None),
        attributes=document["attributes"]
        | _of(arrays, "attribute_")
        | _tables(_of(arrays, "table_")),
    )


def _formula(
    path: Path, document: Any, arrays: Mapping[str, Array], preparation: Preparation
) -> Formula:
    """Return the model from the arrays of a file.

    Raise DataError if they make no model.
    """
    coef = arrays.get("coef")
    intercept = arrays.get("intercept")
    classes = None
    if document["classes"] is not None:
        saved = document["classes"]
        classes = np.array(saved["values"], dtype=_dtype(path, saved["dtype"]))
    if document["family"] not in FAMILIES:
        raise DataError(
            f"{path} holds a model of the family {document['family']!r}, which is not"
            " known here; call hpcsgd.glm.register before you load it"
        )
    fits = (
        coef is not None
        and intercept is not None
        and coef.ndim == (1 if classes is None else 2)
        and intercept.shape == coef.shape[:-1]
    )
    if not fits:
        raise DataError(
            f"{path} holds no complete coefficients of a model; save the model again"
        )
    number = intercept if classes is not None else float(intercept)  # type: ignore[arg-type]
    return Formula(document["family"], coef, number, classes, preparation)  # type: ignore[arg-type]


def _estimator(predictor: Predictor) -> Any:
    """Return the scikit-learn estimator that was saved.

    Parameters that its class no longer has are left out.
    """
    import hpcsgd.estimators as home

    kind = getattr(home, predictor.name)
    names = kind._get_param_names()
    parameters = {k: v for k, v in predictor.parameters.items() if k in names}
    # Sequences among parameters are tuples, which JSON stores as lists.
    parameters = {
        k: tuple(v) if isinstance(v, list) else v for k, v in parameters.items()
    }
    estimator = kind(**parameters)
    for name in ("coef_", "intercept_", "classes_", "feature_names_in_", "result_"):
        value = getattr(predictor, name)
        if value is not None:
            setattr(estimator, name, value)
    for name, value in predictor.attributes.items():
        setattr(estimator, name, value)
    return estimator


def _of(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _is_table(value: Any) -> bool:
    """Return whether `value` is a dict of arrays, as `cv_results_` is."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(array, np.ndarray) for array in value.values())
    )


def _tables(arrays: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    """Return name -> dict of arrays, from arrays called name:key."""
    tables: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        table, _, key = name.partition(":")
        tables.setdefault(table, {})[key] = array
    return tables


def _known_class(estimator: Any) -> str:
    """Return the name of the estimator's class, or of its base in this package."""
    for kind in type(estimator).__mro__:
        if kind.__module__.startswith("hpcsgd.") and kind.__name__ in KNOWN:
            return kind.__name__
    raise ConfigError(
        f"a {type(estimator).__name__} cannot be saved, because it is no estimator of"
        " hpcsgd; save one of hpcsgd"
    )


def _names(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _classes(classes: Array | None) -> dict[str, Any] | None:
    if classes is None:
        return None
    values = classes.tolist()
    if not (classes.dtype.kind in "biufU" or all(isinstance(v, str) for v in values)):
        raise ConfigError(
            f"classes of type {classes.dtype} cannot be saved; fit with strings or"
            " numbers as labels"
        )
    kind = classes.dtype.str if classes.dtype.kind in "biufU" else "object"
    return {"dtype": kind, "values": values}


def _dtype(path: Path, name: str) -> Any:
    """Return the dtype of classes that `_classes` wrote as `name`."""
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise DataError(f"{path} has classes of unknown type; save it again") from error
    if dtype.kind not in "biufUO":
        raise DataError(f"{path} has classes of unknown type; save it again")
    return dtype


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that JSON can store; others are left out."""
    plain = {}
    for name, value in parameters.items():
        value = _listed(value)
        if _is_plain(value):
            plain[name] = value
    return plain


def _listed(value: Any) -> Any:
    """Return `value` with arrays, tuples and NumPy numbers as Python lists and numbers.

    A dict whose keys are not all strings becomes {"pairs": list of [key, value]}.
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, Mapping) and not all(isinstance(key, str) for key in value):
        return {PAIRS: [[_listed(k), _listed(v)] for k, v in value.items()]}
    return value


def _unlisted(value: Any) -> Any:
    """Return `value`; if it is the {"pairs": ...} of a dict, return that dict."""
    if isinstance(value, dict) and value.keys() == {PAIRS}:
        return dict(value[PAIRS])
    return value


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True

"""One file for a fitted model: a sealed HDF5 file that loads anywhere.

It holds numbers and one JSON document, never a pickle: parameters, coefficients,
classes, names of columns and the report of the run. No MPI, no GPU and no version of
scikit-learn is needed to read it.
"""

import json
import warnings
from collections.abc import Mapping
from os import PathLike
from os.path import realpath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd import __version__
from hpcsgd.data.preparation import Preparation
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators import __all__ as KNOWN
from hpcsgd.estimators import has_sklearn
from hpcsgd.estimators.formula import Formula, preparation_of_runs
from hpcsgd.estimators.predictor import Predictor
from hpcsgd.families import FAMILIES
from hpcsgd.result import KIND as RESULT
from hpcsgd.result import Result, load_result, restore, saving
from hpcsgd.sealed import check_schema, is_sealed, read_sealed, write_sealed

Array = NDArray[Any]
KIND, VERSION = "estimator", 1
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
PAIRS = "pairs"  # of a dict whose keys are no strings, which JSON would make of them
# Attributes with a place of their own in the file.
PLACED = ("coef_", "intercept_", "classes_", "feature_names_in_", "result_")


def save(estimator: Any, path: str | PathLike[str]) -> None:
    """Write a fitted estimator, whole or not at all."""
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
    """Read what `save` has written.

    Parameters
    ----------
    path : file that an estimator has saved; or a run folder, or its result.h5

    Returns
    -------
    the estimator, fitted; a `Predictor` where scikit-learn is not installed, which
    predicts the same; of a run its `Result`

    Examples
    --------
    >>> import tempfile, hpcsgd
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
    found = [
        restore(path, one, _of(arrays, f"result{number}_"))
        for number, one in enumerate(document["results"])
    ]
    return Predictor(
        name=document["class"],
        formula=_formula(path, document, arrays, preparation_of_runs(found)),
        parameters={k: _unlisted(v) for k, v in document["parameters"].items()},
        feature_names_in_=None if names is None else np.array(names, dtype=object),
        result_=found if document["is_list"] else next(iter(found), None),
        attributes=document["attributes"]
        | _of(arrays, "attribute_")
        | _tables(_of(arrays, "table_")),
    )


def _formula(
    path: Path, document: Any, arrays: Mapping[str, Array], preparation: Preparation
) -> Formula:
    """The coefficients, if they make a model."""
    coef, intercept = arrays.get("coef"), arrays.get("intercept")
    classes = None
    if document["classes"] is not None:
        saved = document["classes"]
        classes = np.array(saved["values"], dtype=_dtype(path, saved["dtype"]))
    fits = (
        document["family"] in FAMILIES
        and coef is not None
        and intercept is not None
        and coef.ndim == (1 if classes is None else 2)
        and intercept.shape == coef.shape[:-1]
    )
    if not fits:
        raise DataError(
            f"{path} holds no coefficients that make a model; save it again"
        )
    number = intercept if classes is not None else float(intercept)  # type: ignore[arg-type]
    return Formula(document["family"], coef, number, classes, preparation)  # type: ignore[arg-type]


def _estimator(predictor: Predictor) -> Any:
    """The estimator that was saved; parameters that it no longer has are left out."""
    import hpcsgd.estimators as home

    kind = getattr(home, predictor.name)
    known = kind._get_param_names()
    given = {k: v for k, v in predictor.parameters.items() if k in known}
    # JSON has no tuples, which is what sequences among parameters are.
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    estimator = kind(**given)
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
    """A dict of arrays, as `cv_results_`."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(array, np.ndarray) for array in value.values())
    )


def _tables(arrays: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    """Such dicts by their names, from arrays called name:key."""
    found: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        table, _, key = name.partition(":")
        found.setdefault(table, {})[key] = array
    return found


def _known_class(estimator: Any) -> str:
    """Its class, or the one of ours that it descends from."""
    for kind in type(estimator).__mro__:
        if kind.__module__.startswith("hpcsgd.") and kind.__name__ in KNOWN:
            return kind.__name__
    raise ConfigError(f"{type(estimator).__name__} is no estimator of this package")


def _names(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _classes(classes: Array | None) -> dict[str, Any] | None:
    if classes is None:
        return None
    values = classes.tolist()
    if not (classes.dtype.kind in "biufU" or all(isinstance(v, str) for v in values)):
        raise ConfigError(
            f"classes of type {classes.dtype} have no place in the file; fit with"
            " strings or numbers"
        )
    kind = classes.dtype.str if classes.dtype.kind in "biufU" else "object"
    return {"dtype": kind, "values": values}


def _dtype(path: Path, name: str) -> Any:
    """A dtype that `_classes` has written."""
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise DataError(f"{path} has classes of unknown type; save it again") from error
    if dtype.kind not in "biufUO":
        raise DataError(f"{path} has classes of unknown type; save it again")
    return dtype


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON can say; callbacks and other objects stay behind."""
    found = {}
    for name, value in parameters.items():
        value = _listed(value)
        if _is_plain(value):
            found[name] = value
    return found


def _listed(value: Any) -> Any:
    """Arrays and NumPy's numbers as Python's."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, Mapping) and not all(isinstance(key, str) for key in value):
        return {PAIRS: [[_listed(k), _listed(v)] for k, v in value.items()]}
    return value


def _unlisted(value: Any) -> Any:
    """A dict again, of what `_listed` has made pairs of."""
    if isinstance(value, dict) and value.keys() == {PAIRS}:
        return dict(value[PAIRS])
    return value


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


__all__ = ["Predictor", "Result", "load", "save"]

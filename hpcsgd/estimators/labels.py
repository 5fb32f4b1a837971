"""Labels of any kind as numbers 0..K-1, the same on all ranks, and their weights."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import _check_partial_fit_first_call

from hpcsgd.data.readers import open_reader
from hpcsgd.data.targets import MOST_CLASSES
from hpcsgd.errors import DataError
from hpcsgd.estimators.given import Place

Array = NDArray[Any]
NUMBERS = "biuf"  # kinds of dtypes
ROWS = 2**20  # targets of a file that are looked at together


def find_classes(X: Any, y: Any, place: Place) -> Array:
    """The labels of all ranks in ascending order; one exchange where rows are dealt."""
    if y is None:
        return _of_file(X, place)
    # Of a rank without rows not even the type is known.
    found = [labels for labels in place.of_rows(np.unique(y)) if len(labels)]
    if not found:
        raise DataError("no rank has a row; give rows to one of them at least")
    if len({part.dtype.kind in NUMBERS for part in found}) > 1:
        raise DataError(
            "the labels of one rank are numbers and those of another are not; give all"
            " ranks labels of one kind"
        )
    classes = np.unique(np.concatenate(found))
    if len(classes) < 2:
        raise DataError(
            f"y has one class only ({classes.tolist()[0]!r}) and a classifier needs"
            " two; add rows of another"
        )
    return classes


def _of_file(path: Any, place: Place) -> Array:
    """Rank 0 reads the labels of a file, and tells the others."""

    def read() -> Array:
        found: Array = np.empty(0)
        if place.world.rank == 0:
            reader = open_reader(Path(path))
            for first in range(0, reader.rows, ROWS):
                part = reader.targets(slice(first, min(first + ROWS, reader.rows)))
                found = np.union1d(found, part)[: MOST_CLASSES + 1]
            reader.close()
        return found

    found: Array = place.world.exchange_objects(place.together(read))[0]
    return found


def check_classes(estimator: Any, classes: Any) -> Array:
    """All classes there will ever be, said at the first call of `partial_fit`."""
    _check_partial_fit_first_call(estimator, classes)
    return np.asarray(estimator.classes_)


def encode(y: Array, classes: Array) -> Array:
    """The place of each label among the classes, as float64."""
    places = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    strange = np.flatnonzero(classes[places] != y)
    if len(strange):
        raise DataError(
            f"y has {y[strange[:1]].tolist()[0]!r} at row {strange[0]} and the classes"
            f" are {classes.tolist()}; name every class where the model first learns"
        )
    return places.astype(np.float64)


def weigh(
    codes: Array, classes: Array, class_weight: Any, weights: Array | None, place: Place
) -> Array | None:
    """Sample weights times the weights of their classes; None = all alike.

    "balanced": Σc / (K Σ_k c), sums over all rows and over those of class k.
    """
    if class_weight is None:
        return weights
    own = np.ones(len(codes)) if weights is None else weights
    places = codes.astype(np.intp)
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(places, own, minlength=len(classes))
        counts = np.sum(place.of_rows(counts), axis=0)
        # A class without weight has no rows that a factor would reach.
        factors = counts.sum() / (len(classes) * np.where(counts > 0, counts, 1.0))
    else:
        factors = compute_class_weight(class_weight, classes=classes, y=classes)
    return np.asarray(own * factors[places])

"""Folds of a cross-validation, as scikit-learn's splitters say them or by number."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv

from hpcsgd.data.folds import fold_of
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators.given import Given, Place

Array = NDArray[Any]
LEAST = 2


def count_folds(cv: Any, groups: Any = None) -> int | None:
    """`cv` where it is a number of folds; None where it is a splitter or splits."""
    if not isinstance(cv, int | np.integer):
        return None
    if groups is not None:
        raise ConfigError(
            f"groups are given and cv = {cv} deals rows one by one; give a splitter, as"
            f" GroupKFold({cv})"
        )
    if cv < LEAST:
        raise ConfigError(f"cv = {cv} must be at least {LEAST}; 5 is usual")
    return int(cv)


@dataclass(frozen=True)
class Dealt:
    """Which rows are held out together."""

    folds: int
    own: Array | None  # the fold of each row that this rank gave; −1: in none
    known: Array | None  # of all rows, where the engine does not deal them itself


def deal(
    cv: Any,
    given: Given,
    place: Place,
    is_labelled: bool,
    seed: int,
    groups: Any = None,
) -> Dealt:
    """Folds by their number, dealt by row number and seed; or by a splitter."""
    count = place.together(lambda: count_folds(cv, groups))
    if count is None:
        fold_of_row = folds_of(cv, given, place, is_labelled, groups)
        return Dealt(int(fold_of_row.max()) + 1, fold_of_row, fold_of_row)
    if given.y is None:
        return Dealt(count, None, None)
    counts = place.of_rows(len(given.y))
    check_rows(sum(counts), count)
    first = sum(counts[: place.world.rank]) if len(counts) > 1 else 0
    own = fold_of(slice(first, first + len(given.y)), count, seed)
    return Dealt(count, own, None)


def folds_of(
    cv: Any, given: Given, place: Place, is_labelled: bool, groups: Any
) -> Array:
    """The fold of every row by a splitter, as rank 0 draws it."""
    if given.y is None or place.layout not in ("replicated", "columns"):
        raise ConfigError(
            f"cv of type {type(cv).__name__} needs all rows on every rank; give a"
            " number of folds"
        )
    found = place.together(lambda: _folds_of(cv, given, is_labelled, groups, place))
    drawn: Array = place.world.exchange_objects(found)[0]
    return drawn


def _folds_of(
    cv: Any, given: Given, is_labelled: bool, groups: Any, place: Place
) -> Array:
    """Each row may be held out once: all others are what its model is trained on."""
    rows = len(given.y)
    found = np.full(rows, -1, dtype=np.int64)
    if place.world.rank > 0:
        return found  # which groups there are rank 0 alone may know
    splitter = check_cv(cv, given.y, classifier=is_labelled)
    for number, (train, test) in enumerate(splitter.split(given.X, given.y, groups)):
        held = np.zeros(rows, dtype=bool)
        held[test] = True
        kept = np.ones(rows, dtype=bool)
        kept[train] = False
        if (held != kept).any() or (found[held] >= 0).any():
            raise ConfigError(
                "cv must hold every row out at most once and train on all others, as"
                " KFold, StratifiedKFold and LeaveOneGroupOut do"
            )
        found[held] = number
    return found


def check_rows(rows: int, folds: int) -> None:
    """Refuse folds without a row."""
    if rows < folds:
        raise DataError(
            f"n_samples={rows} is less than cv={folds}: every fold needs a row; lower"
            " cv, or give more rows"
        )

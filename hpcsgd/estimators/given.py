"""What a fit was given: checked as scikit-learn does it, on all ranks together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    column_or_1d,
    validate_data,
)

from hpcsgd.agreement.plan_check import check_same
from hpcsgd.comm.base import Communicator
from hpcsgd.errors import DataError, HpcsgdError
from hpcsgd.estimators.formula import column, is_on_device, total_offset
from hpcsgd.fitting.fit import ranks_of

Array = NDArray[Any]
T = TypeVar("T")
# The first is what whole numbers become; float32 stays as it is, without a copy.
# Parameters of a rank's own: the seed is that of rank 0.
OWN = ("callbacks", "verbose", "random_state")
CHECKS = {"accept_sparse": "csr", "dtype": (np.float64, np.float32)}


@dataclass(frozen=True)
class Place:
    """Where a fit takes place: its ranks, and what each of them holds."""

    world: Communicator
    layout: str = "replicated"
    grid: Any = None

    def together(self, action: Callable[[], T]) -> T:
        """Run `action`; what any rank finds wrong is raised on every rank."""
        if self.world.size == 1:
            return action()
        return self.world.together(lambda: _as_data_error(action))

    def of_rows(self, item: Any) -> list[Any]:
        """The items of all ranks that hold rows of their own; else this one alone."""
        return self.world.exchange_objects(item) if self.layout == "rows" else [item]

    def share(self, X: Any, *sides: Any) -> tuple[Any, ...]:
        """X, and targets, weights ... of all its rows, of which rank 0 has some alone.

        Where columns are dealt the others may leave them out.
        """
        if self.layout != "columns" or self.world.size == 1:
            return X, *sides
        if all(self.world.exchange_objects(sides[0] is not None)):
            return X, *sides
        of_first = sides if self.world.rank == 0 else None
        return X, *self.world.exchange_objects(of_first)[0]

    @property
    def fewest_rows(self) -> int:
        """That a rank must have: none, where others have some."""
        return 0 if self.layout == "rows" and self.world.size > 1 else 1


@dataclass(frozen=True)
class Given:
    """The rows of a fit and what belongs to them."""

    X: Any  # array, CSR, array of a GPU, or the path of a file
    y: Any
    weights: Array | None = None
    offset: Array | None = None
    labels: Any = None  # all numbers of y there are, where they stand for classes


@contextmanager
def opened(comm: Any, layout: str, grid: Any) -> Iterator[Place]:
    """The ranks of `comm`: ours, mpi4py's, or this process alone."""
    with ranks_of(comm) as world:
        yield Place(world, layout, grid)


def check_alike(estimator: Any, X: Any, place: Place) -> None:
    """Refuse ranks that ask for different fits."""
    if place.world.size == 1:
        return
    kind = "a path" if isinstance(X, str | PathLike) else "no path"
    said = {"class": type(estimator).__name__, "X": kind, "grid": repr(place.grid)}
    said["layout"] = repr(place.layout)
    for name, value in estimator.get_params(deep=False).items():
        if name not in OWN:
            # Of a splitter rank 0 draws the folds for all.
            is_plain = name != "cv" or isinstance(value, int)
            said[name] = repr(value) if is_plain else type(value).__name__
    check_same(place.world, said)


def take(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    offset: Any = None,
    exposure: Any = None,
    *,
    is_labelled: bool,
    place: Place,
    reset: bool = True,
) -> Given:
    """Everything that was given, or one clear error."""
    if place.layout == "hdf5" and not isinstance(X, str | PathLike):
        raise DataError("layout = 'hdf5' needs the path of a file as X; give one")
    if isinstance(X, str | PathLike):
        if exposure is not None:
            offset = total_offset(offset, exposure, len(exposure))
        return Given(str(X), y, sample_weight, offset)
    how = {"reset": reset, "ensure_min_samples": place.fewest_rows}
    X, y = _checked(estimator, X, y, is_labelled, **how)
    rows = X.shape[0]
    if sample_weight is not None:
        sample_weight = _check_sample_weight(
            sample_weight, np.empty((rows, 0)), dtype=np.float64
        )
    return Given(X, y, sample_weight, total_offset(offset, exposure, rows))


def take_rows(estimator: Any, X: Any) -> Any:
    """Rows to predict."""
    if is_on_device(X):
        return _as_fitted(estimator, X)
    return validate_data(estimator, X, reset=False, **CHECKS)


def _checked(
    estimator: Any, X: Any, y: Any, is_labelled: bool, **how: Any
) -> tuple[Any, Array]:
    if is_on_device(X):
        y = column(y.get() if is_on_device(y) else y, X.shape[0], "y")
        if how["reset"]:
            estimator.n_features_in_ = X.shape[1]
        return _as_fitted(estimator, X), y
    X, y = validate_data(estimator, X, y, y_numeric=not is_labelled, **how, **CHECKS)
    if is_labelled and len(y):
        check_classification_targets(y)
    return X, y


def _as_fitted(estimator: Any, X: Any) -> Any:
    """Rows on a GPU stay there: scikit-learn's checks would bring them to the host."""
    if X.ndim != 2 or X.shape[1] != estimator.n_features_in_:
        raise DataError(
            f"X has shape {X.shape} and the model {estimator.n_features_in_} columns;"
            " give rows with the columns of the training"
        )
    return X


def _as_data_error(action: Callable[[], T]) -> T:
    """What scikit-learn finds wrong as an error that ranks tell each other."""
    try:
        return action()
    except HpcsgdError:
        raise
    except (ValueError, TypeError) as error:
        raise DataError(str(error)) from error


def check_targets(y: Any, sample_weight: Any, X: Any) -> tuple[Array, Array | None]:
    """The targets and weights of a score."""
    y, rows = column_or_1d(y, dtype=np.float64), X.shape[0]
    if sample_weight is None:
        return column(y, rows, "y"), None
    return column(y, rows, "y"), column(sample_weight, rows, "sample_weight")

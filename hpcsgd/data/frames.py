"""Matrices of numbers from arrays, frames and paths, copied only if necessary."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.data.readers import RAGGED, is_device_array, refuse_masked, to_numbers
from hpcsgd.errors import DataError

MOST_NAMED = 3  # columns that an error names


@dataclass(frozen=True)
class Matrix:
    """The rows that a caller has passed, or the path of the file that contains them."""

    X: Any  # NumPy array, SciPy matrix or CuPy array; None: in a file
    names: list[str] | None = None  # of the columns, where they have any
    path: str | None = None


def to_matrix(data: Any) -> Matrix:
    """Return an array, a frame of pandas or polars, or a path as a `Matrix`.

    Arrays of numbers stay as they are. Columns whose labels are not all text have no
    names, as in scikit-learn.
    """
    if isinstance(data, str | Path):
        return Matrix(None, path=str(data))
    return Matrix(*_numbers(data))


def is_wide(X: Any) -> bool:
    """Return whether X has float64 values, or integers that float32 may round."""
    if X is None or 0 in X.shape:
        return False
    return X.dtype.kind in "fiu" and X.dtype.itemsize > (
        4 if X.dtype.kind == "f" else 2
    )


def _numbers(data: Any) -> tuple[Any, list[str] | None]:
    if data is None or hasattr(data, "tocsr"):
        return data, None
    if is_device_array(data):
        return data, None
    home = type(data).__module__.partition(".")[0]
    if home == "polars":
        return _from_polars(data)
    if hasattr(data, "columns") and hasattr(data, "dtypes"):
        return _from_pandas(data)
    refuse_masked("X", data)
    return _from_array(data), None


def to_column(name: str, values: Any) -> Any:
    """Return targets, weights or offsets as a float64 array on the host, or None."""
    if values is None:
        return None
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    elif is_device_array(values):
        values = values.get()
    return to_numbers(name, values)


def _from_array(data: Any) -> Any:
    """Return an array or nested lists as an array; objects become float64."""
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise DataError(RAGGED) from error
    if array.dtype.kind not in "OUS":
        return array
    place = _first_text(array)
    if place:
        raise DataError(
            f"X holds {place}, which is no number that float64 can hold; encode text"
            " and categories, for example by scikit-learn's OneHotEncoder, or drop the"
            " column"
        )
    return array.astype(np.float64) if array.dtype.kind == "O" else array


def _first_text(array: Any) -> str:
    """Return the first value, by rows, that is not a number, and its place, as text.

    It is "" if all values are numbers.
    """
    try:
        array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        for place, value in np.ndenumerate(array):
            try:
                float(value)
            except (TypeError, ValueError, OverflowError):
                column = f" in column {place[1]}" if len(place) > 1 else ""
                row = f" at row {place[0]}" if place else ""
                return f"{str(value)[:40]!r}{column}{row}"
    return ""


def _from_pandas(frame: Any) -> tuple[Any, list[str] | None]:
    """Return a frame of pandas as (matrix, names or None); missing values become NaN.

    Columns that are not numeric are refused; NaN is refused later.
    """
    labels = list(frame.columns)
    kinds = list(frame.dtypes)
    names = labels if all(isinstance(label, str) for label in labels) else None
    each = zip(map(str, labels), kinds, strict=True)
    _refuse_others({name: str(kind) for name, kind in each if not _is_number(kind)})
    if kinds and all(_is_about_zero(kind) for kind in kinds):
        # Sparse columns of pandas get one common dtype: SciPy has no object matrices.
        common = np.result_type(*(kind.subtype for kind in kinds))
        return frame.astype(type(kinds[0])(common, 0)).sparse.to_coo(), names
    if kinds and all(isinstance(kind, np.dtype) for kind in kinds):
        # With a dtype, because pandas converts booleans beside numbers to objects.
        return frame.to_numpy(dtype=np.result_type(*kinds)), names
    return frame.to_numpy(dtype=np.float64, na_value=np.nan), names


def _is_about_zero(kind: Any) -> bool:
    """Return whether a sparse pandas dtype leaves out zeros, not ones or NaN."""
    return bool(getattr(kind, "fill_value", None) == 0)


def _is_number(kind: Any) -> bool:
    """Return whether a dtype of NumPy or pandas is numeric or boolean."""
    kind = getattr(kind, "subtype", kind)
    return getattr(kind, "kind", "O") in "biuf"


def _from_polars(frame: Any) -> tuple[Any, list[str]]:
    """Return a frame of polars as (matrix, names); missing values become NaN."""
    if hasattr(frame, "collect"):
        frame = frame.collect()
    kinds = {n: str(k) for n, k in frame.schema.items() if not _is_plain(k)}
    _refuse_others(kinds)
    import importlib

    polars = importlib.import_module("polars")
    small = all(kind == polars.Float32 for kind in frame.dtypes)
    wide = polars.Float32 if small else polars.Float64
    casted = frame.select(polars.all().cast(wide).fill_null(float("nan")))
    return casted.to_numpy(order="c"), list(frame.columns)


def _is_plain(kind: Any) -> bool:
    return bool(kind.is_numeric()) or str(kind) == "Boolean"


def _refuse_others(kinds: dict[str, str]) -> None:
    """Raise DataError if `kinds` is not empty.

    It has the dtype of each column that is not numeric, by the name of the column.
    """
    if not kinds:
        return
    shown = [f"{name!r} ({kind})" for name, kind in kinds.items()]
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    raise DataError(
        f"columns {', '.join(shown[:MOST_NAMED])}{more} are not numbers; encode them,"
        " for example by pandas.get_dummies or scikit-learn's OneHotEncoder, or drop"
        " them"
    )

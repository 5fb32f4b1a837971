"""The report of `hpcsgd data inspect`: facts about rows, and suggested settings."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import issparse

from hpcsgd.data.convert.sources import block_rows
from hpcsgd.data.convert.transform import ColumnMoments
from hpcsgd.data.readers import RowReader, categories_of, names_of, preparation_of
from hpcsgd.data.targets import MOST_CLASSES
from hpcsgd.formats import Array
from hpcsgd.glm import get_family

BLOCK_BYTES = 64 * 2**20
SHOWN_LABELS = 20
SHOWN_ROWS = 3
SHOWN_COLUMNS = 6
QUERIES_AT_ONCE = 2**20
MOST_INTEGER_CLASSES = 10  # more whole numbers than this look like counts
SKEWED = 1.0  # skewness from which positive numbers look like those of gamma
MOST_MEASURED = 2**22  # columns whose spreads are measured, in 24 bytes each
UNEVEN = 100.0  # ratio of the spreads of columns from which --standardize helps
FAMILY_OF_TASK = {
    "binary": "logistic",
    "counts": "poisson",
    "classes": "softmax",
    "positive": "gamma",
    "real": "gaussian",
}


@dataclass
class ValueCounts:
    """Range, zeros and moments of one number per row (label, weight or offset)."""

    rows: int = 0
    zeros: int = 0
    lowest: float = float("inf")
    highest: float = float("-inf")
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)  # Σ (value − origin)ᵏ
    origin: float | None = None  # the first value

    def add(self, values: Array) -> None:
        """Add the numbers of the next rows."""
        if not len(values):
            return
        if self.origin is None:
            self.origin = float(values[0])
        self.rows += len(values)
        self.zeros += int(np.count_nonzero(values == 0))
        self.lowest = min(self.lowest, float(values.min()))
        self.highest = max(self.highest, float(values.max()))
        with np.errstate(over="ignore", invalid="ignore"):
            apart = values - self.origin
            more = (float((apart**power).sum()) for power in (1, 2, 3))
            a, b, c = (old + new for old, new in zip(self.sums, more, strict=True))
        self.sums = (a, b, c)

    @property
    def mean(self) -> float:
        """Return the mean of the numbers."""
        return (self.origin or 0.0) + self.sums[0] / max(self.rows, 1)

    @property
    def skewness(self) -> float:
        """Return the third moment about the mean over σ³; 0 where that is no number."""
        first, second, third = (total / max(self.rows, 1) for total in self.sums)
        variance = second - first**2
        if not 0 < variance < float("inf"):
            return 0.0
        skewness = (third - 3 * first * second + 2 * first**3) / variance**1.5
        return skewness if np.isfinite(skewness) else 0.0

    def describe(self) -> dict[str, Any] | None:
        """Return the range, mean and zeros for JSON; None without any numbers."""
        if not self.rows:
            return None
        return {
            "min": self.lowest,
            "max": self.highest,
            "mean": self.mean,
            "zeros": self.zeros,
        }


@dataclass
class LabelCounts:
    """The labels of the rows: their range, and how often each of them occurs.

    Attributes
    ----------
    are_text : bool
        Whether the labels were text and were converted to numbers.
    values : ValueCounts
        Range and moments of the labels.
    are_whole : bool
        Whether every label is a whole number.
    histogram : Counter or None
        Number of rows of each label; None if there are more than MOST_CLASSES labels.
    """

    are_text: bool = False
    values: ValueCounts = field(default_factory=ValueCounts)
    are_whole: bool = True
    histogram: Counter[float] | None = field(default_factory=Counter)

    def add(self, y: Array) -> None:
        """Add the labels of the next rows."""
        self.values.add(y)
        self.are_whole = self.are_whole and bool((y == np.round(y)).all())
        if self.histogram is not None:
            values, counts = np.unique(y, return_counts=True)
            pairs = zip(values.tolist(), counts.tolist(), strict=True)
            self.histogram.update(dict(pairs))
            if len(self.histogram) > MOST_CLASSES:
                self.histogram = None

    @property
    def distinct(self) -> int | None:
        """Return the number of different labels; None if more than MOST_CLASSES."""
        return None if self.histogram is None else len(self.histogram)

    def describe(self) -> dict[str, Any]:
        """Return range and number of labels, and the most frequent ones, for JSON.

        The histogram is None if there are more than MOST_CLASSES different labels.
        """
        extremes = {"min": self.values.lowest, "max": self.values.highest}
        if self.histogram is None:
            distinct = f"more than {MOST_CLASSES}"
            return {**extremes, "distinct": distinct, "histogram": None}
        shown = dict(sorted(self.histogram.most_common(SHOWN_LABELS)))
        histogram = {f"{label:g}": count for label, count in shown.items()}
        return {**extremes, "distinct": self.distinct, "histogram": histogram}


@dataclass
class InspectionCounts:
    """Counts and extremes of one pass over the rows.

    Attributes
    ----------
    labels : LabelCounts
        Range and numbers of the labels.
    columns : ColumnMoments or None
        Moments of the columns; None if there are too many columns.
    nonzero : int
        Number of values that are not 0.
    bad : int
        Number of values that are not finite.
    largest : float
        Largest squared length of a row.
    lengths : float
        Sum of the lengths of the rows.
    weights, offsets : ValueCounts
        Ranges and moments of the sample weights and of the offsets.
    """

    labels: LabelCounts
    columns: ColumnMoments | None
    nonzero: int = 0
    bad: int = 0
    largest: float = 0.0
    lengths: float = 0.0
    weights: ValueCounts = field(default_factory=ValueCounts)
    offsets: ValueCounts = field(default_factory=ValueCounts)

    def add(
        self,
        X: Any,
        y: Array | None,
        weights: Array | None = None,
        offsets: Array | None = None,
    ) -> None:
        """Add the next rows."""
        if self.columns is not None:
            self.columns.add_block(X)
        values = X.data if issparse(X) else X
        self.nonzero += int(np.count_nonzero(values))
        self.bad += int(values.size - np.isfinite(values).sum())
        squares = _squared_lengths(X)
        self.largest = max(self.largest, float(squares.max(initial=0.0)))
        self.lengths += float(np.sqrt(squares).sum())
        if weights is not None:
            self.weights.add(weights)
        if offsets is not None:
            self.offsets.add(offsets)
        if y is not None:
            self.labels.add(y)


def inspect(reader: Any, budget: int = BLOCK_BYTES) -> dict[str, Any]:
    """Return everything that `hpcsgd data inspect` reports on a reader, for JSON."""
    numbers = getattr(reader, "label_numbers", None)
    moments = ColumnMoments(reader.cols) if reader.cols <= MOST_MEASURED else None
    tally = InspectionCounts(LabelCounts(are_text=bool(numbers)), moments)
    labelled = has_targets(reader)
    every = slice(0, reader.cols)
    step = block_rows(budget, 3 * 8 * reader.cols)
    # A sparse file is read as CSR: as dense rows, it might not fit into memory.
    sparse = getattr(reader, "is_sparse", False)
    read = reader.read_csr if sparse else reader.read
    first: Array | None = None
    for start in range(0, reader.rows, step):
        rows = slice(start, min(start + step, reader.rows))
        X = read(rows, every)
        if first is None:
            first = _dense(X[:SHOWN_ROWS, :SHOWN_COLUMNS])
        y = reader.targets(rows) if labelled else None
        tally.add(X, y, reader.sample_weight(rows), reader.offset(rows))
    names = names_of(reader)
    spreads = _spreads(moments, sparse, names)
    uneven = (
        spreads is not None
        and preparation_of(reader).is_raw
        and spreads["max"]["value"] > UNEVEN * spreads["min"]["value"]
    )
    facts = {"element": _element(first), **reader.describe()}
    return {
        **{key: value for key, value in facts.items() if not _is_long(value)},
        "rows": reader.rows,
        "columns": reader.cols,
        "column_names": names,
        "categories": categories_of(reader),
        "density": tally.nonzero / (reader.rows * reader.cols),
        "not_finite": tally.bad,
        "row_norm": {
            "max": float(np.sqrt(tally.largest)),
            "mean": tally.lengths / reader.rows,
        },
        "preparation": preparation_of(reader).describe(),
        "kept_scales": _kept_scales(reader, names),
        "spreads": spreads,
        "weights": tally.weights.describe(),
        "offsets": tally.offsets.describe(),
        "queries": _queries(reader),
        "labels": tally.labels.describe() if labelled else None,
        "label_numbers": numbers,
        "first_rows": _first_rows(reader, first, labelled),
        "suggested": _suggested(tally, facts.get("task"), uneven) if labelled else None,
    }


def _suggested(
    tally: InspectionCounts, task: str | None, is_uneven: bool
) -> dict[str, Any]:
    """Return a family, a rate, and whether columns should be standardized first."""
    return {**suggest(tally, task), "standardize": is_uneven}


def has_targets(reader: RowReader) -> bool:
    """Return whether a reader has targets; other data serve for predictions only."""
    from hpcsgd.errors import DataError

    try:
        reader.targets(slice(0, 1))
    except DataError:
        return False
    return True


def suggest(tally: InspectionCounts, task: str | None) -> dict[str, Any]:
    """Return a family that suits the labels, and the rate 1/L.

    L is the curvature bound of the family times max ‖x‖². The rate is None if L is 0 or
    not finite.
    """
    family, why = suggest_family(tally.labels, tally.offsets, task)
    bound = get_family(family).curvature * tally.largest
    step = 1 / bound if 0 < bound < float("inf") else None
    return {"family": family, "because": why, "rate": step}


def suggest_family(
    labels: LabelCounts, offsets: ValueCounts, task: str | None
) -> tuple[str, str]:
    """Return (family, reason), by the task that the file states, or by its labels."""
    if task in FAMILY_OF_TASK:
        return FAMILY_OF_TASK[task], f"the file says that its task is {task}"
    count = labels.distinct
    are_counts = labels.are_whole and labels.values.lowest >= 0 and count != 1
    if count == 2:
        return "logistic", "y has two labels"
    if labels.are_text and count is not None and count > 2:
        return "softmax", f"y has {count} labels that were text"
    if are_counts and offsets.lowest < offsets.highest:
        return "poisson", (
            "y has whole numbers of at least 0 and rows have offsets, as counts with"
            " an exposure have"
        )
    if labels.are_whole and count is not None and 2 < count <= MOST_INTEGER_CLASSES:
        return "softmax", f"y has {count} whole labels; poisson if they are counts"
    if are_counts:
        return "poisson", "y has many whole numbers of at least 0, as counts are"
    if labels.values.lowest > 0 and labels.values.skewness > SKEWED:
        return "gamma", "y is positive and skewed to the right"
    return "gaussian", "y has real numbers" if count != 1 else "y has one value only"


def _kept_scales(reader: Any, names: list[str] | None) -> dict[str, Any] | None:
    """Return the range of the scales that columns were divided by, or None."""
    scales = preparation_of(reader).scales
    return None if scales is None else _range(scales.scale, names)


def _spreads(
    moments: ColumnMoments | None, sparse: bool, names: list[str] | None
) -> dict[str, Any] | None:
    """Return the range of the spreads of columns; None without any spread.

    The spread of a column is its standard deviation, or for sparse data its root mean
    square. Columns of spread 0 are left out of the range, and counted.
    """
    if moments is None:
        return None
    full = moments.with_zeros() if sparse else moments
    with np.errstate(over="ignore", invalid="ignore"):
        square = full.squares / np.maximum(full.count, 1) + (full.mean**2) * sparse
        spread = np.sqrt(square)
    flat = spread <= 1e-12 * np.abs(full.mean) if not sparse else spread == 0
    spread = np.where(flat | ~np.isfinite(spread), np.nan, spread)
    bounds = _range(spread, names)
    return None if bounds is None else {**bounds, "constant_columns": int(flat.sum())}


def _range(values: Array, names: list[str] | None) -> dict[str, Any] | None:
    """Return the least and the largest of `values`, each with its column.

    Return None if all values are NaN. `values` has one value for each column.
    """
    if np.isnan(values).all():
        return None
    ends = {"min": int(np.nanargmin(values)), "max": int(np.nanargmax(values))}
    return {
        end: {
            "column": column,
            "name": None if names is None else names[column],
            "value": float(values[column]),
        }
        for end, column in ends.items()
    }


def _queries(reader: Any) -> dict[str, Any] | None:
    """Return the number and range of the groups (qid) of rows; None without groups."""
    read = getattr(reader, "queries", None)  # arrays have none
    groups: set[int] = set()
    for start in range(0, reader.rows, QUERIES_AT_ONCE):
        rows = slice(start, min(start + QUERIES_AT_ONCE, reader.rows))
        queries = None if read is None else read(rows)
        if queries is None:
            return None
        groups.update(np.unique(queries).tolist())
    return {"distinct": len(groups), "min": min(groups), "max": max(groups)}


def _first_rows(
    reader: RowReader, first: Array | None, labelled: bool
) -> list[dict[str, Any]]:
    if first is None:
        return []
    rows = slice(0, len(first))
    y = reader.targets(rows).tolist() if labelled else [None] * len(first)
    return [
        {"y": label, "x": row.astype(float).tolist()}
        for label, row in zip(y, first, strict=True)
    ]


def _squared_lengths(X: Any) -> Array:
    if issparse(X):
        sums = X.astype(np.float64).power(2).sum(axis=1)
        return np.asarray(sums).ravel()
    squares: Array = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    return squares


def _dense(X: Any) -> Array:
    array: Array = X.toarray() if issparse(X) else np.asarray(X)
    return array


def _element(first: Any) -> str:
    """Return the dtype of the first values as text; "unknown" if there are none."""
    return "unknown" if first is None else str(first.dtype)


def _is_long(value: Any) -> bool:
    """Return whether a value is a list too long to print, as scales of columns are."""
    return isinstance(value, list) and len(value) > SHOWN_LABELS

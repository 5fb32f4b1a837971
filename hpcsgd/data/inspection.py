"""What a file of rows is like, and what that suggests for training on it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from hpcsgd.data.convert.sources import block_rows
from hpcsgd.data.readers import RowReader, preparation_of
from hpcsgd.data.targets import MOST_CLASSES
from hpcsgd.glm import get_family

Array = NDArray[Any]
BLOCK_BYTES = 64 * 2**20
SHOWN_LABELS = 20
SHOWN_ROWS, SHOWN_COLUMNS = 3, 6
QUERIES_AT_ONCE = 2**20
MOST_INTEGER_CLASSES = 10  # more whole numbers than this look like counts
FAMILY_OF_TASK = {
    "binary": "logistic",
    "counts": "poisson",
    "classes": "softmax",
    "positive": "gamma",
    "real": "gaussian",
}


@dataclass
class InspectionCounts:
    """What one pass over the rows counts; labels beyond MOST_CLASSES are numbers."""

    nonzero: int = 0
    bad: int = 0  # values that are not finite
    largest: float = 0.0  # squared length of a row
    lengths: float = 0.0  # sum of the lengths of the rows
    labels: Counter[float] | None = field(default_factory=Counter)
    lowest: float = float("inf")
    highest: float = float("-inf")
    whole: bool = True  # every label is a whole number

    def add(self, X: Any, y: Array | None) -> None:
        """The next rows."""
        values = X.data if issparse(X) else X
        self.nonzero += int(np.count_nonzero(values))
        self.bad += int(values.size - np.isfinite(values).sum())
        squares = _squared_lengths(X)
        self.largest = max(self.largest, float(squares.max(initial=0.0)))
        self.lengths += float(np.sqrt(squares).sum())
        if y is not None:
            self._add_labels(y)

    def _add_labels(self, y: Array) -> None:
        self.lowest = min(self.lowest, float(y.min(initial=np.inf)))
        self.highest = max(self.highest, float(y.max(initial=-np.inf)))
        self.whole = self.whole and bool((y == np.round(y)).all())
        if self.labels is not None:
            found, counts = np.unique(y, return_counts=True)
            self.labels.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
            if len(self.labels) > MOST_CLASSES:
                self.labels = None


def inspect(reader: Any, budget: int = BLOCK_BYTES) -> dict[str, Any]:
    """Everything `hpcsgd data inspect` says, as JSON can hold it."""
    tally = InspectionCounts()
    labelled = has_targets(reader)
    every = slice(0, reader.cols)
    step = block_rows(budget, 3 * 8 * reader.cols)
    # A sparse file is read as such: dense, its rows might not fit.
    sparse = getattr(reader, "is_sparse", False)
    read = reader.read_csr if sparse else reader.read
    first: Array | None = None
    for start in range(0, reader.rows, step):
        rows = slice(start, min(start + step, reader.rows))
        X = read(rows, every)
        if first is None:
            first = _dense(X[:SHOWN_ROWS, :SHOWN_COLUMNS])
        tally.add(X, reader.targets(rows) if labelled else None)
    said = {"element": _element(first), **reader.describe()}
    return {
        **{key: value for key, value in said.items() if not _is_long(value)},
        "rows": reader.rows,
        "columns": reader.cols,
        "density": tally.nonzero / (reader.rows * reader.cols),
        "not_finite": tally.bad,
        "row_norm": {
            "max": float(np.sqrt(tally.largest)),
            "mean": tally.lengths / reader.rows,
        },
        "preparation": preparation_of(reader).describe(),
        "queries": _queries(reader),
        "labels": _labels(tally) if labelled else None,
        "first_rows": _first_rows(reader, first, labelled),
        "suggested": suggest(tally, said.get("task")) if labelled else None,
    }


def has_targets(reader: RowReader) -> bool:
    """Whether there is a /y: a file without one is good for predictions only."""
    from hpcsgd.errors import DataError

    try:
        reader.targets(slice(0, 1))
    except DataError:
        return False
    return True


def suggest(tally: InspectionCounts, task: str | None) -> dict[str, Any]:
    """A family for such labels, and 1/L with L = curvature bound · max ‖x‖²."""
    family, why = suggest_family(tally, task)
    bound = get_family(family).curvature * tally.largest
    step = 1 / bound if 0 < bound < float("inf") else None
    return {"family": family, "because": why, "rate": step}


def suggest_family(tally: InspectionCounts, task: str | None) -> tuple[str, str]:
    """(family, why): what the file says of its task, or else what its labels are."""
    if task in FAMILY_OF_TASK:
        return FAMILY_OF_TASK[task], f"the file says that its task is {task}"
    count = None if tally.labels is None else len(tally.labels)
    if count == 2:
        return "logistic", "y has two labels"
    if tally.whole and count is not None and 2 < count <= MOST_INTEGER_CLASSES:
        return "softmax", f"y has {count} whole labels; poisson if they are counts"
    if tally.whole and tally.lowest >= 0 and count != 1:
        return "poisson", "y has many whole numbers of at least 0, as counts are"
    return "gaussian", "y has real numbers" if count != 1 else "y has one value only"


def _labels(tally: InspectionCounts) -> dict[str, Any]:
    """A histogram of the commonest labels, or the range of too many."""
    said: dict[str, Any] = {"min": tally.lowest, "max": tally.highest}
    if tally.labels is None:
        return {**said, "distinct": f"more than {MOST_CLASSES}", "histogram": None}
    shown = dict(sorted(tally.labels.most_common(SHOWN_LABELS)))
    histogram = {f"{label:g}": count for label, count in shown.items()}
    return {**said, "distinct": len(tally.labels), "histogram": histogram}


def _queries(reader: Any) -> dict[str, Any] | None:
    """How many groups the rows belong to, where the file says so."""
    read = getattr(reader, "queries", None)  # arrays have none
    found: set[int] = set()
    for start in range(0, reader.rows, QUERIES_AT_ONCE):
        rows = slice(start, min(start + QUERIES_AT_ONCE, reader.rows))
        queries = None if read is None else read(rows)
        if queries is None:
            return None
        found.update(np.unique(queries).tolist())
    return {"distinct": len(found), "min": min(found), "max": max(found)}


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
    """What the values are stored as, of a file that does not say."""
    return "unknown" if first is None else str(first.dtype)


def _is_long(value: Any) -> bool:
    """Scales of thousands of columns are for programs, not to be read."""
    return isinstance(value, list) and len(value) > SHOWN_LABELS

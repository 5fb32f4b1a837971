"""The checks of targets y, and their encoding for a family."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.errors import DataError
from hpcsgd.formats import Array

LABELLED = ("binary", "signed", "classes")
MOST_CLASSES = 1000  # more distinct labels than this are numbers, not classes


@dataclass(frozen=True)
class Targets:
    """The kind of encoded targets, and the labels: class k has the label labels[k]."""

    kind: str
    labels: tuple[float, ...] = ()


def encode_targets(
    y: Array,
    kind: str,
    first_row: int,
    exchange: Callable[[Any], list[Any]],
    known: Sequence[float] = (),
) -> tuple[Array, Targets]:
    """Return (this rank's y as a column (n, 1), encoded for `kind`; its Targets).

    `exchange`, called once on every rank, returns the objects of all ranks. Labels are
    those of the whole data and those in `known`; all ranks raise the same DataError.
    `first_row` is the number of the first row in `y`. Collective.
    """
    local_labels = _labels_in(y) if kind in LABELLED else None
    # A fault takes precedence.
    reports = exchange(_fault(y, kind, first_row) or local_labels)
    for report in reports:
        if isinstance(report, str):
            raise DataError(report, on_all_ranks=True)
    if kind not in LABELLED:
        return y.reshape(-1, 1), Targets(kind)
    labels = np.unique(np.concatenate([*reports, np.asarray(known, dtype=np.float64)]))
    fault = _label_fault(labels, kind)
    if fault:
        raise DataError(fault, on_all_ranks=True)
    place = y == labels[1] if len(labels) == 2 else np.searchsorted(labels, y)
    encoded = place.astype(np.float64).reshape(-1, 1)
    if kind == "signed":
        encoded = 2 * encoded - 1
    return encoded, Targets(kind, tuple(labels.tolist()))


def _labels_in(y: Array) -> Array:
    """Return the distinct values of y in ascending order, at most one too many.

    Two labels, as of most data, are found without sorting.
    """
    if len(y):
        ends = np.array([y.min(), y.max()])
        if ends[0] < ends[1] and ((y == ends[0]) | (y == ends[1])).all():
            return ends
    return np.unique(y)[: MOST_CLASSES + 1]


def encode_known(y: Array, targets: Targets, first_row: int) -> Array:
    """Return y as a column (n, 1), encoded by the labels of a model.

    Raise DataError for a label that the model does not have.
    """
    fault = _fault(y, targets.kind, first_row)
    if fault:
        raise DataError(fault)
    if targets.kind not in LABELLED:
        return y.reshape(-1, 1)
    labels = np.asarray(targets.labels)
    place = np.minimum(np.searchsorted(labels, y), len(labels) - 1)
    strange = np.flatnonzero(labels[place] != y)
    if len(strange):
        shown = ", ".join(f"{label:g}" for label in labels[:5])
        shown += ", ..." if len(labels) > 5 else ""
        raise DataError(
            f"y is {y[strange[0]]:g} at row {first_row + strange[0]} and the model"
            f" knows the labels {shown} only; drop such rows or train with them"
        )
    encoded = place.astype(np.float64).reshape(-1, 1)
    return 2 * encoded - 1 if targets.kind == "signed" else encoded


def _fault(y: Array, kind: str, first_row: int) -> str | None:
    """Return the message on the first value that `kind` does not allow, or None."""
    bad = ~np.isfinite(y)
    if bad.any():
        row = int(np.argmax(bad))
        return (
            f"y has {y[row]} at row {first_row + row}; clean the file or drop that row"
        )
    wants, bad = _out_of_range(y, kind)
    if not bad.any():
        return None
    row = int(np.argmax(bad))
    instead = "logistic, for two labels" if kind == "proportions" else "gaussian"
    return (
        f"y is {y[row]:g} at row {first_row + row} and this family needs {wants};"
        f" clean the data or choose --family {instead}"
    )


def _out_of_range(y: Array, kind: str) -> tuple[str, Array]:
    """Return (words for the numbers that `kind` needs, mask of targets unlike them)."""
    if kind == "positive":
        return "values above 0", y <= 0
    if kind == "proportions":
        return "proportions from 0 to 1, successes / trials", (y < 0) | (y > 1)
    if kind == "nonnegative":
        return "values of at least 0", y < 0
    return "counts of at least 0", y < 0 if kind == "counts" else np.zeros(1, bool)


def _label_fault(labels: Array, kind: str) -> str | None:
    """Return the message on labels of all rows that do not suit `kind`, or None."""
    count = str(len(labels)) if len(labels) <= MOST_CLASSES else "too many"
    shown = ", ".join(f"{label:g}" for label in labels[:5])
    shown += ", ..." if len(labels) > 5 else ""
    if len(labels) < 2:
        return (
            f"y has one label only ({shown}); a classifier needs rows of two:"
            " add rows of another, or choose --family gaussian"
        )
    if kind == "classes":
        if len(labels) > MOST_CLASSES or not (labels == np.round(labels)).all():
            return (
                f"y looks like numbers, not classes ({shown}); choose --family gaussian"
            )
    elif len(labels) > 2:
        return (
            f"y has {count} labels ({shown}) and this family takes two;"
            " choose --family softmax"
        )
    return None

"""What y may be, and how it is encoded for a family."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import DataError

Array = NDArray[Any]
MOST_CLASSES = 1000  # more distinct labels than this are no classes but numbers


@dataclass(frozen=True)
class Targets:
    """How encoded targets are read back: label k was labels[k]."""

    kind: str
    labels: tuple[float, ...] = ()


def encode_targets(
    y: Array, kind: str, first_row: int, exchange: Callable[[Any], list[Any]]
) -> tuple[Array, Targets]:
    """y of this rank's rows as a column for a family that takes `kind`.

    `exchange` gives every rank the objects of all: labels are those of the whole data,
    and every rank finds the same fault. It is called exactly once on every rank.
    """
    if kind in ("binary", "signed", "classes"):
        return _encode_labels(y, kind, exchange)
    fault = _fault(y, kind, first_row)
    for found in exchange(fault):
        if found:
            raise DataError(found)
    return y.reshape(-1, 1), Targets(kind)


def _fault(y: Array, kind: str, first_row: int) -> str | None:
    """The first value that does not suit, as a sentence."""
    bad = {"counts": y < 0, "positive": y <= 0}.get(kind, np.zeros(len(y), dtype=bool))
    if not bad.any():
        return None
    row = int(np.argmax(bad))
    wants = {"counts": "counts of at least 0", "positive": "values above 0"}[kind]
    return (
        f"y is {y[row]:g} at row {first_row + row} and this family needs {wants};"
        " clean the data or choose --family gaussian"
    )


def _encode_labels(
    y: Array, kind: str, exchange: Callable[[Any], list[Any]]
) -> tuple[Array, Targets]:
    own = np.unique(y)[: MOST_CLASSES + 1]
    labels = np.unique(np.concatenate(exchange(own)))
    _check_labels(labels, kind)
    encoded = np.searchsorted(labels, y).astype(np.float64).reshape(-1, 1)
    if kind == "signed":
        encoded = 2 * encoded - 1
    return encoded, Targets(kind, tuple(labels.tolist()))


def _check_labels(labels: Array, kind: str) -> None:
    shown = ", ".join(f"{label:g}" for label in labels[:5])
    shown += ", ..." if len(labels) > 5 else ""
    if len(labels) < 2:
        raise DataError(
            f"y has one label only ({shown}); a classifier needs rows of two"
        )
    if kind == "classes":
        if len(labels) > MOST_CLASSES or not (labels == np.round(labels)).all():
            raise DataError(
                f"y looks like numbers, not classes ({shown}); choose --family gaussian"
            )
    elif len(labels) > 2:
        raise DataError(
            f"y has {len(labels)} labels ({shown}) and this family takes two;"
            " choose --family softmax"
        )

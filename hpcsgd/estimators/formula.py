"""What a linear model says about rows, without scikit-learn: a saved one needs no more.

Scores are t = X w + intercept + offset in float64, made block by block: rows of float32
are never copied as a whole.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, log_ndtr, log_softmax

from hpcsgd.data.memory import MemoryReader
from hpcsgd.data.preparation import RAW, Preparation
from hpcsgd.data.readers import row_words
from hpcsgd.data.targets import LABELLED, Targets
from hpcsgd.errors import DataError
from hpcsgd.families import FAMILIES, get_family
from hpcsgd.penalties import Penalty
from hpcsgd.prediction import KINDS, Model, block_scores, blocks_of, rows_for
from hpcsgd.result import Result

Array = NDArray[Any]
BLOCK_BYTES = 2**23  # of rows in float64 that are held at once
LOG_LINK = ("poisson", "gamma")  # families that know an exposure
PROBABLE = ("logistic", "probit", "softmax")  # labelled ones that know probabilities


def is_labelled(family: str) -> bool:
    """True where targets are labels; a family that nobody knows has none."""
    return family in FAMILIES and get_family(family).targets in LABELLED


@dataclass(frozen=True)
class Formula:
    """A family and its coefficients, of which `coef` has a row for each column of t."""

    family: str
    coef: Array  # (d,) or (K, d)
    intercept: Any  # scalar or (K,)
    classes: Array | None = None
    preparation: Preparation = RAW  # of the rows of the training

    @property
    def model(self) -> Model:
        """As predictions of results have it: w is (d, K)."""
        family = get_family(self.family)
        coef = np.atleast_2d(np.asarray(self.coef, dtype=np.float64))
        intercept = np.asarray(self.intercept, dtype=np.float64).reshape(-1)
        labels = () if self.classes is None else tuple(range(len(self.classes)))
        weights = np.ascontiguousarray(coef.T)
        return Model(
            family,
            weights,
            intercept,
            Targets(family.targets, labels),
            Penalty(),
            self.preparation,
        )

    def scores(self, X: Any, offset: Array | None = None) -> Array:
        """t, (n, K)."""
        model = self.model
        if is_on_device(X):
            return _scores_there(model, X, offset)
        reader = MemoryReader(X, None, None, offset)
        prepared, _ = rows_for(model, reader)
        blocks = blocks_of(slice(0, reader.rows), row_words(prepared), BLOCK_BYTES)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return np.concatenate([block_scores(model, prepared, r) for r in blocks])

    def decision(self, X: Any, offset: Array | None = None) -> Array:
        """What a classifier decides by: (n,) of the second of two, or (n, K)."""
        scores = self.scores(X, offset)
        if scores.shape[1] == 1:
            return scores[:, 0]
        # Two columns of scores say no more than their difference.
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def means(self, X: Any, offset: Array | None = None) -> Array:
        """μ(t), (n,)."""
        return KINDS["mean"](self.model, self.scores(X, offset))

    def labels(self, X: Any, offset: Array | None = None) -> Array:
        """The likeliest label of each row."""
        decision = self.decision(X, offset)
        places = decision.argmax(axis=1) if decision.ndim > 1 else decision > 0
        return np.asarray(self.classes)[places.astype(np.intp)]

    def probabilities(self, X: Any, offset: Array | None = None) -> Array:
        """A column for each class."""
        return KINDS["probability"](self.model, self.scores(X, offset))

    def log_probabilities(self, X: Any, offset: Array | None = None) -> Array:
        """Their logarithms, finite where a probability is too small for a float."""
        scores = self.scores(X, offset)
        if scores.shape[1] > 1:
            return np.asarray(log_softmax(scores, axis=1))
        logarithm = log_ndtr if self.family == "probit" else log_expit
        return np.asarray(logarithm(np.hstack([-scores, scores])))


def _scores_there(model: Model, X: Any, offset: Array | None) -> Array:
    """Of rows on a GPU, which stay there: blocks of scores come to the host."""
    if X.ndim != 2 or X.shape[1] != len(model.weights):
        raise DataError(
            f"X has shape {X.shape} and the model {len(model.weights)} columns; give"
            " rows with the columns of the training"
        )
    if model.preparation is not None and not model.preparation.is_raw:
        raise DataError(
            "X is in the memory of a GPU and the model was trained on scaled rows; the"
            " host has to scale them, pass X.get()"
        )
    home = sys.modules[type(X).__module__.partition(".")[0]]  # who made the array
    weights = home.asarray(model.weights)
    blocks = blocks_of(slice(0, X.shape[0]), X.shape[1], BLOCK_BYTES)
    scores = np.concatenate([home.asnumpy(X[rows] @ weights) for rows in blocks])
    if model.intercept is not None:
        scores += model.intercept
    return scores if offset is None else scores + offset[:, None]


def preparation_of_runs(results: Result | list[Result] | None) -> Preparation:
    """Return what was done to the rows that these runs were trained on."""
    runs = results if isinstance(results, list) else [results]
    first = runs[0] if runs else None
    return RAW if first is None else first.preparation or RAW


def is_on_device(X: Any) -> bool:
    """True for an array in the memory of a GPU."""
    return hasattr(X, "__cuda_array_interface__")


def total_offset(offset: Any, exposure: Any, rows: int) -> Array | None:
    """offset + log(exposure), or None where neither is given."""
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
    """`values` as `rows` finite numbers."""
    found = np.asarray(values, dtype=np.float64)
    if found.shape not in ((rows,), (rows, 1)):
        raise DataError(
            f"{name} has shape {found.shape} and X has {rows} rows; give {rows} values"
        )
    if not np.isfinite(found).all():
        row = int(np.argmin(np.isfinite(found.reshape(-1))))
        raise DataError(f"{name} is not finite at row {row}; mend it or drop that row")
    return found.reshape(-1)

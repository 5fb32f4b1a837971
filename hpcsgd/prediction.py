"""What a trained model says about rows: scores, means, classes, probabilities.

t_i = a_i·w + intercept + offset_i, in float64; the rest is the family's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcsgd.data.memory import MemoryReader
from hpcsgd.data.readers import (
    CHUNK_BYTES,
    RowReader,
    is_sparse,
    load_block,
    row_words,
)
from hpcsgd.data.sparse_block import load_csr
from hpcsgd.data.targets import LABELLED, Targets
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.families import get_family
from hpcsgd.families.base import Family
from hpcsgd.load import finite_column
from hpcsgd.penalties import Penalty
from hpcsgd.result import Result

Array = NDArray[Any]


@dataclass(frozen=True)
class Model:
    """A result as arithmetic needs it: w (d, K) and intercept (K,) in float64."""

    family: Family
    weights: Array
    intercept: Array | None
    targets: Targets
    penalty: Penalty  # without bounds, which add nothing

    @property
    def is_classifier(self) -> bool:
        """True where targets are labels."""
        return self.family.targets in LABELLED

    def scores(self, X: Any, offset: Array | None) -> Array:
        """t (m, K) of m rows."""
        scores: Array = X @ self.weights
        if self.intercept is not None:
            scores += self.intercept
        if offset is not None:
            scores += offset[:, None]
        return scores

    def places(self, scores: Array) -> Array:
        """The number of each row's likeliest label, (m,)."""
        if scores.shape[1] > 1:
            return np.asarray(scores.argmax(axis=1))
        return np.asarray(scores[:, 0] >= 0).astype(np.intp)


def model_of(result: Result) -> Model:
    """The model that a run has left behind."""
    if "models" in result.report:
        raise ConfigError(
            f"these are the {len(result.report['models'])} models of a sweep; take one"
            " of them: its best lies in best/ of the run folder, others are"
            " hpcsgd.load_sweep(folder).result(number)"
        )
    problem = result.config["problem"]
    family = get_family(problem["family"])
    weights = np.asarray(result.weights, dtype=np.float64)
    intercept = None
    if result.intercept is not None:
        intercept = np.asarray(result.intercept, dtype=np.float64).reshape(-1)
    return Model(
        family=family,
        weights=weights.reshape(len(weights), -1),
        intercept=intercept,
        targets=Targets(family.targets, tuple(result.report["labels"])),
        penalty=Penalty(*(float(problem.get(name, 0.0)) for name in ("l2", "l1"))),
    )


def _means(model: Model, scores: Array) -> Array:
    return _flat(model.family.mean(scores))


def _scores(model: Model, scores: Array) -> Array:
    return _flat(scores)


def _classes(model: Model, scores: Array) -> Array:
    return np.asarray(model.targets.labels)[model.places(scores)]


def _probabilities(model: Model, scores: Array) -> Array:
    if scores.shape[1] > 1:
        return model.family.mean(scores)
    # The links of two classes are symmetric: no 1 - p, which loses the small ones.
    return np.hstack([model.family.mean(-scores), model.family.mean(scores)])


def _flat(values: Array) -> Array:
    return values[:, 0] if values.shape[1] == 1 else values


# what -> how it comes from the scores
KINDS: dict[str, Callable[[Model, Array], Array]] = {
    "mean": _means,
    "score": _scores,
    "class": _classes,
    "probability": _probabilities,
}


def check_what(model: Model, what: str) -> None:
    """Refuse what this model cannot say."""
    name = model.family.name
    if what not in KINDS:
        raise ConfigError(f"unknown prediction: {what!r}; known: {list(KINDS)}")
    if what in ("class", "probability") and not model.is_classifier:
        raise ConfigError(
            f"a {name} model has no {what}; ask for 'mean' or 'score' (--what)"
        )
    if what == "probability" and model.targets.kind == "signed":
        raise ConfigError(
            f"a {name} model has no probabilities; ask for 'class' or 'score' (--what)"
        )


def column_names(model: Model, what: str) -> list[str]:
    """A name for each column that `predict` gives."""
    labels = [f"{label:g}" for label in model.targets.labels]
    many = model.weights.shape[1] > 1 and what != "class"
    if what == "probability" or many:
        return [f"{what}_{label}" for label in labels]
    return [what]


def check_columns(model: Model, reader: RowReader) -> None:
    """Refuse data that is wider or narrower than the model."""
    if reader.cols != len(model.weights):
        raise DataError(
            f"the data has {reader.cols} columns and the model was trained on"
            f" {len(model.weights)}; give data with the columns of the training"
        )


def blocks_of(rows: slice, words: int, budget: int | None = None) -> Iterator[slice]:
    """`rows` of so many float64 words cut so that a block is about `budget` bytes."""
    step = max((budget or CHUNK_BYTES) // (8 * max(words, 1)), 1)
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def block_scores(model: Model, reader: RowReader, rows: slice) -> Array:
    """The scores of these rows, with the offsets of the data."""
    X: Any
    if is_sparse(reader):
        X = load_csr(reader, rows, slice(0, reader.cols), _exact).to_scipy()
    else:
        X = load_block(reader, rows, slice(0, reader.cols), _exact)
    return model.scores(X, finite_column(reader.offset(rows), rows, "offset"))


def _exact(piece: Array) -> Array:
    return piece.astype(np.float64, copy=False)


def predict_blocks(
    result: Result, reader: RowReader, what: str = "mean", budget: int | None = None
) -> Iterator[Array]:
    """Predict the rows of a reader, one block after the other.

    Parameters
    ----------
    result : Result, a trained model
    reader : RowReader, for example `hpcsgd.data.readers.open_reader(path)`
    what : "mean", "score", "class" or "probability", as `predict` has them
    budget : bytes of float64 rows that are held at once; 64 MiB if None

    Yields
    ------
    ndarray, (m,) or (m, K), float64, the predictions of the next m rows
    """
    model = model_of(result)
    check_what(model, what)
    check_columns(model, reader)
    for rows in blocks_of(slice(0, reader.rows), row_words(reader), budget):
        with np.errstate(over="ignore", under="ignore"):
            yield KINDS[what](model, block_scores(model, reader, rows))


def predict(
    result: Result,
    X: Any,
    offset: ArrayLike | None = None,
    what: str = "mean",
) -> Array:
    """Predict rows that are in memory.

    Parameters
    ----------
    result : Result, a trained model
    X : ndarray or scipy.sparse matrix, (n, d), rows with the columns of the training
    offset : ndarray, (n,), added to every score
    what : what is asked:

        * "mean": μ(t), the family's mean; of a squared-hinge model the sign of t
        * "score": t = X w + intercept + offset
        * "class": the likeliest label, as the training data had it
        * "probability": a column for each label, in ascending order of labels

    Returns
    -------
    ndarray, (n,), or (n, K) where there is a column for each label; float64

    Examples
    --------
    >>> import numpy as np, hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = np.where(X[:, 0] > 0, 7, 4)
    >>> result = hpcsgd.train({"rate": {"value": 0.5}}, X=X, y=y)
    >>> hpcsgd.predict(result, [[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]], what="class")
    array([7., 4.])
    """
    reader = MemoryReader(X, None, None, offset)
    return np.concatenate(list(predict_blocks(result, reader, what)))

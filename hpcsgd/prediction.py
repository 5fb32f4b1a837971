"""What a trained model says about rows: scores, means, classes, probabilities.

t_i = a_i·w + intercept + offset_i, in float64; the rest is the family's.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcsgd.backends.blas import one_thread
from hpcsgd.data.frames import to_matrix
from hpcsgd.data.memory import MemoryReader
from hpcsgd.data.preparation import RAW, Preparation
from hpcsgd.data.prepared import check_names, prepare
from hpcsgd.data.readers import (
    CHUNK_BYTES,
    RowReader,
    is_sparse,
    load_block,
    names_of,
    open_reader,
    preparation_of,
    row_words,
)
from hpcsgd.data.sparse_block import load_csr
from hpcsgd.data.targets import LABELLED, Targets
from hpcsgd.errors import ConfigError, DataError, HpcsgdError
from hpcsgd.families import get_family
from hpcsgd.families.base import Family
from hpcsgd.loading import finite_column
from hpcsgd.penalties import Penalty
from hpcsgd.result import Result

Array = NDArray[Any]
log = logging.getLogger(__name__)
TRAINING = "train.h5"  # how a remedy names the file of the training, if nobody knows it


@dataclass(frozen=True)
class Model:
    """A result as arithmetic needs it: w (d, K) and intercept (K,) in float64."""

    family: Family
    weights: Array
    intercept: Array | None
    targets: Targets
    penalty: Penalty  # without bounds, which add nothing
    preparation: Preparation | None = RAW  # of the rows trained on; None: unknown
    names: list[str] | None = None  # of their columns
    trained_on: str | None = None  # the file of the training

    @property
    def is_classifier(self) -> bool:
        """True where targets are labels."""
        return self.family.targets in LABELLED

    @one_thread()
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
        preparation=result.preparation,
        names=result.feature_names,
        trained_on=_file_of(result),
    )


def _file_of(result: Result) -> str | None:
    """The HDF5 file that a run was trained on."""
    source = result.report.get("source")
    path = source.get("path") if isinstance(source, dict) else None
    return path if isinstance(path, str) else None


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


def rows_for(model: Model, reader: RowReader) -> tuple[RowReader, str]:
    """Return the rows as the model was trained on them, and a sentence that says how.

    Raw rows are scaled with the column means and scales of the training data. Columns
    of other names, in another order or of another number are refused, and so are rows
    that were scaled otherwise.
    """
    check_names(model.names, names_of(reader), _in_order(model, reader))
    if reader.cols != len(model.weights):
        raise DataError(
            f"the data has {reader.cols} columns and the model was trained on"
            f" {len(model.weights)}; give data with the columns of the training"
        )
    if model.preparation is None:
        _warn_of_earlier(model, reader)
    return prepare(reader, model.preparation, model.trained_on or TRAINING)


def _in_order(model: Model, reader: RowReader) -> str:
    """How to bring columns into the order of the training."""
    if getattr(reader, "is_in_memory", False):
        return "give them in the order of the training, which feature_names says"
    like = model.trained_on or TRAINING
    return f"write them in order with: hpcsgd data convert --like {like}"


def _warn_of_earlier(model: Model, reader: RowReader) -> None:
    """Say where a run of an earlier version, which kept no moments, had other rows."""
    if model.trained_on is None:
        return
    try:
        trained = open_reader(Path(model.trained_on))
    except HpcsgdError:
        return  # nobody knows
    then, now = preparation_of(trained), preparation_of(reader)
    trained.close()
    if not then.scales_as(now) or then.unit_rows != now.unit_rows:
        fact = now.text if now.text != then.text else f"{now.text} otherwise"
        log.warning(
            "the rows of %s, which this model was trained on, are %s and these are %s:"
            " what follows is of other rows; train again, or convert these with"
            " --like %s",
            *(model.trained_on, then.text, fact, model.trained_on),
            extra={"on_all_ranks": True},
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
    reader : RowReader, whose columns are those of the training and which are prepared
        alike or raw; for example `hpcsgd.data.readers.open_reader(path)`
    what : "mean", "score", "class" or "probability", as `predict` has them
    budget : bytes of float64 rows that are held at once; 64 MiB if None

    Yields
    ------
    ndarray, (m,) or (m, K), float64, the predictions of the next m rows
    """
    model = model_of(result)
    check_what(model, what)
    prepared, _ = rows_for(model, reader)
    yield from predict_prepared(model, prepared, what, budget)


def predict_prepared(
    model: Model, reader: RowReader, what: str, budget: int | None = None
) -> Iterator[Array]:
    """Predict the rows that `rows_for` has returned, one block after the other."""
    for rows in blocks_of(slice(0, reader.rows), row_words(reader), budget):
        with np.errstate(over="ignore", under="ignore"):
            yield KINDS[what](model, block_scores(model, reader, rows))


def predict(
    result: Result,
    X: Any,
    offset: ArrayLike | None = None,
    what: str = "mean",
    *,
    scaled: bool = False,
) -> Array:
    """Predict rows that are in memory.

    Parameters
    ----------
    result : Result, a trained model
    X : array, frame or scipy.sparse matrix, (n, d), rows with the columns of the
        training; names of a frame must be those of the training, in their order
    offset : ndarray, (n,), added to every score
    what : what is asked:

        * "mean": μ(t), the family's mean; of a squared-hinge model the sign of t
        * "score": t = X w + intercept + offset
        * "class": the likeliest label, as the training data had it
        * "probability": a column for each label, in ascending order of labels
    scaled : False where the rows of X are raw: of a model that was trained on scaled
        columns they are scaled with the means and scales of the training data; True
        where X is scaled with these already

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
    reader = open_rows(result, X, offset=offset, scaled=scaled)
    return np.concatenate(list(predict_blocks(result, reader, what)))


def open_rows(
    result: Result,
    X: Any,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    scaled: bool = False,
) -> MemoryReader:
    """Return the reader of rows in memory: an array, a frame or a sparse matrix."""
    matrix = to_matrix(X)
    if matrix.path is not None:
        raise DataError(
            f"X is a path ({matrix.path}) and has to be rows in memory; use hpcsgd"
            " predict and hpcsgd evaluate for files, or hpcsgd.predict_blocks"
        )
    preparation = result.preparation if scaled else RAW
    names, columns = matrix.names, (y, sample_weight, offset)
    return MemoryReader(matrix.X, *columns, names, preparation or RAW)

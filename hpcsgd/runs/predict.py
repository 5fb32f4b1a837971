"""Predictions and evaluations of a trained model on data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.data.frames import to_matrix
from hpcsgd.data.preparation import RAW, Preparation
from hpcsgd.data.readers import (
    CHUNK_BYTES,
    MemoryReader,
    RowReader,
    check_names,
    is_sparse,
    load_block,
    names_of,
    open_reader,
    preparation_of,
    prepare,
    row_words,
)
from hpcsgd.data.shard import load_csr, split_range
from hpcsgd.data.targets import LABELLED, Targets, encode_known
from hpcsgd.errors import ConfigError, DataError, HpcsgdError
from hpcsgd.formats import Array
from hpcsgd.glm import get_family
from hpcsgd.glm.families import Family, least_losses
from hpcsgd.glm.penalties import Penalty
from hpcsgd.runs.load import checked_weights, finite_column
from hpcsgd.runs.result import Result

# Predictions of a trained model on rows: scores, means, classes, probabilities.
#
# t_i = a_i·w + intercept + offset_i, in float64; the rest is the family's.

log = logging.getLogger(__name__)
TRAINING = "train.h5"  # how a remedy names the file of the training, if nobody knows it


@dataclass(frozen=True)
class TrainedModel:
    """A trained model in float64: the weights w, (d, K), and the intercept, (K,)."""

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
        """Return whether the targets are labels."""
        return self.family.targets in LABELLED

    @one_thread()
    def scores(self, X: Any, offset: Array | None) -> Array:
        """Return the scores X w + intercept + offset of the m rows of X, (m, K)."""
        scores: Array = X @ self.weights
        if self.intercept is not None:
            scores += self.intercept
        if offset is not None:
            scores += offset[:, None]
        return scores

    def places(self, scores: Array) -> Array:
        """Return the index of each row's likeliest label among the labels, (m,)."""
        if scores.shape[1] > 1:
            return np.asarray(scores.argmax(axis=1))
        return np.asarray(scores[:, 0] >= 0).astype(np.intp)


def model_of(result: Result) -> TrainedModel:
    """Return the model of a result.

    Raise ConfigError if `result` is not a `Result`, or is that of a sweep.
    """
    check_result(result)
    if "models" in result.report:
        raise ConfigError(
            f"the result holds the {len(result.report['models'])} models of a sweep,"
            " and one is needed; give the best, in best/ of the run folder, or another"
            " by hpcsgd.load_sweep(folder).result(number)"
        )
    problem = result.config["problem"]
    family = get_family(problem["family"], problem)
    weights = np.asarray(result.weights, dtype=np.float64)
    intercept = None
    if result.intercept is not None:
        intercept = np.asarray(result.intercept, dtype=np.float64).reshape(-1)
    return TrainedModel(
        family=family,
        weights=weights.reshape(len(weights), -1),
        intercept=intercept,
        targets=Targets(family.targets, tuple(result.report["labels"])),
        penalty=Penalty(*(float(problem.get(name, 0.0)) for name in ("l2", "l1"))),
        preparation=result.preparation,
        names=result.feature_names,
        trained_on=_file_of(result),
    )


def check_result(result: Any) -> None:
    """Raise ConfigError, with a remedy, if `result` is not a `Result`."""
    if isinstance(result, Result):
        return
    kind = type(result).__name__
    if hasattr(type(result), "predict"):
        remedy = f"call the estimator's own predict or score, or give {kind}.result_"
    elif hasattr(type(result), "best"):
        remedy = "give one of its models, found.result(found.best)"
    elif hasattr(type(result), "at"):
        remedy = "give one of its models, found.at(alpha)"
    else:
        remedy = "give what hpcsgd.fit, hpcsgd.train or hpcsgd.load_result returns"
    raise ConfigError(f"result must be a Result and is of type {kind}; {remedy}")


def _file_of(result: Result) -> str | None:
    """Return the path of the file that a run was trained on; None if unknown."""
    source = result.report.get("source")
    path = source.get("path") if isinstance(source, dict) else None
    return path if isinstance(path, str) else None


def _means(model: TrainedModel, scores: Array) -> Array:
    return _flat(model.family.mean(scores))


def _scores(model: TrainedModel, scores: Array) -> Array:
    return _flat(scores)


def _classes(model: TrainedModel, scores: Array) -> Array:
    return np.asarray(model.targets.labels)[model.places(scores)]


def _probabilities(model: TrainedModel, scores: Array) -> Array:
    if scores.shape[1] > 1:
        return model.family.mean(scores)
    # The links of two classes are symmetric: no 1 - p, which loses the small ones.
    return np.hstack([model.family.mean(-scores), model.family.mean(scores)])


def _flat(values: Array) -> Array:
    return values[:, 0] if values.shape[1] == 1 else values


# what -> how it comes from the scores
KINDS: dict[str, Callable[[TrainedModel, Array], Array]] = {
    "mean": _means,
    "score": _scores,
    "class": _classes,
    "probability": _probabilities,
}


def check_what(model: TrainedModel, what: str) -> None:
    """Raise ConfigError if the model cannot make the prediction `what`."""
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


def column_names(model: TrainedModel, what: str) -> list[str]:
    """Return a name for each column that `predict` returns."""
    labels = [f"{label:g}" for label in model.targets.labels]
    many = model.weights.shape[1] > 1 and what != "class"
    if what == "probability" or many:
        return [f"{what}_{label}" for label in labels]
    return [what]


def rows_for(model: TrainedModel, reader: RowReader) -> tuple[RowReader, str]:
    """Return the rows in the form of the training, and a sentence on their scaling.

    The sentence is "" if they were neither scaled nor shortened to length 1. Raw rows
    are scaled with the column means and scales of the training data. Columns with other
    names, in another order or of another number are refused, and so are rows that were
    scaled otherwise.
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


def _in_order(model: TrainedModel, reader: RowReader) -> str:
    """Return a remedy, as a phrase, for columns in another order than in training."""
    if getattr(reader, "is_in_memory", False):
        return "give them in the order of the training, which feature_names says"
    like = model.trained_on or TRAINING
    return f"write them in order with: hpcsgd data convert --like {like}"


def _warn_of_earlier(model: TrainedModel, reader: RowReader) -> None:
    """Warn if the model was trained on rows that were prepared in another way.

    Runs of an earlier version did not store the means and scales of the columns, so the
    file of the training is read.
    """
    if model.trained_on is None:
        return
    try:
        trained = open_reader(Path(model.trained_on))
    except HpcsgdError:
        return  # nobody knows
    then = preparation_of(trained)
    now = preparation_of(reader)
    trained.close()
    if not then.scales_as(now) or then.unit_rows != now.unit_rows:
        fact = now.text if now.text != then.text else f"{now.text} otherwise"
        log.warning(
            "the rows of %s, on which this model was trained, are %s and the given rows"
            " are %s, so that predictions may be wrong; train again, or convert the"
            " given rows with --like %s",
            model.trained_on,
            then.text,
            fact,
            model.trained_on,
            extra={"on_all_ranks": True},
        )


def blocks_of(rows: slice, words: int, budget: int | None = None) -> Iterator[slice]:
    """Yield slices of `rows` whose blocks take about `budget` bytes each.

    A row has `words` numbers in float64. None takes the default budget.
    """
    step = max((budget or CHUNK_BYTES) // (8 * max(words, 1)), 1)
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def block_scores(model: TrainedModel, reader: RowReader, rows: slice) -> Array:
    """Return the scores of these rows, including the offsets of the data."""
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
    """Predict the rows of a reader, block by block.

    Parameters
    ----------
    result : Result
        The trained model.
    reader : RowReader
        Rows with the columns of the training, raw or prepared alike; for example what
        `hpcsgd.data.readers.open_reader(path)` returns.
    what : {"mean", "score", "class", "probability"}, default="mean"
        What is predicted, as in `predict`.
    budget : int, optional
        Bytes of float64 rows in memory at once. None takes 64 MiB.

    Yields
    ------
    ndarray of shape (m,) or (m, K)
        The predictions of the next m rows, in float64.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> from hpcsgd.data.readers import MemoryReader
    >>> X = np.random.default_rng(0).normal(size=(64, 3))
    >>> result = hpcsgd.fit(X, "gaussian", X[:, 0])
    >>> reader = MemoryReader(X, None)
    >>> sum(len(block) for block in hpcsgd.predict_blocks(result, reader, budget=512))
    64
    """
    model = model_of(result)
    check_what(model, what)
    prepared, _ = rows_for(model, reader)
    yield from predict_prepared(model, prepared, what, budget)


def predict_prepared(
    model: TrainedModel, reader: RowReader, what: str, budget: int | None = None
) -> Iterator[Array]:
    """Yield predictions of the rows that `rows_for` has returned, block by block."""
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
    result : Result
        The trained model.
    X : array, frame or sparse matrix of shape (n, d)
        Rows with the columns of the training. The column names of a frame must be those
        of the training, in their order.
    offset : array-like of shape (n,), optional
        Numbers that are added to the scores.
    what : {"mean", "score", "class", "probability"}, default="mean"
        What is predicted:

        * "mean": μ(t), the mean of the family; the sign of t for squared-hinge
        * "score": t = X w + intercept + offset
        * "class": the likeliest label
        * "probability": a column for each label, in ascending order
    scaled : bool, default=False
        Whether X is scaled already. A model that was trained on scaled columns scales
        raw rows with the means and scales of the training data.

    Returns
    -------
    ndarray of shape (n,) or (n, K)
        The predictions in float64.

    Raises
    ------
    ConfigError
        If the model has no such prediction.
    DataError
        If the columns are not those of the training.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
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
    """Return a reader of rows in memory: an array, a frame or a sparse matrix.

    If `scaled`, the rows count as prepared like those of the training, else as raw.
    """
    check_result(result)
    matrix = to_matrix(X)
    if matrix.path is not None:
        raise DataError(
            f"X must be rows in memory and is a path ({matrix.path}); for a file use"
            " the command hpcsgd predict or evaluate, or hpcsgd.predict_blocks"
        )
    preparation = result.preparation if scaled else RAW
    names = matrix.names
    columns = (y, sample_weight, offset)
    return MemoryReader(matrix.X, *columns, names, preparation or RAW)


# How good a model is on data: the objective of training, and what people ask for.
#
# F(w) = (1/Σc_i) Σ c_i ℓ(t_i, y_i) + l1‖w‖₁ + (l2/2)‖w‖², in float64. Two passes:
# targets alone, which gives Σc and the mean of y and finds strange labels early; then
# the rows.


@dataclass(frozen=True)
class RankEvaluator:
    """The sums over the rows of one rank from which a model is evaluated.

    y, c and t are the target, weight and scores of a row, ℓ is its loss, and μ the mean
    that the model predicts.
    """

    model: TrainedModel
    reader: RowReader
    rows: slice
    preparation: str = ""  # a sentence on what was done to the rows, if anything

    def columns(self, rows: slice) -> tuple[Array, Array]:
        """Return the encoded targets and the weights of these rows, (m,) each."""
        raw = self.reader.targets(rows)
        y = encode_known(raw, self.model.targets, rows.start)[:, 0]
        weights = checked_weights(self.reader, rows)
        return y, np.ones(len(y)) if weights is None else weights

    def targets_sums(self) -> Array:
        """Return Σ c and Σ c y, over the rows of this rank."""
        sums = np.zeros(2)
        for rows in blocks_of(self.rows, 1):
            y, c = self.columns(rows)
            sums += c.sum(), c @ y
        return sums

    def blocks(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield (scores, targets, weights) of one block of rows after the other."""
        for rows in blocks_of(self.rows, row_words(self.reader)):
            y, c = self.columns(rows)
            yield block_scores(self.model, self.reader, rows), y, c

    def loss_sums(self, scores: Array, y: Array, c: Array) -> list[float]:
        """Return Σ c ℓ of some rows, and the number of their clipped scores.

        These are scores beyond the range of exp.
        """
        family = self.model.family
        losses = family.loss(scores, y[:, None])[:, 0]
        return [float(c @ losses), float(family.clipped(scores))]

    def label_sums(self, mean: float) -> Array:
        """Return Σ c ℓ, the number of clipped scores, and counts for each label.

        Of the counts, the rows of each true label come first, then those of its rows
        that are predicted wrongly. All are over the rows of this rank. `mean` is not
        used.
        """
        count = len(self.model.targets.labels)
        sums = np.zeros(2 + 2 * count)
        for scores, y, c in self.blocks():
            true = _place(y, self.model)
            wrong = true[self.model.places(scores) != true]
            sums[:2] += self.loss_sums(scores, y, c)
            sums[2 : 2 + count] += np.bincount(true, minlength=count)
            sums[2 + count :] += np.bincount(wrong, minlength=count)
        return sums

    def value_sums(self, mean: float) -> Array:
        """Return Σ c ℓ, the number of clipped scores, and three sums.

        These are Σ c (y − μ)², Σ c (y − ȳ)² with ȳ = `mean`, and Σ c min ℓ, where min ℓ
        is the least loss that any score gives. All are over the rows of this rank.
        """
        family = self.model.family
        sums = np.zeros(5)
        for scores, y, c in self.blocks():
            least = least_losses(family, y)
            around_model = (y - family.mean(scores)[:, 0]) ** 2
            sums[:2] += self.loss_sums(scores, y, c)
            sums[2:] += (
                c @ around_model,
                c @ (y - mean) ** 2,
                c @ least,
            )
        return sums


def _place(y: Array, model: TrainedModel) -> Array:
    """Return the indices of the labels that the encoded targets y stand for."""
    places = (y + 1) / 2 if model.targets.kind == "signed" else y
    return np.asarray(places).astype(np.intp)


@one_thread()
def evaluate_reader(
    result: Result, open_data: Callable[[], RowReader], world: Communicator
) -> dict[str, Any]:
    """Evaluate a model on the rows of a reader, as `evaluate` does. Collective.

    Each rank of `world` takes a part of the rows. All ranks return the same dictionary,
    and all raise an error that any rank raises.
    """
    judge = world.together(lambda: _judge(result, open_data, world))
    total, sum_y = world.sum(world.together(judge.targets_sums), "evaluate")
    if total <= 0.0:
        raise DataError(
            "sample_weight sums to zero; give at least one row a weight above 0",
            on_all_ranks=True,
        )
    sums_of = judge.label_sums if judge.model.is_classifier else judge.value_sums
    with np.errstate(all="ignore"):  # a figure that is not finite says so itself
        sums = world.together(lambda: sums_of(float(sum_y / total)))
    figures = _figures(judge, float(total), world.sum(sums, "evaluate"))
    judge.reader.close()
    return figures


def _judge(
    result: Result, open_data: Callable[[], RowReader], world: Communicator
) -> RankEvaluator:
    model = model_of(result)
    reader, sentence = rows_for(model, open_data())
    return RankEvaluator(
        model, reader, split_range(reader.rows, world.size, world.rank), sentence
    )


def _figures(judge: RankEvaluator, total: float, sums: Array) -> dict[str, Any]:
    model = judge.model
    loss = float(sums[0]) / total
    penalty = model.penalty.value(model.weights)
    figures = {
        "family": model.family.name,
        "rows": judge.reader.rows,
        **({"preparation": judge.preparation} if judge.preparation else {}),
        "mean_loss": loss,
        "penalty": penalty,
        "objective": loss + penalty,
        "clipped_scores": int(sums[1]),
    }
    if model.is_classifier:
        return figures | _label_figures(model, sums[2:])
    return figures | _value_figures(loss, total, sums[2:])


def _label_figures(model: TrainedModel, sums: Array) -> dict[str, Any]:
    rows, wrong = np.split(sums.astype(np.int64), 2)
    labels = [f"{label:g}" for label in model.targets.labels]
    by_label = {
        label: {"rows": int(n), "errors": int(k)}
        for label, n, k in zip(labels, rows, wrong, strict=True)
    }
    right = 1.0 - wrong.sum() / rows.sum()
    return {
        "accuracy": float(right),
        "errors": int(wrong.sum()),
        "errors_by_label": by_label,
    }


def _value_figures(loss: float, total: float, sums: Array) -> dict[str, Any]:
    around_model, around_mean, least = (float(value) for value in sums)
    return {
        "r2": 1.0 - around_model / around_mean if around_mean > 0.0 else None,
        "mean_deviance": 2.0 * (loss - least / total),
    }


@one_thread()
def evaluate(
    result: Result,
    X: Any,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
    *,
    scaled: bool = False,
) -> dict[str, Any]:
    """Measure how good a model is on rows in memory. Collective.

    All ranks of `world` must call it.

    Parameters
    ----------
    result : Result
        The trained model.
    X : array, frame or sparse matrix of shape (n, d)
        Rows with the columns of the training. The column names of a frame must be those
        of the training, in their order.
    y : array-like of shape (n,)
        Targets. Labels must be among those of the training.
    sample_weight : array-like of shape (n,), optional
        Weights c_i ≥ 0 of the rows. Accuracy and errors count rows without weights.
    offset : array-like of shape (n,), optional
        Numbers that are added to the scores.
    world : Communicator, optional
        Ranks that share the rows. None evaluates in this process alone.
    scaled : bool, default=False
        Whether X is scaled already. A model that was trained on scaled columns scales
        raw rows with the means and scales of the training data.

    Returns
    -------
    dict
        `family`, `rows`, `mean_loss` = (1/Σc) Σ c_i ℓ_i, `penalty` =
        l1 ‖w‖₁ + (l2/2) ‖w‖², `objective` = mean_loss + penalty, which training calls
        loss, and `clipped_scores`. Classifiers add `accuracy`, `errors` and
        `errors_by_label`; others add `r2` = 1 − Σc(y − μ)²/Σc(y − ȳ)² and
        `mean_deviance` = (2/Σc) Σ c_i (ℓ_i − min_t ℓ(t, y_i)). `preparation` is a
        sentence, if the rows were scaled or shortened to length 1.

    Raises
    ------
    DataError
        If the rows or targets cannot be used with this model.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> result = hpcsgd.train({"rate": {"value": 0.5}}, X=X, y=X[:, 0] > 0)
    >>> hpcsgd.evaluate(result, X, X[:, 0] > 0)["accuracy"] > 0.9
    True
    """
    ranks = world if world is not None else SerialCommunicator()
    reader = open_rows(result, X, y, sample_weight, offset, scaled)
    return evaluate_reader(result, lambda: reader, ranks)

"""How good a model is on data: the objective of training, and what people ask for.

F(w) = (1/Σc_i) Σ c_i ℓ(t_i, y_i) + l1‖w‖₁ + (l2/2)‖w‖², in float64. Two passes:
targets alone, which gives Σc and the mean of y and finds strange labels early; then
the rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcsgd.backends.blas import one_thread
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.serial import SerialCommunicator
from hpcsgd.data.partition import split_range
from hpcsgd.data.readers import RowReader, row_words
from hpcsgd.data.targets import encode_known
from hpcsgd.errors import DataError
from hpcsgd.families.base import least_losses
from hpcsgd.loading import checked_weights
from hpcsgd.prediction import (
    Model,
    block_scores,
    blocks_of,
    model_of,
    open_rows,
    rows_for,
)
from hpcsgd.result import Result

Array = NDArray[Any]


@dataclass(frozen=True)
class Judge:
    """The rows of one rank, seen through a model."""

    model: Model
    reader: RowReader
    rows: slice
    preparation: str = ""  # a sentence on what was done to the rows, if anything

    def columns(self, rows: slice) -> tuple[Array, Array]:
        """Encoded targets and weights of these rows, (m,) each."""
        raw = self.reader.targets(rows)
        y = encode_known(raw, self.model.targets, rows.start)[:, 0]
        weights = checked_weights(self.reader, rows)
        return y, np.ones(len(y)) if weights is None else weights

    def targets_sums(self) -> Array:
        """Σc and Σcy."""
        sums = np.zeros(2)
        for rows in blocks_of(self.rows, 1):
            y, c = self.columns(rows)
            sums += c.sum(), c @ y
        return sums

    def blocks(self) -> Iterator[tuple[Array, Array, Array]]:
        """(scores, targets, weights) of one block after the other."""
        for rows in blocks_of(self.rows, row_words(self.reader)):
            y, c = self.columns(rows)
            yield block_scores(self.model, self.reader, rows), y, c

    def loss_sums(self, scores: Array, y: Array, c: Array) -> list[float]:
        """Σcℓ, and the scores beyond the range of exp."""
        family = self.model.family
        losses = family.loss(scores, y[:, None])[:, 0]
        return [float(c @ losses), float(family.clipped(scores))]

    def label_sums(self, mean: float) -> Array:
        """Σcℓ, clips, then rows of each label, then those that were taken wrong."""
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
        """Σcℓ, clips, Σc(y − μ)², Σc(y − ȳ)², Σc min ℓ."""
        family, sums = self.model.family, np.zeros(5)
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


def _place(y: Array, model: Model) -> Array:
    """Encoded targets as the numbers of their labels."""
    places = (y + 1) / 2 if model.targets.kind == "signed" else y
    return np.asarray(places).astype(np.intp)


@one_thread()
def evaluate_reader(
    result: Result, open_data: Callable[[], RowReader], world: Communicator
) -> dict[str, Any]:
    """`evaluate` on a file: each rank of `world` takes a part of its rows.

    Every rank gets the same figures, and raises what any rank has found.
    """
    judge = world.together(lambda: _judge(result, open_data, world))
    total, sum_y = world.sum(world.together(judge.targets_sums), "evaluate")
    if total <= 0.0:
        raise _on_all_ranks("sample_weight sums to zero; at least one row must count")
    sums_of = judge.label_sums if judge.model.is_classifier else judge.value_sums
    with np.errstate(all="ignore"):  # a figure that is not finite says so itself
        sums = world.together(lambda: sums_of(float(sum_y / total)))
    figures = _figures(judge, float(total), world.sum(sums, "evaluate"))
    judge.reader.close()
    return figures


def _judge(
    result: Result, open_data: Callable[[], RowReader], world: Communicator
) -> Judge:
    model = model_of(result)
    reader, said = rows_for(model, open_data())
    return Judge(model, reader, split_range(reader.rows, world.size, world.rank), said)


def _on_all_ranks(sentence: str) -> DataError:
    error = DataError(sentence)
    error.on_all_ranks = True
    return error


def _figures(judge: Judge, total: float, sums: Array) -> dict[str, Any]:
    model = judge.model
    loss, penalty = float(sums[0]) / total, model.penalty.value(model.weights)
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


def _label_figures(model: Model, sums: Array) -> dict[str, Any]:
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
    """Say how good a model is on rows that are in memory.

    Parameters
    ----------
    result : Result, a trained model
    X : array, frame or scipy.sparse matrix, (n, d), rows with the columns of the
        training; names of a frame must be those of the training, in their order
    y : ndarray, (n,), targets; labels must be among those of the training
    sample_weight : ndarray, (n,), c_i >= 0; accuracy and errors count rows alone
    offset : ndarray, (n,), added to every score
    world : Communicator, ranks that share the rows; this one alone if None
    scaled : False where the rows of X are raw: of a model that was trained on scaled
        columns they are scaled with the means and scales of the training data; True
        where X is scaled with these already

    Returns
    -------
    dict with family, rows, mean_loss (1/Σc) Σ c_i ℓ_i, penalty l1‖w‖₁ + (l2/2)‖w‖²,
    objective (their sum, what training calls loss) and clipped_scores; preparation, a
    sentence, where the training data was scaled; classifiers add
    accuracy, errors and errors_by_label, the others r2 = 1 − Σc(y − μ)²/Σc(y − ȳ)²
    and mean_deviance = (2/Σc) Σ c_i (ℓ_i − min_t ℓ(t, y_i))

    Examples
    --------
    >>> import numpy as np, hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> result = hpcsgd.train({"rate": {"value": 0.5}}, X=X, y=X[:, 0] > 0)
    >>> hpcsgd.evaluate(result, X, X[:, 0] > 0)["accuracy"] > 0.9
    True
    """
    ranks = world if world is not None else SerialCommunicator()
    reader = open_rows(result, X, y, sample_weight, offset, scaled)
    return evaluate_reader(result, lambda: reader, ranks)

"""The result of a run: its ending, its model and its facts, and their files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from os.path import realpath
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.comm import open_world
from hpcsgd.comm.communicator import Communicator
from hpcsgd.data.frames import to_column, to_matrix
from hpcsgd.data.preparation import Preparation, preparation_from
from hpcsgd.data.readers import MemoryReader, RowReader, check_names, open_reader
from hpcsgd.data.targets import Targets
from hpcsgd.errors import ConfigError, DataError, did_you_mean_file
from hpcsgd.files import (
    check_entry,
    check_schema,
    finite,
    is_sealed,
    read_sealed,
    write_sealed,
    write_text,
)
from hpcsgd.formats import Array
from hpcsgd.glm import get_family
from hpcsgd.runs.figures import (
    coefficient_rows,
    html,
    plot_coefficients,
    plot_losses,
    to_frame,
)
from hpcsgd.settings import without_retired

if TYPE_CHECKING:  # a result without a summary needs none of it
    from hpcsgd.runs.inference import FitSummary, InferenceModel, InferenceRequest

# Weights in a file of their own beside a result, and whether they are those of the run.
#
# They may be larger than memory, and are only used as a view of the file.

WORDS_AT_ONCE = 2**16  # of weights that may be a view of a file
HASH = "weights_sha256"  # of those, in the document of a result
ON_FILE = "weights_file"  # in its report: the name of the file


def fingerprint(weights: Array, intercept: Array | None) -> str:
    """Return the SHA-256 of a model's weights and intercept in hexadecimal digits.

    The weights are read in chunks, since they may be a view of a large file.
    """
    digest = hashlib.sha256()
    each = max(WORDS_AT_ONCE // max(weights[:1].size, 1), 1)
    for first in range(0, len(weights), each):
        part = np.ascontiguousarray(weights[first : first + each])
        digest.update(part.reshape(-1).view(np.uint8).data)
    if intercept is not None:
        digest.update(np.ascontiguousarray(intercept).tobytes())
    return digest.hexdigest()


def link_weights(weights: Array, path: Path) -> None:
    """Make `path` a hard link to the file that `weights` are a view of.

    If the file system makes no such link, `path` becomes a copy of the file.
    """
    source = Path(str(weights.filename))  # type: ignore[attr-defined]
    if path.exists() and path.samefile(source):
        return
    path.unlink(missing_ok=True)
    try:
        os.link(source, path)
    except OSError:  # another drive, or one without links
        shutil.copyfile(source, path)


def read_beside(path: Path, columns: int | None) -> Array:
    """Return the weights in the file `path` of a result, as a view of the file.

    DataError is raised if there are no weights of `columns` columns of the data; None
    accepts any number.
    """
    try:
        check_entry(path)
        weights: Array = np.load(path, mmap_mode="r")
        if columns is not None and len(weights) != columns:
            raise ValueError(f"{len(weights)} columns, not {columns}")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} holds no weights that fit the result file in its folder; restore"
            " the original file, or train again"
        ) from error
    return weights[:, 0] if weights.ndim == 2 and weights.shape[1] == 1 else weights


def other_values(path: Path) -> DataError:
    """Return the error for a file of weights that are not those of the run."""
    return DataError(
        f"{path} has changed since the run wrote it (its SHA-256 is not the one in the"
        " result file of its folder); restore the original file, or train again"
    )


# How a run ended, and what it leaves behind.

ADVICE_SHOWN = 120  # characters of an advice in `repr`

KIND = "result"
VERSION = 2
ESTIMATOR = "estimator"  # the kind of file of `estimators.saved`


class Status(Enum):
    """How a run ended. Each ending has an advice and an exit code.

    Attributes
    ----------
    COMPLETED : Status
        All exchanges are done.
    CONVERGED : Status
        The goal is reached.
    STOPPED : Status
        A callback requested the end.
    PREEMPTED : Status
        The system requested an early end; the run can resume.
    INTERRUPTED : Status
        A person requested an early end; the run can resume.
    DIVERGED : Status
        The loss grew without bound or is not finite.
    WORSE : Status
        The loss ended above where it began.

    Examples
    --------
    >>> from hpcsgd import Status
    >>> Status("completed").is_good, Status.PREEMPTED.exit_code
    (True, 75)
    """

    COMPLETED = "completed"
    CONVERGED = "converged"
    STOPPED = "stopped"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"
    WORSE = "worse"

    @property
    def advice(self) -> str:
        """Return the advice for this ending, or an empty string."""
        return _ADVICE[self]

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        return _EXIT_CODES.get(self, 0)

    @property
    def is_finished(self) -> bool:
        """Return whether the run is over and its last state was evaluated.

        It is False for a run that diverged.
        """
        return self.is_good or self in (Status.STOPPED, Status.WORSE)

    @property
    def is_good(self) -> bool:
        """Return whether the run reached its last epoch, or its goal."""
        return self in (Status.COMPLETED, Status.CONVERGED)


WORSE = Status.WORSE.value
ROUNDING = 1e-6  # of a loss: weights in float32 are no closer

REQUEUE = 75  # start me again: what sysexits.h calls a temporary failure

_EXIT_CODES = {
    Status.DIVERGED: 1,
    Status.WORSE: 1,
    Status.PREEMPTED: REQUEUE,
    Status.INTERRUPTED: 130,
}

_ADVICE = {
    Status.COMPLETED: "",
    Status.CONVERGED: "",
    Status.STOPPED: "a callback asked to stop; the weights are those of that moment",
    Status.PREEMPTED: (
        "the system asked for an early end; start the same command again with --resume"
        " auto to go on; the loss is that of the last evaluation"
    ),
    Status.INTERRUPTED: (
        "start the same command again with --resume auto to go on; the loss is that of"
        " the last evaluation"
    ),
    Status.DIVERGED: (
        "the loss grew without bound or is not finite; lower the rate"
        " (--rate, try a tenth; hpcsgd precision names the largest safe one) or widen"
        " the precision; the weights kept are the last ones with a good loss"
    ),
    Status.WORSE: (
        "the loss ended above where it began; lower the rate (--rate, try a tenth)"
    ),
}


def is_worse(loss: float, first: float) -> bool:
    """Return whether `loss` is above `first`, the first loss of a run, beyond rounding.

    The rise must be more than `ROUNDING` times |first|. A loss that is not finite does
    not count as above.
    """
    return bool(np.isfinite(loss) and loss - first > ROUNDING * abs(first))


def judge_rise(status: Status, loss: float, history: list[dict[str, Any]]) -> Status:
    """Return `Status.WORSE` for a good ending whose loss is above the first loss.

    Any other `status` is returned unchanged.
    """
    is_above = bool(history) and is_worse(loss, history[0]["loss"])
    return Status.WORSE if status.is_good and is_above else status


class UnsavedFile(DataError):
    """The error that a file of a result cannot be written."""

    def __init__(self, *args: object, cause: str = "") -> None:
        super().__init__(*args)
        self.cause = cause  # the file and the reason, without the remedy


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Raise UnsavedFile with one sentence if writing `path` in the context fails."""
    try:
        yield
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or repr(error)
        cause = f"{path} cannot be written ({reason})"
        raise UnsavedFile(
            f"{cause}; make room or choose another folder", cause=cause
        ) from error


@dataclass(frozen=True)
class FitSource:
    """The rows of a fit and its ranks, to be opened again.

    Attributes
    ----------
    open_reader : callable
        Opens the rows on the ranks of a world.
    ranks : callable
        Returns a context manager of the ranks.
    """

    open_reader: Callable[[Communicator], RowReader]
    ranks: Callable[[], AbstractContextManager[Communicator]]


@contextmanager
def launcher_ranks(kind: str, timeout: float) -> Iterator[Communicator]:
    """Open the communicator of the launcher's ranks for a `with` block.

    It is closed after the block, unless an error is raised there.
    """
    world = open_world(kind, timeout=timeout)
    yield world
    world.close()  # after an error other ranks may still be in a sum


# Models in 8 bits: whole numbers up to 127, with a scale for 256 columns of each score.
#
# A weight w becomes s · q with q = rint(w / s), so that it is off by s / 2 at most. The
# scale s is the largest size in the block divided by 127, rounded up to 16 bits: s · q
# is then exact in float32, and the model that is read is the one that was saved.

INT8_BLOCK = 256
LARGEST_CODE = 127
STORED = "stored"  # in the report: how the weights were rounded
CODES = "weight_codes"
SCALES = "weight_scales"


def to_int8(weights: Array) -> tuple[Array, Array]:
    """Return codes of int8 in the shape of `weights`, and scales, (blocks, K)."""
    columns = len(weights)
    table = np.asarray(weights, dtype=np.float64).reshape(columns, -1)
    starts = np.arange(0, columns, INT8_BLOCK)
    largest = np.maximum.reduceat(np.abs(table), starts, axis=0)
    fraction, exponent = np.frexp(largest / LARGEST_CODE)
    rounded = np.ldexp(np.ceil(np.ldexp(fraction, 16)), exponent - 16)
    scales = rounded.astype(np.float32)
    each = np.repeat(scales, INT8_BLOCK, axis=0)[:columns].astype(np.float64)
    ratios = np.divide(table, each, out=np.zeros_like(table), where=each > 0.0)
    codes = np.clip(np.rint(ratios), -LARGEST_CODE, LARGEST_CODE).astype(np.int8)
    return codes.reshape(weights.shape), scales


def from_int8(codes: Array, scales: Array) -> Array:
    """Return the weights in float32 that `codes` and `scales` stand for."""
    table = codes.reshape(len(codes), -1).astype(np.float32)
    table *= np.repeat(scales, INT8_BLOCK, axis=0)[: len(codes)]
    return table.reshape(codes.shape)


@dataclass(frozen=True)
class Result:
    """A trained model, and the account of its run.

    Attributes
    ----------
    status : Status
        How the run ended.
    loss : float
        The objective F on all training rows, in float64; for a sweep, the least.
    weights : ndarray of shape (d,) or (d, K)
        Weights.
    intercept : ndarray of shape () or (K,), or None
        Intercept; None without one.
    iterations : int
        Steps of this rank's replica, of SGD or coordinate descent.
    exchanges : int
        Exchanges, of at most s steps each; in coordinate descent also sweeps.
    history : list of dict
        One record for each evaluation: epoch, loss, seconds, messages, words.
    ledger : dict
        Calls, words, bytes and seconds of rank 0, by purpose.
    config : dict
        All settings of the run.
    report : dict
        Times, grid, classes, versions, and how the run computed.
    preparation : Preparation or None
        What was done to the stored rows of the training: means and scales of the
        columns, unit rows. None where it is not known.
    source : FitSource or None
        How `summary` opens the rows again; neither saved nor pickled.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> result = hpcsgd.fit(X, "gaussian", X[:, 0])
    >>> result.status.value, result.report["converged"]
    ('completed', True)
    """

    status: Status
    loss: float
    weights: Array
    intercept: Array | None
    iterations: int
    exchanges: int
    history: list[dict[str, Any]]
    ledger: dict[str, dict[str, Any]]
    config: dict[str, dict[str, Any]]
    report: dict[str, Any]  # seconds, grid, classes, versions, what ran how
    preparation: Preparation | None = None
    source: FitSource | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a pickle, without the source of the rows."""
        return {**vars(self), "source": None}

    def __repr__(self) -> str:
        """Return lines on the ending, the model, the optimum, work and traffic.

        An advice stands in place of the optimum, which is left out if no gap is known.
        """
        in_brief = shorten(self.advice, ADVICE_SHOWN, placeholder=" ...")
        lines = [
            f"Result: {self.status.value}, loss {self.loss:.8g}",
            f"  model    {model_text(self.config, self.weights, self.intercept)}",
            f"  advice   {in_brief}" if in_brief else self._optimum(),
            f"  work     {work_text(self)}",
            f"  traffic  {traffic_text(self.ledger)}",
        ]
        return "\n".join(line for line in lines if line)

    def _optimum(self) -> str:
        """Return the line of `repr` on the distance from the optimum, where known."""
        gap = self.report.get("gap")
        if not isinstance(gap, int | float) or not np.isfinite(gap):
            return ""
        return f"  optimum  F is at most {max(gap, 0.0):.2g} above it"

    @property
    def feature_names(self) -> list[str] | None:
        """Names of the columns, where the training data has names."""
        names: list[str] | None = self.report.get("feature_names")
        return names

    @property
    def events(self) -> list[dict[str, Any]]:
        """Alarms, and what was done about them."""
        events = self.report.get("events")
        return list(events) if isinstance(events, list) else []

    @property
    def is_worse(self) -> bool:
        """Return whether the run went to its end, and F ended above where it began."""
        if self.status is Status.WORSE:
            return True
        if not self.status.is_good or not self.history or "models" in self.report:
            return False
        first = self.history[0]["loss"]  # None in a file where it was not finite
        return first is not None and is_worse(self.loss, first)

    @property
    def advice(self) -> str:
        """Return the advice for the ending of the run, or an empty string.

        It names the remedies that apply to the rows, and fallback levels that did not
        help.
        """
        status = Status.WORSE if self.is_worse else self.status
        advice = status.advice or str(self.report.get("advice", ""))
        tried = [e["change"] for e in self.events if e.get("event") == "fall-back"]
        if tried and status is Status.DIVERGED:
            advice += f"; tried before: {', '.join(tried)}"
        remedies = self.report.get("remedies")
        if advice and remedies:
            advice += f"; for these rows: {'; '.join(remedies)}"
        return advice

    @property
    def weights_sha256(self) -> str:
        """The SHA-256 of the weights and the intercept, in hexadecimal digits."""
        return fingerprint(self.weights, self.intercept)

    def largest_weights(self, count: int) -> list[dict[str, Any]]:
        """Return the weights of largest magnitude, the largest first, ties by column.

        Parameters
        ----------
        count : int
            How many weights to return.

        Returns
        -------
        list of dict
            Each has its `column`, the `name` of that column where the data has names,
            its `class` where there are several, and its `weight`.
        """
        weights = np.asarray(self.weights, dtype=np.float64)
        labels = self.report.get("labels")
        names = self.feature_names
        order = np.argsort(-np.abs(weights).reshape(-1), kind="stable")[:count]
        entries = []
        for place in order:
            indices = np.unravel_index(place, weights.shape)
            column, *classes = (int(i) for i in indices)
            entry: dict[str, Any] = {"column": column}
            if names is not None:
                entry["name"] = names[column]
            if classes and labels is not None:
                entry["class"] = labels[classes[0]]
            entries.append({**entry, "weight": float(weights[indices])})
        return entries

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the arrays, ready for JSON.

        Returns
        -------
        dict
        """
        return {
            "status": self.status.value,
            "advice": self.advice,
            "loss": self.loss,
            "iterations": self.iterations,
            "exchanges": self.exchanges,
            **self.report,
            "preparation": self._prepared(),
            "ledger": self.ledger,
            "weights_sha256": self.weights_sha256,
            "history": self.history,
            "config": self.config,
        }

    def _prepared(self) -> dict[str, Any] | None:
        """Return the preparation of the rows for JSON, without means and scales."""
        return None if self.preparation is None else self.preparation.describe()

    def json(self) -> str:
        """Return everything but the arrays as JSON, with null for what is not finite.

        Returns
        -------
        str
        """
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False)

    def in_int8(self) -> Result:
        """Return the result with weights of 8 bits, which its file stores.

        A block of 256 columns has one scale s for each score, and no weight is off by
        more than s / 2. The weights of the new result are the rounded ones, in float32;
        its `loss` stays that of the weights before. `report["stored"]` has the bytes
        and the largest error. Weights that are not finite, or in a file of their own,
        stay as they are.

        Returns
        -------
        Result

        Examples
        --------
        >>> import numpy as np
        >>> import hpcsgd
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> small = hpcsgd.fit(X, "gaussian", X[:, 0]).in_int8()
        >>> small.report["stored"]["bytes"], small.weights.dtype.name
        (7, 'float32')
        """
        largest = float(np.abs(self.weights).max(initial=0.0))
        is_finite = largest <= float(np.finfo(np.float32).max)  # False for NaN
        if STORED in self.report or ON_FILE in self.report or not is_finite:
            return self
        codes, scales = to_int8(self.weights)
        weights = from_int8(codes, scales)
        stored = {
            "format": "int8",
            "bytes": codes.nbytes + scales.nbytes,
            "bytes_before": self.weights.nbytes,
            "largest_error": float(np.abs(weights - self.weights).max(initial=0.0)),
            "largest_weight": largest,
        }
        return replace(self, weights=weights, report={**self.report, STORED: stored})

    def save(self, folder: str | Path) -> Path:
        """Write result.h5 and result.json into a folder, each whole or not at all.

        Parameters
        ----------
        folder : path-like
            The folder, which is made where it does not exist.

        Returns
        -------
        pathlib.Path
            The file result.h5.
        """
        folder = Path(folder)
        path = folder / "result.h5"
        json_path = folder / "result.json"
        with saving(path):
            folder.mkdir(parents=True, exist_ok=True)
            if ON_FILE in self.report:
                link_weights(self.weights, folder / self.report[ON_FILE])
            write_sealed(path, KIND, VERSION, self.document(), self.arrays())
        try:
            with saving(json_path):
                write_text(json_path, self.json() + "\n")
        except UnsavedFile:
            # An existing one describes another model.
            with suppress(OSError):
                json_path.unlink(missing_ok=True)
            raise
        return path

    def to_frame(self, what: str = "history") -> Any:
        """Return the loss curve or the coefficients as a pandas.DataFrame.

        Parameters
        ----------
        what : {"history", "coefficients"}, default="history"
            One row for each evaluation, or one row for each column of the data.

        Raises
        ------
        MissingPackage
            If pandas is not installed.
        """
        if asks_for_history(what):
            return to_frame(self.history)
        return to_frame(self._coefficients(), index="feature")

    def plot(
        self, what: str = "history", *, over: str = "epoch", ax: Any = None
    ) -> Any:
        """Draw the loss curve or the largest coefficients with matplotlib.

        Parameters
        ----------
        what : {"history", "coefficients"}, default="history"
            What is drawn.
        over : {"epoch", "seconds", "words", "messages"}, default="epoch"
            The horizontal axis of the loss curve.
        ax : matplotlib.axes.Axes, optional
            Where to draw. Without it there is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes, for titles and further curves.

        Raises
        ------
        MissingPackage
            If matplotlib is not installed.
        """
        if asks_for_history(what):
            return plot_losses({self._family: self.history}, over, ax)
        return plot_coefficients(self._coefficients(), ax)

    def _repr_html_(self) -> str:
        """Return a table and a loss curve for a notebook."""
        last = self.history[-1] if self.history else {}
        facts = {
            "status": self.status.value,
            "loss": self.loss,
            "epochs": last.get("epoch"),
            "steps": self.iterations,
            "ranks": self.report.get("ranks"),
            "messages": last.get("messages"),
            "words": last.get("words"),
            "seconds": self.report.get("seconds_total"),
            "weights": " × ".join(str(size) for size in self.weights.shape),
        }
        rows = [{name: value for name, value in facts.items() if value is not None}]
        title = f"Result: {self._family}"
        return html(title, rows, lambda ax: self.plot(ax=ax), self.advice)

    @property
    def _family(self) -> str:
        return str(self.config.get("problem", {}).get("family", "model"))

    def _coefficients(self) -> list[dict[str, Any]]:
        labels = self.report.get("labels")
        return coefficient_rows(self.weights, self.feature_names, labels)

    def summary(
        self,
        *,
        covariance: str = "information",
        clusters: ArrayLike | None = None,
        dispersion: str | float | None = None,
        level: float = 0.95,
        X: Any = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        world: Communicator | None = None,
    ) -> FitSummary:
        """Return standard errors, tests and likelihoods of the fit. Collective.

        All ranks of the fit must call it. It is for fits without a penalty (`alpha=0`)
        at their optimum, where gᵀ H⁻¹ g / φ is below 1e-4: no coefficient is further
        than 0.01 standard errors from the optimum then. With r = ∂ℓ/∂t, h = ∂r/∂t and
        ã = (1, a) the covariances are ::

            information   φ H⁻¹          H = Σ c h ã ãᵀ, the observed information
            sandwich      H⁻¹ M H⁻¹      M = Σ c r² ã ãᵀ (HC0)
            clustered     the same       M = Σ_g s_g s_gᵀ, s_g = Σ c r ã of cluster g,
                                         times G/(G − 1) · (n − 1)/(n − P)

        Parameters
        ----------
        covariance : {"information", "sandwich", "clustered"}, default="information"
            The covariance of the coefficients. A family without a likelihood, such as
            huber, has no "information".
        clusters : array-like of shape (n,), optional
            The cluster of each row: of all rows, or on each rank of its own rows.
        dispersion : {"pearson", "deviance"} or float, optional
            φ: χ²/(n − P), D/(n − P), or a number. None takes "pearson" for gaussian,
            gamma and tweedie, and 1 for counts and classes. huber, squared-hinge and
            softmax refuse any other value than None.
        level : float, default=0.95
            Probability of the intervals.
        X : array, frame, sparse matrix or path, optional
            The rows of the fit, the same on every rank. Without X they are opened
            again: the file of the settings, or the arrays of the call.
        y : array-like of shape (n,), optional
            The targets, where X is given.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows of X. A weight c counts as c equal rows, and n is Σc,
            also in AIC and BIC.
        offset : array-like of shape (n,), optional
            Offsets of the rows of X.
        world : Communicator, optional
            The ranks. Without it they are those of the fit.

        Returns
        -------
        FitSummary
            Numbers as arrays, and a table as text.

        Raises
        ------
        ConfigError
            If the fit has a penalty or bounds, or if the family lacks the covariance.
        DataError
            If the rows are not known, if the fit is not at its optimum, or if the
            information matrix is singular.

        Notes
        -----
        The rows are read once, and one message sums P² + P + 6 words over the ranks;
        2 P² + P + 6 for the sandwich, P² + G P + P + 6 for G clusters.

        References
        ----------
        .. [1] H. White, "A heteroskedasticity-consistent covariance matrix estimator",
           Econometrica 48, 1980.
        .. [2] K.-Y. Liang and S. Zeger, "Longitudinal data analysis using generalized
           linear models", Biometrika 73, 1986.

        Examples
        --------
        >>> import numpy as np
        >>> import hpcsgd
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 2))
        >>> y = rng.poisson(np.exp(0.5 * X[:, 0]))
        >>> summary = hpcsgd.fit(X, "poisson", y, alpha=0.0).summary()
        >>> summary.names, summary.coefficients.shape
        (('intercept', 'x0', 'x1'), (3,))
        """
        from hpcsgd.runs.inference import InferenceRequest

        request = InferenceRequest(covariance, clusters, dispersion, level)
        if X is None:
            if y is not None or sample_weight is not None or offset is not None:
                raise ConfigError(
                    "y, sample_weight and offset cannot be given without X; give X as"
                    " well, or none of them"
                )
            return self.summarize(request, self._open_source, world)
        rows = to_matrix(X)
        if rows.path is not None:
            path = Path(rows.path)
            return self.summarize(request, lambda _: open_reader(path), world)
        if y is None:
            raise ConfigError("X cannot be given without its targets; give y as well")
        remedy = "give them in the order of the fit"
        check_names(self.feature_names, rows.names, remedy)
        sides = {"y": y, "sample_weight": sample_weight, "offset": offset}
        columns = [to_column(name, values) for name, values in sides.items()]
        return self.summarize(request, lambda _: MemoryReader(rows.X, *columns), world)

    def summarize(
        self,
        request: InferenceRequest,
        open_rows: Callable[[Communicator], RowReader],
        world: Communicator | None = None,
    ) -> FitSummary:
        """Return the summary of the fit on the rows that `open_rows` opens. Collective.

        Parameters
        ----------
        request : InferenceRequest
            The covariance and how it is reported.
        open_rows : callable
            Opens the rows on the ranks of a world.
        world : Communicator, optional
            The ranks. Without it they are those of the fit.

        Returns
        -------
        FitSummary
        """
        from hpcsgd.runs.inference import summarize

        model = self._inference_model()
        return summarize(model, request, open_rows, self._ranks(world))

    def _ranks(
        self, world: Communicator | None
    ) -> AbstractContextManager[Communicator]:
        """Return a context manager of the communicator for a summary.

        It is `world`; if that is None, the ranks of the fit; if these are not known,
        the ranks of the launcher.
        """
        if world is not None:
            return nullcontext(world)
        if self.source is not None:
            return self.source.ranks()
        run = self.config.get("run", {})
        timeout = float(run.get("timeout", 0.0))
        return launcher_ranks(str(run.get("comm", "auto")), timeout)

    def _open_source(self, world: Communicator) -> RowReader:
        """Return a reader of the rows of the fit.

        DataError is raised if the rows are neither in memory nor in a file.
        """
        if self.source is not None:
            return self.source.open_reader(world)
        path = self.config.get("data", {}).get("path")
        if not path:
            raise DataError(
                "the rows of this fit are not in memory; give X and y to summary"
            )
        return open_reader(Path(path))

    def _inference_model(self) -> InferenceModel:
        """Return the model for a summary; refuse a fit without standard errors."""
        from hpcsgd.runs.inference import InferenceModel

        if "models" in self.report:
            raise ConfigError(
                "a sweep has several models and no summary; fit the best model alone"
            )
        problem = self.config["problem"]
        if problem.get("l1") or problem.get("l2"):
            raise ConfigError(
                "a penalised fit has no standard errors, since the penalty moves its"
                " coefficients; fit with alpha=0 (the default of fit is 1e-4), or with"
                " l1 = l2 = 0 in the settings"
            )
        if problem.get("lower") is not None or problem.get("upper") is not None:
            raise ConfigError(
                "a fit within bounds has no standard errors; fit without bounds"
            )
        if self.config.get("sampling", {}).get("hold_out"):
            raise ConfigError(
                "a fit with hold_out has no standard errors, since it ends before its"
                " optimum; fit with hold_out=0"
            )
        weights = np.asarray(self.weights, dtype=np.float64)
        intercept = None
        if self.intercept is not None:
            intercept = np.asarray(self.intercept, dtype=np.float64).reshape(-1)
        if not np.isfinite(weights).all():
            raise DataError(
                "the coefficients are not finite, since the run diverged; fit again"
                " with a lower rate"
            )
        family = get_family(problem["family"], problem)
        grid = self.config.get("grid", {})
        return InferenceModel(
            family=family,
            weights=weights.reshape(len(weights), -1),
            intercept=intercept,
            targets=Targets(family.targets, tuple(self.report.get("labels", ()))),
            names=self.feature_names,
            preparation=self.preparation,
            grid=(int(grid.get("replicas") or 0), int(grid.get("members") or 0)),
        )

    def document(self) -> dict[str, Any]:
        """Return everything but the arrays, as a file holds it.

        Returns
        -------
        dict
        """
        document = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("weights", "intercept", "source"):
            del document[name]
        document["status"] = self.status.value
        document[PREPARATION] = self._prepared()
        if ON_FILE in self.report:  # the seal covers one file, and these are in another
            document[HASH] = self.weights_sha256
        return document

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of a file: weights, intercept, means and scales.

        Weights in 8 bits are codes and scales. Weights that are in a file of their own
        are left out.

        Returns
        -------
        dict of ndarray
        """
        arrays: dict[str, Array] = {}
        if STORED in self.report:
            arrays[CODES], arrays[SCALES] = to_int8(self.weights)
        elif ON_FILE not in self.report:
            arrays["weights"] = self.weights
        if self.preparation is not None:
            arrays |= self.preparation.arrays()
        if self.intercept is not None:
            arrays["intercept"] = np.asarray(self.intercept)
        return arrays


def model_text(
    config: Mapping[str, Any], weights: Array, intercept: Array | None
) -> str:
    """Return a text on the family, the size and the penalty of a model."""
    problem = config.get("problem", {})
    parts = [str(problem.get("family", "a model"))]
    shape = " x ".join(f"{size:,}" for size in weights.shape)
    parts.append(f"{shape} weights" + ("" if intercept is None else " and intercept"))
    parts += [f"{name} {problem[name]:g}" for name in ("l1", "l2") if problem.get(name)]
    return ", ".join(parts)


def work_text(result: Result) -> str:
    """Return a text on the passes, steps, exchanges, ranks and seconds of a run."""
    last = result.history[-1] if result.history else {}
    passes = int(last.get("epoch", 0)) + int(last.get("passes", 0))
    ranks = result.report.get("ranks", 1)
    text = (
        f"{passes:,} pass{'' if passes == 1 else 'es'}, {result.iterations:,} steps in"
        f" {result.exchanges:,} exchanges on {ranks:,} rank{'' if ranks == 1 else 's'}"
    )
    seconds = result.report.get("seconds_total")
    return text if seconds is None else f"{text}, {seconds:.3g} s"


def traffic_text(ledger: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a text on the messages, words and bytes that rank 0 sent in training."""
    sent = [ledger.get(purpose, {}) for purpose in ("products", "agreement")]
    calls, words, size = (
        sum(int(entry.get(name, 0)) for entry in sent)
        for name in ("calls", "words", "bytes")
    )
    return f"{calls:,} messages, {words:,} words, {size:,} bytes a rank"


def asks_for_history(what: str) -> bool:
    """Return True for "history", False for "coefficients"; else raise ConfigError."""
    if what not in ("history", "coefficients"):
        raise ConfigError(f"what = {what!r} is unknown; known: history, coefficients")
    return what == "history"


PREPARATION = "preparation"  # in its document; earlier versions did not write it

# What a result's document holds besides the arrays.
SCHEMA = {
    "status": str,
    "loss": float,
    "iterations": int,
    "exchanges": int,
    "history": [dict],
    "ledger": {...: dict},
    "config": {...: dict},
    "report": dict,
}


def load_result(path: str | Path) -> Result:
    """Read a result back from its file.

    Parameters
    ----------
    path : path-like
        A run folder, or its `result.h5`.

    Returns
    -------
    Result
        The result as `Result.save` has written it.

    Raises
    ------
    DataError
        If the file does not exist, is damaged, or holds no result.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(64, 3))
    >>> result = hpcsgd.fit(X, "gaussian", X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = hpcsgd.load_result(result.save(folder))
    >>> again.weights_sha256 == result.weights_sha256
    True
    """
    path = Path(path)
    # A name that the user gives may be a link; an entry of a folder may not.
    path = path / "result.h5" if path.is_dir() else Path(realpath(path))
    if not path.exists():
        raise DataError(
            f"{path} does not exist{did_you_mean_file(path)}; name a run folder or its"
            " result.h5"
        )
    if is_sealed(path, ESTIMATOR):
        raise DataError(
            f"{path} holds an estimator and no result; read it with hpcsgd.load"
        )
    return restore(path, *read_sealed(path, KIND, VERSION))


def restore(path: Path, document: Any, arrays: Mapping[str, Array]) -> Result:
    """Return the result made of `document` and `arrays`, the contents of a sealed file.

    `path` is that file; weights in a file of their own are read from the same folder.
    """
    check_schema(path, document, SCHEMA)
    values = {key: document[key] for key in SCHEMA}
    values["config"] = without_retired(values["config"])
    status = _status(path, values.pop("status"))
    intercept = arrays.get("intercept")
    weights = arrays.get("weights")
    beside = values["report"].get(ON_FILE)
    if beside is not None:
        columns = values["report"].get("columns")
        weights = read_beside(path.parent / str(beside), columns)
    if CODES in arrays and SCALES in arrays:
        weights = _decoded(arrays[CODES], arrays[SCALES])
    if weights is None or not _fits(weights, intercept):
        raise DataError(
            f"{path} holds no weights, or weights that do not fit its intercept; train"
            " the model again"
        )
    result = Result(
        status=status,
        weights=weights,
        intercept=intercept,
        preparation=_preparation(path, document, arrays, len(weights)),
        **values,
    )
    digest = None if beside is None else document.get(HASH)  # earlier ones do not say
    if digest is not None and result.weights_sha256 != digest:
        raise other_values(path.parent / str(beside))
    return result


def _decoded(codes: Array, scales: Array) -> Array | None:
    """Return the weights of codes and scales; None if these do not fit each other."""
    blocks = -(-len(codes) // INT8_BLOCK)
    width = codes[0].size if len(codes) else 0
    if codes.dtype != np.int8 or scales.shape != (blocks, width):
        return None
    return from_int8(codes, scales)


def _preparation(
    path: Path, document: Any, arrays: Mapping[str, Array], columns: int
) -> Preparation | None:
    """Return the preparation of the rows; None for a result without one."""
    description = document.get(PREPARATION)
    if description is None:
        return None
    check_schema(path, document, {PREPARATION: {"columns": str, "unit_rows": bool}})
    preparation = preparation_from(arrays, description["unit_rows"])
    moments = preparation.arrays().values()
    if preparation.columns != description["columns"] or any(
        len(a) != columns for a in moments
    ):
        raise DataError(
            f"{path} lacks the means or scales of the columns; train the model again"
        )
    return preparation


def _status(path: Path, name: str) -> Status:
    try:
        return Status(name)
    except ValueError as error:
        raise DataError(
            f"{path} has an unknown status; train the model again"
        ) from error


def _fits(weights: Array, intercept: Array | None) -> bool:
    """Return whether w is (d,) with a scalar intercept, or (d, K) with K of them.

    The intercept may be None. Both must be floating-point arrays.
    """
    if weights.dtype.kind != "f" or weights.ndim not in (1, 2):
        return False
    return intercept is None or (
        intercept.dtype.kind == "f" and intercept.shape == weights.shape[1:]
    )

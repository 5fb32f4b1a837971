"""`hpcsgd.fit`: from rows to a fitted model at its optimum."""

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.agreements.base import alike, check_same
from hpcsgd.agreements.more.infinity.agreement import OnDisk
from hpcsgd.api import open_session
from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import close_on_agreed_error
from hpcsgd.comm.start_limit import TIMEOUT
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.config import RunConfig
from hpcsgd.data.frames import is_wide, to_matrix
from hpcsgd.errors import ConfigError, ConvergenceWarning
from hpcsgd.estimators.inputs import FitData, open_data
from hpcsgd.estimators.settings import RACE, FitSettings, grid_on
from hpcsgd.estimators.sweep import race_on
from hpcsgd.products.base import Array
from hpcsgd.runs.assembled_run import AssembledRun
from hpcsgd.runs.result import Result, Status
from hpcsgd.runs.session import Start, initial_weights_error, settings_of
from hpcsgd.solvers.callbacks import Callback, View
from hpcsgd.solvers.full_passes import ENDLESS, NO_MINIMUM, gap_limit
from hpcsgd.solvers.lbfgs import StopReason
from hpcsgd.solvers.newton import amount

# Whether a fit is at the optimum, and what to change where it is not.

REMEDIES = {
    StopReason.PASSES.value: (
        "{passes} passes of polishing were not enough (gradient {relative_after:.2g} of"
        " the residuals, not {tol:.2g}); raise polish.passes in config, raise alpha, or"
        " raise tol"
    ),
    StopReason.UNCERTIFIED.value: (
        "after {passes} passes the gradient is small ({relative_after:.2g} of the"
        " residuals, tol {tol:.2g}), but F may be {gap:.2g} above its optimum, and not"
        " {gap_limit:.2g}; rows or columns of very different size hide it: scale them,"
        " or raise alpha"
    ),
    StopReason.HIDDEN.value: (
        "after {passes} passes the gradient is small ({relative_after:.2g} of the"
        " residuals, tol {tol:.2g}), but a step of Newton would lower F by"
        " {fall}, and not {fall_limit:.2g}; rows or columns of very"
        " different size hide it: scale them, or give a penalty"
    ),
    StopReason.STUCK.value: (
        "after {passes} passes of polishing no lower loss was found (gradient"
        " {relative_after:.2g} of the residuals, not {tol:.2g}); scale the columns or"
        " the targets, or lower the rate"
    ),
}

NOTHING = 1e-6  # loss of all rows together: each is on its side, with a margin
BOUNDS = {"lower", "upper"}


def advise(result: Result, tol: float) -> None:
    """Put into the report how near the optimum is: `converged`, `gap`, `advice`.

    `certified` is True where the gap F − F* is at most tol · max(|F|, 1e-3 · F₀), False
    where it is known to be larger, None where the family or the penalty has no gap.
    """
    report = result.report
    report["gap"] = result.history[-1].get("gap") if result.history else None
    report["certified"] = _is_certified(result, tol)
    sentence = _sentence(result)
    report["converged"] = not sentence and result.status.is_good
    if sentence:
        report["advice"] = sentence


def _is_certified(result: Result, tol: float) -> bool | None:
    report = result.report
    gap, polish = report["gap"], report.get("polish")
    coordinate = report.get("coordinate")
    if gap is None:
        return None
    if polish is not None:
        limit = polish.get("gap_limit")
        return None if limit is None else bool(gap <= limit)
    if coordinate is not None:
        return bool(gap <= gap_limit(tol, result.loss, coordinate["null_excess"]))
    return result.status is Status.CONVERGED


def _sentence(result: Result) -> str:
    if not result.status.is_good:
        return result.status.advice
    endless = _without_minimum(result)
    if endless or result.report["certified"]:
        return endless
    if result.status is Status.CONVERGED:
        return result.status.advice
    for name, judge in (("polish", _of_polish), ("coordinate", _of_coordinates)):
        found = result.report.get(name)
        if found is not None:
            return judge(found)
    return _of_steps(result)


def _without_minimum(result: Result) -> str:
    """Where F has come down to its bound 0, which no finite weights reach."""
    problem, rows = result.config["problem"], result.report["rows"]
    polish = result.report.get("polish") or {}
    is_free = not problem["l2"] and not problem["l1"] and not problem.keys() & BOUNDS
    vanishes = abs(result.loss) * rows <= NOTHING
    if problem["family"] == "poisson" and vanishes:
        if polish.get("ended") == StopReason.CONVERGED.value:
            return ""  # a minimum there is: of targets that are small
        return (
            "all counts are 0, so that F has no minimum: the intercept falls without"
            " end; add rows with counts"
        )
    if not result.report.get("has_minimum", True):
        return f"{NO_MINIMUM}, alpha > 0"
    if problem["family"] in ENDLESS and is_free and vanishes:
        return f"{NO_MINIMUM}, alpha > 0"
    return ""


def _of_polish(found: Mapping[str, Any]) -> str:
    fall = amount(found.get("expected_fall"))
    return REMEDIES.get(found["ended"], "").format(**found, fall=fall)


def _of_coordinates(found: Mapping[str, Any]) -> str:
    if found["ended"] == "converged":
        return ""
    return (
        "coordinate descent ended before its gap was small enough"
        f" (now {_known(found['gap'])}); raise epochs, or tol"
    )


def _of_steps(result: Result) -> str:
    """A run of steps alone, whose goal was not reached by the last epoch."""
    goal, epochs = result.config["stop"], result.config["schedule"]["epochs"]
    if goal["on"] == "none":
        return ""
    if goal["on"] == "validation":
        return f"the held-out loss still fell after {epochs} epochs; raise epochs"
    if goal["on"] == "loss":
        return f"the loss still fell after {epochs} epochs; raise epochs or the rate"
    gap = result.history[-1].get("gap") if result.history else None
    return (
        f"{epochs} epochs of SGD ended {_known(gap)} or less above the optimum, and tol"
        f" asks for {goal['tol']:.2g} of F; raise epochs or tol, scale the columns"
        " alike, or let polish='auto' go on where F is smooth"
    )


def _known(gap: Any) -> str:
    return "an unknown distance" if gap is None else f"{gap:.2g}"


# What a run says of a goal it did not reach, a fit says itself, as a warning.

SPEAKERS = (
    "hpcsgd.solvers.evaluation",
    "hpcsgd.solvers.newton",
    "hpcsgd.runs.coordinate",
)
_fits: ContextVar[bool] = ContextVar("fits", default=False)


class _Once(logging.Filter):
    """Lets nothing below an error pass while this thread fits."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _fits.get() or record.levelno >= logging.ERROR


_ONCE = _Once()  # a logger has it once, however often it is added


@contextmanager
def suppress_repeated_logs() -> Iterator[None]:
    """Filter the log of a run whose status is judged afterwards."""
    for name in SPEAKERS:
        logging.getLogger(name).addFilter(_ONCE)
    before = _fits.set(True)
    try:
        yield
    finally:
        _fits.reset(before)


# The runs that a fit takes: one, and slower ones where a guessed rate was too high.

log = logging.getLogger(__name__)
OWN = ("path", "memory", "threads")  # what a rank may have another of
SLOWER, TRIES = 0.125, 4  # of a rate from the data with which the loss blew up


@dataclass(frozen=True)
class Runs:
    """A fit on the ranks of a world."""

    world: Communicator
    config: RunConfig
    given: FitData
    callbacks: Sequence[Callback]
    start: Start
    tol: float  # of the certified gap, relative to F

    def run(self) -> Result:
        """The result of the run that held, the same bits on all ranks."""
        result = self._train(self.config)
        tries = 1
        while self._blew_up(result) and tries < TRIES:
            rate = result.config["rate"]["value"] * SLOWER
            log.warning(
                "the loss blew up with a rate of %.3g; again with %.3g",
                *(result.config["rate"]["value"], rate),
                extra={"on_all_ranks": True},
            )
            slower = replace(self.config.rate, value=rate)
            result = self._train(replace(self.config, rate=slower))
            tries += 1
        result.report["rates_tried"] = tries
        if self.given.names is not None:
            result.report["feature_names"] = self.given.names
        result.report.setdefault("feature_names", None)
        advise(result, self.tol)
        return self.alike(result)

    def _train(self, config: RunConfig) -> Result:
        callbacks = list(self.callbacks)
        opens, start = self.given.open_reader, self.start
        with suppress_repeated_logs():
            return open_session(self.world, config, opens, callbacks, start).run()

    def _blew_up(self, result: Result) -> bool:
        """A rate that was given stays what it is."""
        return result.status is Status.DIVERGED and self.config.rate.is_open

    def alike(self, result: Result) -> Result:
        """As rank 0 has it: a sum over members need not give all the same bits."""
        if self.world.size == 1:
            return result
        found: dict[str, Any] = {"loss": np.array(result.loss)}
        found["weights"] = np.ascontiguousarray(result.weights)
        if result.intercept is not None:
            found["intercept"] = np.array(result.intercept)
        for array in found.values():
            self.world.broadcast(array, 0, "control")
        found["loss"] = float(found["loss"])
        if result.intercept is not None and not np.ndim(result.intercept):
            found["intercept"] = found["intercept"][()]
        return replace(result, **found)


# Where a fit begins: at weights that are known, or at the best constant model.


def make_start(given: Any) -> Start:
    """From a result, (weights, intercept), weights alone, or nothing."""
    if given is None:
        return NullModel(np.empty(0), None)
    if isinstance(given, Result):
        given = (given.weights, given.intercept)
    pair = given if isinstance(given, tuple) else (given, None)
    if len(pair) != 2:
        raise ConfigError(
            "start must be a Result, weights, or a pair of weights and intercept"
        )
    weights, intercept = pair
    w = _numbers(weights)
    if w.ndim not in (1, 2) or not np.isfinite(w).all():
        raise ConfigError(
            f"start has weights of shape {w.shape} or values that are not finite; give"
            " (d,) or (d, K) finite numbers"
        )
    w = w.reshape(len(w), -1)
    if intercept is None:
        return KnownModel(w, None)
    b = _numbers(intercept).reshape(1, -1)
    if b.size not in (1, w.shape[1]) or not np.isfinite(b).all():
        raise ConfigError(
            f"start has {b.size} numbers as the intercept, or such as are not finite;"
            f" give {w.shape[1]} finite ones"
        )
    return KnownModel(w, b)


def _numbers(given: Any) -> Array:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "start must be a Result, weights, or a pair of weights and intercept"
        ) from error


@dataclass(frozen=True)
class KnownModel(Start):
    """Weights (d, K) and perhaps an intercept (1, K); momentum begins at zero."""

    def load_into(self, live: AssembledRun) -> None:
        """Refused alike on all ranks where it is the model of something else."""
        columns, state = live.task.columns, live.state
        wanted = (live.task.shard.total_columns, columns)
        if self.weights.shape != wanted:
            raise ConfigError(
                f"start has weights of shape {self.weights.shape} and these data need"
                f" {wanted}; give the model of the same columns and classes"
            )
        if isinstance(state.weights, OnDisk):
            raise initial_weights_error()
        agreement, own = live.engine.agreement, self.weights[live.columns.own]
        weights = np.zeros((len(own), agreement.width(state)), state.weights.dtype)
        weights[:, :columns] = own
        live.task.backend.round(weights, live.task.precision.weights)
        agreement.put_whole(state, weights)
        if state.intercept is not None and self.intercept is not None:
            state.intercept[:1] = self.intercept


@dataclass(frozen=True)
class NullModel(Start):
    """Zero weights, and the intercept that is best with them, where there is one."""

    def load_into(self, live: AssembledRun) -> None:
        """From sums over the targets, the same bits on all ranks."""
        if live.state.intercept is not None:
            live.state.intercept[:1] = best_constant(live)


def best_constant(live: AssembledRun) -> Array:
    """(K,): the link of the mean target; zero for families that have no such link."""
    shard, family = live.task.shard, live.task.family
    y = shard.targets.astype(np.float64)
    c = np.ones_like(y) if shard.weights is None else shard.weights.astype(np.float64)
    c = c[:, :1]
    o = np.zeros_like(y) if shard.offsets is None else shard.offsets.astype(np.float64)
    kind = family.targets
    if kind in ("signed",) or family.name == "probit":
        return np.zeros(live.task.columns)
    own = _sums(kind, c, y, o, live.task.columns)
    grid = live.grid
    total = sum(grid.world.exchange_objects(own * (grid.member == 0)))
    return _link(kind, np.asarray(total))


def _sums(kind: str, c: Array, y: Array, o: Array, columns: int) -> Array:
    """What the mean target is made of, over the local rows."""
    if kind == "classes":
        return _by_class(c, y, columns)
    if kind == "real":
        return np.array([c.sum(), (c * (y - o)).sum()])
    exposed = np.exp(o) if kind in ("counts", "positive") else np.ones_like(o)
    return np.array([(c * exposed).sum(), (c * y).sum()])


def _by_class(c: Array, y: Array, columns: int) -> Array:
    labels = y[:, 0].astype(np.intp)
    found: Array = np.bincount(labels, weights=c[:, 0], minlength=columns)
    return found


def _link(kind: str, total: Array) -> Array:
    """Of the mean; of classes less their mean score. Nobody of a class: as if one."""
    found: Array
    if kind == "real":
        found = total[1:] / total[0]
    elif kind == "binary":
        some = max(1.0, 1e-9 * total[0])
        none = max(total[0] - total[1], some)
        found = np.log(np.maximum(total[1:], some) / none)
    elif kind == "classes":
        logs = np.log(np.maximum(total, 1.0))
        found = logs - logs.mean()
    else:
        # Targets may be of any size; where all are 0 no intercept is best.
        mean = total[1:] / total[0]
        found = np.log(np.where(mean > 0.0, mean, 1e-9))
    return found


# What a person sees of a fit: a line for every pass.

FIGURES = {"loss": "F", "gap": "gap", "gradient": "gradient", "held": "held out"}


class Shown(Callback):
    """F, and whatever else is known of it, after each pass over the rows."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream

    def on_evaluate(self, view: View) -> None:
        """One line."""
        print(line_of(view.history[-1]), file=self.stream or sys.stdout, flush=True)


def line_of(record: dict[str, Any]) -> str:
    """For example "pass 3: F 0.31207, gap 2e-05, 0.12 s"."""
    said = [
        f"{name} {record[key]:.8g}"
        for key, name in FIGURES.items()
        if record.get(key) is not None
    ]
    passes = record["epoch"] + record.get("passes", 0)
    return f"pass {passes}: {', '.join(said)}, {record['seconds']:.3g} s"


# Names of columns that all ranks of a fit must have alike.


def agree_on_names(
    world: Communicator, names: Sequence[Any] | None, layout: str
) -> list[Any] | None:
    """Names of columns that all ranks have; of one that gave none, those of others."""
    own = None if names is None else [str(name) for name in names]
    if world.size == 1 or layout == "columns":
        return own
    everybody = world.exchange_objects(own)
    said = [rank for rank, found in enumerate(everybody) if found is not None]
    for rank in said:
        first, other = everybody[said[0]], everybody[rank]
        if first != other:
            place = next((k for k, n in enumerate(first) if [n] != other[k : k + 1]), 0)
            raise alike(
                f"column {place} is {first[place]!r} on rank {said[0]} and not on rank"
                f" {rank}; give all ranks the same columns in the same order"
            )
    found: list[Any] | None = everybody[said[0]] if said else None
    return found


# The functional door: data in, a model out.


@one_thread()
def fit(
    data: Any,
    family: str = "logistic",
    y: ArrayLike | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    classes: ArrayLike | None = None,
    alpha: float = 1e-4,
    l1_ratio: float = 0.0,
    fit_intercept: bool = True,
    bounds: Any = None,
    epochs: int | None = None,
    tol: float = 1e-5,
    batch: int | None = None,
    steps: int | str = "auto",
    rate: float | str = "auto",
    update: str = "sgd",
    momentum: float = 0.9,
    average: str | bool = "auto",
    polish: bool | str = "auto",
    hold_out: float = 0.0,
    patience: int = 5,
    start: Any = None,
    seed: int = 0,
    precision: str | None = None,
    device: str = "cpu",
    solver: str = "auto",
    comm: Communicator | Any = None,
    layout: str = "replicated",
    grid: tuple[int, int] | str | None = None,
    callbacks: list[Callback] | None = None,
    verbose: int = 0,
    config: Mapping[str, Mapping[str, Any]] | RunConfig | None = None,
) -> Result:
    """Fit a generalized linear model, with defaults that just work.

    Minimises F(w) = (1/Σc) Σ c_i ℓ(a_i·w + β + o_i, y_i)
    + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²): some epochs of s-step SGD with a
    rate from the data, the mean of the last iterates, then L-BFGS to `tol`.

    Parameters
    ----------
    data : array, frame or sparse matrix, (n, d), the rows; or the path of an HDF5 file
    family : str, the loss, as logistic, gaussian, poisson, softmax
    y : (n,), targets, where `data` is no path
    sample_weight : (n,), c_i >= 0; only their ratios matter
    offset : (n,), o_i, added to every score; log of the exposure for counts
    classes : labels that there are, where y may lack some of them
    alpha : float, the penalty
    l1_ratio : float, the part of it that is l1
    fit_intercept : bool, learn β, which is never penalised
    bounds : pair of a lowest and a highest weight, each a number, (d,) or None
    epochs : int, passes at most; by the solver where None
    tol : float, of the gradient relative to the residuals, where polishing ends
    batch : rows of a step, or coordinates of a block; None: 32, or 1
    steps : steps between two messages, or "auto"
    rate : float, "auto" (from the data) or "race" (the best of eight around that one,
        which half an epoch says), the step size
    update, momentum : str and float, plain SGD or with momentum
    average : "auto", "tail", "none" or bool, the mean of the last iterates
    polish : "auto", bool, go on to the optimum; True goes on to 1e-8
    hold_out : float, share of the rows that judges and does not train
    patience : int, looks at them without a gain after which SGD ends
    start : Result, weights, or (weights, intercept) to begin with
    seed : int, of the row order
    precision : str, recipe; None: fp64 for rows of float64, else fp32
    device : "cpu" or "cuda"
    solver : "auto", "sgd", "svrg" or "coordinate"
    comm : communicator of mpi4py, or of this package; None: this process alone
    layout : "replicated", "rows", "columns" or "hdf5", what each rank passes
    grid : (replicas, members) or "RxC"; one replica of all ranks otherwise
    callbacks : further callbacks, on this rank
    verbose : int, above 0: a line for every pass, on rank 0
    config : mapping of sections or RunConfig, lies over all of this

    Returns
    -------
    Result
        The same bits on all ranks; `report["converged"]` and `advice` say how it went.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> result = fit(X, "gaussian", X @ [1.0, 2.0, 3.0], alpha=0.0)
    >>> result.weights.round(6).tolist()
    [1.0, 2.0, 3.0]
    """
    wanted = FitSettings(
        family=family,
        alpha=alpha,
        l1_ratio=l1_ratio,
        fit_intercept=fit_intercept,
        bounds=bounds,
        epochs=epochs,
        tol=tol,
        batch=batch,
        steps=steps,
        rate=rate,
        update=update,
        momentum=momentum,
        average=average,
        polish=polish,
        hold_out=hold_out,
        patience=patience,
        seed=seed,
        precision=precision,
        device=device,
        solver=solver,
        verbose=verbose,
        grid=grid,
        config=config,
        layout=layout,
    )
    sides = {"y": y, "sample_weight": sample_weight, "offset": offset}
    result = run_fit(wanted, data, sides, classes, start, comm, callbacks)
    if result.advice:
        warnings.warn(result.advice, ConvergenceWarning, stacklevel=3)
    return result


@one_thread()
def run_fit(
    wanted: FitSettings,
    data: Any,
    sides: Mapping[str, Any],
    classes: Any,
    start: Any,
    comm: Any,
    callbacks: Any,
) -> Result:
    """What `fit` does, without a warning: its caller reads `advice`."""
    layout = wanted.layout
    with ranks_of(comm, timeout_in(wanted.config)) as world:
        # Where one rank shows losses all of them compute them.
        shown = world.max_flag(int(bool(wanted.verbose)))
        wanted = replace(wanted, verbose=shown, ranks=world.size)
        known = world.size, wanted.grid, wanted.config
        wanted = replace(wanted, grid=world.together(lambda: grid_on(*known)))
        matrix = world.together(lambda: to_matrix(data))
        # Alike on all ranks, one of which may have no rows.
        wide = bool(world.max_flag(int(is_wide(matrix.X))))
        settings = world.together(lambda: wanted.settings(matrix.path, wide))
        begin = world.together(lambda: make_start(start))
        said = {"layout": repr(layout), "start": type(begin).__name__}
        said["rate"] = repr(wanted.rate)
        said["data"] = "no path" if matrix.path is None else "a path"
        check_same(world, said | settings_of(settings))
        given = world.together(lambda: open_data(matrix, sides, layout, settings))
        names = agree_on_names(world, given.names, layout)
        whole = None if layout == "columns" else names  # a rank has some of them there
        given = replace(given, names=names)
        given = given.with_facts(labels=classes, column_names=whole)
        if wanted.rate == RACE:
            found = race_on(settings, world, given.open_reader)
            settings = replace(settings, rate=replace(settings.rate, value=found))
        watching = world.together(lambda: _check_callbacks(callbacks))
        if shown and world.rank == 0:
            watching.append(Shown())
        return Runs(world, settings, given, watching, begin, float(wanted.tol)).run()


def _check_callbacks(given: Any) -> list[Callback]:
    """A list of its own, of callbacks alone."""
    found = list(given) if isinstance(given, list | tuple) else [given]
    found = [] if given is None else found
    for one in found:
        if not isinstance(one, Callback):
            raise ConfigError(
                f"callbacks has one of type {type(one).__name__}; give a list of"
                " hpcsgd.Callback"
            )
    return found


def timeout_in(config: Any) -> float:
    """Return `run.timeout` of what a caller gave as configuration, else its default.

    What is wrong in it is said later, by all ranks together.
    """
    if isinstance(config, RunConfig):
        return config.run.timeout
    run = config.get("run") if isinstance(config, Mapping) else None
    timeout = run.get("timeout") if isinstance(run, Mapping) else None
    if isinstance(timeout, int | float) and 0 <= timeout < float("inf"):
        return float(timeout)
    return TIMEOUT


@contextmanager
def ranks_of(
    comm: Communicator | Any, timeout: float = TIMEOUT
) -> Iterator[Communicator]:
    """The ranks of a communicator, ours or mpi4py's; this process where there is none.

    Ranks of it that do not call this are named by the others after `timeout` seconds.
    What is opened here is closed here, but not after an error of one rank: others may
    still be in a sum, and closing waits for them.
    """
    if comm is None or isinstance(comm, Communicator):
        yield SerialCommunicator() if comm is None else comm
        return
    if not hasattr(comm, "Allreduce"):
        raise ConfigError(
            f"comm is of type {type(comm).__name__}; give a communicator of mpi4py, as"
            " MPI.COMM_WORLD, or leave it out"
        )
    from hpcsgd.comm.mpi import open_mpi_world

    world = open_mpi_world(comm=comm, timeout=timeout)
    with close_on_agreed_error(world.close):
        yield world
    world.close()

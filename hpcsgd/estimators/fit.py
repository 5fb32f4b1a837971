"""`hpcsgd.fit`: from rows to a fitted model at its optimum."""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.agreements.base import alike, check_same
from hpcsgd.agreements.more.infinity.agreement import OnDisk
from hpcsgd.api import run_at_stable_rate
from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import close_on_agreed_error
from hpcsgd.comm.start_limit import TIMEOUT
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.config import RunConfig
from hpcsgd.data.frames import is_wide, to_matrix
from hpcsgd.errors import ConfigError, ConvergenceWarning
from hpcsgd.estimators.inputs import FitData, open_data
from hpcsgd.estimators.sweep import race_on
from hpcsgd.products.base import Array
from hpcsgd.runs.advice import OF_FIT, judge_fit
from hpcsgd.runs.assembled_run import AssembledRun
from hpcsgd.runs.defaults import RACE, FitSettings, grid_on
from hpcsgd.runs.progress import NotebookLine, in_notebook
from hpcsgd.runs.result import Result
from hpcsgd.runs.session import NullModel, Start, initial_weights_error, settings_of
from hpcsgd.solvers.callbacks import Callback, View

# The run of a fit, and its model on all ranks.


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
        result, _ = run_at_stable_rate(
            self.world,
            self.config,
            self.given.open_reader,
            list(self.callbacks),
            self.start,
        )
        if self.given.names is not None:
            result.report["feature_names"] = self.given.names
        result.report.setdefault("feature_names", None)
        judge_fit(result, self.tol, OF_FIT)
        return self.alike(result)

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


# What a person sees of a fit: a line for every pass.

FIGURES = {"loss": "F", "gap": "gap", "gradient": "gradient", "held": "held out"}


class Shown(Callback):
    """F, and whatever else is known of it, after each pass over the rows.

    A notebook has one line that is written over; all others have a line for each pass.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream
        self.line = NotebookLine() if stream is None and in_notebook() else None

    def on_evaluate(self, view: View) -> None:
        """Show the newest record."""
        text = line_of(view.history[-1])
        if self.line is None:
            print(text, file=self.stream or sys.stdout, flush=True)
        else:
            self.line.show(view.exchanges / max(view.exchanges_planned, 1), text)


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

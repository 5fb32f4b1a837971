"""The functional door: data in, a model out."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from hpcsgd.agreement.plan_check import check_same
from hpcsgd.assembly.alike import settings_of
from hpcsgd.backends.blas import one_thread
from hpcsgd.callbacks import Callback
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import let_go
from hpcsgd.comm.serial import SerialCommunicator
from hpcsgd.comm.start_limit import TIMEOUT
from hpcsgd.config import RunConfig
from hpcsgd.data.frames import is_wide, to_matrix
from hpcsgd.errors import ConfigError, ConvergenceWarning
from hpcsgd.fitting.agreed import agree_on_names
from hpcsgd.fitting.asked import grid_on
from hpcsgd.fitting.given import open_data
from hpcsgd.fitting.runs import Runs
from hpcsgd.fitting.shown import Shown
from hpcsgd.fitting.start import make_start
from hpcsgd.fitting.wanted import RACE, Wanted
from hpcsgd.result import Result
from hpcsgd.sweeps.race import race_on


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
    wanted = Wanted(
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
    wanted: Wanted,
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
        given = replace(given, names=names).knowing(labels=classes)
        if wanted.rate == RACE:
            found = race_on(settings, world, given.opens)
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
    with let_go(world.close):
        yield world
    world.close()

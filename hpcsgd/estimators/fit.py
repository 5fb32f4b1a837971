"""`hpcsgd.fit`: from rows to a fitted model at its optimum."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from itertools import zip_longest
from typing import Any, ParamSpec, TextIO, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.agreements.base import alike, check_same
from hpcsgd.api import MOST_RATES, open_session
from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import close_on_agreed_error
from hpcsgd.comm.rank_ends import TIMEOUT
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.config import RunConfig
from hpcsgd.data.frames import to_matrix
from hpcsgd.errors import ConfigError, ConvergenceWarning
from hpcsgd.estimators.inputs import FitRows, facts_of_fit, open_data
from hpcsgd.estimators.sweep import race_on
from hpcsgd.formats import Array
from hpcsgd.runs.advice import OF_FIT, judge_fit
from hpcsgd.runs.defaults import RACE, FitArguments, grid_on
from hpcsgd.runs.progress import NotebookLine, in_notebook
from hpcsgd.runs.result import FitSource, Result
from hpcsgd.runs.session import RunSettings, Start, settings_of
from hpcsgd.solvers.callbacks import Callback, View

P = ParamSpec("P")
T = TypeVar("T")

# The start of a fit: given weights, or the best constant model.


def make_start(given: Any) -> Start:
    """Return the start of a fit from a Result, weights (and intercept), or None."""
    if given is None:
        return Start()
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
            f"start has weights of shape {w.shape}, or weights that are not finite;"
            " give finite weights of shape (d,) or (d, K)"
        )
    w = w.reshape(len(w), -1)
    if intercept is None:
        return Start(w)
    b = _numbers(intercept).reshape(1, -1)
    if b.size not in (1, w.shape[1]) or not np.isfinite(b).all():
        raise ConfigError(
            f"start has an intercept of {b.size} numbers, or one that is not finite;"
            f" give {w.shape[1]} finite numbers"
        )
    return Start(w, b)


def _numbers(given: Any) -> Array:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "start must be a Result, weights, or a pair of weights and intercept"
        ) from error


# The progress of a fit on the terminal: a line for every pass.

FIGURES = {"loss": "F", "gap": "gap", "gradient": "gradient", "held": "held out"}


class Shown(Callback):
    """A callback that prints F and other measured figures after each evaluation.

    The others are the gap, the gradient and the loss on held-out rows. A notebook has
    one line that is written over; a terminal has a line for each evaluation.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream
        self.line = NotebookLine() if stream is None and in_notebook() else None

    def on_evaluate(self, view: View) -> None:
        """Show the newest record of the history."""
        text = line_of(view.history[-1])
        if self.line is None:
            print(text, file=self.stream or sys.stdout, flush=True)
        else:
            self.line.show(view.exchanges / max(view.exchanges_planned, 1), text)


def line_of(record: dict[str, Any]) -> str:
    """Return a record as text, for example "pass 3: F 0.31207, gap 2e-05, 0.12 s"."""
    figures = [
        f"{name} {record[key]:.8g}"
        for key, name in FIGURES.items()
        if record.get(key) is not None
    ]
    passes = record["epoch"] + record.get("passes", 0)
    return f"pass {passes}: {', '.join(figures)}, {record['seconds']:.3g} s"


# Names of columns that all ranks of a fit must have alike.


def agree_on_names(
    world: Communicator, names: Sequence[Any] | None, layout: str
) -> list[Any] | None:
    """Return the names of the columns, or None if no rank has any. Collective.

    They are alike on all ranks: a rank without names takes those of the others, and
    different names raise an error. With layout "columns" each rank returns the names of
    its own columns.
    """
    own_names = None if names is None else [str(name) for name in names]
    if world.size == 1 or layout == "columns":
        return own_names
    first_named = -world.max_flag(-(world.size if own_names is None else world.rank))
    if first_named == world.size:
        return None
    first: list[Any] = world.share_object(own_names, first_named)
    if world.max_flag(int(own_names is not None and own_names != first)):
        raise _other_names(world.exchange_objects(own_names), first_named)
    return first


def _other_names(lists: list[Any], first: int) -> ConfigError:
    """Return an error that names the first rank with other names than rank `first`."""
    ranks = range(first + 1, len(lists))
    other = next(r for r in ranks if lists[r] not in (None, lists[first]))
    # `here` has as many names at least, one of which `there` does not have.
    here, there = sorted((first, other), key=lambda r: -len(lists[r]))
    pairs = enumerate(zip_longest(lists[here], lists[there]))
    place, name = next((k, a) for k, (a, b) in pairs if a != b)
    return alike(
        f"column {place} is {name!r} on rank {here} and not on rank {there};"
        " give all ranks the same columns in the same order"
    )


# The functional door: data in, a model out.

# Arguments of other functions and classes, and their counterparts in `fit`.
OTHER_NAMES = {
    "C": "alpha = 1/(C·n) for n rows",
    "l1": "alpha with l1_ratio=1",
    "l2": "alpha",
    "lambda_": "alpha",
    "penalty": "l1_ratio, 0.0 for l2 and 1.0 for l1, or alpha=0.0 for none",
    "max_iter": "epochs",
    "n_iter": "epochs",
    "random_state": "seed",
    "learning_rate": "rate",
    "lr": "rate",
    "eta0": "rate",
    "batch_size": "batch",
    "intercept": "fit_intercept",
    "loss": "family",
    "target": "y",
    "world": "comm",
    "weights": "sample_weight, or start for weights to begin with",
    "exposure": "offset=numpy.log(exposure)",
    "positive": "bounds=(0, None)",
    "power": 'config={"problem": {"power": ...}}, of family="tweedie"',
    "dispersion": (
        'config={"problem": {"dispersion": ...}}, of family="negative-binomial"'
    ),
}


def answers_other_names(
    counterparts: Mapping[str, str],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator of functions that explains arguments of other libraries.

    A TypeError for one of the names in `counterparts` tells what to give instead.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameters = inspect.signature(function).parameters

        @wraps(function)
        def checked(*positional: P.args, **named: P.kwargs) -> T:
            for name in named:
                if name not in parameters and name in counterparts:
                    raise TypeError(
                        f"{function.__name__} has no argument {name}; give"
                        f" {counterparts[name]}"
                    )
            return function(*positional, **named)

        return checked

    return decorate


@answers_other_names(OTHER_NAMES)
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
    max_passes: int | None = None,
    tol: float | None = None,
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
    """Fit a generalized linear model to its optimum. Collective.

    It minimises ::

        F(w, β) = (1/Σc) Σ c_i ℓ(a_i·w + β + offset_i, y_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    to `tol`: by Newton's method or L-BFGS, or by coordinate descent if l1 or bounds
    make F not smooth. Some epochs of s-step SGD come first if many columns are read
    from a file, if an argument of SGD (`batch`, `steps`, `rate`, `update`, `average`)
    is given, or on a GPU. The defaults suit most data. All ranks of `comm` must call
    it.

    Parameters
    ----------
    data : array, frame, sparse matrix or path
        The rows, of shape (n, d), or the path of an HDF5 file, which holds the targets
        too.
    family : str, default="logistic"
        The loss: a name of `hpcsgd.FAMILIES`.
    y : array-like of shape (n,), optional
        The targets, where `data` is no path.
    sample_weight : array-like of shape (n,), optional
        Weights c_i ≥ 0 of the rows. Only their ratios matter. None weighs all rows
        alike.
    offset : array-like of shape (n,), optional
        Numbers that are added to the scores, such as the log of an exposure.
    classes : array-like of shape (K,), optional
        All labels, where y may lack some of them.
    alpha : float, default=1e-4
        Strength of the penalty. A larger value gives smaller weights.
    l1_ratio : float, default=0.0
        Share of l1 in the penalty, from 0 (ridge) to 1 (lasso). A larger value sets
        more weights to zero.
    fit_intercept : bool, default=True
        Whether the model has an intercept β, which is not penalised.
    bounds : pair, optional
        Lowest and highest value of every weight: each a number, an array of shape
        (d,), or None for no bound.
    epochs : int, optional
        Epochs of SGD; the largest number of sweeps of a coordinate form, or of passes
        of the solver "newton" or "lbfgs". None takes what suits the solver.
    max_passes : int, optional
        Largest number of passes over the data, whichever the solver: of Newton's
        method or L-BFGS, of epochs or of sweeps. None takes what suits the solver.
    tol : float, optional
        The fit ends when the duality gap is at most `tol` times F, and the gradient at
        most `tol` times the residuals. A smaller value takes more passes over the data.
        None is 1e-8 for the gap and 1e-5 for the gradient, or 1e-5 for SGD alone; where
        no gap can be certified, the gradient decides.
    batch : int, optional
        Rows of a step of SGD, or coordinates of a block. None takes 32 rows, or 1
        coordinate.
    steps : int or "auto", default="auto"
        Steps of SGD for each message between ranks. Without replicas that average
        weights, it changes the time of a fit, not its result.
    rate : float, "auto" or "race", default="auto"
        The learning rate. "auto" derives it from the data; "race" tries eight rates
        around that one on half an epoch and takes the best.
    update : str, default="sgd"
        How a gradient becomes a step: a name of `hpcsgd.UPDATES`.
    momentum : float, default=0.9
        The momentum of updates that have one.
    average : {"auto", "tail", "none"} or bool, default="auto"
        Whether the last iterates of SGD are averaged. "auto" does so unless rows are
        held out, the solver is "svrg" or "coordinate", or the agreement in `config`
        excludes it.
    polish : "auto" or bool, default="auto"
        Whether L-BFGS or Newton's method goes on from the weights of SGD to `tol`.
        "auto" does so if F is smooth, no rows are held out and a rank holds all
        weights. True goes on to 1e-8 at least, and raises ConfigError if that cannot be
        done.
    hold_out : float, default=0.0
        Share of the rows that are held out to stop early. 0 holds out none.
    patience : int, default=5
        Evaluations without a smaller loss on held-out rows before SGD ends.
    start : Result, array, or pair of arrays, optional
        The weights, or weights and intercept, to begin with.
    seed : int, default=0
        Seed of the order of the rows.
    precision : str, optional
        Recipe of number formats: a name of `hpcsgd.RECIPES`. None takes fp64 for rows
        of float64 (or of integers that float32 may round) on a CPU, else fp32.
    device : {"cpu", "cuda"}, default="cpu"
        Where the fit computes.
    solver : {"auto", "newton", "lbfgs", "sgd", "svrg", "coordinate"}, default="auto"
        The solver. "auto" chooses by family, penalty and size. "newton" and "lbfgs"
        take no step of SGD; "sgd" takes some, and `polish` decides what follows them.
    comm : mpi4py communicator or Communicator, optional
        The ranks of the fit. None fits in this process alone.
    layout : {"replicated", "rows", "columns", "hdf5"}, default="replicated"
        What each rank passes: all rows, its rows, its columns, or a path.
    grid : pair of int or str, optional
        Replicas and members, as (2, 4) or "2x4". None makes one replica of all ranks.
        It makes a replica of each rank if `config` names a method of replicas, or if
        nothing asks for steps of SGD and there are at least as many rows as columns.
    callbacks : list of Callback, optional
        Called during the fit, on this rank.
    verbose : int, default=0
        1 prints a line after every pass over the data, on rank 0.
    config : mapping or RunConfig, optional
        Further settings as {"section": {"key": value}}. They override the other
        arguments.

    Returns
    -------
    Result
        The model, with the same bits on all ranks. `report["converged"]` and `advice`
        say whether it is at the optimum.

    Raises
    ------
    ConfigError
        If an argument cannot work.
    DataError
        If the rows or targets cannot be used.

    Warns
    -----
    ConvergenceWarning
        If the fit did not reach the optimum.

    See Also
    --------
    LogisticRegression, GLM : The same as estimators of scikit-learn.
    path : Many penalties at once.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> result = hpcsgd.fit(X, "gaussian", X @ [1.0, 2.0, 3.0], alpha=0.0)
    >>> result.weights.round(6).tolist()
    [1.0, 2.0, 3.0]
    """
    arguments = FitArguments(
        family=family,
        alpha=alpha,
        l1_ratio=l1_ratio,
        fit_intercept=fit_intercept,
        bounds=bounds,
        epochs=epochs,
        max_passes=max_passes,
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
        layout=layout,
        grid=grid,
        verbose=verbose,
        config=config,
    )
    rows = FitRows(data, y, sample_weight, offset, labels=classes)
    result = run_fit(arguments, rows, start, comm, callbacks)
    if result.advice:
        warnings.warn(result.advice, ConvergenceWarning, stacklevel=4)
    return result


@one_thread()
def run_fit(
    arguments: FitArguments, rows: FitRows, start: Any, comm: Any, callbacks: Any
) -> Result:
    """Run a fit without a ConvergenceWarning. Collective.

    The caller reads `Result.advice` instead.
    """
    layout = arguments.layout
    with ranks_of(comm, timeout_in(arguments.config)) as world:
        # Where one rank shows losses all of them compute them.
        is_shown = world.max_flag(int(bool(arguments.verbose)))
        grid = world.together(
            lambda: grid_on(world.size, arguments.grid, arguments.config)
        )
        if (is_shown, grid) != (arguments.verbose, arguments.grid):
            arguments = replace(arguments, verbose=is_shown, grid=grid)
        matrix = world.together(lambda: to_matrix(rows.X))
        facts = facts_of_fit(matrix, layout, world)
        settings = world.together(lambda: arguments.run_config(facts))
        begin = world.together(lambda: make_start(start))
        if world.size > 1:
            shared = {
                "layout": repr(layout),
                "start": "none" if begin.weights is None else "weights",
                "rate": repr(arguments.rate),
                "data": "no path" if matrix.path is None else "a path",
            }
            check_same(world, shared | settings_of(settings))
        data = world.together(lambda: open_data(matrix, rows.sides, layout, settings))
        names = agree_on_names(world, data.names, layout)
        whole = None if layout == "columns" else names  # a rank has some of them there
        data = replace(data, names=names)
        data = data.with_facts(labels=rows.labels, column_names=whole)
        if arguments.rate == RACE:
            best = race_on(settings, world, data.open_reader)
            won = {"rate": {"value": best}}
            settings = arguments.run_config(facts, overrides=won)
        observers = world.together(lambda: _check_callbacks(callbacks))
        if is_shown and world.rank == 0:
            observers.append(Shown())
        result = open_session(
            world,
            RunSettings(settings),
            data.open_reader,
            observers,
            begin,
            most_rates=MOST_RATES,
        ).run()
        if data.names is not None:
            result.report["feature_names"] = data.names
        result.report.setdefault("feature_names", None)
        judge_fit(result, OF_FIT)
        timeout = timeout_in(arguments.config)
        source = FitSource(data.open_reader, lambda: ranks_of(comm, timeout))
        return replace(with_bits_of_rank_0(result, world), source=source)


def with_bits_of_rank_0(result: Result, world: Communicator) -> Result:
    """Return the result, with the model of rank 0 on all ranks. Collective.

    A sum over members need not give all of them the same bits.
    """
    if world.size == 1:
        return result
    model: dict[str, Any] = {
        "loss": np.array(result.loss),
        "weights": np.ascontiguousarray(result.weights),
    }
    if result.intercept is not None:
        model["intercept"] = np.array(result.intercept)
    for array in model.values():
        world.broadcast(array, 0, "control")
    model["loss"] = float(model["loss"])
    if result.intercept is not None and not np.ndim(result.intercept):
        model["intercept"] = model["intercept"][()]
    return replace(result, **model)


def _check_callbacks(given: Any) -> list[Callback]:
    """Return a new list of the callbacks; raise ConfigError for other objects."""
    callbacks = list(given) if isinstance(given, list | tuple) else [given]
    callbacks = [] if given is None else callbacks
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"callbacks contains an object of type {type(callback).__name__}; give"
                " a list of hpcsgd.Callback objects"
            )
    return callbacks


def timeout_in(config: Any) -> float:
    """Return `run.timeout` of the configuration of a caller, else its default.

    Errors in the configuration are raised later, on all ranks together.
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
    """Yield a communicator of the ranks of `comm`, which is of hpcsgd or mpi4py.

    None is this process alone. After `timeout` seconds, an error names ranks that do
    not call this. A world of mpi4py is closed at the end, but not after an error of one
    rank: other ranks may be in a collective, for which closing would wait.
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


# The docstrings of estimators and paths, whose arguments `fit` describes.

D = TypeVar("D", bound=Callable[..., Any])
# parameter of an estimator that `fit` does not have -> its type and description
PARAMETERS = {
    "family": (
        "str",
        "The loss: a name of `hpcsgd.FAMILIES`. A family of labels makes a classifier,"
        " any other a regressor.",
    ),
    "alphas": ("sequence of float", "Strengths of the ridge penalty to compare."),
    "cv": (
        "int, splitter or iterable",
        "Number of folds, or a splitter of scikit-learn, or pairs (train, test) of row"
        " numbers. Every row is held out once at most. A number deals the rows by"
        " `random_state`, alike on any number of ranks.",
    ),
    "epsilon": (
        "float",
        "Above 1: residuals beyond `epsilon` times the scale count linearly. A larger"
        " value comes nearer to least squares. Ignored where `delta` is given.",
    ),
    "delta": (
        "float or None",
        "Residuals beyond it count linearly, in the units of y. None takes `epsilon`"
        " times the scale of the residuals.",
    ),
    "power": (
        "float",
        "Power p of the variance μᵖ, between 1 (Poisson) and 2 (gamma). A larger value"
        " gives large targets less influence.",
    ),
    "dispersion": (
        "float",
        "Dispersion δ of the variance μ + δ μ². A larger value gives large targets less"
        " influence.",
    ),
    "class_weight": (
        'dict, "balanced" or None',
        'Weight of each class. "balanced" weighs all classes alike, whatever their'
        " numbers of rows. None gives every class the weight 1. Regressors ignore it."
        " Classifiers refuse it with y in a file.",
    ),
    "max_iter": (
        "int or None",
        "Largest number of passes of Newton's method or L-BFGS, of epochs of SGD where"
        " an argument of SGD is given, or of sweeps of a coordinate form. None takes"
        " what suits the solver.",
    ),
    "warm_start": ("bool", "Whether a fit begins at the coefficients of the last one."),
    "random_state": (
        "int, RandomState instance or None",
        "Seed of the order of the rows.",
    ),
    "X": (
        "array, frame, sparse matrix or path",
        "Rows of shape (n, d): NumPy, pandas, polars, SciPy, or an array on a GPU. A"
        " path names an HDF5 file, which holds y too.",
    ),
    "rows": (
        "array, frame or sparse matrix of shape (n, d)",
        "Rows with the columns of the fit.",
    ),
    "y": ("array-like of shape (n,)", "Targets: numbers, or labels of any kind."),
    "classes": (
        "array-like of shape (K,) or None",
        "All labels that later calls may give. Required in the first call of a"
        " classifier.",
    ),
    "exposure": (
        "array-like of shape (n,) or None",
        "How long, how many or how much each row stands for, above 0. The same as an"
        " offset of log(exposure); for families with a log link.",
    ),
    "groups": (
        "array-like of shape (n,) or None",
        "Groups of rows for a `cv` that keeps them together, such as GroupKFold.",
    ),
}
# attribute of a fitted estimator -> the same
ATTRIBUTES = {
    "coef_": ("ndarray of shape (d,)", "Coefficients."),
    "intercept_": ("float", "Intercept; 0.0 without one."),
    "n_iter_": ("int", "Passes over the data."),
    "history_": (
        "list of dict",
        "One record for each evaluation: epoch, loss, seconds, messages, and gradient"
        " and gap where they are measured.",
    ),
    "result_": ("hpcsgd.Result", "The run of the fit."),
    "n_features_in_": ("int", "Number of columns d."),
    "feature_names_in_": (
        "ndarray of shape (d,)",
        "Names of the columns, where X has names.",
    ),
}
LINE = 76  # characters of a docstring


SECTION = re.compile(r"(?ms)^Parameters\n---+\n(.*?)\n\n(?=\w[\w ]*\n---)")
NEXT = re.compile(r"(?m)^(Attributes|Returns|Raises|Notes|Examples)(?=\n---)")
AFTER_ATTRIBUTES = re.compile(r"\n\n(?=(?:See Also|Notes|References|Examples)\n---)")


def documented(item: D) -> D:
    """Complete the docstring of an estimator, of a method of one, or of a function.

    The section Parameters gets an entry for every parameter of the signature: from the
    docstring itself, else from `PARAMETERS`, else from that of `fit`. A class gets the
    attributes of `ATTRIBUTES` that its docstring does not describe.
    """
    if not item.__doc__:  # python -OO
        return item
    text = inspect.cleandoc(item.__doc__)
    descriptions = described(inspect.getdoc(fit) or "") | PARAMETERS
    if not item.__name__.endswith("fit"):
        descriptions["X"] = PARAMETERS["rows"]
    descriptions |= described(text)
    parameters = [
        _entry(name, descriptions[name], parameter.default)
        for name, parameter in inspect.signature(item).parameters.items()
        if name != "self"
    ]
    text = SECTION.sub("", text)
    following = NEXT.search(text)
    at = len(text) if following is None else following.start()
    section = "\n".join(["Parameters", "----------", *parameters])
    text = "\n\n".join([text[:at].rstrip(), section, text[at:]])
    if isinstance(item, type):
        text = _with_attributes(text)
    item.__doc__ = text.rstrip() + "\n"
    return item


def described(text: str) -> dict[str, tuple[str, str]]:
    """Return parameter -> (type, description) from the Parameters of a docstring."""
    section = SECTION.search(text)
    if section is None:
        return {}
    descriptions = {}
    for entry in re.split(r"\n(?=\w)", section[1]):
        head, _, description = entry.partition("\n")
        name, _, kind = head.partition(" : ")
        kind = re.sub(r", (optional|default=.*)$", "", kind)
        descriptions[name] = kind, inspect.cleandoc(description)
    return descriptions


def _with_attributes(text: str) -> str:
    """Return the docstring of a class with the attributes of every estimator."""
    names = re.findall(r"(?m)^(\w+_) : ", text)
    shared = [
        _entry(name, description, inspect.Parameter.empty)
        for name, description in ATTRIBUTES.items()
        if name not in names
    ]
    following = AFTER_ATTRIBUTES.search(text)
    at = len(text) if following is None else following.start()
    return "\n".join([text[:at], *shared]) + text[at:]


def _entry(name: str, description: tuple[str, str], default: Any) -> str:
    """Return the entry of one parameter in the form of numpydoc."""
    kind, text = description
    if default is None and not kind.endswith(" or None"):
        kind = kind.replace(" or ", ", ") + " or None"
    if default is not inspect.Parameter.empty:
        kind += f", default={default!r}"
    lines = textwrap.wrap(text, LINE - 4)
    return "\n    ".join([f"{name} : {kind}", *lines])

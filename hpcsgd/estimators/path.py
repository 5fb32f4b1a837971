"""Regularization paths."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.agreements.base import check_same
from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import RunConfig
from hpcsgd.data.frames import Matrix, to_matrix
from hpcsgd.errors import ConfigError, ConvergenceWarning
from hpcsgd.estimators.fit import (
    OTHER_NAMES,
    answers_other_names,
    documented,
    ranks_of,
    run_fit,
    timeout_in,
)
from hpcsgd.estimators.inputs import FitData, FitRows, open_data
from hpcsgd.formats import Array
from hpcsgd.glm.penalties import ProblemConfig
from hpcsgd.runs.build import build
from hpcsgd.runs.coordinate import along, fastest_form, fits
from hpcsgd.runs.defaults import (
    FitArguments,
    has_section,
    overlay_tables,
)
from hpcsgd.runs.figures import (
    COLOURS,
    DASHES,
    coefficient_rows,
    html,
    new_axes,
    to_frame,
)
from hpcsgd.runs.result import Result
from hpcsgd.runs.session import Start
from hpcsgd.solvers.coordinate import COORDINATE
from hpcsgd.solvers.full_passes import level, open_rows

# The penalties of a path, passed by the caller or chosen from the data.

NAMED = 6  # coefficients of a picture that have a name and a colour
LEAST_RATIO = 1e-3  # of l1, where the largest alpha is chosen: ridge alone has none
BEYOND = 1 + 1e-12  # so that rounding leaves no weight at the largest alpha


@dataclass
class Alphas:
    """The penalties of a path: those of the caller, or chosen from the data."""

    given: Sequence[float] | None
    count: int
    eps: float

    def check(self) -> None:
        """Raise ConfigError if the arguments do not describe a path."""
        if self.count < 1 or not 0.0 < self.eps < 1.0:
            raise ConfigError(
                f"n_alphas = {self.count} must be at least 1, and eps = {self.eps!r}"
                " must lie between 0 and 1; 50 and 1e-3 are usual"
            )
        if self.given is not None:
            values = np.asarray(self.given, dtype=np.float64)
            good = values.ndim == 1 and values.size > 0 and bool(np.all(values > 0.0))
            if not good or not np.isfinite(values).all():
                raise ConfigError("alphas must be finite numbers above 0")

    def choose(self, l1_ratio: float, steepest: Callable[[], float]) -> Array:
        """Return the penalties in descending order, and store them in `chosen`.

        `steepest` returns the largest slope of a column at the null model. It is called
        only if the caller gave no penalties.
        """
        if self.given is not None:
            self.chosen: Array = np.sort(np.asarray(self.given, dtype=float))[::-1]
            return self.chosen
        largest = steepest() / max(l1_ratio, LEAST_RATIO) * BEYOND
        if not largest > 0.0:
            raise ConfigError(
                "alphas cannot be derived from the data, because the gradient of the"
                " model with zero weights is 0 in every column; give alphas"
            )
        self.chosen = largest * np.geomspace(1.0, self.eps, self.count)
        return self.chosen


# How the models of a path are found: by coordinate forms, or by a fit for each.


@dataclass
class PathFit:
    """Fits the models of a path on the ranks of a communicator."""

    world: Communicator
    rows: FitRows
    matrix: Matrix  # X of the rows as numbers
    arguments: FitArguments  # of every model, at the penalty 1
    warm: bool

    def check(self, grid: Alphas) -> None:
        """Raise ConfigError for penalties or arguments that make no problem."""
        grid.check()
        self.arguments.problem()

    def has_form(self, solver: str) -> bool:
        """Return whether models are fitted by coordinate descent.

        "auto" chooses it if one of its forms supports the problem.
        """
        if solver == "auto":
            return fits(self._settings(self.arguments))
        return solver == COORDINATE

    def by_coordinates(self, grid: Alphas) -> list[Result]:
        """Fit all models by coordinate descent.

        Data are opened once. A form that uses a Gram matrix computes it once for all
        models.
        """
        config = self._settings(self.arguments)
        data = self._open(config)

        def problems(steepest: float) -> list[ProblemConfig]:
            chosen = grid.choose(self.arguments.l1_ratio, lambda: steepest)
            penalties = [self._at(alpha).penalty() for alpha in chosen.tolist()]
            return [
                replace(config.problem, l1=penalty["l1"], l2=penalty["l2"])
                for penalty in penalties
            ]

        return list(along(config, self.world, data.open_reader, problems, self.warm))

    def by_fits(self, grid: Alphas) -> list[Result]:
        """Fit each model by `run_fit`, if `warm` from the weights of the one before."""
        results: list[Result] = []
        for alpha in grid.choose(self.arguments.l1_ratio, self._steepest).tolist():
            start = results[-1] if results and self.warm else None
            result = run_fit(self._at(alpha), self.rows, start, self.world, None)
            if result.advice:
                warnings.warn(result.advice, ConvergenceWarning, stacklevel=5)
            results.append(result)
        return results

    def _at(self, alpha: float) -> FitArguments:
        return replace(self.arguments, alpha=alpha)

    def _steepest(self) -> float:
        """Return the largest slope of a column at the null model, over all ranks.

        The null model has an intercept only.
        """
        ridge = self._settings(replace(self.arguments, l1_ratio=0.0))
        config = replace(ridge, update=RunConfig().update)
        data = self._open(config)
        live = build(config, self.world, data.open_reader, [], Clock())
        Start().load_into(live)
        objective = live.evaluation.objective
        state = live.state
        rows = open_rows(objective)
        weights = np.zeros((objective.shard.width, objective.columns))
        scores = rows.start(
            weights, None if state.intercept is None else state.intercept[0]
        )
        if state.intercept is not None:
            scores = scores + level(rows, scores).shift
        slope, _ = rows.gradient(rows.residuals(scores))
        own_steepest = float(np.abs(slope).max(initial=0.0))
        steepest = self.world.max_number(own_steepest)
        live.close()
        return steepest

    def _open(self, config: RunConfig) -> FitData:
        sides = self.rows.sides
        layout = self.arguments.layout
        return self.world.together(
            lambda: open_data(self.matrix, sides, layout, config)
        )

    def _settings(self, arguments: FitArguments) -> RunConfig:
        """Return the settings of coordinate descent for these arguments.

        `fits` tells whether one of its forms supports them.
        """
        family = arguments.family
        ratio = arguments.l1_ratio
        tables: dict[str, dict[str, Any]] = {
            "problem": arguments.problem(),
            "schedule": arguments.schedule(COORDINATE),
            "update": {"kind": COORDINATE},
            "coordinate": {
                "tol": arguments.tolerance(),
                "form": fastest_form(family, ratio, self.world.size),
            },
            "sampling": {"seed": arguments.seed, "mode": "shuffle-once"},
            "precision": {"recipe": arguments.precision},
        }
        if self.matrix.path is not None:
            tables["data"] = {"path": self.matrix.path}
        tables = overlay_tables(tables, arguments.config)
        config = RunConfig.parse(tables)
        names_order = has_section(arguments.config, "sampling")
        if config.coordinate.best_form(config.problem) != "dual" or names_order:
            return config
        # With one order for all epochs, the dual form may take ten times as many.
        tables["sampling"]["mode"] = "reshuffle"
        return RunConfig.parse(tables)


# The result of a path: every model is a Result.


@dataclass(frozen=True)
class Path:
    """The models of `hpcsgd.path`, one for every alpha, the largest first.

    Attributes
    ----------
    alphas : ndarray of shape (n,)
        Penalties in descending order.
    results : list of Result
        The n models.
    coefs : ndarray of shape (n, d) or (n, d, K)
        Weights.
    intercepts : ndarray of shape (n,) or (n, K), or None
        Intercepts; None without one.
    losses : ndarray of shape (n,)
        F of each model in float64.
    gaps : ndarray of shape (n,)
        Upper bounds of F − F*; NaN where nothing is known.
    gradients : ndarray of shape (n,)
        Norms of the smallest subgradient; NaN where it was not measured.
    n_iter : ndarray of shape (n,)
        Epochs.
    messages : ndarray of shape (n,)
        All-reduces for products.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(100, 4))
    >>> found = hpcsgd.path(X, X @ [2.0, 0.0, 0.0, -1.0], alphas=[1.0, 0.1])
    >>> found.at(0.12).weights.round(2)
    array([ 1.89,  0.  ,  0.  , -0.92])
    """

    alphas: Array
    results: list[Result]

    def __repr__(self) -> str:
        """Return five lines: the models, penalties, weights, losses and gaps."""
        family = self.results[0].config.get("problem", {}).get("family", "one family")
        filled = [int(np.count_nonzero(result.weights)) for result in self.results]
        gaps = self.gaps[np.isfinite(self.gaps)]
        above = (
            f"at most {gaps.max():.2g} above the optimum" if gaps.size else "unknown"
        )
        return "\n".join(
            [
                f"Path: {len(self.results)} models of {family}",
                f"  alphas   {self.alphas[0]:.6g} to {self.alphas[-1]:.6g}",
                f"  weights  {filled[0]} to {filled[-1]} of"
                f" {self.results[0].weights.size} are not 0",
                f"  losses   {self.losses[0]:.6g} to {self.losses[-1]:.6g}",
                f"  gaps     {above}",
            ]
        )

    @cached_property
    def coefs(self) -> Array:
        """Weights of all models, (n, d) or (n, d, K)."""
        return np.stack([result.weights for result in self.results])

    @cached_property
    def intercepts(self) -> Array | None:
        """Intercepts of all models, (n,) or (n, K); None if none is fitted."""
        if self.results[0].intercept is None:
            return None
        return np.stack([np.asarray(result.intercept) for result in self.results])

    @cached_property
    def losses(self) -> Array:
        """Objective F of each model, (n,)."""
        return np.array([result.loss for result in self.results])

    @cached_property
    def gaps(self) -> Array:
        """Upper bound of F − F* of each model at its last evaluation, or NaN, (n,)."""
        return self._last("gap")

    @cached_property
    def gradients(self) -> Array:
        """Norm of the smallest subgradient of each model, or NaN, (n,).

        It is the one of the last evaluation.
        """
        return self._last("gradient")

    @cached_property
    def n_iter(self) -> Array:
        """Number of epochs of each model, (n,)."""
        return np.array([result.history[-1]["epoch"] for result in self.results])

    @cached_property
    def messages(self) -> Array:
        """Number of all-reduces for products of each model, (n,)."""
        return np.array([result.ledger["products"]["calls"] for result in self.results])

    def at(self, alpha: float) -> Result:
        """Return the model of the alpha that is nearest on a logarithmic scale.

        Parameters
        ----------
        alpha : float
            A penalty above 0.

        Returns
        -------
        Result
        """
        if not alpha > 0.0:
            raise ConfigError(f"alpha = {alpha!r} must be above 0")
        away = np.abs(np.log(self.alphas) - np.log(alpha))
        return self.results[int(np.argmin(away))]

    def rows(self) -> list[dict[str, Any]]:
        """Return the table of models as a list with a dict for each alpha."""
        nonzeros = np.count_nonzero(self.coefs.reshape(len(self.alphas), -1), axis=1)
        columns = {
            "alpha": self.alphas,
            "loss": self.losses,
            "nonzeros": nonzeros,
            "gap": self.gaps,
            "gradient": self.gradients,
            "epochs": self.n_iter,
            "messages": self.messages,
        }
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in values]

    def to_frame(self, what: str = "models") -> Any:
        """Return the models or their coefficients as a pandas.DataFrame.

        Parameters
        ----------
        what : {"models", "coefficients"}, default="models"
            The losses and counts of each alpha, or its coefficients by name.
        """
        if what == "models":
            return to_frame(self.rows(), index="alpha")
        if what != "coefficients":
            raise ConfigError(
                f"what = {what!r} is unknown; known: models, coefficients"
            )
        names = self._names()
        coefs = self.coefs.reshape(len(self.alphas), -1)
        pairs = zip(self.alphas.tolist(), coefs.tolist(), strict=True)
        rows = [{"alpha": a, **dict(zip(names, w, strict=True))} for a, w in pairs]
        return to_frame(rows, index="alpha")

    def plot(self, ax: Any = None) -> Any:
        """Draw every coefficient over alpha with matplotlib.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw. Without it there is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.
        """
        ax = new_axes(ax)
        names = self._names()
        coefs = self.coefs.reshape(len(self.alphas), -1)
        largest = np.argsort(-np.abs(coefs[-1]), kind="stable")[:NAMED].tolist()
        for place in (k for k in range(coefs.shape[1]) if k not in largest):
            ax.plot(self.alphas, coefs[:, place], color="0.7", linewidth=0.8)
        for number, place in enumerate(largest):
            look = {"color": COLOURS[number], "linestyle": DASHES[number % 4]}
            ax.plot(self.alphas, coefs[:, place], label=names[place], **look)
        ax.set_xscale("log")
        ax.invert_xaxis()
        ax.set_xlabel("penalty alpha (weaker to the right)")
        ax.set_ylabel("coefficient")
        ax.legend(fontsize="small")
        return ax

    def _repr_html_(self) -> str:
        """Return the table of models and a plot of the path as HTML, for a notebook."""
        title = f"Path of {len(self.alphas)} models"
        return html(title, self.rows(), lambda ax: self.plot(ax=ax))

    def _names(self) -> list[str]:
        """Return a name for every coefficient, with its class if there are several."""
        first = self.results[0]
        rows = coefficient_rows(
            self.coefs[0], first.feature_names, first.report.get("labels")
        )
        labels = [label for label in rows[0] if label != "feature"]
        if len(labels) == 1:
            return [str(row["feature"]) for row in rows]
        return [f"{row['feature']}, {label}" for row in rows for label in labels]

    def _last(self, name: str) -> Array:
        values = (result.history[-1].get(name) for result in self.results)
        return np.array([np.nan if value is None else value for value in values])


# Fit a path of penalties in one call.

SOLVERS = ("auto", COORDINATE, "sgd")
RATE = 'solver="sgd" and config={"rate": {"value": ...}}'
# Arguments of other functions whose counterparts in `path` and `fit` differ.
OTHER_NAMES_OF_PATH = {
    "C": "alphas, each of them 1/(C·n) for n rows",
    "l1": "alphas with l1_ratio=1",
    "l2": "alphas with l1_ratio=0",
    "lambda_": "alphas",
    "penalty": "l1_ratio, 0.0 for l2 and 1.0 for l1",
    "learning_rate": RATE,
    "lr": RATE,
    "eta0": RATE,
    "weights": "sample_weight",
}


@documented
@answers_other_names(OTHER_NAMES | OTHER_NAMES_OF_PATH)
@one_thread()
def path(
    X: Any,
    y: ArrayLike | None = None,
    *,
    family: str = "gaussian",
    alphas: Sequence[float] | None = None,
    n_alphas: int = 50,
    eps: float = 1e-3,
    l1_ratio: float = 1.0,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    fit_intercept: bool = True,
    bounds: Any = None,
    tol: float = 1e-8,
    epochs: int | None = None,
    batch: int | None = None,
    steps: int | str | None = None,
    seed: int = 0,
    precision: str = "fp64",
    solver: str = "auto",
    warm_start: bool = True,
    comm: Communicator | Any = None,
    layout: str = "replicated",
    config: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Fit one model for every penalty, from the largest to the smallest. Collective.

    Each model minimises ::

        F(w, β) = (1/Σc) Σ c_i ℓ(a_i·w + β + offset_i, y_i)
                  + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²)

    Coordinate methods open the data once; least squares on several ranks then needs one
    Gram matrix for all alphas. All ranks of `comm` must call it.

    Parameters
    ----------
    X : array, frame, sparse matrix or path
        The rows, of shape (n, d), or the path of an HDF5 file.
    y : array-like of shape (n,), optional
        The targets, where X is no path.
    family : str, default="gaussian"
        The loss: a name of `hpcsgd.FAMILIES`.
    alphas : sequence of float, optional
        The penalties, in any order. Without them there are `n_alphas` on a logarithmic
        scale, down from the least alpha that makes all weights 0; if `l1_ratio` is
        below 1e-3, from that of 1e-3.
    n_alphas : int, default=50
        Number of penalties that are chosen.
    eps : float, default=1e-3
        Ratio of the smallest to the largest penalty that is chosen.
    tol : float, default=1e-8
        Each model ends at a duality gap of `tol` times F.
    epochs : int, optional
        Largest number of passes for each alpha; 1000 for coordinate methods.
    batch : int, optional
        Coordinates of a block; 1 for coordinate methods.
    steps : int or "auto", optional
        Blocks for each message between ranks; 16 for coordinate methods.
    seed : int, default=0
        Seed of the order of the coordinates, or of the rows with solver "sgd".
    precision : str, default="fp64"
        Recipe of number formats: a name of `hpcsgd.RECIPES`.
    solver : {"auto", "coordinate", "sgd"}, default="auto"
        The solver. "auto" is "coordinate" unless the form that `config` names does not
        suit the problem. "sgd" calls `fit` for each alpha.
    warm_start : bool, default=True
        Whether each model begins at the one before it.

    Returns
    -------
    Path
        The models, the same on all ranks.

    Raises
    ------
    ConfigError
        If an argument cannot work.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(100, 4))
    >>> found = hpcsgd.path(X, X @ [2.0, 0.0, 0.0, -1.0], n_alphas=5)
    >>> found.coefs.shape, int(np.count_nonzero(found.coefs[0]))
    ((5, 4), 0)
    """
    if solver not in SOLVERS:
        raise ConfigError(
            f"solver = {solver!r} is unknown; known: {', '.join(SOLVERS)}"
        )
    arguments = FitArguments(
        family=family,
        alpha=1.0,
        l1_ratio=l1_ratio,
        fit_intercept=fit_intercept,
        bounds=bounds,
        epochs=epochs,
        tol=tol,
        batch=batch,
        steps="auto" if steps is None else steps,
        seed=seed,
        precision=precision,
        layout=layout,
        config=config,
    )
    rows = FitRows(X, y, sample_weight, offset)
    grid = Alphas(alphas, n_alphas, eps)
    with ranks_of(comm, timeout_in(config)) as world:
        matrix = world.together(lambda: to_matrix(X))
        shared = vars(arguments) | {
            "solver": solver,
            "alphas": grid,
            "warm_start": warm_start,
        }
        check_same(world, {name: repr(value) for name, value in shared.items()})
        models = PathFit(world, rows, matrix, arguments, warm_start)
        world.together(lambda: models.check(grid))
        is_form = world.together(lambda: models.has_form(solver))
        results = models.by_coordinates(grid) if is_form else models.by_fits(grid)
    for result in results:
        if result.feature_names is None and layout != "columns":
            result.report["feature_names"] = matrix.names
    return Path(grid.chosen, results)

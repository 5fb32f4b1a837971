"""`GLM_CV`: penalties chosen by cross-validation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.model_selection import check_cv

from hpcsgd.api import MOST_RATES
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import close_on_agreed_error
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import RunConfig
from hpcsgd.data.frames import to_matrix
from hpcsgd.data.sampling import fold_of
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators.base import FitRanks, opened
from hpcsgd.estimators.fit import documented
from hpcsgd.estimators.glm import Generic
from hpcsgd.estimators.inputs import FitRows, facts_of_fit, open_data
from hpcsgd.estimators.sweep import Sweep
from hpcsgd.formats import Array
from hpcsgd.glm.penalties import Penalty
from hpcsgd.runs.defaults import EPOCHS, FitArguments, Tables
from hpcsgd.runs.opened_run import OpenedRun, open_run
from hpcsgd.runs.result import Status
from hpcsgd.runs.session import RATE_FACTOR, RunSettings, Session
from hpcsgd.runs.settle import ProblemSize, takes_newton
from hpcsgd.solvers.evaluation import Columns, StopConfig
from hpcsgd.solvers.full_passes import level, open_rows
from hpcsgd.solvers.lbfgs import Landscape, RefinementPoint
from hpcsgd.solvers.newton import minimise
from hpcsgd.solvers.objective import Objective

# Folds of a cross-validation, by scikit-learn's splitters or by their number.

LEAST = 2


def count_folds(cv: Any, groups: Any = None) -> int | None:
    """Return `cv` if it is a number of folds; None if it is a splitter or splits."""
    if not isinstance(cv, int | np.integer):
        return None
    if groups is not None:
        raise ConfigError(
            f"groups cannot be used with cv = {cv}, which assigns single rows to folds;"
            f" give a splitter, as cv=GroupKFold({cv})"
        )
    if cv < LEAST:
        raise ConfigError(f"cv = {cv} must be at least {LEAST}; 5 is usual")
    return int(cv)


@dataclass(frozen=True)
class Folds:
    """The folds of a cross-validation, whose rows are held out together."""

    count: int
    own: Array | None  # the fold of each row of this rank; −1: in none
    whole: Array | None  # of all rows; None: the engine deals them itself


def deal(
    cv: Any,
    rows: FitRows,
    ranks: FitRanks,
    is_labelled: bool,
    seed: int,
    groups: Any = None,
) -> Folds:
    """Deal the rows to folds. Collective.

    If `cv` is a number, a row gets its fold by its number and `seed`, and rows of a
    file are dealt where they are read. Otherwise the splitter `cv` deals them.
    """
    count = ranks.together(lambda: count_folds(cv, groups))
    if count is None:
        fold_of_row = folds_of(cv, rows, ranks, is_labelled, groups)
        return Folds(int(fold_of_row.max()) + 1, fold_of_row, fold_of_row)
    if rows.y is None:
        return Folds(count, None, None)
    counts = ranks.of_rows(len(rows.y))
    check_rows(sum(counts), count)
    first = sum(counts[: ranks.world.rank]) if len(counts) > 1 else 0
    local_folds = fold_of(slice(first, first + len(rows.y)), count, seed)
    return Folds(count, local_folds, None)


def folds_of(
    cv: Any, rows: FitRows, ranks: FitRanks, is_labelled: bool, groups: Any
) -> Array:
    """Return the fold of every row of the data by a splitter. Collective.

    Rank 0 draws the folds for all ranks.
    """
    if rows.y is None or ranks.layout not in ("replicated", "columns"):
        raise ConfigError(
            f"cv of type {type(cv).__name__} needs all rows on every rank; give a"
            " number of folds"
        )
    return ranks.of_root(lambda: _folds_of(cv, rows, is_labelled, groups))


def _folds_of(cv: Any, rows: FitRows, is_labelled: bool, groups: Any) -> Array:
    """Return the fold of every row, (n,), by the splitter `cv`; −1: never held out.

    A row may be held out at most once, and the model of a fold must be trained on all
    other rows.
    """
    count = len(rows.y)
    folds = np.full(count, -1, dtype=np.int64)
    splitter = check_cv(cv, rows.y, classifier=is_labelled)
    for number, (train, test) in enumerate(splitter.split(rows.X, rows.y, groups)):
        test_mask = np.zeros(count, dtype=bool)
        test_mask[test] = True
        rest_mask = np.ones(count, dtype=bool)
        rest_mask[train] = False
        if (test_mask != rest_mask).any() or (folds[test_mask] >= 0).any():
            raise ConfigError(
                "cv must hold every row out at most once and train on all others, as"
                " KFold, StratifiedKFold and LeaveOneGroupOut do"
            )
        folds[test_mask] = number
    return folds


def check_rows(rows: int, folds: int) -> None:
    """Raise DataError if there are fewer rows than folds."""
    if rows < folds:
        raise DataError(
            f"n_samples={rows} is less than cv={folds}: every fold needs a row; lower"
            " cv, or give more rows"
        )


# Several penalties and folds of one fit, through one Gram.

log = logging.getLogger(__name__)


def fit_many(
    arguments: FitArguments,
    rows: FitRows,
    folds: Folds,
    *,
    alphas: Sequence[float],
    world: Communicator,
) -> Sweep:
    """Fit, for every alpha, a model without each fold and one on all rows. Collective.

    Parameters
    ----------
    arguments : FitArguments
        The arguments of every model but alpha. L-BFGS is left out.
    rows : FitRows
        The rows of this rank.
    folds : Folds
        The folds; rows are dealt to them by number and seed where `whole` is None.
    alphas : sequence of float
        The penalties.
    world : Communicator
        The ranks.

    Returns
    -------
    Sweep
        The models.

    Raises
    ------
    ConfigError
        If every model diverged: at the rate of the arguments, or at all rates from the
        data that were tried.
    """
    matrix = world.together(lambda: to_matrix(rows.X))
    facts = facts_of_fit(matrix, arguments.layout, world)
    epochs = arguments.max_passes if arguments.epochs is None else arguments.epochs
    epochs = EPOCHS["polished"] if epochs is None else epochs
    arguments = replace(
        arguments, alpha=0.0, momentum=0.0, polish=False, epochs=epochs, verbose=0
    )
    settings = world.together(lambda: arguments.run_config(facts))
    # No model is waited for: they are compared after as many epochs, at the end of
    # which the rate has gone to zero and with it what is not the model's but noise.
    seed = settings.sampling.seed
    overrides: Tables = {
        "stop": vars(StopConfig()),
        "sweep": {"l2": alphas, "folds": folds.count, "fold_seed": seed},
    }
    config = world.together(lambda: arguments.run_config(facts, overrides=overrides))
    is_open = config.rate.is_open
    layout = arguments.layout
    data = world.together(lambda: open_data(matrix, rows.sides, layout, config))
    data = data.with_facts(labels=rows.labels, fold_of=folds.whole)
    for _ in range(MOST_RATES):
        session = Session(RunSettings(config), world, data.open_reader, [])
        sweep = Sweep(session.run())
        has_diverged = sweep.outcome.status is Status.DIVERGED  # the best model, too
        if not has_diverged and np.isfinite(sweep.mean_held).any():
            return sweep
        if not is_open:
            break
        rate = sweep.outcome.config["rate"]["value"] * RATE_FACTOR
        log.warning(
            "every model diverged; all are trained again with a rate of %.3g", rate
        )
        overrides["rate"] = {"value": rate}
        config = arguments.run_config(facts, overrides=overrides)
    raise ConfigError(
        "every model diverged; scale the columns alike, or give a smaller rate"
    )


# The minimum of F for each penalty, without the rows of each fold: the rows are opened
# once, and every penalty begins where the one before it ended.

LOOSE = 1e-5  # tol of models that are only compared


@dataclass(frozen=True)
class FoldMinima:
    """The minima for all penalties without each fold, the same on all ranks."""

    held: Array  # (alphas, folds), the mean loss on the rows of the fold
    weights: Array  # (alphas, folds, d, K)
    intercepts: Array | None  # (alphas, folds, K)

    def start(self, number: int) -> Any:
        """Return a start near the minimum on all rows for alpha number `number`.

        It is the mean of the weights over the folds, with intercepts if there are any.
        """
        weights = self.weights[number].mean(axis=0)
        if self.intercepts is None:
            return weights
        return weights, self.intercepts[number].mean(axis=0)


def find_fold_minima(
    arguments: FitArguments,
    rows: FitRows,
    folds: Folds,
    *,
    alphas: Sequence[float],
    world: Communicator,
    starts: Sweep | None = None,
) -> FoldMinima:
    """Minimise F for every alpha without each fold. Collective.

    Parameters
    ----------
    arguments : FitArguments
        The arguments of every model but alpha.
    rows : FitRows
        The rows of this rank, in memory.
    folds : Folds
        The folds; rows are dealt to them by number and seed where `whole` is None.
    alphas : sequence of float
        The penalties.
    world : Communicator
        The ranks.
    starts : Sweep or None
        Models to begin with: for each alpha those without each fold, then that on all
        rows.
    """
    matrix = world.together(lambda: to_matrix(rows.X))
    facts = facts_of_fit(matrix, arguments.layout, world)
    # `max_iter` bounds the epochs of a sweep, not the passes to a minimum.
    arguments = replace(
        arguments,
        alpha=0.0,
        polish="auto",
        tol=LOOSE,
        precision=None,
        epochs=None,
        max_passes=None,
    )
    config = world.together(lambda: arguments.run_config(facts))
    layout = arguments.layout
    data = world.together(lambda: open_data(matrix, rows.sides, layout, config))
    data = data.with_facts(labels=rows.labels)
    opened = open_run(config, world, data.open_reader, Clock())
    with close_on_agreed_error(opened.grid.close):
        minima = _minima_of_folds(config, opened, folds, alphas, starts)
    opened.grid.close()
    return minima


def _minima_of_folds(
    config: RunConfig,
    opened: OpenedRun,
    folds: Folds,
    alphas: Sequence[float],
    starts: Sweep | None,
) -> FoldMinima:
    loaded = opened.loaded
    shard = loaded.judged
    objective = Objective(
        opened.grid,
        opened.words.family,
        shard,
        Penalty(),
        loaded.read_exact,
        columns=loaded.columns,
    )
    fold_of_row = folds.whole
    if fold_of_row is None:
        fold_of_row = fold_of(shard.rows, folds.count, config.sampling.seed)
    else:
        fold_of_row = fold_of_row[shard.rows]
    c = np.ones(shard.height) if shard.weights is None else shard.weights[:, 0]
    size = ProblemSize((shard.total_columns + 1) * loaded.columns, shard.is_sparse)
    kind = "newton" if takes_newton(size) else "auto"
    settings = replace(config.polish, kind=kind, gap=False)
    joined = Columns(opened.grid, shard.parts, whole=False)
    shape = (len(alphas), folds.count, loaded.columns)
    held = np.empty(shape[:2])
    weights = np.empty((*shape[:2], shard.total_columns, loaded.columns))
    intercepts = np.empty(shape) if config.problem.intercept else None
    order = np.argsort(alphas)[::-1]  # models of large penalties are the nearest to 0
    for fold in range(folds.count):
        is_held = fold_of_row == fold
        trained = replace(shard, weights=(c * ~is_held)[:, None])
        rows = open_rows(replace(objective, shard=trained))
        point: RefinementPoint | None = None
        for number in order:
            alpha = float(alphas[number])
            penalised = replace(rows.objective, penalty=Penalty(alpha))
            land = Landscape(
                replace(rows, objective=penalised), alpha, config.problem.intercept
            )
            start = _start_of(land, point)
            if starts is not None:
                model = int(number) * (folds.count + 1) + fold
                start = _start_at(land, starts, model, shard.columns)
            point = minimise(land, settings, start)
            losses = opened.words.family.loss(point.scores, rows.targets)[:, 0]
            sums = np.zeros(2)
            if opened.grid.member == 0:
                sums[:] = (c * is_held) @ losses, (c * is_held).sum()
            opened.grid.world.sum(sums, "evaluate")
            held[number, fold] = sums[0] / sums[1] if sums[1] else np.nan
            weights[number, fold] = joined.join(point.weights)
            if intercepts is not None:
                intercepts[number, fold] = point.intercept
    return FoldMinima(held, weights, intercepts)


def _start_of(land: Landscape, point: RefinementPoint | None) -> RefinementPoint:
    """Return where the fit for a penalty begins, with its loss.

    It is `point`, the minimum for the penalty before, or where there is none the null
    model: zero weights with the best intercept.
    """
    if point is not None:
        return land.start_at(
            point.weights, point.intercept if land.has_intercept else None
        )
    columns = land.rows.columns
    begin = land.zero_point(np.zeros((land.rows.width, columns)), None)
    if land.has_intercept:
        shift = level(land.rows, begin.scores).shift
        begin = land.zero_point(begin.weights, shift)
    return land.evaluated(begin)


def _start_at(
    land: Landscape, starts: Sweep, model: int, columns: slice
) -> RefinementPoint:
    """Return the weights and intercept of a model of `starts`, with its loss.

    `columns` are those of this rank.
    """
    weights = starts.weights[:, model].reshape(-1, land.rows.columns)
    intercepts = starts.intercepts
    intercept = None if intercepts is None else intercepts[model].reshape(-1)
    return land.start_at(weights[columns].astype(np.float64), intercept)


# Penalties by cross-validation: alphas × folds through one Gram, then the best.

# `max_iter` bounds the epochs of the sweep, and not what goes on from its models.
FROM_THE_SWEEP: dict[str, Any] = {"max_passes": None}


@documented
class GLM_CV(Generic):
    """Generalized linear model with a ridge penalty chosen by cross-validation.

    On several ranks, CA-SGD trains all alphas × folds together, and each alpha on all
    rows: they share the rows, one Gram matrix and one message per exchange. With
    `polish="all"` each model then goes on to its own minimum; on one rank, which sends
    no messages, it begins at the minimum of the penalty before it instead. For the
    alpha with the least mean loss on held-out rows, the model minimises on all rows ::

        F(w, β) = (1/Σc) Σ c_i ℓ(a_i·w + β + offset_i, y_i) + (alpha_/2) ‖w‖²

    with ℓ of the family as in `GLM`.

    Parameters
    ----------
    polish : {"all", "best"}
        "all" compares the models at their minima, "best" as CA-SGD leaves them.
    max_iter : int or None
        Epochs of CA-SGD in the comparison; None takes 5. It does not bound the passes
        to a minimum.

    Attributes
    ----------
    alpha_ : float
        The alpha with the least mean loss on held-out rows.
    cv_results_ : dict of ndarray
        `alphas` of shape (A,); `held` of shape (A, folds), the mean loss of each model
        on its held-out rows; `mean_held` of shape (A,).
    cv_ledger_ : dict
        Traffic of all models together, by purpose.
    coef_ : ndarray of shape (d,), (1, d) or (K, d)
        Coefficients: of a regressor, of two classes, of softmax.
    intercept_ : float, or ndarray of shape (1,) or (K,)
        Intercept, in the same cases; 0.0 without an intercept.
    classes_ : ndarray of shape (K,)
        Labels in ascending order, of a classifier.

    Notes
    -----
    `polish="all"` compares minima: every model takes some passes of its own.
    `polish="best"` compares the models as CA-SGD leaves them and finishes the chosen
    one alone. It is cheaper and favours small alphas. With the rows in a file,
    models are always compared as by "best".

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import StandardScaler
    >>> from hpcsgd import GLM_CV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = StandardScaler().fit_transform(X)
    >>> model = GLM_CV(family="logistic", alphas=(1e-4, 1e-2, 1.0)).fit(X, y)
    >>> model.alpha_
    0.01
    """

    # Parameters of other estimators that a comparison of ridge penalties does not have.
    alpha = 0.0
    l1_ratio = 0.0
    bounds = None
    solver = "auto"
    average = "auto"
    hold_out = 0.0
    patience = 5
    device = "cpu"
    warm_start = False
    alphas: Sequence[float]
    cv: Any
    _instead = {
        "C": "give alphas, each of them 1/(C·n) for n rows",
        "Cs": "give alphas, each of them 1/(C·n) for n rows",
        "alpha": "give alphas",
        "penalty": "leave it out, ridge penalties are compared",
        "l1_ratio": "leave it out, ridge penalties are compared",
    }

    def __init__(
        self,
        *,
        family: str = "gaussian",
        alphas: Sequence[float] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        cv: Any = 5,
        polish: str = "all",
        class_weight: Any = None,
        fit_intercept: bool = True,
        max_iter: int | None = None,
        tol: float = 1e-8,
        batch: int | None = None,
        steps: int | str = "auto",
        rate: float | str = "auto",
        precision: str | None = None,
        random_state: Any = 0,
        callbacks: Any = None,
        verbose: int = 0,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._set_parameters(locals())

    @documented
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
        groups: Any = None,
        *,
        comm: Any = None,
        layout: str = "replicated",
        grid: Any = None,
    ) -> Self:
        """Choose alpha and fit the model. Collective.

        All ranks of `comm` must call it.

        Returns
        -------
        self : object
            The fitted estimator, the same on all ranks.
        """
        self._check_family(offset, exposure)
        rows = FitRows(X, y, sample_weight, offset, exposure)
        self._fit(rows, opened(comm, layout, grid), groups=groups)
        return self

    def _learn(
        self,
        rows: FitRows,
        ranks: FitRanks,
        starts: list[Any] | None,
        groups: Any = None,
        **changed: Any,
    ) -> None:
        if self._labelled:
            rows = self._label_tasks(rows, ranks)[0]
        folds = self._deal(rows, ranks, groups)
        if self.polish == "all" and rows.y is not None:
            start = self._choose_by_minima(rows, ranks, folds)
        else:
            start = self._choose_by_steps(rows, ranks, folds)
        self._keep([self._solve(rows, ranks, start, **FROM_THE_SWEEP)])
        self._name_columns(ranks)

    def _deal(self, rows: FitRows, ranks: FitRanks, groups: Any) -> Folds:
        """Check `polish` and the classes, and deal the rows to folds. Collective."""
        if self.polish not in ("all", "best"):
            raise ConfigError(
                f"polish = {self.polish!r} is unknown; known: 'all', 'best'"
            )
        if self._labelled:
            _check_classes(rows, ranks)
        seed = self._seed(ranks)
        return deal(self.cv, rows, ranks, self._labelled, seed, groups)

    def _choose_by_minima(self, rows: FitRows, ranks: FitRanks, folds: Folds) -> Any:
        """Compare the minima of all models; return a start near the best one's."""
        world = ranks.world
        with world.ledger.apart():
            # A rank alone sends no messages, which steps of SGD together would save.
            sweep = self._compare(rows, ranks, folds) if world.size > 1 else None
            minima = find_fold_minima(
                self._arguments(ranks),
                rows,
                folds,
                alphas=self._alphas(),
                world=world,
                starts=sweep,
            )
            self.cv_ledger_ = world.ledger.as_dict()
        return minima.start(self._choose(minima.held, ranks))

    def _choose_by_steps(self, rows: FitRows, ranks: FitRanks, folds: Folds) -> Any:
        """Compare the models as CA-SGD leaves them; return a start of the best alpha.

        It is the weights, with any intercept, of this alpha's model on all rows.
        """
        sweep = self._compare(rows, ranks, folds)
        self.cv_ledger_ = sweep.ledger
        has_fold = [model.fold is not None for model in sweep.models]
        held = sweep.held[has_fold].reshape(len(self._alphas()), -1)
        best = self._choose(held, ranks)
        return _start(sweep, best * (folds.count + 1) + folds.count)

    def _compare(self, rows: FitRows, ranks: FitRanks, folds: Folds) -> Sweep:
        """Fit the models of all alphas and folds together. Collective."""
        return fit_many(
            self._arguments(ranks),
            rows,
            folds,
            alphas=self._alphas(),
            world=ranks.world,
        )

    def _alphas(self) -> list[float]:
        alphas = [float(alpha) for alpha in np.atleast_1d(np.asarray(self.alphas))]
        if not alphas:
            raise ConfigError("alphas is empty; give penalties, as (1e-4, 1e-2, 1)")
        return alphas

    def _choose(self, held: Array, ranks: FitRanks) -> int:
        """Set the attributes of the comparison; return the number of the best alpha.

        `held` has the loss of each model on its held-out rows, (alphas, folds).
        Collective: sums need not give all ranks the same last bits, and rank 0 chooses.
        """
        held = ranks.world.share_object(held)
        alphas = self._alphas()
        mean = held.mean(axis=1)
        best = int(np.argmin(np.where(np.isfinite(mean), mean, np.inf)))
        self.alpha_ = alphas[best]
        self.cv_results_ = {"alphas": np.array(alphas), "held": held, "mean_held": mean}
        return best

    def _arguments(self, ranks: FitRanks) -> FitArguments:
        alpha = getattr(self, "alpha_", 0.0)
        return replace(super()._arguments(ranks), alpha=alpha, polish="auto")


def _start(sweep: Sweep, number: int) -> Any:
    """Return the weights of model `number`, in a pair with intercepts if it has any."""
    weights = sweep.weights[:, number]
    intercepts = sweep.intercepts
    return weights if intercepts is None else (weights, intercepts[number])


def _check_classes(rows: FitRows, ranks: FitRanks) -> None:
    """Raise DataError if only one class has rows with a weight above 0. Collective.

    Classes of a y in a file are not checked.
    """
    if rows.y is None:
        return
    seen = rows.y if rows.weights is None else rows.y[rows.weights > 0]
    if len(np.unique(np.concatenate(ranks.of_rows(np.unique(seen))))) < 2:
        raise DataError(
            "only one class has rows with a sample_weight above 0, and cross-validation"
            " needs two; add rows of another class"
        )

"""The defaults of a run: those of `fit`, or those of SGD."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.agreements import settings_of
from hpcsgd.agreements.base import AgreementSettings
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import parse_grid
from hpcsgd.config import (
    FIT,
    SGD,
    RunConfig,
    agreement_in,
    chosen_settings,
    get_method,
    import_plugins,
    read_toml,
    with_method,
)
from hpcsgd.data.frames import is_wide
from hpcsgd.data.readers import read_shape
from hpcsgd.errors import ConfigError
from hpcsgd.glm.unrolling import OPEN_EPOCHS
from hpcsgd.precision import AUTO
from hpcsgd.runs.checks import check_configuration
from hpcsgd.runs.coordinate import fastest_form
from hpcsgd.solvers.coordinate import COORDINATE
from hpcsgd.solvers.full_passes import FINEST

# How replicas agree according to the `config` of a fit, before it is parsed.

log = logging.getLogger(__name__)


def agrees_on_gradients(config: Any) -> bool:
    """Return whether replicas agree on gradients in every step of this `config`.

    A `config` that is no mapping counts as one without settings.
    """
    return _kind(config).shares_gradients


def sharded_weights_option(config: Any) -> str:
    """Return the setting by which no rank holds all weights; "" if ranks do.

    It is the agreement on disk, or stage 3 of sharded weights. A `config` that is no
    mapping counts as one without settings.
    """
    agreement = agreement_in({"agreement": _agreement(config)})
    if agreement.on_disk:
        return f"--agreement {agreement.kind}"
    return "[agreement] stage = 3" if agreement.slices_weights else ""


def has_section(config: Any, name: str) -> bool:
    """Return whether `config` is a mapping with the section `name`."""
    return isinstance(config, Mapping) and name in config


def grid_on(ranks: int, grid: Any, config: Any) -> Any:
    """Return `grid`, or (ranks, 1) if `config` names a method of replicas without one.

    `grid` is also returned on one rank, and if `config` has a section [grid].
    """
    if ranks == 1 or grid is not None or has_section(config, "grid"):
        return grid
    name = _agreement(config).get("kind", AUTO)
    kind = _kind(config)
    if name == AUTO or kind.works_alone:
        return grid
    message = (
        "no grid was given for a method of replicas: each of %d ranks is a replica"
    )
    log.info(message, ranks, extra={"on_all_ranks": True})
    return ranks, 1


def _agreement(config: Any) -> Mapping[str, Any]:
    """Return section [agreement] with its method's settings; {} for a RunConfig."""
    if not isinstance(config, Mapping):
        return {}
    if not all(isinstance(table, Mapping) for table in config.values()):
        return {}  # parsing reports the error
    import_plugins(config.get("run"))
    return with_method(config).get("agreement", {})


def _kind(config: Any) -> type[AgreementSettings]:
    return settings_of(str(_agreement(config).get("kind", AUTO)))


# Settings by section, laid over one another.

Tables = dict[str, dict[str, Any]]


def overlay_tables(
    tables: Mapping[str, Mapping[str, Any]], more: Mapping[str, Any] | RunConfig | None
) -> Tables:
    """Return a copy of `tables` in which the keys of `more` override the others."""
    if isinstance(more, RunConfig):
        more = more.tables()
    if more is not None and not isinstance(more, Mapping):
        raise ConfigError(
            f"config is of type {type(more).__name__}; write it as"
            " {'section': {'key': value}}, or give a RunConfig"
        )
    merged = {name: dict(table) for name, table in tables.items()}
    for name, table in (more or {}).items():
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"config has {name} = {table!r} outside a section; write it as"
                " {'section': {'key': value}}"
            )
        merged.setdefault(name, {}).update(table)
    return merged


# The arguments of a fit, and the settings that they stand for.

REFINEMENTS = ("newton", "lbfgs")  # that a fit may begin with, without a step of SGD
SOLVERS = ("auto", "sgd", "svrg", "coordinate", *REFINEMENTS)
THEIRS = (  # of scikit-learn's linear models
    *("liblinear", "newton-cg", "newton-cholesky", "sag", "saga"),
    *("svd", "cholesky", "lsqr", "sparse_cg"),
)
AVERAGES = {"auto": "tail", True: "tail", False: "none"}
ALPHA = 1e-4  # the penalty where none is named
TOL = 1e-8  # of the optimum, and that of polish=True
GRADIENT_TOL = 1e-5  # relative to the residuals, beside a gap of TOL
STEPS_TOL = 1e-5  # of steps of SGD alone, whose noise hides more
RACE = "race"  # as the rate: the rate that wins a race
PASSES = 1000  # at most: badly conditioned data take some hundred
# Passes if none are named: of SGD before L-BFGS, of SGD alone, of SVRG alone, and of
# exact coordinate steps.
EPOCHS = {"polished": OPEN_EPOCHS, "sgd": 200, "svrg": 200, "coordinate": 1000}
WHOLE = "has no rank that holds all weights"
STEPS = 8  # of an exchange, where no model of its times may choose them
ROWS = 32  # of a step
# Exact minima over single coordinates take the fewest passes; messages are as few for
# more of them in an exchange.
COORDINATES = {"batch": 1, "steps": 16}
SHARED_ROWS = "a pass without steps of SGD sums the fewest words if ranks share rows"
ARGUMENTS_OF_SGD = (
    *("batch", "steps", "rate", "update", "average", "solver"),
)  # `fit` takes steps of SGD if the caller names one of them


MOST_KEPT = 256
_run_configs: dict[Any, RunConfig] = {}  # of arguments that were translated before


@dataclass(frozen=True)
class FitFacts:
    """Facts about the ranks and rows of a fit, on which its settings depend."""

    ranks: int = 1
    is_wide: bool = False  # whether the rows are of float64
    path: str | None = None  # the file that contains the rows
    shape: tuple[int, int] | None = None  # rows of all ranks, and columns, where known

    def on(self, world: Communicator, path: str | None) -> "FitFacts":
        """Return these facts on the ranks of `world`. Collective.

        If the rows are in the file `path`, rank 0 of several ranks reads their shape.
        """
        shape = self.shape
        if world.size > 1 and path:
            shape = world.of_root(lambda: read_shape(Path(path)))
        return replace(self, ranks=world.size, shape=shape)


@dataclass(frozen=True)
class FitArguments:
    """Arguments of a fit, which `hpcsgd.fit` describes.

    Estimators and paths make them of their own parameters. `run_config` translates
    them; it checks what no section of the configuration checks under the same name.
    """

    family: str = "logistic"
    alpha: float = ALPHA
    l1_ratio: float = 0.0
    fit_intercept: bool = True
    bounds: tuple[ArrayLike | None, ArrayLike | None] | None = None
    epochs: int | None = None
    max_passes: int | None = None
    tol: float | None = None
    batch: int | None = None
    steps: int | str = "auto"
    rate: float | str = "auto"
    update: str = "sgd"
    momentum: float = 0.9
    average: str | bool = "auto"
    polish: str | bool = "auto"
    hold_out: float = 0.0
    patience: int = 5
    seed: int = 0
    precision: str | None = None
    device: str = "cpu"
    solver: str = "auto"
    layout: str = "replicated"
    grid: tuple[int, int] | str | None = None
    verbose: int = 0
    config: Mapping[str, Mapping[str, Any]] | RunConfig | None = None

    def run_config(
        self, facts: FitFacts, record: int = 0, overrides: Tables | None = None
    ) -> RunConfig:
        """Return all settings of the fit; those of `config` override the others.

        `record` is the number of exchanges that are kept for `hpcsgd verify`.
        `overrides` are settings that override even those of `config`, as the rate that
        won a race. Fits with the same arguments, as those of a search, have the same
        settings, which are made once.
        """
        values = tuple(vars(self).values())
        key = (*values, *map(type, values), facts, record, overrides)
        try:
            config = _run_configs.get(key)
        except TypeError:  # an argument that is a mapping, a list or an array
            return self._make_run_config(facts, record, overrides)
        if config is None:
            config = self._make_run_config(facts, record, overrides)
            if len(_run_configs) >= MOST_KEPT:
                _run_configs.clear()
            _run_configs[key] = config
        return config

    def _make_run_config(
        self, facts: FitFacts, record: int, overrides: Tables | None
    ) -> RunConfig:
        problem = self.problem()
        is_fine = facts.is_wide and self.device == "cpu"
        recipe = self.precision or ("fp64" if is_fine else "fp32")
        solver = self._solver(problem, recipe)
        polish = self._polish(problem, solver)
        algorithm = "polished" if polish and solver == "sgd" else solver
        grid = self._grid()
        if algorithm == "polished" and self._shares_rows(facts):
            grid = {"replicas": facts.ranks, "members": 1}
        hold_out = to_number("hold_out", self.hold_out)
        tables: Tables = {
            "problem": problem,
            "schedule": self.schedule(algorithm, grid.get("replicas", 1)),
            "rate": self._rate(algorithm, hold_out),
            "update": self._update(solver),
            "polish": polish,
            "average": {"kind": self._average(solver)},
            "sampling": {"seed": plain(self.seed), "hold_out": hold_out},
            "stop": self._stop(problem, algorithm, hold_out),
            "precision": {"recipe": recipe},
            "grid": grid,
            "run": {"record": record, **self._run(solver)},
        }
        if solver == COORDINATE:
            tol = self.tolerance()
            form = fastest_form(self.family, problem["l1"], facts.ranks)
            tables["coordinate"] = {
                "tol": tol and max(tol, FINEST),
                "form": form,
            }
        if facts.path is not None:
            tables["data"] = {"path": facts.path}
        self._leave_to_method(tables)
        tables = overlay_tables(overlay_tables(tables, self.config), overrides)
        config = RunConfig.parse(overlay_tables(tables, {"run": {"defaults": FIT}}))
        # A setting that the run would not read is refused only if the caller may have
        # given it: in `config`, or as the argument `momentum`.
        check_configuration(
            config, overlay_tables({"update": {"momentum": 0.0}}, self.config)
        )
        return config

    def tolerance(self, default: float = TOL) -> float:
        """Return the argument `tol`, or the default where it is None."""
        return default if self.tol is None else to_number("tol", self.tol)

    def _leave_to_method(self, tables: Tables) -> None:
        """Adapt the defaults in `tables` to the method that `config` names, if any.

        Only arguments that the caller left at their defaults are adapted. The steps and
        the update rule are removed if the method sets them itself, and averages are
        turned off if its agreement supports none.
        """
        if not isinstance(self.config, Mapping):
            return
        agreement = self.config.get("agreement")
        name = agreement.get("method") if isinstance(agreement, Mapping) else None
        if not isinstance(name, str) or not name:
            return
        row = get_method(name)
        if self.steps == "auto" and "schedule.steps" in row.fixed:
            tables["schedule"].pop("steps", None)
        if self.update == "sgd" and "update.kind" in {**row.fixed, **row.defaults}:
            tables["update"].pop("kind", None)
        kind = settings_of(row.fixed.get("agreement.kind", "auto"))
        if self.average == "auto" and not kind.supports.averages:
            tables["average"]["kind"] = "none"

    def schedule(self, way: str, replicas: int = 1) -> dict[str, Any]:
        """Return the settings of [schedule] for the algorithm `way`, a key of `EPOCHS`.

        The batch counts the rows of a step, or its coordinates in coordinate descent.
        """
        batch = plain(self.batch)
        steps = plain(self.steps)
        is_coordinate = way == COORDINATE
        if batch is None:
            batch = COORDINATES["batch"] if is_coordinate else ROWS
        if steps == "auto" and is_coordinate:
            steps = COORDINATES["steps"]
        elif steps == "auto" and replicas > 1:
            # Replicas agree after so many steps: no measured time may decide that.
            steps = 1 if agrees_on_gradients(self.config) else STEPS
        epochs: Any
        if self.solver in REFINEMENTS:
            epochs = 0
        elif self.epochs is not None:
            epochs = plain(self.epochs)
        elif way == "polished" and self._names_no_step():
            epochs = "auto"
        else:
            epochs = EPOCHS[way] if self.max_passes is None else plain(self.max_passes)
        return {"batch": batch, "steps": steps, "epochs": epochs}

    def _names_no_step(self) -> bool:
        """Return whether nothing that the caller gave needs steps of SGD.

        An argument or a setting of SGD, a GPU, automatic precision, no refinement,
        recorded exchanges and a whole RunConfig do.
        """
        usual = FitArguments()
        named = any(getattr(self, n) != getattr(usual, n) for n in ARGUMENTS_OF_SGD)
        if named or self.device != "cpu" or self.precision == AUTO:
            return False
        if not isinstance(self.config, Mapping):
            return self.config is None
        polish = self.config.get("polish")
        if isinstance(polish, Mapping) and polish.get("kind") == "none":
            return False
        run = self.config.get("run")
        records = isinstance(run, Mapping) and run.get("record", 0)  # exchanges
        return not records and not setting_of_sgd(self.config)

    def _shares_rows(self, facts: FitFacts) -> bool:
        """Return whether each rank gets some of the rows, with all of their columns.

        That is so in a fit whose arguments ask for no step of SGD, unless the caller
        decides the grid. Each pass over the rows then sums a number for each column,
        where ranks that hold columns sum one for each row; so there must be as many
        rows as columns.
        """
        if self.solver not in REFINEMENTS and (
            self.epochs is not None or not self._names_no_step()
        ):
            return False
        is_placed = self.grid is not None or has_section(self.config, "grid")
        if is_placed or self.layout == "columns" or facts.shape is None:
            return False
        rows, columns = facts.shape
        return facts.ranks > 1 and rows >= max(columns, facts.ranks)

    def problem(self) -> dict[str, Any]:
        """Return the settings of [problem]."""
        if not isinstance(self.family, str):
            raise ConfigError(
                f"family must be a name, as 'logistic', and is of type"
                f" {type(self.family).__name__}; pass targets as y=..."
            )
        penalty = self.penalty()
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise ConfigError(
                f"fit_intercept = {self.fit_intercept!r} must be True or False"
            )
        return {
            "family": self.family,
            **penalty,
            "intercept": bool(self.fit_intercept),
            **self._bounds(),
        }

    def penalty(self) -> dict[str, float]:
        """Return l1 and l2, the penalties among the settings of [problem]."""
        alpha = to_number("alpha", self.alpha)
        ratio = to_number("l1_ratio", self.l1_ratio)
        if not 0.0 <= ratio <= 1.0:
            raise ConfigError(
                f"l1_ratio = {ratio!r} must lie in [0, 1]; 0 is ridge, 1 is the lasso"
            )
        if not 0.0 <= alpha < np.inf:
            raise ConfigError(
                f"alpha = {alpha!r} must be finite and at least 0; 0 is no penalty,"
                " 1e-4 is usual"
            )
        return {"l1": alpha * ratio, "l2": alpha * (1.0 - ratio)}

    def _bounds(self) -> dict[str, Any]:
        if self.bounds is None:
            return {}
        try:
            lower, upper = self.bounds
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "bounds must be a pair (lowest weight, highest weight), each of them a"
                " number, a list with a number for each column, or None; for example"
                " (0, None)"
            ) from error
        limits = {"lower": _bound(lower), "upper": _bound(upper)}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def _solver(self, problem: dict[str, Any], recipe: str) -> str:
        """Return the algorithm of the steps: sgd, svrg or coordinate.

        It is sgd for a solver that is a refinement. "auto" is sgd for a smooth F, on a
        GPU, with held-out rows, or if an argument requests a form of SGD. Otherwise it
        is coordinate, whose forms end at the minimum; where they cannot run, it is
        svrg, which goes to the minimum without noise.
        """
        if self.solver not in SOLVERS:
            choices = ", ".join(map(repr, SOLVERS))
            if self.solver in THEIRS:
                choices += (
                    "; 'auto' reaches the same minimum as this solver of scikit-learn,"
                    " by L-BFGS or by coordinate descent"
                )
            raise ConfigError(f"solver = {self.solver!r} is unknown; known: {choices}")
        if self.solver in REFINEMENTS:
            self._check_refinement(problem)
            return "sgd"
        has_update = self.solver not in ("auto", "sgd")
        if has_update and self.update not in ("sgd", self.solver):
            raise ConfigError(
                f"update = {self.update!r} is an update rule of SGD and cannot be used"
                f" with solver = {self.solver!r}, which has its own; leave one of them"
                " out"
            )
        if self.solver != "auto":
            return str(self.solver)
        if _is_smooth(problem) or self.device != "cpu" or self.hold_out:
            return "sgd"
        if self.update != "sgd" or self.average not in ("auto", "none", False):
            return "sgd"  # an argument requests a form of SGD
        suits = recipe in ("fp32", "fp64")
        # Noise would keep weights from 0 for as long as the rate is not.
        return COORDINATE if suits and self.layout != "columns" else "svrg"

    def _check_refinement(self, problem: dict[str, Any]) -> None:
        """Raise ConfigError if a refinement alone cannot do what arguments request."""
        obstacles = {
            "it needs an F without l1 and bounds": not _is_smooth(problem),
            "hold_out ends a fit before the minimum": bool(self.hold_out),
            "polish=False turns this solver off": self.polish is False,
            f"update={self.update!r} is an update rule of SGD": self.update != "sgd",
        }
        reason = next((text for text, holds in obstacles.items() if holds), "")
        if reason:
            raise ConfigError(
                f"solver = {self.solver!r} cannot be used here: {reason}; use"
                " solver='auto'"
            )

    def _polish(self, problem: dict[str, Any], solver: str) -> dict[str, Any]:
        """Return the settings of [polish]; {} if there is no refinement.

        A refinement needs a smooth F, all rows, steps other than coordinate descent,
        and ranks that hold all weights. Raise ConfigError if polish=True requests one
        that cannot run.
        """
        tol = self.tolerance()
        if self.polish not in ("auto", True, False):
            raise ConfigError(f"polish = {self.polish!r} must be 'auto', True or False")
        obstacles = {
            "F with l1 or bounds is not smooth": not _is_smooth(problem),
            "hold_out ends a fit before the optimum": bool(self.hold_out),
            "coordinate descent reaches the optimum itself": solver == COORDINATE,
            f"{sharded_weights_option(self.config)} {WHOLE}": bool(
                sharded_weights_option(self.config)
            ),
        }
        reason = next((text for text, holds in obstacles.items() if holds), "")
        if self.polish is True and reason:
            raise ConfigError(
                f"polish=True, which refines to the optimum of a smooth F, cannot be"
                f" used: {reason}; use polish='auto'"
            )
        is_news = reason.endswith(WHOLE) and not has_section(self.config, "polish")
        if self.polish == "auto" and is_news:
            log.warning(
                "polish is off: %s; give polish=False to silence this warning",
                reason,
                extra={"on_all_ranks": True},
            )
        if self.polish is False or reason:
            return {}
        goal = {"tol": min(tol, TOL) if self.polish is True else tol}
        if self.tol is None and self.polish is not True:
            goal = {"tol": GRADIENT_TOL, "gap_tol": TOL}
        kind = "auto"
        most = None
        if self.solver in REFINEMENTS:
            kind = self.solver
            most = self.max_passes if self.epochs is None else self.epochs
        elif self.epochs is None and self._names_no_step():
            most = self.max_passes
        passes = PASSES if most is None else plain(most)
        return {"kind": kind, "passes": passes, "gap": True, **goal}

    def _rate(self, way: str, hold_out: float) -> dict[str, Any]:
        """Return the settings of [rate].

        The rate is constant before L-BFGS, which removes the noise of SGD. The rate of
        SGD alone goes to zero at the end, unless held-out rows choose the end.
        """
        kind = "cosine" if way == "sgd" and not hold_out else "constant"
        value = "auto" if self.rate == RACE else plain(self.rate)
        return {"value": value, "norm": "batches", "kind": kind}

    def _average(self, solver: str) -> Any:
        """Return the setting `average.kind`, the mean of iterates that is the model.

        "auto" is none in three cases: with held-out rows, the model is the best
        iterate, which a mean would hide; SVRG and coordinates have no noise that a mean
        would remove; and no mean is kept where no rank holds all weights.
        """
        is_noiseless = solver in ("svrg", COORDINATE)
        is_sharded = bool(sharded_weights_option(self.config))
        if self.average == "auto" and (self.hold_out or is_noiseless or is_sharded):
            return "none"
        return AVERAGES.get(self.average, self.average)

    def _stop(
        self, problem: dict[str, Any], way: str, hold_out: float
    ) -> dict[str, Any]:
        """Return the settings of [stop], by which steps of SGD or SVRG end early.

        They are {} before a refinement and for coordinate descent, unless rows are held
        out.
        """
        goal = {"tol": self.tolerance(STEPS_TOL), "patience": plain(self.patience)}
        if hold_out:
            return {"on": "validation", **goal}
        if way not in ("sgd", "svrg"):
            return {}
        is_penalised = problem["l2"] > 0.0 or problem["l1"] > 0.0
        has_gap = is_penalised and not sharded_weights_option(self.config)
        return {"on": "gap" if has_gap else "loss", **goal}

    def _run(self, solver: str) -> dict[str, Any]:
        """Return the settings of [run]: the device and, with `verbose`, the gap.

        Evaluations then compute the gap, too, unless the solver is coordinate descent
        or no rank holds all weights.
        """
        is_sharded = bool(sharded_weights_option(self.config))
        if self.verbose and solver != COORDINATE and not is_sharded:
            return {"device": self.device, "evaluate": "gap"}
        return {"device": self.device}

    def _update(self, solver: str) -> dict[str, Any]:
        kind = self.update if solver == "sgd" else solver
        return {"kind": kind, "momentum": plain(self.momentum)}

    def _grid(self) -> dict[str, Any]:
        if self.grid is None:
            return {}
        grid = parse_grid(self.grid) if isinstance(self.grid, str) else self.grid
        try:
            replicas, members = grid
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"grid = {grid!r} must be a pair of replicas and members, as (2, 4) or"
                ' "2x4"'
            ) from error
        return {"replicas": replicas, "members": members}


def _is_smooth(problem: dict[str, Any]) -> bool:
    return not problem["l1"] and not problem.keys() & {"lower", "upper"}


def _bound(value: Any) -> Any:
    if value is None or np.ndim(value) == 0:
        return None if value is None else to_number("bounds", value)
    return [to_number("bounds", bound) for bound in value]


def to_number(name: str, value: Any) -> float:
    """Return `value` as a float; raise ConfigError with `name` if it is no number."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} = {value!r} must be a number")
    return float(value)


def plain(value: Any) -> Any:
    """Return a NumPy number as a Python number, and any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value


# Which defaults a run of `train` has.
#
# A rate, a product, a schedule and their like are parts of SGD: a file or a command
# that names one asks for SGD, and what it does not name is as SGD has it. One that
# names none asks for a model, and gets the defaults of `fit`.

PARTS_OF_SGD = (
    *("rate", "update", "coordinate", "products", "schedule", "agreement", "codec"),
    *("privacy", "mirror", "accordion", "average", "stop", "sweep"),
    *("sampling.mode", "run.emulate_members"),
)


def requested_defaults(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the defaults that `tables` ask for: "fit", "sgd", or "" for either.

    What counts is that a setting is named, whatever its value.
    """
    run = tables.get("run")
    if isinstance(run, Mapping) and "defaults" in run:
        return str(run["defaults"])
    return SGD if setting_of_sgd(tables) else ""


def setting_of_sgd(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the first setting of `tables` that asks for SGD; "" where none does."""
    for part in PARTS_OF_SGD:
        section, _, key = part.partition(".")
        table = tables.get(section)
        if isinstance(table, Mapping) and (key in table if key else table):
            return f"{section}.{key or next(iter(table))}"
    precision = tables.get("precision")
    is_auto = isinstance(precision, Mapping) and precision.get("recipe") == AUTO
    # The pilots that choose the recipe take steps of SGD at a rate that is known.
    return "precision.recipe" if is_auto else ""


def defaults_reason(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return why a run has the defaults that it has; "" where `tables` name them.

    If they name "sgd" and a setting of SGD, too, that setting is the reason.
    """
    requested = requested_defaults(tables)
    named = setting_of_sgd(tables)
    if requested == SGD and named:
        return f"{named} is a setting of SGD"
    return "" if requested else "no setting of SGD is named"


def named_in_file(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the settings that a TOML file names, as `hpcsgd train` takes them."""
    tables = read_toml(Path(path))
    named: dict[str, Any] = dict(chosen_settings(tables))
    # The file may list settings that it leaves to a method.
    requested = requested_defaults(named) or requested_defaults(tables)
    if requested:
        named["run"] = {**named.get("run", {}), "defaults": requested}
    return named


def resolve_defaults(
    request: RunConfig | Mapping[str, Mapping[str, Any]],
    facts: FitFacts = FitFacts(),
    saved: Mapping[str, Mapping[str, Any]] | None = None,
) -> RunConfig:
    """Return all settings of a run of `train`; what is not named gets its default.

    Parameters
    ----------
    request : sections with the settings that are named, or a whole configuration, in
        which all of them are
    facts : facts on ranks and rows, on which the settings of `fit` depend
    saved : the settings of the run that is resumed, if any: it keeps its defaults,
        "fit" or "sgd", unless `request` asks for others
    """
    if isinstance(request, RunConfig):
        check_configuration(request)
        return request
    named = RunConfig.parse(request)
    then = None if saved is None else saved.get("run", {}).get("defaults", SGD)
    if (requested_defaults(request) or then or FIT) == SGD:
        check_configuration(named)
        return named
    return _as_fit(request, named, facts)


def kept_values(
    config: RunConfig, saved: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return section.key -> value of the settings that a resumed fit keeps.

    They are the rate and the number of epochs in `saved`, the settings of the run that
    is resumed, where `config` leaves them open. If that run did not have the defaults
    of `fit`, there are none.
    """
    if saved.get("run", {}).get("defaults", SGD) != FIT:
        return {}
    values = {}
    if config.rate.is_open:
        values["rate.value"] = saved["rate"]["value"]
    if config.schedule.has_open_epochs and "schedule" in saved:
        values["schedule.epochs"] = saved["schedule"]["epochs"]
    return values


def _as_fit(
    request: Mapping[str, Mapping[str, Any]], named: RunConfig, facts: FitFacts
) -> RunConfig:
    """Return the settings of `fit`, overridden by those of `request`.

    `named` is `request` with SGD's defaults.
    """
    problem = named.problem
    run = named.run
    grid = named.grid
    finisher = request.get("polish", {}).get("kind", "")
    is_finished = finisher not in ("", "none")
    if is_finished and (named.sampling.hold_out or not problem.is_smooth):
        raise ConfigError(
            "--polish cannot be used, because it needs a smooth F on all rows, and"
            f" {'rows are held out' if problem.is_smooth else 'F has l1 or bounds'};"
            " leave --polish out"
        )
    has_penalty = problem.l1 > 0.0 or "l2" in request.get("problem", {})
    alpha = problem.l1 + problem.l2 if has_penalty else ALPHA
    # What ends coordinate forms on the way would be lost: they write no checkpoints.
    is_kept = run.resume != "no" or run.on_failure != "stop" or named.checkpoint.every
    arguments = FitArguments(
        family=problem.family,
        alpha=alpha,
        l1_ratio=problem.l1 / alpha if alpha else 0.0,
        fit_intercept=request.get("problem", {}).get("intercept", True),
        bounds=None if problem.is_smooth else (problem.lower, problem.upper),
        tol=TOL if is_finished else None,
        momentum=named.update.momentum,
        polish=False if finisher == "none" else "auto",
        hold_out=named.sampling.hold_out,
        patience=named.stop.patience,
        seed=named.sampling.seed,
        precision=request.get("precision", {}).get("recipe"),
        device=run.device,
        solver="auto" if problem.is_smooth or not is_kept else "svrg",
        grid=(grid.replicas, grid.members) if "grid" in request else None,
        config=request,
    )
    return arguments.run_config(facts, record=run.record)


def facts_of_rows(X: Any) -> FitFacts:
    """Return the facts of a fit of X on one rank; None stands for rows in a file.

    Rows without a dtype, as lists, count as float64, and have no shape.
    """
    wide = is_wide(X) if hasattr(X, "dtype") else X is not None
    return FitFacts(1, wide, shape=shape_of(X))


def shape_of(X: Any) -> tuple[int, int] | None:
    """Return rows and columns of a matrix in memory; None for anything else."""
    shape: tuple[int, ...] = getattr(X, "shape", ())
    return (int(shape[0]), int(shape[1])) if len(shape) == 2 else None

"""Train from Python: one call, on the ranks that the program was started with."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import ArrayLike

from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.comm import open_world
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import FIT, GridConfig, RunConfig, check_read
from hpcsgd.data.readers import RowReader, open_reader
from hpcsgd.errors import ConfigError, ConvergenceWarning
from hpcsgd.precision import AUTO
from hpcsgd.runs.checks import grid_reason, resolve_grid
from hpcsgd.runs.coordinate import CoordinateRun, open_form
from hpcsgd.runs.defaults import (
    SHARED_ROWS,
    FitFacts,
    defaults_reason,
    facts_of_rows,
    kept_values,
    named_in_file,
    overlay_tables,
    resolve_defaults,
)
from hpcsgd.runs.memory import process_bytes
from hpcsgd.runs.opened_run import emulate_network
from hpcsgd.runs.result import FitSource, Result, Status, launcher_ranks
from hpcsgd.runs.resume import fallback_values, find_recorded_run
from hpcsgd.runs.session import RunSettings, Session, Start
from hpcsgd.runs.settle import RESUMED
from hpcsgd.solvers.callbacks import Callback
from hpcsgd.solvers.coordinate import COORDINATE
from hpcsgd.tuning.pilots import recipe_reason, resolve_precision

if TYPE_CHECKING:  # a run that trains needs none of it
    from hpcsgd.runs.plan import PlanReport

log = logging.getLogger(__name__)
GRID = ("grid.replicas", "grid.members")
MOST_RATES = 4  # that are tried where the rate comes from the data

# What a caller may give as settings: all of them, those that are named, or a file.
NamedSettings: TypeAlias = RunConfig | Mapping[str, Mapping[str, Any]]
Config: TypeAlias = NamedSettings | str | PathLike[str]


@one_thread()
def train(
    config: Config | None = None,
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
    callbacks: list[Callback] | None = None,
) -> Result:
    """Train a generalized linear model. Collective.

    It minimises ::

        F(w, β) = (1/Σc) Σ c_i ℓ(a_i·w + β + offset_i, y_i) + l1 ‖w‖₁ + (l2/2) ‖w‖²

    by s-step SGD or by a coordinate method, as `config` says. All ranks must call it.

    Parameters
    ----------
    config : RunConfig, mapping or path-like, optional
        The settings: {"section": {"key": value}}, or a TOML file of them. Relative
        paths in a file are relative to the working directory, as for `hpcsgd train`.
    X : array, frame or sparse matrix of shape (n, d), optional
        The rows, the same on every rank. Without X the file `data.path` of `config` is
        read.
    y : array-like of shape (n,), optional
        The targets, where X is given.
    sample_weight : array-like of shape (n,), optional
        Weights c_i ≥ 0 of the rows.
    offset : array-like of shape (n,), optional
        Numbers that are added to the scores.
    world : Communicator, optional
        The ranks. Without it they are those of the launcher (mpiexec, srun), or this
        process alone.
    callbacks : list of Callback, optional
        Called during the run, on this rank.

    Returns
    -------
    Result
        The model and the account of the run.

    Raises
    ------
    ConfigError
        If a setting cannot work.
    DataError
        If the rows or targets cannot be used.

    Warns
    -----
    ConvergenceWarning
        If the run diverged, if it ended above its first loss, or if a run with the
        defaults of `fit` did not reach the optimum.

    See Also
    --------
    fit : The same with arguments instead of settings.

    Notes
    -----
    The defaults depend on what is named, whatever its value. If no setting of SGD is
    named, the defaults are those of `fit`: an intercept, the penalty 1e-4, a rate from
    the data, and a final solver that reaches the optimum. Otherwise they are those of
    plain SGD. Settings of SGD are all keys of rate, update, coordinate, products,
    schedule, agreement, codec, mirror, accordion, average, stop and sweep, and
    `sampling.mode`, `run.emulate_members` and the recipe "auto". `run.defaults` ("fit"
    or "sgd") decides explicitly. A RunConfig sets everything.

    References
    ----------
    .. [1] A. Devarakonda and J. Demmel, "Avoiding communication in logistic
       regression", HiPC 2020.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> result = hpcsgd.train({"rate": {"value": 0.5}}, X=X, y=X[:, 0] > 0)
    >>> result.weights.shape
    (3,)
    """
    request = open_request(config, X, y, sample_weight, offset, world)
    session = request.open_session(callbacks)
    result = request.with_source(session.run(), session.world)
    bad = result.status in (Status.DIVERGED, Status.WORSE)
    if result.advice and (bad or result.report.get("converged") is False):
        warnings.warn(result.advice, ConvergenceWarning, stacklevel=3)
    return result


@one_thread()
def run_training(
    config: Config | None = None,
    X: Any = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
    callbacks: list[Callback] | None = None,
) -> Result:
    """Train as `train` does, but without a warning. Collective.

    The caller reads `Result.advice` instead.
    """
    request = open_request(config, X, y, sample_weight, offset, world)
    session = request.open_session(callbacks)
    return request.with_source(session.run(), session.world)


@one_thread()
def plan_training(
    config: Config | None = None,
    X: Any = None,
    y: ArrayLike | None = None,
    world: Communicator | None = None,
) -> PlanReport:
    """Return the plan of a run of `train`, without training. Collective.

    Rows are read, and everything that the run would choose is chosen. No run folder is
    written. The arguments are those of `train`.
    """
    from hpcsgd.runs.plan import plan_run

    process = process_bytes()
    request = open_request(config, X, y, None, None, world)
    session = open_session(request.world, request.settings, request.reader)
    named: Mapping[str, Mapping[str, Any]]
    if isinstance(request.named, RunConfig):
        before = request.named
        named = request.named.tables()
        why = ""
    else:
        named = request.named
        why = defaults_reason(request.named)
        before = resolve_defaults(named, request.facts)
    reasons = {**session.settings.reasons, "run.defaults": why}
    if before.grid != GridConfig() and "grid" not in named:
        reasons |= dict.fromkeys(GRID, SHARED_ROWS)
    if isinstance(session, CoordinateRun):
        plan = _plan_of_form(session, named, before, reasons)
    else:
        with session.assembled() as live:
            plan = plan_run(live, request.reader, named, before, reasons, process)
    if world is None:
        request.world.close()
    return plan


@dataclass(frozen=True)
class TrainingRequest:
    """A call of `train`: the settings, the ranks, and how the rows are opened.

    `named` are the settings that the caller gave, `settings` those with all defaults,
    which depend on `facts`.
    `owns_world`: the ranks are those of the launcher, and the call opened them.
    """

    named: NamedSettings
    facts: FitFacts
    settings: RunSettings
    world: Communicator
    reader: Callable[[Communicator], RowReader]
    setup: Clock
    owns_world: bool

    def open_session(self, callbacks: list[Callback] | None) -> Session:
        """Return the run, ready to train. Collective.

        With the defaults of `fit` and an automatic rate, the run starts again with a
        lower rate if it diverges; it tries up to `MOST_RATES` rates.
        """
        return open_session(
            self.world,
            self.settings,
            self.reader,
            callbacks,
            setup=self.setup,
            most_rates=MOST_RATES,
        )

    def with_source(self, result: Result, ranks: Communicator) -> Result:
        """Return `result` with the source of its rows; close ranks of the launcher.

        `ranks` are those that are left at the end of the run. They stay open if the
        caller gave them. Collective.
        """
        # Not after an error: others may still be in a sum, and closing waits for them.
        if self.owns_world:
            ranks.close()
        run = self.settings.config.run

        def ranks_again() -> AbstractContextManager[Communicator]:
            if self.owns_world:
                return launcher_ranks(run.comm, run.timeout)
            return nullcontext(ranks)

        return replace(result, source=FitSource(self.reader, ranks_again))


def open_request(
    config: Config | None,
    X: Any,
    y: ArrayLike | None,
    sample_weight: ArrayLike | None,
    offset: ArrayLike | None,
    world: Communicator | None,
) -> TrainingRequest:
    """Return the request that the arguments of `train` make. Collective."""
    setup = Clock()
    named = named_settings(config)
    facts = facts_of_rows(X)
    # What is wrong in the settings is refused before ranks meet.
    alone = resolve_defaults(named, facts)
    if alone.sweep.is_many:
        raise ConfigError(
            "[sweep] asks for several models, and this call trains one; use"
            " hpcsgd.sweep"
        )
    reader = open_data(alone, X, y, sample_weight, offset)
    is_owner = world is None
    if world is None:
        world = open_world(alone.run.comm, timeout=alone.run.timeout)
    if alone.run.defaults == FIT:
        facts = facts.on(world, alone.data.path if X is None else None)
    settings = _settings_on(world, named, facts, alone)
    return TrainingRequest(named, facts, settings, world, reader, setup, is_owner)


def _settings_on(
    world: Communicator, named: NamedSettings, facts: FitFacts, alone: RunConfig
) -> RunSettings:
    """Return the settings of a run on all ranks of `world`. Collective.

    With the defaults of `fit`, they depend on the number of ranks, and on the settings
    recorded in the checkpoint if the run resumes. `alone` are the settings as resolved
    for a single rank; they are returned if they have the defaults of SGD or if `named`
    is a RunConfig.
    """
    if alone.run.defaults != FIT or isinstance(named, RunConfig):
        return RunSettings(alone)
    recorded = find_recorded_run(alone.run, world)
    saved = None if recorded is None else recorded.requested
    config = resolve_defaults(named, facts, saved)
    return RunSettings(config, recorded)


def _plan_of_form(
    session: CoordinateRun,
    named: Mapping[str, Mapping[str, Any]],
    before: RunConfig,
    reasons: dict[str, str],
) -> PlanReport:
    """Return the plan of a coordinate descent, and close the form. Collective.

    `before` are the settings that were requested, `reasons` why some have their value.
    """
    from hpcsgd.runs.plan import PlanFacts, plan_form

    ready = open_form(session.config, session.world, session.reader, session.setup)
    opened = ready.opened
    facts = PlanFacts(
        config=ready.config,
        grid=opened.grid,
        loaded=opened.loaded,
        form=ready.form.name,
        product="cached" if ready.is_cached else "gram",
    )
    if ready.config.grid != before.grid:
        reasons |= dict.fromkeys(GRID, f"what the {ready.form.name} form needs")
    exchanges = ready.exchanges_planned * ready.config.schedule.epochs
    plan = plan_form(facts, exchanges, named, before, reasons)
    ready.close()
    return plan


def named_settings(config: Config | None) -> NamedSettings:
    """Return the settings of `config`: an object as it is, or those in a file.

    None gives no settings, an empty dict.
    """
    if isinstance(config, str | PathLike):
        return named_in_file(config)
    return {} if config is None else config


def parse_settings(config: Config | None) -> RunConfig:
    """Return all settings: those of `config`, and otherwise the defaults of SGD."""
    named = named_settings(config)
    return named if isinstance(named, RunConfig) else RunConfig.parse(named)


def open_session(
    world: Communicator,
    settings: RunSettings,
    reader: Callable[[Communicator], RowReader],
    callbacks: list[Callback] | None = None,
    start: Start | None = None,
    setup: Clock | None = None,
    most_rates: int = 1,
) -> Session:
    """Return a run on the ranks of `world`, ready to train. Collective.

    The grid, the recipe of number formats and the settings of a fall-back that a
    checkpoint records are decided here. `reader` opens the rows. A run with the
    defaults of `fit` that diverges starts again with a lower rate, up to `most_rates`
    rates, unless the caller has set the rate.
    """
    setup = setup or Clock()
    setup.start()
    is_fit = settings.config.run.defaults == FIT
    if start is None and is_fit:
        start = Start()
    ready = settle_opening(settings, world, reader)
    is_coordinate = ready.config.update.kind == COORDINATE
    kind = CoordinateRun if is_coordinate else Session
    rates = most_rates if is_fit else 1
    return kind(ready, world, reader, callbacks or [], start, setup, rates)


def settle_opening(
    settings: RunSettings,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
) -> RunSettings:
    """Return `settings` with all values that loading the rows depends on. Collective.

    These are the grid, the number formats, and the settings of a fall-back that a
    checkpoint records; also a rate and epochs that a resumed fit keeps. With coordinate
    descent it is the grid alone.
    """
    config = resolve_grid(settings.config, world.size)
    if config.update.kind == COORDINATE:
        return replace(settings, config=config)
    reasons = dict(settings.reasons)
    if config.grid != settings.config.grid:
        reasons |= dict.fromkeys(GRID, grid_reason(settings.config))
    recorded = settings.recorded or find_recorded_run(config.run, world)
    values: dict[str, Any] = {}
    if settings.recorded is not None:
        values |= kept_values(config, settings.recorded.requested)
    if "rate.value" in values:
        reasons["rate.value"] = RESUMED
    precision = config.precision
    notes: Mapping[str, Any] = {}
    if precision.recipe == AUTO:
        precision, notes = resolve_precision(config, world, reader, recorded)
        values |= {f"precision.{name}": text for name, text in vars(precision).items()}
        reasons["precision.recipe"] = recipe_reason(config, notes)
    if recorded is not None:
        now = overlay_tables(config.tables(), {"precision": vars(precision)})
        values |= fallback_values(now, recorded)
    if values:
        config = config.with_values(values)
    return RunSettings(config, recorded, notes, reasons)


def open_data(
    config: RunConfig, X: Any, y: Any, sample_weight: Any, offset: Any
) -> Callable[[Communicator], RowReader]:
    """Return a function that opens the rows on the ranks of a communicator.

    They are the arrays X and y if these are given, else the file `data.path` of
    `config`. Raise ConfigError if only one of X and y is given, or neither they nor a
    file.
    """
    if X is not None and y is not None:
        from hpcsgd.data.readers import MemoryReader

        return lambda _: MemoryReader(X, y, sample_weight, offset)
    if X is not None or y is not None:
        raise ConfigError(
            "X and y cannot be given alone; give both, or neither and [data] path"
        )
    if not config.data.path:
        raise ConfigError("no data: add --data FILE.h5, or [data] path, or X and y")
    path = Path(config.data.path)
    if config.data.hdf5 == "mpio":
        return lambda world: open_reader(path, world.mpi_handle)
    return lambda _: open_reader(path)


# Two fits at once, each computing while the gradients of the other travel.


@one_thread()
def tick_tock(
    first: Config,
    second: Config,
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
) -> tuple[Result, Result]:
    """Train two models on the same ranks, half a step out of phase. Collective.

    While the gradients of one run travel, the other run computes. The result of each
    run has the same bits as if it ran alone. Only the time of messages that travel
    while a run computes is hidden: gradients (`ddp`, `bytescheduler`, codecs), not
    averages of weights. All ranks must call it.

    Parameters
    ----------
    first, second : RunConfig, mapping or path-like
        The settings of each run. `run.comm` and `run.network` must be the same in
        both.
    X : array, frame or sparse matrix of shape (n, d), optional
        The rows, the same on every rank. Without X each run reads the file `data.path`
        of its settings.
    y : array-like of shape (n,), optional
        The targets, where X is given.
    sample_weight : array-like of shape (n,), optional
        Weights c_i ≥ 0 of the rows.
    offset : array-like of shape (n,), optional
        Numbers that are added to the scores.
    world : Communicator, optional
        The ranks. Without it they are those of the launcher (mpiexec, srun), or this
        process alone.

    Returns
    -------
    tuple of (Result, Result)
        The results in the order of the settings.

    Raises
    ------
    ConfigError
        If a setting cannot work, or if MPI allows calls from one thread only.

    Notes
    -----
    The two runs take at least half the time that they take one after the other. That
    limit is reached where computing takes as long as the transfers.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> weak, strong = hpcsgd.tick_tock(
    ...     {"problem": {"l2": 0.01}}, {"problem": {"l2": 1.0}}, X=X, y=X[:, 0] > 0
    ... )
    >>> bool(abs(weak.weights[0]) > abs(strong.weights[0]))
    True
    """
    configs = [parse_settings(one) for one in (first, second)]
    _check(*configs)
    run = configs[0].run
    comm = open_world(run.comm, timeout=run.timeout) if world is None else world
    if not comm.serves_threads:
        raise ConfigError(
            "tick_tock calls MPI from two threads in turns, and this MPI was started"
            " for calls from one thread; set mpi4py.rc.thread_level = 'serialized' or"
            " 'multiple' before MPI starts"
        )
    from hpcsgd.agreements.more.tick_tock import (
        Turns,
        duplicate_communicator,
        run_alternately,
    )

    # One network for both: what travels at the same time shares its bandwidth.
    network = emulate_network(configs[0], comm)
    twins = [duplicate_communicator(network), duplicate_communicator(network)]
    reader = open_data(configs[0], X, y, sample_weight, offset)
    readers = [reader, open_data(configs[1], X, y, sample_weight, offset)]

    def work(own: int) -> Callable[[Turns], Result]:
        settings = RunSettings(configs[own])

        def fit(turns: Turns) -> Result:
            twins[own].ledger.gives_way = lambda: turns.yield_turn(own)
            return open_session(twins[own], settings, readers[own]).run()

        return fit

    one, other = run_alternately([work(0), work(1)])
    for group in twins:
        group.close()
    if world is None:
        comm.close()
    return one, other


def _check(first: RunConfig, second: RunConfig) -> None:
    if first.run.network != second.run.network or first.run.comm != second.run.comm:
        raise ConfigError(
            "tick_tock runs both fits on the same ranks, and their [run] comm or"
            " network differs; give both fits the same values"
        )
    if first.run.out and first.run.out == second.run.out:
        raise ConfigError(
            f"both fits of tick_tock would write to {first.run.out}; give each its own"
            " [run] out"
        )
    for config in (first, second):
        if config.run.emulate_members or config.run.on_failure == "shrink":
            raise ConfigError(
                "tick_tock cannot be used with --emulate-members or --on-failure"
                " shrink; leave them out, or train the fits one after the other"
            )
        check_read(config)
        if config.run.device == "cuda":
            raise ConfigError(
                "tick_tock cannot be used on a GPU, because both fits would queue on"
                " one stream; use --device cpu, or train the fits one after the other"
            )
        if config.sweep.is_many:
            raise ConfigError(
                "[sweep] asks for several models, and each fit of tick_tock trains one;"
                " use hpcsgd.sweep"
            )

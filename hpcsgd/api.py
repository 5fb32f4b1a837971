"""Train from Python: one call, on the ranks that the program was started with."""

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.agreements.more.tick_tock import (
    Turns,
    duplicate_communicator,
    run_alternately,
)
from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.comm import open_world
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import FIT, RunConfig, check_read
from hpcsgd.data.readers import RowReader, open_reader
from hpcsgd.errors import ConfigError, ConvergenceWarning
from hpcsgd.runs.advice import suppress_repeated_logs
from hpcsgd.runs.checks import emulate_network, resolve_grid
from hpcsgd.runs.coordinate import CoordinateRun
from hpcsgd.runs.defaults import has_wide_values, resolve_defaults
from hpcsgd.runs.result import Result, Status
from hpcsgd.runs.resume import recorded_settings
from hpcsgd.runs.session import NullModel, Session, Start
from hpcsgd.solvers.callbacks import Callback
from hpcsgd.solvers.coordinate import COORDINATE
from hpcsgd.tuning.auto_precision import resolve_precision

log = logging.getLogger(__name__)
SLOWER, TRIES = 0.125, 4  # of a rate from the data with which the loss blew up


@one_thread()
def train(
    config: RunConfig | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
    callbacks: list[Callback] | None = None,
) -> Result:
    """Train a generalized linear model.

    Minimises F(w) = (1/Σc) Σ c_i ℓ(a_i·w, y_i) + l1‖w‖₁ + (l2/2)‖w‖² by s-step SGD,
    or by one of the coordinate forms. A mapping that names nothing of SGD (no rate,
    product, schedule, update, agreement, average or goal) has the defaults of `fit`:
    an intercept, the penalty 1e-4, a rate from the data, and a finisher that goes on
    to the optimum. `{"run": {"defaults": "sgd"}}` asks for SGD with all its defaults,
    and a RunConfig, which names everything, runs as it is.

    Parameters
    ----------
    config : RunConfig or mapping of sections, what to do; defaults otherwise
    X : ndarray or scipy.sparse matrix, (n, d), the rows, the same on every rank;
        else `config.data.path`
    y : ndarray, (n,), targets
    sample_weight : ndarray, (n,), c_i >= 0
    offset : ndarray, (n,), added to every score
    world : Communicator, the ranks to train on; else those of the launcher
    callbacks : further callbacks, on this rank

    Returns
    -------
    Result

    Warns
    -----
    ConvergenceWarning
        Where the run diverged or ended above where it began, or where one with the
        defaults of `fit` is not at the optimum.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> result = train({"rate": {"value": 0.5}}, X=X, y=X[:, 0] > 0)
    >>> result.weights.shape
    (3,)
    """
    result = run_training(config, X, y, sample_weight, offset, world, callbacks)
    bad = result.status in (Status.DIVERGED, Status.WORSE)
    if result.advice and (bad or result.report.get("converged") is False):
        warnings.warn(result.advice, ConvergenceWarning, stacklevel=3)
    return result


@one_thread()
def run_training(
    config: RunConfig | Mapping[str, Mapping[str, Any]] | None = None,
    X: Any = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
    callbacks: list[Callback] | None = None,
) -> Result:
    """Do what `train` does, without a warning: the caller reads `advice`."""
    began = time.perf_counter()
    request = {} if config is None else config
    is_wide = has_wide_values(X)
    # What is wrong in the settings is refused before ranks meet.
    settings = resolve_defaults(request, is_wide)
    if settings.sweep.is_many:
        raise ConfigError("[sweep] asks for several models; use hpcsgd.sweep")
    reader = open_data(settings, X, y, sample_weight, offset)
    run = settings.run
    comm = open_world(run.comm, timeout=run.timeout) if world is None else world
    if run.defaults == FIT and not isinstance(request, RunConfig):
        saved = recorded_settings(run, comm)
        settings = resolve_defaults(request, is_wide, comm.size, saved)
    result, ranks = run_at_stable_rate(comm, settings, reader, callbacks, began=began)
    # Not after an error: others may still be in a sum, and closing waits for them.
    if world is None:
        ranks.close()
    return result


def run_at_stable_rate(
    world: Communicator,
    config: RunConfig,
    reader: Callable[[Communicator], RowReader],
    callbacks: list[Callback] | None = None,
    start: Start | None = None,
    began: float | None = None,
) -> tuple[Result, Communicator]:
    """Run, and with the defaults of `fit` again where its rate was too high.

    Collective. A rate that is named stays what it is, and so does any rate of a run
    with the defaults of SGD. Returns the result and the ranks that are left.
    """
    session = open_session(world, config, reader, callbacks, start, began)
    if config.run.defaults != FIT:
        return session.run(), session.world
    with suppress_repeated_logs():
        result, tries = session.run(), 1
        is_open = config.rate.is_open
        while is_open and result.status is Status.DIVERGED and tries < TRIES:
            rate = result.config["rate"]["value"] * SLOWER
            log.warning(
                "the loss blew up with a rate of %.3g; again with %.3g",
                *(result.config["rate"]["value"], rate),
                extra={"on_all_ranks": True},
            )
            config = replace(
                config,
                rate=replace(config.rate, value=rate),
                run=replace(config.run, resume="no"),
            )
            callbacks = list(session.callbacks)
            session = open_session(session.world, config, reader, callbacks, start)
            result, tries = session.run(), tries + 1
    result.report["rates_tried"] = tries
    return result, session.world


def open_session(
    world: Communicator,
    config: RunConfig,
    reader: Callable[[Communicator], RowReader],
    callbacks: list[Callback] | None = None,
    start: Start | None = None,
    began: float | None = None,
) -> Session:
    """A run on the ranks of `world` with what `reader` opens there, ready to go."""
    began, setup = began or time.perf_counter(), Clock()
    if start is None and config.run.defaults == FIT:
        start = NullModel(np.empty(0), None)
    config = resolve_grid(config, world.size)
    if config.update.kind == COORDINATE:
        run = CoordinateRun(config, world, reader, callbacks or [], began, setup)
        run.start = start
        return run
    config, notes = resolve_precision(config, world, reader)
    session = Session(config, world, reader, callbacks or [], began, setup, notes)
    session.start = start
    return session


def open_data(
    config: RunConfig, X: Any, y: Any, sample_weight: Any, offset: Any
) -> Callable[[Communicator], RowReader]:
    """What opens the rows: arrays that were given, or the file of `config`."""
    if X is not None and y is not None:
        from hpcsgd.data.readers import MemoryReader

        return lambda _: MemoryReader(X, y, sample_weight, offset)
    if X is not None or y is not None:
        raise ConfigError("give both X and y, or neither and a data path")
    if not config.data.path:
        raise ConfigError("no data: add --data FILE.h5, or [data] path, or X and y")
    path = Path(config.data.path)
    if config.data.hdf5 == "mpio":
        return lambda world: open_reader(path, world.mpi_handle)
    return lambda _: open_reader(path)


# Two fits at once, each computing while the gradients of the other travel.

Config = RunConfig | Mapping[str, Mapping[str, Any]]


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
    """Two fits that share the ranks and nothing else, half a step out of phase.

    While the gradients of one travel, the other computes: at most twice as fast as one
    after the other, where computing takes as long as the transfers. Each has the bits
    that it would have alone. What hides is what travels while a run goes on: gradients
    (`ddp`, `bytescheduler`, codecs), not averages of weights.

    Parameters
    ----------
    first, second : RunConfig or mapping of sections, for the same ranks and network
    X : ndarray or scipy.sparse matrix, (n, d), the rows, the same on every rank;
        else the `data.path` of each
    y : ndarray, (n,), targets
    sample_weight : ndarray, (n,), c_i >= 0
    offset : ndarray, (n,), added to every score
    world : Communicator, the ranks to train on; else those of the launcher

    Returns
    -------
    (Result, Result)

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> weak, strong = tick_tock(
    ...     {"problem": {"l2": 0.01}}, {"problem": {"l2": 1.0}}, X=X, y=X[:, 0] > 0
    ... )
    >>> bool(abs(weak.weights[0]) > abs(strong.weights[0]))
    True
    """
    configs = [_parsed(one) for one in (first, second)]
    _check(*configs)
    run = configs[0].run
    comm = open_world(run.comm, timeout=run.timeout) if world is None else world
    if not comm.serves_threads:
        raise ConfigError(
            "tick_tock calls MPI from two threads in turns and this MPI allows one; set"
            " mpi4py.rc.thread_level = 'serialized' or 'multiple' before MPI starts"
        )
    # One network for both: what travels at the same time shares its bandwidth.
    there = emulate_network(configs[0], comm)
    twins = [duplicate_communicator(there), duplicate_communicator(there)]
    reader = open_data(configs[0], X, y, sample_weight, offset)
    readers = [reader, open_data(configs[1], X, y, sample_weight, offset)]

    def work(own: int) -> Callable[[Turns], Result]:
        run = replace(configs[own].run, network="")
        config = replace(configs[own], run=run)

        def fit(turns: Turns) -> Result:
            twins[own].ledger.gives_way = lambda: turns.yield_turn(own)
            return open_session(twins[own], config, readers[own]).run()

        return fit

    one, other = run_alternately([work(0), work(1)])
    for group in twins:
        group.close()
    if world is None:
        comm.close()
    return one, other


def _parsed(config: Config) -> RunConfig:
    return config if isinstance(config, RunConfig) else RunConfig.parse(config)


def _check(first: RunConfig, second: RunConfig) -> None:
    if first.run.network != second.run.network or first.run.comm != second.run.comm:
        raise ConfigError(
            "tick_tock has one world for both fits, and [run] comm and network differ;"
            " give both the same"
        )
    if first.run.out and first.run.out == second.run.out:
        raise ConfigError(
            f"both fits of tick_tock would write to {first.run.out}; give each its own"
            " [run] out"
        )
    for config in (first, second):
        if config.run.emulate_members or config.run.on_failure == "shrink":
            raise ConfigError(
                "tick_tock knows neither --emulate-members nor --on-failure shrink;"
                " train the fits one after the other"
            )
        check_read(config)
        if config.run.device == "cuda":
            raise ConfigError(
                "tick_tock takes turns on processors, and both fits would queue on one"
                " stream of a GPU; use --device cpu, or train one after the other"
            )
        if config.sweep.is_many:
            raise ConfigError("[sweep] asks for several models; use hpcsgd.sweep")

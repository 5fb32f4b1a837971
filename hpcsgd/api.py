"""Train from Python: one call, on the ranks that the program was started with."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.assembly.live import Live
from hpcsgd.build import build
from hpcsgd.callbacks import Callback, History
from hpcsgd.comm import open_world
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader, open_reader
from hpcsgd.errors import ConfigError
from hpcsgd.report import report
from hpcsgd.result import Result
from hpcsgd.run_folder import RunFolder
from hpcsgd.timing import Clock

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would say it alike


def train(
    config: RunConfig | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
    callbacks: list[Callback] | None = None,
) -> Result:
    """Train a generalized linear model.

    Minimises F(w) = (1/Σc) Σ c_i ℓ(a_i·w, y_i) + (λ/2)‖w‖² by s-step SGD.

    Parameters
    ----------
    config : RunConfig or mapping of sections, what to do; defaults otherwise
    X : ndarray, (n, d), the rows, the same on every rank; else `config.data.path`
    y : ndarray, (n,), targets
    sample_weight : ndarray, (n,), c_i >= 0
    offset : ndarray, (n,), added to every score
    world : Communicator, the ranks to train on; else those of the launcher
    callbacks : further callbacks, on this rank

    Returns
    -------
    Result

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> result = train({"rate": {"value": 0.5}}, X=X, y=X[:, 0] > 0)
    >>> result.weights.shape
    (3,)
    """
    began, setup = time.perf_counter(), Clock()
    if not isinstance(config, RunConfig):
        config = RunConfig.parse(config or {})
    reader = _reader(config, X, y, sample_weight, offset)
    opened = world is None
    comm = world if world is not None else open_world(config.run.comm)
    comm.reproducible = comm.reproducible or config.run.reproducible
    result = _leaving_together(
        comm, lambda: _train(config, comm, reader, callbacks or [], began, setup)
    )
    # Not after an error: others may still be in a sum, and closing waits for them.
    if opened:
        comm.close()
    return result


def _leaving_together(world: Communicator, action: Callable[[], Result]) -> Result:
    """Run `action`; a rank that calls sys.exit in it takes all others along."""
    try:
        return action()
    except SystemExit as leaving:
        # No hook sees this one; the others would wait for this rank for ever.
        if world.size > 1:
            print(f"hpcsgd: rank {world.rank} leaves the run", file=sys.stderr)
            world.abort(leaving.code if isinstance(leaving.code, int) else 1)
        raise


def _train(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[], RowReader],
    callbacks: list[Callback],
    began: float,
    setup: Clock,
) -> Result:
    folder = RunFolder(config.run.out if world.rank == 0 else None)
    history = History()
    live = build(config, world, reader, [history, *callbacks], setup)
    world.together(lambda: folder.begin(config))
    history.path = folder.history
    log.info(*_chosen(live), extra=ONCE)
    live.warm_up()
    world.max_flag(0)
    setup.lap("warm_up")
    log.debug("set-up: %s", setup)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        state, status = live.engine.run(live.state, live.feed.groups())
    log.debug("training: %s", live.task.clock)
    result = report(live, state, status, history.records, began, setup.seconds)
    world.together(lambda: folder.finish(result))
    return result


def _chosen(live: Live) -> tuple[Any, ...]:
    """What runs, for the log: a format and its values."""
    config, grid, shard = live.config, live.grid, live.loaded.shard
    return (
        "%d x %d on %d rank%s as %d x %d, %s: %s by %s%s, batch %d, steps %d, %s",
        *(shard.total_rows, shard.total_columns, grid.world.size),
        "" if grid.world.size == 1 else "s",
        *(grid.replicas.size, grid.members.size, grid.world.transport),
        *(config.problem.family, live.product_name),
        " with look-ahead" if live.look_ahead else "",
        *(config.schedule.batch, config.schedule.steps, config.precision.recipe),
    )


def _reader(
    config: RunConfig, X: Any, y: Any, sample_weight: Any, offset: Any
) -> Callable[[], RowReader]:
    if X is not None and y is not None:
        from hpcsgd.data.memory import MemoryReader

        return lambda: MemoryReader(X, y, sample_weight, offset)
    if X is not None or y is not None:
        raise ConfigError("give both X and y, or neither and a data path")
    if not config.data.path:
        raise ConfigError("no data: add --data FILE.h5, or [data] path, or X and y")
    path = Path(config.data.path)
    return lambda: open_reader(path)

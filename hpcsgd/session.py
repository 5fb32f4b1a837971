"""One run on the ranks of a world, from a configuration to a result."""

import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcsgd.assembly.live import Live
from hpcsgd.build import build
from hpcsgd.callbacks import Callback, History
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.damage import find_damage
from hpcsgd.data.readers import RowReader
from hpcsgd.report import report
from hpcsgd.result import Result, Status
from hpcsgd.resume import resume
from hpcsgd.run_folder import RunFolder
from hpcsgd.timing import Clock

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would say it alike


def run(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[], RowReader],
    callbacks: list[Callback],
    began: float,
    setup: Clock,
) -> Result:
    """Train; a rank that leaves takes all others along."""
    try:
        return _watched(config, world, reader, callbacks, began, setup)
    except SystemExit as leaving:
        # No hook sees this one; the others would wait for this rank for ever.
        if world.size > 1:
            print(f"hpcsgd: rank {world.rank} leaves the run", file=sys.stderr)
            world.abort(leaving.code if isinstance(leaving.code, int) else 1)
        raise


def _watched(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[], RowReader],
    callbacks: list[Callback],
    began: float,
    setup: Clock,
) -> Result:
    world.watch(config.run.timeout)
    folder = RunFolder(config.run.out if world.rank == 0 else None)
    live = build(config, world, reader, [History(folder.history), *callbacks], setup)
    world.together(folder.claim)
    try:
        result = _in_folder(live, folder, began, setup)
    finally:
        folder.release()
    world.unwatch()
    return result


def _in_folder(live: Live, folder: RunFolder, began: float, setup: Clock) -> Result:
    """Go on or begin, train, and leave everything where it belongs."""
    config, world = live.config, live.grid.world
    with world.working("preparing the run folder"):
        goes_on = resume(config, live)
        world.together(lambda: folder.begin(config, goes_on))
    log.info(*_chosen(live), extra=ONCE)
    live.warm_up()
    world.max_flag(0)
    setup.lap("warm_up")
    log.debug("set-up: %s", setup)
    groups = live.feed.groups(live.engine.view.exchanges)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        state, status = live.engine.run(live.state, groups)
    log.debug("training: %s", live.task.clock)
    damage = find_damage(live) if status is Status.DIVERGED else ""
    result = report(live, state, status, began, setup.seconds, damage)
    with world.working("writing the result"):
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

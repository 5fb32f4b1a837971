"""A run whose weights are on disk: where they lie, and who works with them."""

from pathlib import Path

import numpy as np

from hpcsgd.agreement.infinity_files import FOLDER, Place, tile_height
from hpcsgd.agreement.kinds import is_on_disk
from hpcsgd.config import RunConfig
from hpcsgd.data.unheld import Unheld
from hpcsgd.loading import Loaded
from hpcsgd.products.base import Task
from hpcsgd.updates import Rule


def place_of(config: RunConfig, loaded: Loaded, task: Task, rule: Rule) -> Place | None:
    """The folder, and the tile that the budget allows; None where nothing is there."""
    asked, shard = config.agreement, loaded.shard
    if not is_on_disk(asked.kind):
        return None
    rows = 0 if shard.is_sparse else config.schedule.batch * asked.accumulate
    if isinstance(shard.matrix, Unheld):
        rows *= 2  # as they are stored, and widened
    height = tile_height(
        budget=asked.tile,
        widest=max(part.stop - part.start for part in shard.parts),
        columns=task.columns,
        words=(task.states + len(rule.kept)) * task.columns,
        rows=rows,
        itemsize=np.dtype(task.precision.working).itemsize,
        replicas=max(config.grid.replicas, 1),
    )
    return Place(
        folder=Path(asked.store)
        if asked.store
        else Path(config.run.out or "") / FOLDER,
        columns=shard.total_columns,
        parts=shard.parts,
        height=height,
        direct=asked.direct,
        sync=asked.sync,
        is_of_a_run=not asked.store,
    )

"""After a divergence: is it the rate, or did the memory of some rank go bad?"""

import logging
from typing import Any

import numpy as np

from hpcsgd.assembly.engine_parts import Live
from hpcsgd.backends.rounded_sparse import Compact
from hpcsgd.data.unheld import Unheld

log = logging.getLogger(__name__)
ROWS_AT_ONCE = 1024


def find_damage(live: Live) -> str:
    """The first non-finite value of any rank's block, as a sentence; "" if none.

    The data was finite when it was read, so such a value came later: from faulty
    memory, or from code that wrote where it should not. Called on all ranks.
    """
    said = live.grid.world.exchange_objects(_first_bad(live))
    places = [(rank, place) for rank, place in enumerate(said) if place]
    if not places:
        return ""
    rank, (row, column) = places[0]
    sentence = (
        f"the memory of rank {rank} holds a value that is no number at row {row},"
        f" column {column}, where the data had one when it was read; check that"
        " machine's memory, then go on with --resume auto"
    )
    if live.grid.world.rank == 0:
        log.error("%s", sentence)
    return sentence


def _first_bad(live: Live) -> tuple[int, int] | None:
    """Row and column of the whole data, or None."""
    task, shard = live.task, live.task.shard
    if shard.is_sparse:
        return _first_bad_stored(live)
    if isinstance(shard.matrix, Unheld):
        return None  # what is in memory now is not what it was then
    for start in range(0, shard.height, ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, shard.height))
        out = np.empty((len(rows), shard.width), dtype=task.precision.working)
        stored = task.backend.pick(shard.matrix, rows)
        bad = ~np.isfinite(task.backend.widen(stored, out))
        if bad.any():
            row, column = np.argwhere(bad)[0]
            return (
                shard.rows.start + start + int(row),
                shard.columns.start + int(column),
            )
    return None


def _first_bad_stored(live: Live) -> tuple[int, int] | None:
    """The same among the stored values of a sparse block."""
    task, shard = live.task, live.task.shard
    for start in range(0, shard.height, ROWS_AT_ONCE):
        numbers = np.arange(start, min(start + ROWS_AT_ONCE, shard.height))
        found = _place_in(task.backend.gather(shard.matrix, numbers, None))
        if found is not None:
            row, column = found
            return shard.rows.start + start + row, shard.columns.start + column
    return None


def _place_in(part: Any) -> tuple[int, int] | None:
    """Where sampled sparse rows have what is no number: as stored, or as `Compact`."""
    if isinstance(part, Compact):
        places = np.argwhere(~np.isfinite(part.dense))
        if not len(places):
            return None
        row, column = places[0]
        return int(row), int(part.touched[column])
    bad = np.flatnonzero(~np.isfinite(part.csr.data))
    return part.csr.place(int(bad[0])) if len(bad) else None

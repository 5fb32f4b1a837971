"""The exponents that a matrix with few of them is stored with, alike on all ranks."""

import logging

import numpy as np

from hpcsgd.backends.base import Backend
from hpcsgd.backends.scaling import Scaling, make_scaling
from hpcsgd.comm.grid import Grid
from hpcsgd.data.peaks import column_peaks
from hpcsgd.data.readers import RowReader, is_sparse
from hpcsgd.formats import get_format

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would say it alike


def choose_exponents(
    grid: Grid,
    reader: RowReader,
    rows: slice,
    parts: tuple[slice, ...],
    backend: Backend,
    how: str,
) -> None:
    """Tell the backend the exponents of all columns, where the format has few."""
    form = get_format(backend.precision.matrix)
    if not form.wants_scale:
        return
    own, world = parts[grid.member], grid.world
    found = world.together(lambda: column_peaks(reader, rows, own))
    peaks = np.zeros(reader.cols)
    for columns, some in world.exchange_objects((own, found)):
        np.maximum(peaks[columns], some, out=peaks[columns])
    # The values of sparse rows do not say which columns they are of.
    how = "global" if is_sparse(reader) and how == "column" else how
    backend.scaling = make_scaling(form, peaks, own, how)


def say_lost(grid: Grid, scaling: Scaling | None, cells: int) -> None:
    """How many values a narrow matrix could not hold."""
    if scaling is None:
        return
    counts = grid.world.exchange_objects((scaling.saturated, scaling.flushed))
    saturated, flushed = (sum(column) for column in zip(*counts, strict=True))
    scaling.saturated, scaling.flushed = saturated, flushed
    scaling.counts = False  # rows that are streamed are stored again and again
    log.log(
        logging.WARNING if saturated else logging.INFO,
        "X in %s: %d of %d values saturated, %d became 0",
        *(scaling.form.name, saturated, cells, flushed),
        extra=ONCE,
    )

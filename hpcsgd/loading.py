"""From a reader to the shard of this rank, checked on all ranks together."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import cpu
from hpcsgd.backends.base import Backend
from hpcsgd.backends.looks import all_finite, weigh
from hpcsgd.comm.grid import Grid
from hpcsgd.csr import Csr
from hpcsgd.data.exact import exact, exact_columns
from hpcsgd.data.fingerprint import Fingerprint
from hpcsgd.data.folds import Split
from hpcsgd.data.preparation import Preparation
from hpcsgd.data.readers import (
    RowReader,
    is_sparse,
    load_block,
    names_of,
    pieces,
    preparation_of,
)
from hpcsgd.data.shard import Shard
from hpcsgd.data.sparse_block import load_csr
from hpcsgd.data.stream import Route, Streamed
from hpcsgd.data.targets import Targets, encode_targets
from hpcsgd.data.there import There
from hpcsgd.data.underflow import NARROW, SQUARES, SmallValues
from hpcsgd.data.unheld import Unheld
from hpcsgd.errors import DataError
from hpcsgd.exponents import choose_exponents, say_lost
from hpcsgd.families.base import Family
from hpcsgd.from_disk.rows import stream_tiles
from hpcsgd.parts import column_parts, own_rows
from hpcsgd.precision import Precision
from hpcsgd.row_weights import keep_apart, scale_to_mean_one, sum_over_replicas

Array = NDArray[Any]
log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would say it alike
SCANNED = 8 * 2**20  # bytes looked at together of a file that is streamed
# Where a dense matrix trains faster, measured by benchmarks/bench_sparse.py: from which
# density, and up to how many columns whatever the density.
DENSE_PAYS = {"kernels": (0.2, 0), "SciPy": (0.05, 500)}


# Targets and offsets whose squares are finite in float64, and exponents of e.
LARGEST, MOST_EXPONENT = 1e150, 700.0

WHOLE = Split()


@dataclass(frozen=True)
class Loaded:
    """The shard, what its targets mean, and how to read its exact values."""

    shard: Shard
    judged: Shard  # with the exact side columns, for losses
    targets: Targets
    columns: int  # K
    read_exact: Callable[[slice], Any]  # rows that multiply weights: dense, or sparse
    read_some: Callable[[slice, slice], Any]  # of these rows, some of the columns
    source: dict[str, Any]
    fingerprint: str  # of every value of the data, whatever the grid
    preparation: Preparation  # of the rows, before they came here
    names: list[str] | None  # of the columns, where they have any
    stored: int  # values of the whole data that are held; all of them if dense

    @property
    def density(self) -> float:
        """The part of the matrix that is held."""
        return self.stored / (self.shard.total_rows * self.shard.total_columns)


def load(
    grid: Grid,
    reader: RowReader,
    family: Family,
    backend: Backend,
    precision: Precision,
    route: Callable[[int], Route | None] | None = None,
    partition: str = "auto",
    scale: str = "column",
    split: Split = WHOLE,
    by_tiles: bool = False,
) -> Loaded:
    """Read this rank's rows and columns; every rank raises what any rank found.

    With a `route` (number of rows -> the way through them) the matrix is looked through
    once and then streamed; where that is None, somebody else will hold it, or with
    `by_tiles` nobody: rows are then read some columns at a time.
    """
    world = grid.world
    rows, preparation, names = world.together(
        lambda: (own_rows(grid, reader), preparation_of(reader), names_of(reader))
    )
    parts = column_parts(grid, reader, partition)
    columns = parts[grid.member]
    log.debug("reads rows %s and columns %s", *map(_ends, (rows, columns)))
    sides = _read_sides(grid, reader, rows, split, family, precision.working)
    known = getattr(reader, "labels", ())  # that the rows may lack
    encoded, targets = encode_targets(
        sides.y, family.targets, rows.start, world.exchange_objects, known
    )
    is_narrow = precision.matrix != "fp64" and backend.scaling is None
    seen = SmallValues(columns, NARROW if is_narrow else SQUARES, weigh)
    sides.show(seen, rows.start if grid.member == 0 else None)
    choose_exponents(grid, reader, rows, parts, backend, scale)
    look = stream_tiles if by_tiles else _stream
    matrix = _stored(grid, reader, rows, columns, backend, seen, route, look)
    seen.check(reader, rows, world.exchange_objects, world.max_flag, is_narrow)
    working, keep = precision.working, grid.members.keep
    shard = Shard(
        matrix=matrix,
        targets=keep(encoded.astype(working)),
        rows=rows,
        columns=columns,
        parts=parts,
        total_rows=reader.rows,
        **{name: _kept(side, working, keep) for name, side in sides.given.items()},
    )
    return Loaded(
        shard=shard,
        judged=shard.unrounded(keep, {"targets": encoded, **sides.given}),
        targets=targets,
        columns=len(targets.labels) if family.targets == "classes" else 1,
        read_exact=exact(reader, shard, precision),
        read_some=exact_columns(reader, shard, precision),
        source=reader.describe(),
        preparation=preparation,
        names=names,
        stored=_count_stored(grid, shard, precision),
        fingerprint=seen.total(reader.rows, reader.cols, world.exchange_objects),
    )


def _stored(
    grid: Grid,
    reader: RowReader,
    rows: slice,
    columns: slice,
    backend: Backend,
    seen: Fingerprint,
    route: Callable[[int], Route | None] | None,
    look: Callable[..., Unheld],
) -> Array | Csr | Unheld:
    """This rank's block as the backend wants it, on all ranks or on none."""
    # What a file holds is what is wanted only where nothing is scaled.
    element = "" if backend.scaling else backend.precision.matrix
    matrix = grid.world.together(
        lambda: _read_matrix(
            reader, rows, columns, backend.store, element, seen, route, look
        )
    )
    say_lost(grid, backend.scaling, reader.rows * reader.cols)
    return matrix


def _ends(part: slice) -> str:
    return f"{part.start} to {part.stop}"


@dataclass(frozen=True)
class _Sides:
    """What belongs to the rows besides the matrix, checked, in float64."""

    y: Array
    weights: Array | None  # as they are in the data
    scaled: Array | None  # to mean 1 over all rows
    held: Array | None  # of the rows that are not trained on
    offsets: Array | None

    @property
    def given(self) -> dict[str, Array | None]:
        """Those that a shard keeps beside its targets."""
        return {"weights": self.scaled, "held": self.held, "offsets": self.offsets}

    def show(self, seen: Fingerprint, first_row: int | None) -> None:
        """Count them once: every member of a replica has read the same."""
        if first_row is not None:
            for number, column in enumerate((self.y, self.weights, self.offsets)):
                seen.add_column(number, column, first_row)


def _read_sides(
    grid: Grid,
    reader: RowReader,
    rows: slice,
    split: Split,
    family: Family,
    working: Any,
) -> _Sides:
    world = grid.world
    most = min(LARGEST, float(np.finfo(working).max))

    def read_targets() -> Any:
        y = finite_column(reader.targets(rows), rows, "y")
        if family.targets in ("real", "counts", "positive"):
            _check_sizes(y, most, rows, "y", "divide the targets by a power of ten")
        return y

    def read_offsets() -> Any:
        offsets = finite_column(reader.offset(rows), rows, "offset")
        has_log_link = family.targets in ("counts", "positive")
        bound = MOST_EXPONENT if has_log_link else most
        remedy = "subtract a constant from all, which the intercept takes"
        _check_sizes(offsets, bound, rows, "offset", remedy)
        return offsets

    y = world.together(read_targets)
    weights = world.together(lambda: checked_weights(reader, rows))
    if split.is_whole:
        total = sum_over_replicas(grid, weights)
        scaled = world.together(lambda: scale_to_mean_one(weights, reader.rows, total))
        held = None
    else:
        known = getattr(reader, "fold_of", None)
        scaled, held = keep_apart(grid, weights, split, rows, reader.rows, known)
    offsets = world.together(read_offsets)
    return _Sides(y, weights, scaled, held, offsets)


def _kept(
    column: Array | None, dtype: Any, keep: Callable[[Array], Array]
) -> Array | None:
    """A side column as the recurrence wants it, one copy a node."""
    return (
        None if column is None else keep(column.astype(dtype).reshape(len(column), -1))
    )


def _read_matrix(
    reader: RowReader,
    rows: slice,
    columns: slice,
    store: Callable[[Array], Array],
    element: str,
    seen: Fingerprint,
    route: Callable[[int], Route | None] | None,
    look: Callable[..., Unheld],
) -> Array | Csr | Unheld:
    if route is not None:
        return look(reader, rows, columns, store, element, seen, route)
    if is_sparse(reader):
        return load_csr(reader, rows, columns, store, seen=seen.add_sparse)
    return load_block(reader, rows, columns, store, seen=seen.add, finite=all_finite)


def _stream(
    reader: RowReader,
    rows: slice,
    columns: slice,
    store: Callable[[Array], Array],
    element: str,
    seen: Fingerprint,
    route: Callable[[int], Route | None],
) -> Unheld:
    """Every value is looked at once, kept by nobody, and read again when it is due."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    for _ in pieces(reader, rows, columns, store, SCANNED, seen.add, all_finite):
        continue

    copy = getattr(reader, "filler_of_blocks", lambda _: None)(element)
    take = getattr(reader, "reader_of_blocks", lambda: reader.read)()

    def fill(part: slice, out: Array) -> None:
        of_file = slice(rows.start + part.start, rows.start + part.stop)
        if copy is not None:
            copy(of_file, columns, out)
        else:
            out[...] = store(take(of_file, columns))

    dtype = store(np.empty((0, width), dtype=np.float32)).dtype
    way = route(height)
    if way is not None:
        return Streamed(fill, (height, width), dtype, way)
    place = getattr(reader, "place_of_blocks", lambda _: None)(element)
    known = None if place is None else (place, rows.start, columns)
    unheld = Unheld(fill, (height, width), dtype, known)
    there = getattr(reader, "block_there", lambda *_: None)(rows, columns, element)
    return unheld if there is None else There(unheld, there)


def _count_stored(grid: Grid, shard: Shard, precision: Precision) -> int:
    """Stored values of all ranks, said where they are few enough to matter."""
    cells = shard.total_rows * shard.total_columns
    if not isinstance(shard.matrix, Csr):
        return cells
    stored = int(sum(grid.world.exchange_objects(shard.matrix.nnz)))
    density = stored / cells
    log.info(
        "X is sparse: %d values, density %.3g %%%s",
        *(stored, 100 * density),
        _advice(density, shard.total_columns, precision),
        extra=ONCE,
    )
    return stored


def _advice(density: float, columns: int, precision: Precision) -> str:
    """What to do where sparse storage costs more than it saves."""
    has_kernels = cpu.available() and precision.working == np.float32
    least, narrow = DENSE_PAYS["kernels" if has_kernels else "SciPy"]
    if density < least and columns > narrow:
        return ""
    where = f"; above about {100 * least:.3g} %"
    where += f", or with up to {narrow} columns," if narrow else ""
    return where + " dense rows train faster: store X as a dense array if it fits"


def finite_column(values: Array | None, rows: slice, name: str) -> Any:
    """`values`, refused where one is not finite."""
    if values is None:
        return None
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise DataError(
            f"{name} has {values[bad[0]]} at row {rows.start + bad[0]};"
            " clean the file or drop that row"
        )
    return values


def _check_sizes(
    values: Array | None, most: float, rows: slice, name: str, remedy: str
) -> None:
    """Raise DataError where a value is larger than a loss can be computed of."""
    if values is None or not len(values) or np.abs(values).max() <= most:
        return
    row = int(np.argmax(np.abs(values) > most))
    raise DataError(
        f"{name} has {values[row]:g} at row {rows.start + row}, and losses overflow"
        f" above {most:.3g}; {remedy}"
    )


def checked_weights(reader: RowReader, rows: slice) -> Any:
    """The sample weights of these rows, refused where one is negative."""
    values = finite_column(reader.sample_weight(rows), rows, "sample_weight")
    if values is not None and (values < 0).any():
        row = rows.start + int(np.argmax(values < 0))
        raise DataError(f"sample_weight is negative at row {row}; use weights >= 0")
    return values

"""Loading of the rows of a rank: choice of rows and columns, weights, exponents."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import Backend, ColumnExponents, make_scaling
from hpcsgd.backends.numpy_rows import all_finite, weigh
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.data.checksums import Fingerprint
from hpcsgd.data.matrix import (
    Csr,
    DenseMatrix,
    from_scipy,
    index_dtype,
    split_columns,
    stack,
)
from hpcsgd.data.preparation import Preparation
from hpcsgd.data.readers import (
    CHUNK_BYTES,
    WIDE,
    DeviceBlock,
    RowReader,
    categories_of,
    element_of,
    is_sparse,
    load_block,
    names_of,
    pieces,
    preparation_of,
    read_chunks,
    row_words,
)
from hpcsgd.data.sampling import FoldSplit
from hpcsgd.data.shard import (
    NARROW,
    SQUARES,
    Matrix,
    Shard,
    SmallValues,
    check_sound,
    column_peaks,
    exact,
    exact_columns,
    load_csr,
    sparse_pieces,
    split_by_weight,
    split_range,
)
from hpcsgd.data.stream import Route, StreamedMatrix, Unheld
from hpcsgd.data.targets import Targets, encode_targets
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.formats import Array, get_format
from hpcsgd.glm.families import LOG_LINK_TARGETS, NUMBERS, Family
from hpcsgd.precision import Precision

if TYPE_CHECKING:  # predictions load rows without it
    from hpcsgd.config import RunConfig

# The exponents by which the columns of X are scaled, the same on all ranks.

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would log the same


def choose_exponents(
    grid: Grid,
    reader: RowReader,
    rows: slice,
    parts: tuple[slice, ...],
    backend: Backend,
    how: str,
) -> None:
    """Set `backend.scaling`, the exponents by which columns are scaled. Collective.

    A matrix format with a wide range needs none. `how` is "column", "global" (one for
    all columns) or "none"; for sparse rows, "column" counts as "global".
    """
    form = get_format(backend.precision.matrix)
    if not form.wants_scale:
        return
    own_columns = parts[grid.member]
    world = grid.world
    own_peaks = world.together(lambda: column_peaks(reader, rows, own_columns))
    peaks = np.zeros(reader.cols)
    for columns, some in world.exchange_objects((own_columns, own_peaks)):
        np.maximum(peaks[columns], some, out=peaks[columns])
    # The values of sparse rows do not say which columns they are of.
    how = "global" if is_sparse(reader) and how == "column" else how
    backend.scaling = make_scaling(form, peaks, own_columns, how)


def report_rounding_loss(
    grid: Grid, scaling: ColumnExponents | None, cells: int
) -> None:
    """Log how many values of X saturated or became 0 in its format. Collective.

    They are counted over all ranks; `cells` is the number of values of X. Nothing is
    logged if `scaling` is None.
    """
    if scaling is None:
        return
    counts = np.array([scaling.saturated, scaling.flushed], dtype=np.float64)
    saturated, flushed = map(int, grid.world.sum(counts, "control"))
    scaling.saturated = saturated
    scaling.flushed = flushed
    scaling.counts = False  # rows that are streamed are stored again and again
    log.log(
        logging.WARNING if saturated else logging.INFO,
        "X in %s: %d of %d values saturated, %d became 0",
        scaling.form.name,
        saturated,
        cells,
        flushed,
        extra=ONCE,
    )


# Dense rows that stay in their file, of which none is ever in memory as a whole.

NARROW_FORMATS = 4096  # columns of a file that are checked together
LOOKED = 2**20  # bytes of them
TILE_BYTES = 4 * LOOKED  # bytes that the check takes


def stream_tiles(
    reader: RowReader, rows: slice, columns: slice, backend: Backend, seen: Fingerprint
) -> Unheld:
    """Check that all values of the block are finite, and add them to `seen`.

    Return the rows of the block, whose tiles are read from the file when needed.
    """
    store = backend.store
    for first in range(columns.start, columns.stop, NARROW_FORMATS):
        some = slice(first, min(first + NARROW_FORMATS, columns.stop))
        chunks = read_chunks(reader, rows, some, LOOKED)
        for _ in pieces(reader, some, store, chunks, seen.add, all_finite):
            continue

    def take(part: slice, of: slice) -> Array:
        file_rows = slice(rows.start + part.start, rows.start + part.stop)
        file_columns = slice(columns.start + of.start, columns.start + of.stop)
        return store(reader.read(file_rows, file_columns))

    def fill(part: slice, out: Array) -> None:
        out[...] = take(part, slice(0, columns.stop - columns.start))

    shape = rows.stop - rows.start, columns.stop - columns.start
    dtype = store(np.empty((0, shape[1]), dtype=np.float32)).dtype
    return Unheld(fill, shape, dtype, read_some=take)


# Which rows and which columns of the data each rank of a grid owns.


def replica_rows(grid: Grid, reader: RowReader) -> slice:
    """Return the rows of this rank's replica; all replicas have about equally many.

    Refuse a grid in which a replica would have no row, or a member no column.
    """
    replicas = grid.replicas.size
    members = grid.members.size
    if members > reader.cols:
        ranks = replicas * members
        fit = max(n for n in range(1, reader.cols + 1) if ranks % n == 0)
        raise ConfigError(
            f"{members} members cannot share {reader.cols} columns; use more"
            f" replicas of at most {reader.cols} members,"
            f" as --grid {ranks // fit}x{fit}"
        )
    if replicas > reader.rows:
        raise ConfigError(
            f"{replicas} replicas cannot share {reader.rows} rows;"
            f" use at most {reader.rows} replicas"
        )
    return split_range(reader.rows, replicas, grid.replica)


def column_parts(grid: Grid, reader: RowReader, partition: str) -> tuple[slice, ...]:
    """Return the part of the columns of every member, by member. Collective.

    `partition` is "equal" (numbers of columns), "stored" (stored values), or "auto": by
    stored values where the data is sparse. If the reader has an attribute `parts`,
    because it has only some of the columns, these are the result.
    """
    members = grid.members.size
    parts: tuple[slice, ...] | None = getattr(reader, "parts", None)
    if parts is not None:
        return parts
    if members == 1 or partition == "equal" or not is_sparse(reader):
        return tuple(split_range(reader.cols, members, c) for c in range(members))
    return tuple(split_by_weight(_stored_by_column(grid, reader), members))


def _stored_by_column(grid: Grid, reader: RowReader) -> NDArray[Any]:
    """Return the number of stored values of every column of the data. Collective.

    Each rank counts some of the rows.
    """
    world = grid.world

    def count() -> NDArray[Any]:
        own_rows = split_range(reader.rows, world.size, world.rank)
        counts = np.zeros(reader.cols)  # exact as float64, which every transport sums
        for _, piece in sparse_pieces(
            reader, own_rows, slice(0, reader.cols), CHUNK_BYTES
        ):
            counts += np.bincount(piece.indices, minlength=reader.cols)
        return counts

    return world.sum(world.together(count), "control")


# Sample weights with mean 1, and rows that are not trained on as weights of 0.


def split_held_out(
    grid: Grid,
    weights: Array | None,
    split: FoldSplit,
    rows: slice,
    total_rows: int,
    known: Array | None = None,
) -> tuple[Array, Array]:
    """Return the weights of training rows and those of held-out rows. Collective.

    Both have one row for each of `rows` and one column for each split; a row that is
    not of their kind has 0. The weights of training rows are scaled to mean 1 over all
    rows, those of held-out rows are not. `known` are the folds of all rows, if they
    were drawn before.
    """
    holdout_mask = split.kept_apart(rows, known)
    each = np.ones((len(holdout_mask), 1)) if weights is None else weights[:, None]
    trained = each * ~holdout_mask
    holdout = each * holdout_mask
    counted = np.zeros((2, split.columns))
    if not grid.member:  # each replica's count once
        counted[...] = trained.sum(axis=0), holdout.sum(axis=0)
    totals = sum(grid.world.exchange_objects(counted))
    grid.world.together(lambda: split.check(*totals))
    return trained * (total_rows / totals[0]), holdout


def sum_over_replicas(grid: Grid, weights: Array | None) -> float:
    """Return the sum of the sample weights of all rows, 0 without any. Collective.

    Each replica counts once, however many members have its rows.
    """
    with np.errstate(over="ignore"):  # an overflow is refused later, on all ranks
        local_sum = 0.0 if weights is None or grid.member else float(weights.sum())
    return float(sum(grid.world.exchange_objects(local_sum)))


def scale_to_mean_one(weights: Array | None, rows: int, total: float) -> Any:
    """Return `weights` scaled to mean 1 over all rows of the data; None for None.

    `rows` is the number of all rows, and `total` the sum of their weights. With this
    mean, F and the steps have the same minimiser.
    """
    if weights is None:
        return None
    if total <= 0.0:
        raise DataError(
            "sample_weight sums to zero; give at least one row a weight above 0"
        )
    if not np.isfinite(total):
        raise DataError(
            "sample_weight adds up to more than a float64 can hold; divide all of them"
            " by the largest"
        )
    return weights * (rows / total)


# Rows of a file that the members of a replica read once: each reads some of them, with
# all columns, and deals the columns to their members.
#
# It is done where a part of the file that is read at once has columns of several
# members: sparse rows, and dense tiles that are wider than the columns of a member. If
# each member read its columns itself, the members would read such a part again and
# again. Whole tiles are also compared with their checksums.

DEALT_BYTES = CHUNK_BYTES // 4  # of rows that a member reads at a time
# Members that would read the same part, from which dealing takes less processor time
# even if the system has the file in memory.
DEALT_FROM = 8


def common(one: slice, other: slice) -> slice:
    """Return the intersection of two ranges; an empty range if they are disjoint."""
    start = max(one.start, other.start)
    return slice(start, max(min(one.stop, other.stop), start))


def length(part: slice) -> int:
    """Return the number of indices in a range."""
    return int(part.stop - part.start)


def dealt_pieces(
    grid: Grid, reader: RowReader, rows: slice, parts: tuple[slice, ...]
) -> Iterator[tuple[int, Any]] | None:
    """Return an iterator over rows of this member's columns, all of `rows` in order.

    Its elements are (first row, dense rows or Csr). Collective over the world: errors
    of a reader are raised on all ranks, and all replicas take as many turns. None if
    each member has to read its columns itself.
    """
    members = grid.members
    height, width = getattr(reader, "read_together", (0, 0))
    times = min(members.processes, width // max(map(length, parts)))
    if times < DEALT_FROM:
        return None
    item = 8 if is_sparse(reader) else element_of(reader).itemsize
    most = DEALT_BYTES // (item * row_words(reader))
    if height > max(most, 1):  # all columns of a tile's rows take too much memory
        return None
    return _dealt(grid, reader, rows, parts, max(most, 1))


def _dealt(
    grid: Grid, reader: RowReader, rows: slice, parts: tuple[slice, ...], most: int
) -> Iterator[tuple[int, Any]]:
    """Yield what `dealt_pieces` returns; a member reads at most `most` rows a turn."""
    members = grid.members
    replicas = grid.replicas.size
    blocks = getattr(reader, "block_rows", 1)  # only whole blocks can be checked
    all_rows = [split_range(reader.rows, replicas, r) for r in range(replicas)]
    step = min(most, -(-length(all_rows[0]) // members.size))
    if most >= blocks:
        step = min(-(-step // blocks), most // blocks) * blocks
    starts = [part.start // blocks * blocks for part in all_rows]
    turn = step * members.size
    turns = max(
        -(-(part.stop - start) // turn)
        for part, start in zip(all_rows, starts, strict=True)
    )
    for number in range(turns):
        first = starts[grid.replica] + number * turn
        edges = [
            min(max(first + q * step, rows.start), rows.stop)
            for q in range(members.size + 1)
        ]
        shares = [slice(*two) for two in pairwise(edges)]
        deal = _deal_sparse if is_sparse(reader) else _deal_dense
        piece = deal(grid, reader, shares, parts)
        if piece.shape[0]:
            yield max(first, rows.start), piece


def _deal_dense(
    grid: Grid, reader: RowReader, shares: list[slice], parts: tuple[slice, ...]
) -> Array:
    """Return the rows of all shares, with the columns of this member. Collective."""
    members = grid.members
    every = slice(0, reader.cols)
    block = grid.world.together(lambda: reader.read(shares[members.rank], every))
    counts = [len(block) * length(part) for part in parts]
    sent = np.concatenate([block[:, part].reshape(-1) for part in parts])
    del block  # there are never more than two copies of the rows
    sent = sent.astype(sent.dtype.newbyteorder("="), copy=False)  # as MPI needs it
    width = length(parts[members.rank])
    received = [length(share) * width for share in shares]
    out = np.empty(sum(received), dtype=sent.dtype)
    return members.deal(sent, counts, out, received, "control").reshape(-1, width)


def _deal_sparse(
    grid: Grid, reader: RowReader, shares: list[slice], parts: tuple[slice, ...]
) -> Csr:
    """Return the rows of all shares, with the columns of this member. Collective."""
    members = grid.members
    every = slice(0, reader.cols)

    def read() -> Csr:
        share = shares[members.rank]
        block = from_scipy(reader.read_csr(share, every))
        check_sound(block, share)
        return block

    pieces = split_columns(grid.world.together(read), parts)
    heights = [length(share) for share in shares]
    width = length(parts[members.rank])
    return stack(deal_csr(members, pieces, heights, width))


def deal_csr(
    world: Communicator, pieces: list[Csr], taken: list[int], width: int
) -> list[Csr]:
    """Send `pieces[r]` to each rank r; return the pieces for this rank. Collective.

    Rank r sends `taken[r]` rows of `width` columns: first the numbers of entries of the
    rows, then column indices and values.
    """
    heights = [len(piece) for piece in pieces]
    lengths = np.empty(sum(taken), dtype=np.int64)
    sent_lengths = np.concatenate([piece.lengths for piece in pieces]).astype(np.int64)
    world.deal(sent_lengths, heights, lengths, taken, "control")
    each = np.split(lengths, np.cumsum(taken)[:-1])
    counts = [piece.nnz for piece in pieces]
    received = [int(part.sum()) for part in each]
    kinds = {"indices": np.dtype(np.int64), "data": pieces[0].dtype}
    arrays = {}
    for name, dtype in kinds.items():
        sent = np.concatenate([getattr(p, name) for p in pieces]).astype(dtype)
        out = np.empty(sum(received), dtype=dtype)
        world.deal(sent, counts, out, received, "control")
        arrays[name] = np.split(out, np.cumsum(received)[:-1])
    kind = index_dtype(width)
    return [
        Csr(np.concatenate([[0], np.cumsum(part)]), places.astype(kind), values, width)
        for part, places, values in zip(
            each, arrays["indices"], arrays["data"], strict=True
        )
    ]


# From a reader to the shard of this rank, checked on all ranks together.

SCANNED = 8 * 2**20  # bytes of a streamed file that are checked together
SCAN_BYTES = 3 * SCANNED  # bytes that the check takes
# Where a dense matrix trains faster, measured by benchmarks/bench_sparse.py: from which
# density, and up to how many columns whatever the density.
DENSE_PAYS = {"kernels": (0.2, 0), "SciPy": (0.05, 500)}


# Targets and offsets whose squares are finite in float64, and exponents of e.
LARGEST = 1e150
MOST_EXPONENT = 700.0


@dataclass(frozen=True)
class DataFacts:
    """Facts of the whole data, whatever the grid."""

    source: dict[str, Any]  # where the rows come from, as the report says it
    fingerprint: str  # of every value
    preparation: Preparation  # of the rows, before they were opened
    names: list[str] | None  # of the columns, where they have any
    categories: dict[str, list[str]] | None  # levels of columns that were text
    stored: int  # stored values; all of them if dense


@dataclass(frozen=True)
class LoadedRows:
    """The shard of a rank, what its targets mean, and how to read its exact values."""

    shard: Shard
    judged: Shard  # with the exact side columns, for losses
    targets: Targets
    columns: int  # K
    read_exact: Callable[[slice], Any]  # rows that multiply weights: dense, or sparse
    read_some: Callable[[slice, slice], Any]  # of these rows, some of the columns
    facts: DataFacts

    @property
    def density(self) -> float:
        """Return the share of the values of the matrix that is stored; 1 if dense."""
        return self.facts.stored / (self.shard.total_rows * self.shard.total_columns)


def load(
    grid: Grid,
    reader: RowReader,
    config: "RunConfig",
    family: Family,
    backend: Backend,
    route: Callable[[int], Route | None] | None = None,
) -> LoadedRows:
    """Read this rank's rows and columns; all ranks raise the same errors. Collective.

    Without `route` the matrix is read into memory. With `route`, a function of the
    number of rows, the matrix is checked once, and then its rows are streamed in the
    order that the function returns; if it returns None, a GPU will store the matrix. A
    run whose weights are on disk reads some columns of its rows at a time.
    """
    world = grid.world
    precision = backend.precision
    rows, preparation, names, categories = world.together(
        lambda: (
            replica_rows(grid, reader),
            preparation_of(reader),
            names_of(reader),
            categories_of(reader),
        )
    )
    parts = column_parts(grid, reader, config.data.partition)
    columns = parts[grid.member]
    log.debug(
        "reads rows %d to %d and columns %d to %d",
        *(rows.start, rows.stop, columns.start, columns.stop),
    )
    sides = _read_sides(grid, reader, rows, config.split, family, precision.working)
    labels = getattr(reader, "labels", ())  # that the rows may lack
    encoded, targets = encode_targets(
        sides.y, family.targets, rows.start, world.exchange_objects, labels
    )
    is_narrow = precision.matrix != "fp64" and backend.scaling is None
    seen = SmallValues(columns, NARROW if is_narrow else SQUARES, weigh)
    sides.show(seen, rows.start if grid.member == 0 else None)
    choose_exponents(grid, reader, rows, parts, backend, config.precision.scale)
    look: Callable[..., Unheld] | None = None
    if route is not None:
        on_disk = config.agreement.on_disk
        look = stream_tiles if on_disk else partial(_stream, route=route)
    matrix = world.together(
        lambda: _read_matrix(grid, reader, rows, parts, backend, seen, look)
    )
    report_rounding_loss(grid, backend.scaling, reader.rows * reader.cols)
    seen.check(reader, rows, world.exchange_objects, world.max_flag, is_narrow)
    working = precision.working
    keep = grid.members.keep
    shard = Shard(
        matrix=matrix,
        targets=keep(encoded.astype(working)),
        rows=rows,
        columns=columns,
        parts=parts,
        total_rows=reader.rows,
        **{name: _kept(side, working, keep) for name, side in sides.given.items()},
    )
    return LoadedRows(
        shard=shard,
        judged=shard.unrounded(keep, {"targets": encoded, **sides.given}),
        targets=targets,
        columns=len(targets.labels) if family.targets == "classes" else 1,
        read_exact=exact(reader, shard, precision),
        read_some=exact_columns(reader, shard, precision),
        facts=DataFacts(
            source=reader.describe(),
            preparation=preparation,
            names=names,
            categories=categories,
            stored=_count_stored(grid, shard, precision),
            fingerprint=seen.total(reader.rows, reader.cols, world.exchange_objects),
        ),
    )


@dataclass(frozen=True)
class _Sides:
    """The targets, weights and offsets of the rows, checked, in float64."""

    y: Array
    weights: Array | None  # as they are in the data
    scaled: Array | None  # to mean 1 over all rows
    held: Array | None  # of the rows that are not trained on
    offsets: Array | None

    @property
    def given(self) -> dict[str, Array | None]:
        """Return what a shard stores beside its targets, by name; None if absent.

        These are the scaled weights, those of held-out rows, and the offsets.
        """
        return {"weights": self.scaled, "held": self.held, "offsets": self.offsets}

    def show(self, seen: Fingerprint, first_row: int | None) -> None:
        """Add targets, weights and offsets to the fingerprint `seen`.

        `first_row` is the number of their first row; None: they are not added. One
        member of a replica adds them, since all have read the same columns.
        """
        if first_row is not None:
            for number, column in enumerate((self.y, self.weights, self.offsets)):
                seen.add_column(number, column, first_row)


def _read_sides(
    grid: Grid,
    reader: RowReader,
    rows: slice,
    split: FoldSplit,
    family: Family,
    working: Any,
) -> _Sides:
    world = grid.world
    most = min(LARGEST, float(np.finfo(working).max))

    def read_targets() -> Any:
        y = finite_column(reader.targets(rows), rows, "y")
        if family.targets in NUMBERS:
            _check_sizes(y, most, rows, "y", "divide the targets by a power of ten")
        return y

    def read_offsets() -> Any:
        offsets = finite_column(reader.offset(rows), rows, "offset")
        has_log_link = family.targets in LOG_LINK_TARGETS
        bound = MOST_EXPONENT if has_log_link else most
        remedy = "subtract a constant from all, which the intercept takes"
        _check_sizes(offsets, bound, rows, "offset", remedy)
        return offsets

    y = world.together(read_targets)
    weights = world.together(lambda: checked_weights(reader, rows))
    if split.is_whole:
        total = sum_over_replicas(grid, weights)
        scaled = world.together(lambda: scale_to_mean_one(weights, reader.rows, total))
        holdout = None
    else:
        folds = getattr(reader, "fold_of", None)
        scaled, holdout = split_held_out(grid, weights, split, rows, reader.rows, folds)
    offsets = world.together(read_offsets)
    return _Sides(y, weights, scaled, holdout, offsets)


def _kept(
    column: Array | None, dtype: Any, keep: Callable[[Array], Array]
) -> Array | None:
    """Return a column as (rows, k) in `dtype`, which `keep` stores once a node."""
    return (
        None if column is None else keep(column.astype(dtype).reshape(len(column), -1))
    )


def _read_matrix(
    grid: Grid,
    reader: RowReader,
    rows: slice,
    parts: tuple[slice, ...],
    backend: Backend,
    seen: Fingerprint,
    look: Callable[..., Unheld] | None,
) -> Matrix:
    """Return this rank's block as the backend stores it.

    With `look`, which streams the block, return its result instead. Collective.
    """
    columns = parts[grid.member]
    if look is not None:
        return look(reader, rows, columns, backend, seen)
    store = backend.store
    dealt = dealt_pieces(grid, reader, rows, parts)
    if is_sparse(reader):
        return load_csr(
            reader, rows, columns, store, seen=seen.add_sparse, chunks=dealt
        )
    block = load_block(
        reader,
        rows,
        columns,
        store,
        seen=seen.add,
        finite=all_finite,
        chunks=dealt,
    )
    return DenseMatrix(block)


def _stream(
    reader: RowReader,
    rows: slice,
    columns: slice,
    backend: Backend,
    seen: Fingerprint,
    route: Callable[[int], Route | None],
) -> Unheld:
    """Check that all values of the block are finite, and add them to `seen`.

    Return the block as rows that are read from the file when needed, in the order that
    `route` returns. If it returns None, return a block that a GPU will store.
    """
    store = backend.store
    # The elements of a file are those of the matrix only if nothing is scaled.
    element = "" if backend.scaling else backend.precision.matrix
    height = rows.stop - rows.start
    width = columns.stop - columns.start
    chunks = read_chunks(reader, rows, columns, SCANNED)
    for _ in pieces(reader, columns, store, chunks, seen.add, all_finite):
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
    block_order = route(height)
    if block_order is not None:
        return StreamedMatrix(fill, (height, width), dtype, block_order)
    place = getattr(reader, "place_of_blocks", lambda _: None)(element)
    location = None if place is None else (place, rows.start, columns)
    matrix = Unheld(fill, (height, width), dtype, location)
    block = getattr(reader, "device_block", lambda *_: None)(rows, columns, element)
    return matrix if block is None else DeviceBlock(matrix, block)


def bytes_of_filling(values: int, item: int) -> int:
    """Return the bytes of `values` values as read (float64) and as stored, together.

    `item` is the number of bytes of a stored value.
    """
    return values * (WIDE + item)


def _count_stored(grid: Grid, shard: Shard, precision: Precision) -> int:
    """Return the number of stored values of X on all ranks. Collective.

    If X is sparse, it is logged.
    """
    cells = shard.total_rows * shard.total_columns
    if not shard.matrix.is_sparse:
        return cells
    stored = int(sum(grid.world.exchange_objects(shard.matrix.nnz)))
    density = stored / cells
    log.info(
        "X is sparse: %d values, density %.3g %%%s",
        stored,
        100 * density,
        _advice(density, shard.total_columns, precision),
        extra=ONCE,
    )
    return stored


def _advice(density: float, columns: int, precision: Precision) -> str:
    """Return advice to store X dense if that trains faster, else ""."""
    has_kernels = compiled_calls.available() and precision.working == np.float32
    least, narrow = DENSE_PAYS["kernels" if has_kernels else "SciPy"]
    if density < least and columns > narrow:
        return ""
    where = f"; above about {100 * least:.3g} %"
    where += f", or with up to {narrow} columns," if narrow else ""
    return where + " dense rows train faster: store X as a dense array if it fits"


def finite_column(values: Array | None, rows: slice, name: str) -> Any:
    """Return `values` of these rows; raise DataError if one of them is not finite."""
    if values is None:
        return None
    is_good = np.isfinite(values)
    if not is_good.all():
        bad = int(np.argmin(is_good))
        raise DataError(
            f"{name} has {values[bad]} at row {rows.start + bad};"
            " clean the file or drop that row"
        )
    return values


def _check_sizes(
    values: Array | None, most: float, rows: slice, name: str, remedy: str
) -> None:
    """Raise DataError if a |value| exceeds `most`, above which losses overflow."""
    if values is None or not len(values) or np.abs(values).max() <= most:
        return
    row = int(np.argmax(np.abs(values) > most))
    raise DataError(
        f"{name} has {values[row]:g} at row {rows.start + row}, and losses overflow"
        f" above {most:.3g}; {remedy}"
    )


def checked_weights(reader: RowReader, rows: slice) -> Any:
    """Return the sample weights of these rows; None if the data have none.

    Raise DataError for one that is negative or not finite.
    """
    values = finite_column(reader.sample_weight(rows), rows, "sample_weight")
    if values is not None and (values < 0).any():
        row = rows.start + int(np.argmax(values < 0))
        raise DataError(f"sample_weight is negative at row {row}; use weights >= 0")
    return values

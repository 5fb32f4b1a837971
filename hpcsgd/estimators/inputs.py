"""Rows that callers pass: layouts, dealt rows, arguments of ranks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import place_on_grid
from hpcsgd.config import RunConfig
from hpcsgd.data.frames import Matrix, is_wide, to_column
from hpcsgd.data.matrix import Csr, from_scipy, stack
from hpcsgd.data.readers import (
    DeviceReader,
    HeldReader,
    MemoryReader,
    RowReader,
    is_device_array,
    open_reader,
)
from hpcsgd.data.shard import split_by_weight, split_range
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.formats import Array
from hpcsgd.precision import AUTO
from hpcsgd.runs.defaults import FitFacts, shape_of
from hpcsgd.runs.load import common, deal_csr, length
from hpcsgd.solvers.coordinate import COORDINATE, grid_of_form

# Rows in the memory of any ranks, dealt once to the blocks of a grid.
#
# Rank q has some rows with all columns; rank p needs the rows of its replica and the
# columns of its member. A rank sends its rows in rounds of at most `ROUND` bytes, so
# that it needs two such buffers in addition to its rows and its block.

ROUND = 64 * 2**20  # bytes of rows that one rank sends in a round


@dataclass(frozen=True)
class Deal:
    """The rows that each rank has, and the block of rows and columns that it needs."""

    world: Communicator
    counts: tuple[int, ...]  # rows that each rank has; in rank order they are the data
    parts: tuple[slice, ...]  # columns of each member
    replicas: int

    @property
    def rows(self) -> int:
        """Return the number of rows of the whole data."""
        return sum(self.counts)

    def wanted(self, rank: int) -> tuple[slice, slice]:
        """Return the rows and columns of the block of `rank`, as two slices."""
        replica, member = place_on_grid(rank, len(self.parts))
        return split_range(self.rows, self.replicas, replica), self.parts[member]

    def rounds(self, step: int) -> Iterator[list[slice]]:
        """Yield for each round a list with the range of rows that each rank sends.

        A range has at most `step` rows, which are numbered as in the whole data.
        """
        edges = np.cumsum([0, *self.counts]).tolist()
        for number in range(max(-(-count // step) for count in self.counts)):
            yield [
                slice(min(a + number * step, b), min(a + (number + 1) * step, b))
                for a, b in pairwise(edges)
            ]

    def first(self) -> int:
        """Return the number of this rank's first row in the whole data."""
        return sum(self.counts[: self.world.rank])


def deal_dense(deal: Deal, own: Array) -> Array:
    """Return the dense block of this rank, a copy of rows of all ranks. Collective.

    `own` contains the rows of this rank, with all columns.
    """
    world, (rows, cols) = deal.world, deal.wanted(deal.world.rank)
    first = deal.first()
    ranks = range(deal.world.size)
    block = np.empty((length(rows), length(cols)), dtype=own.dtype)
    step = max(ROUND // (own.itemsize * max(own.shape[1], 1)), 1)
    for sent in deal.rounds(step):
        pieces = []
        counts = []
        for rank in ranks:
            its_rows, its_cols = deal.wanted(rank)
            part = common(sent[world.rank], its_rows)
            piece = own[part.start - first : part.stop - first, its_cols]
            pieces.append(piece.reshape(-1))
            counts.append(piece.size)
        taken = [common(sent[rank], rows) for rank in ranks]
        received = [length(part) * length(cols) for part in taken]
        out = np.empty(sum(received), dtype=own.dtype)
        world.deal(np.concatenate(pieces), counts, out, received, "control")
        edges = np.cumsum([0, *received]).tolist()
        for part, (a, b) in zip(taken, pairwise(edges), strict=True):
            place = slice(part.start - rows.start, part.stop - rows.start)
            if a < b:
                block[place] = out[a:b].reshape(length(part), -1)
    return block


def deal_sparse(deal: Deal, own: Any) -> Any:
    """Return the sparse block of this rank, a SciPy CSR matrix. Collective.

    `own` contains the rows of this rank in CSR, with all columns.
    """
    world, (rows, cols) = deal.world, deal.wanted(deal.world.rank)
    most = world.max_flag(int(own.nnz / max(own.shape[0], 1)) + 1)
    step = max(ROUND // (16 * most), 1)
    pieces_by_rank: list[list[Csr]] = [[] for _ in range(world.size)]
    for sent in deal.rounds(step):
        pieces = [_piece(deal, own, sent[world.rank], r) for r in range(world.size)]
        taken = [length(common(sent[rank], rows)) for rank in range(world.size)]
        dealt = deal_csr(world, pieces, taken, length(cols))
        for rank, piece in enumerate(dealt):
            pieces_by_rank[rank].append(piece)
    return stack([piece for rank in pieces_by_rank for piece in rank]).to_scipy()


def _piece(deal: Deal, own: Any, sent: slice, rank: int) -> Csr:
    """Return the part of the rows `sent` that belongs to the block of `rank`."""
    rows, cols = deal.wanted(rank)
    part = common(sent, rows)
    first = deal.first()
    block = own[part.start - first : part.stop - first][:, cols]
    block.sort_indices()
    return from_scipy(block)


# The layouts: the arrays of each rank, and how they become the block it trains on.
#
# replicated   all ranks have the same arrays; each takes its block of them
# rows         each rank has some rows, in rank order, with all columns
# columns      each rank has all rows of some columns, in rank order
# hdf5         a file that all ranks can read
#
# All ranks raise the same errors: they exchange the outlines of their arrays and check
# all of them.

LAYOUTS = ("replicated", "rows", "columns", "hdf5")
SIDES = ("y", "sample_weight", "offset")


@dataclass(frozen=True)
class RankArrays:
    """The arrays that one rank passed: X, and its targets, weights and offsets."""

    X: Any  # dense float array or SciPy CSR
    sides: dict[str, Array | None]

    @property
    def outline(self) -> dict[str, Any]:
        """Return sizes, dtype and kind of the arrays, which the other ranks check."""
        return {
            "rows": self.X.shape[0],
            "cols": self.X.shape[1],
            "dtype": str(self.X.dtype),
            "kind": "sparse" if hasattr(self.X, "tocsr") else "dense",
            "stored": int(self.X.nnz if hasattr(self.X, "nnz") else self.X.size),
            **{name: None if c is None else len(c) for name, c in self.sides.items()},
        }


def open_layout(
    layout: str, X: Any, sides: Mapping[str, Any], config: RunConfig
) -> Callable[[Communicator], RowReader]:
    """Return a function that opens the data on the ranks of a world as a RowReader.

    With the layouts "rows" and "columns" its first call sends the data, and later calls
    return the same reader.
    """
    if layout not in LAYOUTS or layout == "hdf5":
        names = ", ".join(LAYOUTS)
        raise ConfigError(
            f"layout = {layout!r} does not suit arrays; known: {names} (hdf5 is for a"
            " path only)"
        )
    if layout == "replicated":
        return lambda world: _replicated(world, X, sides)
    readers: list[tuple[int, RowReader]] = []

    def opened(world: Communicator) -> RowReader:
        """Return the reader, the same one in every call.

        A run calls this function again after a fall-back.
        """
        if readers and readers[0][0] != world.size:
            raise _alike("the rows of a lost rank are lost with it; start again")
        if not readers:
            replicas = _replicas(config, world)
            partition = config.data.partition
            arrays = world.together(lambda: _given(X, sides))
            if layout == "columns":
                reader = _columns(world, arrays, replicas)
            else:
                reader = _rows(world, arrays, replicas, partition)
            readers.append((world.size, reader))
        return readers[0][1]

    return opened


def facts_of_fit(matrix: Matrix, layout: str, world: Communicator) -> FitFacts:
    """Return the facts on ranks and rows on which settings depend. Collective.

    They are the same on all ranks, some of which may have no rows.
    """
    own = FitFacts(1, is_wide(matrix.X), matrix.path)
    if world.size == 1:
        return own
    everyone = world.exchange_objects(replace(own, shape=shape_of(matrix.X)))
    known = [facts.shape for facts in everyone if facts.shape is not None]
    shape = None
    if known:
        rows = [rows for rows, _ in known]
        total = sum(rows) if layout == "rows" else max(rows)
        shape = total, max(columns for _, columns in known)
    found = replace(own, is_wide=any(f.is_wide for f in everyone), shape=shape)
    # Ranks of which some only pass a path are refused later.
    in_file = all(facts.path is not None for facts in everyone)
    return found.on(world, matrix.path if in_file else None)


def _replicas(config: RunConfig, world: Communicator) -> int:
    """Return the number of replicas of the grid of this run."""
    if config.update.kind == COORDINATE:
        form = config.coordinate.best_form(config.problem)
        return grid_of_form(form, world.size)[0]
    return config.grid.replicas


def _given(X: Any, sides: Mapping[str, Any]) -> RankArrays:
    """Return the arrays of this rank, checked as by MemoryReader.

    X may be None or empty; then it needs no y.
    """
    shape = (0, 0) if X is None else np.shape(X)
    if len(shape) == 2 and 0 in shape:
        empty = X if hasattr(X, "tocsr") else np.empty(shape, np.float32)
        return RankArrays(empty, {name: _bare(sides[name], shape[0]) for name in SIDES})
    reader = MemoryReader(X, sides["y"], sides["sample_weight"], sides["offset"])
    side_columns = (reader.y, reader.weights, reader.offsets)
    return RankArrays(reader.X, dict(zip(SIDES, side_columns, strict=True)))


def _bare(column: Any, rows: int) -> Array | None:
    if column is None:
        return None
    bare = np.asarray(column, np.float64).reshape(-1)
    if len(bare) != rows:
        raise DataError(
            f"{len(bare)} targets, weights or offsets are given beside {rows} rows;"
            " give one for each row"
        )
    return bare


def _replicated(world: Communicator, X: Any, sides: Mapping[str, Any]) -> RowReader:
    kind = DeviceReader if is_device_array(X) else MemoryReader
    reader = world.together(lambda: kind(X, *(sides[name] for name in SIDES)))
    if world.size > 1:
        side_columns = (reader.y, reader.weights, reader.offsets)
        arrays = RankArrays(reader.X, dict(zip(SIDES, side_columns, strict=True)))
        outlines = [
            _with_presence(outline)
            for outline in world.exchange_objects(arrays.outline)
        ]
        _same(dict(enumerate(outlines)), ("rows", "cols", "kind", *SIDES), "replicated")
    return reader


def _same(
    outlines: Mapping[int, dict[str, Any]], names: tuple[str, ...], layout: str
) -> None:
    """Raise DataError on all ranks if outlines differ in one of `names`.

    `outlines` has the rank of each of them.
    """
    first = min(outlines)
    for name in names:
        value = outlines[first][name]
        for rank, outline in outlines.items():
            if outline[name] != value:
                raise _alike(
                    f"layout = {layout!r}: rank {first} has"
                    f" {_WORDS.get(name, name + ' ')}{value} and rank {rank} has"
                    f" {outline[name]}; {_REMEDIES[layout]}"
                )


# Nouns in messages; those on side columns have none, as their values are y or no y.
_WORDS = {"dtype": "element type ", "cols": "columns ", **dict.fromkeys(SIDES, "")}
_REMEDIES = {
    "replicated": "give every rank the same arrays, or say layout='rows' or 'columns'",
    "rows": "give every rank rows of the same columns and the same element type",
    "columns": "give every rank all rows, in the same element type",
}


def _alike(sentence: str) -> DataError:
    error = DataError(sentence)
    error.on_all_ranks = True
    return error


def _rows(
    world: Communicator, given: RankArrays, replicas: int, partition: str
) -> RowReader:
    """Deal the rows to the grid; return a reader of this rank's block. Collective.

    All ranks receive the targets, weights and offsets of all rows.
    """
    outlines = world.exchange_objects(given.outline)
    counts = tuple(outline["rows"] for outline in outlines)
    nonempty = {
        rank: _with_presence(outline)
        for rank, outline in enumerate(outlines)
        if outline["rows"]
    }
    if not nonempty:
        raise _alike("layout = 'rows': no rank has any row; give rows to one at least")
    _same(nonempty, ("cols", "dtype", "kind", *SIDES), "rows")
    like = next(iter(nonempty.values()))
    own_rows = given.X if given.X.shape[0] else _nothing(like)
    parts = _parts(world, own_rows, like, replicas, partition)
    deal = Deal(world, counts, parts, replicas)
    rows, _ = deal.wanted(world.rank)
    stays = all(_is_there(deal, rank) for rank in range(world.size))
    if stays:  # every rank has its block
        block = own_rows
    else:
        block = (deal_sparse if like["kind"] == "sparse" else deal_dense)(
            deal, own_rows
        )
    return HeldReader(
        block=block,
        held=(rows, parts[place_on_grid(world.rank, len(parts))[1]]),
        parts=parts,
        stored=sum(outline["stored"] for outline in nonempty.values()),
        sides=_told(world, given, like, counts),
        layout="rows",
    )


def _with_presence(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an outline with "y" or "no y" in place of the length of y.

    Weights and offsets are treated alike.
    """
    presence = {n: f"no {n}" if one[n] is None else n for n in SIDES}
    return {**one, **presence}


def _nothing(like: Mapping[str, Any]) -> Any:
    """Return an array of no rows, with the columns, dtype and kind of an outline."""
    shape = (0, like["cols"])
    if like["kind"] == "sparse":
        from scipy.sparse import csr_array

        return csr_array(shape, dtype=like["dtype"])
    return np.empty(shape, dtype=like["dtype"])


def _parts(
    world: Communicator,
    own: Any,
    like: Mapping[str, Any],
    replicas: int,
    partition: str,
) -> tuple[slice, ...]:
    """Return the columns of each member. Collective.

    Members get equal numbers of columns, or of stored values if X is sparse and
    `partition` is not "equal".
    """
    members = world.size // replicas
    cols = like["cols"]
    if members > cols:
        raise _alike(
            f"{members} members cannot share {cols} columns; use more replicas, as"
            f" grid=({world.size}, 1)"
        )
    if members == 1 or partition == "equal" or like["kind"] != "sparse":
        return tuple(split_range(cols, members, c) for c in range(members))
    stored = np.bincount(own.indices, minlength=cols).astype(np.float64)
    return tuple(split_by_weight(world.sum(stored, "control"), members))


def _is_there(deal: Deal, rank: int) -> bool:
    """Return whether the rows and columns that `rank` passed are exactly its block."""
    rows, cols = deal.wanted(rank)
    first = sum(deal.counts[:rank])
    has = slice(first, first + deal.counts[rank])
    return has == rows and cols == slice(0, deal.parts[-1].stop)


def _told(
    world: Communicator,
    given: RankArrays,
    like: Mapping[str, Any],
    counts: tuple[int, ...],
) -> dict[str, Array | None]:
    """Return the side columns of all rows, on all ranks. Collective."""
    columns: dict[str, Array | None] = {}
    for name in SIDES:
        if like[name] != name:
            columns[name] = None
            continue
        own_values = given.sides[name]
        own_values = np.empty(0) if own_values is None else own_values
        out = np.empty(sum(counts))
        # A list, because mpi4py gives a tuple of two counts another meaning.
        columns[name] = world.gather(own_values, list(counts), out, "control")
    if columns["y"] is None:
        raise _alike("layout = 'rows': no y was given; give each rank y of its rows")
    return columns


def _columns(world: Communicator, given: RankArrays, replicas: int) -> RowReader:
    """Return a reader of the columns that this rank passed. Collective.

    Only the side columns of rank 0 are sent.
    """
    if replicas != 1:
        raise ConfigError(
            f"layout = 'columns' needs one replica and the grid asks for {replicas};"
            " leave the grid and methods of replicas out, or say layout='rows'"
        )
    outlines = world.exchange_objects(given.outline)
    empty = next((r for r, outline in enumerate(outlines) if not outline["cols"]), None)
    if empty is not None:
        raise _alike(
            f"layout = 'columns': rank {empty} has no column; start fewer ranks, or say"
            " layout='rows'"
        )
    _same(dict(enumerate(outlines)), ("rows", "dtype", "kind"), "columns")
    edges = np.cumsum([0, *(outline["cols"] for outline in outlines)]).tolist()
    parts = tuple(slice(a, b) for a, b in zip(edges, edges[1:], strict=False))
    total = outlines[0]["rows"]
    return HeldReader(
        block=given.X,
        held=(slice(0, total), parts[world.rank]),
        parts=parts,
        stored=sum(outline["stored"] for outline in outlines),
        sides={name: _of_rank_0(world, given, outlines[0], name) for name in SIDES},
        layout="columns",
    )


def _of_rank_0(
    world: Communicator, given: RankArrays, first: Mapping[str, Any], name: str
) -> Array | None:
    """Return the side column `name` of rank 0 on all ranks, or None. Collective."""
    if first[name] is None:
        if name == "y":
            raise _alike("layout = 'columns': rank 0 has no y; give it there at least")
        return None
    if first[name] != first["rows"]:
        raise _alike(f"{name} has {first[name]} values and X has {first['rows']} rows")
    values = given.sides[name] if world.rank == 0 else None
    column = np.empty(first["rows"]) if values is None else values.copy()
    return world.broadcast(column, 0, "control")


# The arguments of a caller, as data that the ranks can open.


@dataclass(frozen=True)
class FitRows:
    """The rows of a fit, and what belongs to them, as a caller passes them.

    Attributes
    ----------
    X : array, frame, sparse matrix, array of a GPU, or path
        The rows, or the file that contains them.
    y, weights, offset, exposure : array-like of shape (n,) or None
        Targets, sample weights, offsets of the scores, and exposures.
    labels : array-like or None
        All values of y that stand for classes, where y may lack some.
    """

    X: Any
    y: Any = None
    weights: Any = None
    offset: Any = None
    exposure: Any = None
    labels: Any = None

    @property
    def sides(self) -> dict[str, Any]:
        """Return the columns beside X, by the names of the arguments of `fit`."""
        return {"y": self.y, "sample_weight": self.weights, "offset": self.offset}


@dataclass(frozen=True)
class FitData:
    """The data of a fit: a function that opens a reader, and the names of columns."""

    open_reader: Callable[[Communicator], RowReader]
    names: list[str] | None  # of the columns, where they have any

    def with_facts(self, **facts: Any) -> "FitData":
        """Return these data with a reader that knows facts that rows do not contain.

        `labels`: all labels of y, of which the rows may lack some; `fold_of`: the fold
        of each row of the whole data; `column_names`: the names of the columns in
        messages.
        """
        attributes = {name: fact for name, fact in facts.items() if fact is not None}

        def opens(world: Communicator) -> RowReader:
            reader = self.open_reader(world)
            for name, fact in attributes.items():
                setattr(reader, name, fact)
            return reader

        return replace(self, open_reader=opens) if attributes else self


def open_data(
    matrix: Matrix, sides: Mapping[str, Any], layout: str, config: RunConfig
) -> FitData:
    """Return the data of a fit: arrays in their layout, or a file."""
    if layout not in LAYOUTS:
        raise ConfigError(
            f"layout = {layout!r} is unknown; known: {', '.join(LAYOUTS)}"
        )
    if matrix.path is not None:
        return _of_file(config, sides, layout)
    if layout in ("rows", "columns") and config.precision.recipe == AUTO:
        raise ConfigError(
            f"precision='auto' tries recipes on one rank, which has not all of the data"
            f" with layout = {layout!r}; name a recipe, or use layout='replicated'"
        )
    if layout != "columns" and matrix.X is not None and sides["y"] is None:
        raise ConfigError(
            "y is missing; give the targets of the rows by the argument y"
        )
    if is_device_array(matrix.X):
        _check_there(layout, config)
    columns = {name: to_column(name, values) for name, values in sides.items()}
    return FitData(open_layout(layout, matrix.X, columns, config), matrix.names)


def _check_there(layout: str, config: RunConfig) -> None:
    """Refuse X on a GPU unless device is "cuda", X replicated and the recipe named."""
    if config.run.device != "cuda" or layout != "replicated":
        raise ConfigError(
            "X is in the memory of a GPU, which cannot be used with device ="
            f" {config.run.device!r} and layout = {layout!r}; use device='cuda' with"
            " layout='replicated', or pass X.get()"
        )
    if config.precision.recipe == AUTO:
        raise ConfigError(
            "precision='auto' tries recipes on the host, and X is in the memory of a"
            " GPU; name a recipe, or pass X.get()"
        )


def _of_file(config: RunConfig, sides: Mapping[str, Any], layout: str) -> FitData:
    for name, values in sides.items():
        if values is not None:
            raise ConfigError(
                f"{name} is given together with a data file, which must contain it;"
                " leave the argument out"
            )
    if layout not in ("hdf5", "replicated"):
        raise ConfigError(
            f"layout = {layout!r} is for arrays and X is a file; leave layout out"
        )
    path = Path(config.data.path)
    shared = config.data.hdf5 == "mpio"
    return FitData(
        lambda world: open_reader(path, *([world.mpi_handle] if shared else [])), None
    )

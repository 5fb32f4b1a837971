"""Which rows and which columns of the data each rank of a grid owns."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.comm.grid import Grid
from hpcsgd.data.partition import split_by_weight, split_range
from hpcsgd.data.readers import CHUNK_BYTES, RowReader, is_sparse
from hpcsgd.data.sparse_block import pieces
from hpcsgd.errors import ConfigError


def own_rows(grid: Grid, reader: RowReader) -> slice:
    """The rows of this rank's replica, in equal numbers: each draws equal batches.

    Refused where a replica would have no row, or a member no column.
    """
    replicas, members = grid.replicas.size, grid.members.size
    if members > reader.cols:
        raise ConfigError(
            f"{members} members cannot share {reader.cols} columns; use at most"
            f" {reader.cols} members and more replicas"
            f" (--grid {-(-replicas * members // reader.cols)}x{reader.cols} or so)"
        )
    if replicas > reader.rows:
        raise ConfigError(
            f"{replicas} replicas cannot share {reader.rows} rows;"
            f" use at most {reader.rows} replicas"
        )
    return split_range(reader.rows, replicas, grid.replica)


def column_parts(grid: Grid, reader: RowReader, partition: str) -> tuple[slice, ...]:
    """The columns of every member.

    `partition` is "equal" (numbers of columns), "stored" (stored values), or "auto":
    by stored values where the data is sparse. A reader that holds some columns alone
    says which.
    """
    members = grid.members.size
    given: tuple[slice, ...] | None = getattr(reader, "parts", None)
    if given is not None:
        return given
    if members == 1 or partition == "equal" or not is_sparse(reader):
        return tuple(split_range(reader.cols, members, c) for c in range(members))
    return tuple(split_by_weight(_stored_by_column(grid, reader), members))


def _stored_by_column(grid: Grid, reader: RowReader) -> NDArray[Any]:
    """Stored values of every column of the data, counted by all ranks together."""
    world = grid.world

    def count() -> NDArray[Any]:
        own = split_range(reader.rows, world.size, world.rank)
        found = np.zeros(reader.cols)  # exact as float64, which every transport sums
        for _, piece in pieces(reader, own, slice(0, reader.cols), CHUNK_BYTES):
            found += np.bincount(piece.indices, minlength=reader.cols)
        return found

    return world.sum(world.together(count), "control")

"""Blocks of rows of a store: where they stand in the file, and their checksums."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.checksums import block_sum
from hpcsgd.data.encoding import CsrStored
from hpcsgd.data.layout import COLUMNS, PIECE, Layout

Array = NDArray[Any]
Piece = tuple[Any, dict[str, Array]]  # rows as they are stored, and their columns


class Held:
    """Rows that wait until there is a whole block of them."""

    def __init__(self, is_sparse: bool) -> None:
        self.stack = _stack_sparse if is_sparse else np.concatenate
        self.pieces: list[Piece] = []

    def __len__(self) -> int:
        return sum(matrix.shape[0] for matrix, _ in self.pieces)

    def add(self, matrix: Any, columns: dict[str, Array]) -> None:
        """More rows at the end."""
        if matrix.shape[0]:
            self.pieces.append((matrix, columns))

    def all(self) -> Piece:
        """Everything, as one piece that stays."""
        if len(self.pieces) > 1:
            matrix = self.stack([matrix for matrix, _ in self.pieces])
            columns = {
                name: np.concatenate([c[name] for _, c in self.pieces])
                for name in self.pieces[0][1]
            }
            self.pieces = [(matrix, columns)]
        return self.pieces[0]

    def cut(self, rows: int) -> Piece:
        """The first `rows` rows, which go."""
        matrix, columns = self.all()
        rest = {name: column[rows:] for name, column in columns.items()}
        self.pieces = []
        self.add(matrix[rows:], rest)
        return matrix[:rows], {name: column[:rows] for name, column in columns.items()}


class Blocks(ABC):
    """What dense and sparse matrices have in common: side columns and checksums."""

    def __init__(self, file: Any, layout: Layout, columns: tuple[str, ...]) -> None:
        self.file, self.layout, self.columns = file, layout, columns
        self.first = 0  # row of the block that is written next
        self.nodes: dict[str, Any] = {}
        for name in columns:
            grow(file, name, (0,), COLUMNS[name], (min(layout.block_rows, PIECE),))
            self._sums(name, ())
        self._make()

    def write(self, piece: Piece) -> None:
        """The rows from `first`, a whole block but for the last one."""
        matrix, columns = piece
        stop = self.first + matrix.shape[0]
        number = self.first // self.layout.block_rows
        for name, values in columns.items():
            self._put(name, self.first, stop, values)
            self._put(f"checksums/{name}", number, number + 1, block_sum(values))
        self._write_matrix(matrix, number, stop)
        self.first = stop

    def _sums(self, name: str, rest: tuple[int, ...]) -> None:
        chunk = (max(4096 // max(rest[0] if rest else 1, 1), 1), *rest)
        grow(self.file, f"checksums/{name}", (0, *rest), "<u8", chunk)

    def _put(self, name: str, start: int, stop: int, values: Any) -> None:
        node = self.nodes.get(name)
        if node is None:  # looking it up takes as long as a short write
            node = self.nodes[name] = self.file[name]
        if len(node) != stop:
            node.resize(stop, axis=0)
        node[start:stop] = values

    @abstractmethod
    def _make(self) -> None: ...

    @abstractmethod
    def _write_matrix(self, matrix: Any, number: int, stop: int) -> None: ...


class DenseBlocks(Blocks):
    """/X in tiles, one checksum a tile."""

    def _make(self) -> None:
        tile = (self.layout.block_rows, self.layout.tile_cols)
        shape = (0, self.layout.cols)
        grow(self.file, "X", shape, self.layout.stored, tile)
        self._sums("X", (self.layout.tiles,))

    def _write_matrix(self, matrix: Any, number: int, stop: int) -> None:
        self._put("X", self.first, stop, matrix)
        width = self.layout.tile_cols
        starts = range(0, self.layout.cols, width)
        sums = [block_sum(matrix[:, at : at + width]) for at in starts]
        self._put("checksums/X", number, number + 1, np.array(sums, "<u8"))


class CsrBlocks(Blocks):
    """/X/indptr, /X/indices and /X/data, one checksum of each for a block of rows."""

    def _make(self) -> None:
        for name, dtype in (
            ("indices", self.layout.index),
            ("data", self.layout.stored),
        ):
            grow(self.file, f"X/{name}", (0,), dtype, (PIECE,))
            self._sums(name, ())
        grow(self.file, "X/indptr", (1,), "<i8", (PIECE,))
        self._sums("indptr", ())

    def _write_matrix(self, matrix: Any, number: int, stop: int) -> None:
        base = int(self.file["X/indptr"][self.first])
        end = base + len(matrix.data)
        pointers = matrix.indptr + base
        self._put("X/indptr", self.first, stop + 1, pointers)
        self._put("X/indices", base, end, matrix.indices)
        self._put("X/data", base, end, matrix.data)
        for name, values in (
            ("indptr", pointers),
            ("indices", matrix.indices),
            ("data", matrix.data),
        ):
            self._put(f"checksums/{name}", number, number + 1, block_sum(values))


def make_blocks(
    file: Any, layout: Layout, columns: tuple[str, ...]
) -> DenseBlocks | CsrBlocks:
    """Those of this file."""
    kind = CsrBlocks if layout.is_sparse else DenseBlocks
    return kind(file, layout, columns)


def grow(file: Any, name: str, shape: Any, dtype: Any, chunks: Any) -> None:
    """A dataset whose rows can become more."""
    most = (None, *shape[1:])
    file.create_dataset(name, shape, dtype=dtype, chunks=chunks, maxshape=most)


def _stack_sparse(parts: list[CsrStored]) -> CsrStored:
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    return CsrStored(
        np.concatenate([part.data for part in parts]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([[0], np.cumsum(lengths)]).astype("<i8"),
    )

"""HDF5 files: /X (rows × columns), /y, optionally /sample_weight and /offset."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hpcsgd.data.checksums import block_sum
from hpcsgd.data.hdf5_open import (
    PARTS,
    check_columns,
    check_finished,
    lacks,
    open_hdf5,
    open_parallel,
    shape_of,
)
from hpcsgd.data.layout import COLUMNS, Layout, layout_of, widen
from hpcsgd.data.preparation import MEANS, NAMES, SCALES, Preparation, preparation_from
from hpcsgd.data.tiles import Tiles, open_tiles
from hpcsgd.errors import DataError

Array = NDArray[Any]
Fill = Callable[[slice, slice, Array], None]  # rows, columns, where to
# Elements that a file and a matrix in memory hold as the same bits.
STORED_AS = {
    "fp64": ("fp64", "float64"),
    "fp32": ("fp32", "float32"),
    "bf16": ("bf16", "uint16"),
}
SHORT = 32  # entries of an attribute that a report shows
WIDER = 1.25  # how much more may be read so that whole blocks can be checked


class Hdf5Reader:
    """Reads a store, or any file with /X, and /y to learn from.

    Blocks that a read takes whole are held against their checksums while `checks` is
    true; a read is widened to whole blocks where that adds at most a quarter.
    `mpi` is the communicator of mpi4py whose ranks all open the file, for MPI-IO.
    """

    def __init__(self, path: str | Path, *mpi: Any) -> None:
        self.path = Path(path)
        self.file = open_parallel(self.path, *mpi) if mpi else open_hdf5(self.path)
        try:
            self.layout = layout_of(self.path, self.file.attrs)
            check_finished(self.path, self.file)
            self.rows, self.cols = shape_of(self.path, self.file)
            check_columns(self.path, self.file, self.rows)
        except DataError:
            self.file.close()
            raise
        self.is_sparse = hasattr(self.file["X"], "keys")
        self.nnz = len(self.file["X/data"]) if self.is_sparse else self.rows * self.cols
        self.checks = self.layout is not None and "checksums" in self.file
        self.block_rows = 1 if self.layout is None else self.layout.block_rows

    def read(self, rows: slice, cols: slice) -> Array:
        """A dense block: float64 or float32 of a store, else in the stored dtype."""
        if self.is_sparse:
            dense: Array = self.read_csr(rows, cols).toarray()
            return dense
        stored = self.read_stored(rows, cols)
        return stored if self.layout is None else self.layout.decode(stored)

    def read_stored(self, rows: slice, cols: slice) -> Array:
        """A dense block as the elements (or their bits) that the file holds."""
        layout = self.layout
        if not self.checks or layout is None:
            block: Array = self._take("X", (rows, cols))
            return block
        wide_rows = widen(rows, layout.block_rows, self.rows)
        wide_cols = widen(cols, layout.tile_cols, self.cols)
        if _area(wide_rows, wide_cols) > WIDER * _area(rows, cols):
            wide_rows, wide_cols = rows, cols
        read: Array = self._take("X", (wide_rows, wide_cols))
        self._check_tiles(read, wide_rows, wide_cols, layout)
        return read[_within(rows, wide_rows), _within(cols, wide_cols)]

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """A block as scipy.sparse.csr_array, its columns numbered from 0."""
        if not self.is_sparse:
            return csr_array(self.read(rows, cols))
        wide = self._wide(rows)
        pointers = self._pointers(wide)
        part = slice(int(pointers[0]), int(pointers[-1]))
        indices, data = self._take("X/indices", part), self._take("X/data", part)
        self._check_sparse(wide, pointers, indices, data)
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.cols:
            raise self._bad("X/indices has columns outside of the matrix in", wide)
        values = data if self.layout is None else self.layout.decode(data)
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float64 if values.itemsize > 2 else np.float32)
        shape = (wide.stop - wide.start, self.cols)
        block = csr_array((values, indices, pointers - pointers[0]), shape=shape)
        inside = _within(rows, wide)
        return block[inside.start : inside.stop, cols.start : cols.stop]

    def reader_of_blocks(self) -> Callable[[slice, slice], Array]:
        """As `read`, from another thread beside training: past HDF5 where it can be."""
        tiles, layout = self._tiles(), self.layout
        if tiles is None:
            return self.read
        if layout is None:
            return tiles.read
        return lambda rows, cols: layout.decode(tiles.read(rows, cols))

    def filler_of_blocks(self, matrix: str) -> Fill | None:
        """Puts blocks into a matrix of the format `matrix` with no copy on the way.

        None where the file holds another format, or HDF5 itself has to read it.
        """
        tiles = self._tiles()
        if tiles is None or STORED_AS.get(matrix) != self._element():
            return None
        return tiles.read_into

    def place_of_blocks(self, matrix: str) -> Path | None:
        """The file where its bytes are those of a matrix in the format `matrix`."""
        return None if self.filler_of_blocks(matrix) is None else self.path

    def _tiles(self) -> Tiles | None:
        return None if self.is_sparse else open_tiles(self.path, self.file["X"])

    def _element(self) -> tuple[str, str]:
        """What an element of X is, and the dtype that the file has for it."""
        dtype = self.file["X"].dtype.name
        if self.layout is None:
            return {"float32": "fp32", "float64": "fp64"}.get(dtype, ""), dtype
        plain = self.layout.scale == 1.0
        return self.layout.element if plain else "scaled", dtype

    def targets(self, rows: slice) -> Any:
        """Targets as float64; a file without /y is good for predictions only."""
        if "y" not in self.file:
            raise lacks("y", self.path, self.file)
        return self._column("y", rows)

    def sample_weight(self, rows: slice) -> Any:
        """Weights as float64, or None."""
        return self._column("sample_weight", rows)

    def offset(self, rows: slice) -> Any:
        """Offsets as float64, or None."""
        return self._column("offset", rows)

    def queries(self, rows: slice) -> Any:
        """The groups that rows belong to as int64, or None; training knows none."""
        return self._column("qid", rows)

    @property
    def preparation(self) -> Preparation:
        """What was done to the rows before they were stored."""
        found = {name: self._of_columns(name, "f") for name in (MEANS, SCALES)}
        known = {name: array for name, array in found.items() if array is not None}
        return preparation_from(known, bool(self.file.attrs.get("unit_rows", False)))

    @property
    def column_names(self) -> list[str] | None:
        """Names of the columns, or None."""
        names = self._of_columns(NAMES, "O")
        return None if names is None else [_plain(name) for name in names]

    def _of_columns(self, name: str, kind: str) -> Array | None:
        """A data set with one entry a column; None where there is no such one."""
        node = self.file.get(name)
        if getattr(node, "shape", None) != (self.cols,) or node.dtype.kind != kind:
            return None
        values: Array = self._take(name, slice(0, self.cols))
        return values

    def describe(self) -> dict[str, Any]:
        """What a result remembers of its data."""
        attributes = {
            # Scales of thousands of columns are for programs, no part of a report.
            k: _plain(v)
            for k, v in self.file.attrs.items()
            if (np.size(v) or 0) <= SHORT  # None of an empty one
        }
        return {"kind": "hdf5", "path": str(self.path), **attributes}

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()

    def _column(self, name: str, rows: slice) -> Any:
        if name not in self.file:
            return None
        if not self.checks:
            return self._take(name, rows).astype(COLUMNS[name]).reshape(-1)
        wide = widen(rows, self.block_rows, self.rows)  # a few more words, no more
        values = self._take(name, wide)
        for number, own in self._whole_blocks(wide):
            self._compare(name, number, own, values[_within(own, wide)])
        return values[_within(rows, wide)]

    def _wide(self, rows: slice) -> slice:
        if not self.checks:
            return rows
        wide = widen(rows, self.block_rows, self.rows)
        more = (wide.stop - wide.start) > WIDER * (rows.stop - rows.start)
        return rows if more else wide

    def _pointers(self, rows: slice) -> Any:
        pointers = self._take("X/indptr", slice(rows.start, rows.stop + 1))
        pointers = pointers.astype(np.int64)  # differences of unsigned ones never fall
        if pointers[0] < 0 or (np.diff(pointers) < 0).any() or pointers[-1] > self.nnz:
            raise self._bad("X/indptr does not ascend in", rows)
        return pointers

    def _check_tiles(
        self, block: Array, rows: slice, cols: slice, layout: Layout
    ) -> None:
        """All tiles that lie whole in a block just read."""
        width = layout.tile_cols
        for number, own in self._whole_blocks(rows):
            sums = self._take("checksums/X", number)
            for tile in range(-(-cols.start // width), layout.tiles):
                side = slice(tile * width, min((tile + 1) * width, self.cols))
                if side.stop > cols.stop:
                    break
                part = block[_within(own, rows), _within(side, cols)]
                if block_sum(part) != sums[tile]:
                    where = f" columns {side.start} to {side.stop - 1} of"
                    raise self._bad("X differs from its checksum in" + where, own)

    def _check_sparse(
        self, rows: slice, pointers: Array, indices: Array, data: Array
    ) -> None:
        if not self.checks:
            return
        for number, own in self._whole_blocks(rows):
            inside = _within(own, rows)
            mine = pointers[inside.start : inside.stop + 1]
            part = slice(int(mine[0] - pointers[0]), int(mine[-1] - pointers[0]))
            for name, values in zip(
                PARTS, (mine, indices[part], data[part]), strict=True
            ):
                self._compare(name, number, own, values)

    def _whole_blocks(self, rows: slice) -> Any:
        """(number, rows) of the blocks that lie whole in a range of rows."""
        size = self.block_rows
        for number in range(-(-rows.start // size), -(-self.rows // size)):
            own = slice(number * size, min((number + 1) * size, self.rows))
            if own.stop > rows.stop:
                return
            yield number, own

    def _compare(self, name: str, number: int, rows: slice, values: Array) -> None:
        if block_sum(values) != self._take(f"checksums/{name}", number):
            place = f"X/{name}" if name in PARTS else name
            raise self._bad(f"{place} differs from its checksum in", rows)

    def _bad(self, what: str, rows: slice) -> DataError:
        return DataError(
            f"{self.path}: /{what} rows {rows.start} to {rows.stop - 1};"
            " the file is damaged, write or copy it again"
        )

    def _take(self, name: str, place: Any) -> Any:
        try:
            return self.file[name][place]
        except (OSError, KeyError, ValueError) as error:
            raise DataError(
                f"{self.path}: /{name} cannot be read ({_reason(error)});"
                " the file is damaged, write or copy it again"
            ) from error


def _area(rows: slice, cols: slice) -> int:
    return int((rows.stop - rows.start) * (cols.stop - cols.start))


def _within(part: slice, whole: slice) -> slice:
    """A range, counted from the start of one that holds it."""
    return slice(part.start - whole.start, part.stop - whole.start)


def _reason(error: Exception) -> str:
    """What the system said, without HDF5's own paragraph."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error).split("(")[0].strip()


def _plain(value: Any) -> Any:
    """An attribute as JSON can hold it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return value if isinstance(value, str | int | float | bool | list) else str(value)

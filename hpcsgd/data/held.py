"""A block of the data that this rank has in memory already, and no other."""

from typing import Any

from numpy.typing import NDArray

from hpcsgd.csr import from_scipy
from hpcsgd.errors import DataError

Array = NDArray[Any]


class HeldReader:
    """Rows × columns of one rank, read under the numbers they have in the whole data.

    Targets, weights and offsets are there for all rows. `parts` are the columns of
    every member: this rank can give no others than its own.
    """

    is_in_memory = True
    best_piece = 2**20  # bytes: what is looked at several times stays in cache

    def __init__(
        self,
        block: Any,
        rows: slice,
        parts: tuple[slice, ...],
        member: int,
        total_rows: int,
        stored: int,
        sides: dict[str, Array | None],
        layout: str,
    ) -> None:
        self.X = block
        self.is_sparse = hasattr(block, "tocsr")
        self.rows, self.cols = total_rows, int(parts[-1].stop)
        self.nnz = stored  # of all ranks
        self.parts = parts
        self.held_rows, self.held_cols = rows, parts[member]
        self.sides = sides
        self.layout = layout

    def read(self, rows: slice, cols: slice) -> Array:
        """A view of the block; a dense copy of a sparse one."""
        if self.is_sparse:
            return from_scipy(self.read_csr(rows, cols)).to_dense()
        block: Array = self.X[self._local(rows, cols)]
        return block

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """A sparse block with its own column numbers, ascending in each row."""
        height, width = self._local(rows, cols)
        block = self.X[height]
        if (width.start, width.stop) != (0, self.X.shape[1]):
            block = block[:, width]
        block.sort_indices()
        return block

    def targets(self, rows: slice) -> Any:
        """Targets as float64."""
        found = self.sides["y"]
        assert found is not None
        return found[rows]

    def sample_weight(self, rows: slice) -> Any:
        """Weights as float64, or None."""
        return self._side("sample_weight", rows)

    def offset(self, rows: slice) -> Any:
        """Offsets as float64, or None."""
        return self._side("offset", rows)

    def describe(self) -> dict[str, Any]:
        """What a result remembers of its data."""
        said = {"rows": self.rows, "cols": self.cols, "layout": self.layout}
        return {"kind": "memory", **said}

    def close(self) -> None:
        """Nothing is open."""

    def _side(self, name: str, rows: slice) -> Any:
        found = self.sides[name]
        return None if found is None else found[rows]

    def _local(self, rows: slice, cols: slice) -> tuple[slice, slice]:
        """The same block within what is held; refused where it is not."""
        found = []
        for asked, held in ((rows, self.held_rows), (cols, self.held_cols)):
            if asked.start >= asked.stop:  # nothing, wherever that is
                found.append(slice(0, 0))
                continue
            if not held.start <= asked.start <= asked.stop <= held.stop:
                raise DataError(
                    f"this rank holds rows {self.held_rows.start} to"
                    f" {self.held_rows.stop} of columns {self.held_cols.start} to"
                    f" {self.held_cols.stop} alone; pass layout='replicated', or a file"
                )
            found.append(slice(asked.start - held.start, asked.stop - held.start))
        return found[0], found[1]

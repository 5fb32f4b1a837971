"""A .npz as a source of rows, dense or sparse."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcsgd.data.archive import Archive, csr_blocks, pointer_pieces, sparse_shape
from hpcsgd.data.arrays import (
    check_label_file,
    column,
    matrix_shape,
    open_labels,
    real,
)
from hpcsgd.data.source import Outline, Rows, block_rows
from hpcsgd.data.streams import check_labels

SPARSE = {"format", "shape", "data", "indices", "indptr"}


class NpzSource:
    """A .npz with X and y (`numpy.savez`), or a sparse one (`scipy.sparse.save_npz`).

    Members are read as streams, so that a file may be larger than memory.
    """

    def __init__(
        self,
        path: Path,
        labels: Path | None = None,
        x_name: str = "X",
        y_name: str = "y",
    ) -> None:
        self.path = Path(path)
        self.labels = None if labels is None else Path(labels)
        self.x_name, self.y_name = x_name, y_name

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """What the headers of the members say; no pass is needed."""
        with Archive(self.path) as archive:
            sparse = archive.names >= SPARSE
            if sparse:
                rows, cols = sparse_shape(archive)
                nnz = len(archive.open("data"))
            else:
                rows, cols = matrix_shape(archive.open(self.x_name))
                nnz = None
            own = not sparse and self.y_name in archive.names
            if own and self.labels is None:
                shape = archive.open(self.y_name).shape
                check_labels(shape, rows, f"{self.path}: {self.y_name}")
        if self.labels is not None:
            check_label_file(self.labels, rows)
        progress(rows)
        return Outline(rows, cols, nnz, own or self.labels is not None, rows)

    def blocks(self, outline: Outline, budget: int, start: int = 0) -> Iterator[Rows]:
        """The rows after row `start`."""
        with Archive(self.path) as archive:
            labels: Any = open_labels(self.labels, start, outline.rows)
            if labels is None and outline.labelled:
                labels = archive.open(self.y_name)
                labels.seek(start)
            sparse = outline.nnz is not None
            draw = self._sparse if sparse else self._dense
            row = start
            for X in draw(archive, outline, budget, start):
                count = X.shape[0]
                row += count
                y = labels.take(count) if labels is not None else None
                yield Rows(X, None if y is None else column(y), row)

    def _dense(
        self, archive: "Archive", outline: Outline, budget: int, start: int
    ) -> Iterator[Any]:
        stream = archive.open(self.x_name)
        stream.seek(start)
        step = block_rows(budget, 2 * 8 * stream.width)
        for row in range(start, outline.rows, step):
            yield real(stream.take(min(step, outline.rows - row)))

    def _sparse(
        self, archive: "Archive", outline: Outline, budget: int, start: int
    ) -> Iterator[Any]:
        data, indices = archive.open("data"), archive.open("indices")
        most = max(budget // 32, 1)  # stored values: read, widened, and their columns
        for row, pointers in pointer_pieces(archive, outline, start):
            if row == start:
                data.seek(int(pointers[0]))
                indices.seek(int(pointers[0]))
            yield from csr_blocks(self.path, outline, pointers, data, indices, most)

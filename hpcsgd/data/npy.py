"""A .npy matrix as a source of rows."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hpcsgd.data.arrays import check_label_file, matrix_shape, open_labels, real
from hpcsgd.data.source import Outline, Rows, block_rows
from hpcsgd.data.streams import open_array
from hpcsgd.errors import ConfigError


class NpySource:
    """A .npy matrix; labels in a file of their own, or in one of its columns."""

    def __init__(
        self, path: Path, labels: Path | None = None, label_column: int | None = None
    ) -> None:
        self.path, self.label = Path(path), label_column
        self.labels = None if labels is None else Path(labels)
        if isinstance(label_column, str):
            raise ConfigError(
                f"--label-column {label_column}: give a number, .npy has no names"
            )
        if labels is not None and label_column is not None:
            raise ConfigError(
                "labels are in a column or in a file of their own; give one of"
                " --label-column and --labels"
            )

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """What the header says; no pass is needed."""
        stream = open_array(self.path)
        stream.close()
        rows, cols = matrix_shape(stream)
        if self.labels is not None:
            check_label_file(self.labels, rows)
        if self.label is not None and not -cols <= self.label < cols:
            raise ConfigError(
                f"--label-column {self.label}: {self.path} has columns 0 to {cols - 1}"
            )
        labelled = self.labels is not None or self.label is not None
        progress(rows)
        return Outline(rows, cols - (self.label is not None), None, labelled, rows)

    def blocks(self, outline: Outline, budget: int, start: int = 0) -> Iterator[Rows]:
        """The rows after row `start`."""
        stream = open_array(self.path)
        labels = open_labels(self.labels, start, outline.rows)
        try:
            stream.seek(start)
            step = block_rows(budget, 2 * 8 * stream.width)
            for row in range(start, outline.rows, step):
                X = real(stream.take(min(step, outline.rows - row)))
                y = labels.take(len(X)) if labels else None
                if self.label is not None:
                    y = X[:, self.label].astype(np.float64)
                    X = np.delete(X, self.label, axis=1)
                yield Rows(X, y, row + len(X))
        finally:
            stream.close()

"""Where rows to convert come from: text, arrays, files of other kinds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.preparation import RAW, Preparation
from hpcsgd.errors import ConfigError

Array = NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a source."""

    X: Any  # (k, cols) float32 or float64: an array, or a scipy.sparse.csr_array
    y: Array | None  # (k,) float64
    end: int  # where the source goes on after them: bytes of text, or a row number
    weights: Array | None = None  # (k,) float64
    offsets: Array | None = None  # (k,) float64
    queries: Array | None = None  # (k,) int64: groups of rows, as rankings have them


@dataclass(frozen=True)
class Outline:
    """What a first pass over a source found."""

    rows: int
    cols: int
    nnz: int | None  # stored values of a sparse source; None for a dense one
    labelled: bool
    size: int  # of the source as `Rows.end` counts it, for progress
    index_base: int = 0  # what a LIBSVM file calls its first column
    means: Array | None = None  # (cols,) that stand in for missing values
    names: tuple[str, ...] | None = None  # of the columns, where they have any
    label: str | None = None  # the column of labels, where nobody named it
    preparation: Preparation = RAW  # of the rows before they came here


class Source(Protocol):
    """A file that can be gone through twice, in blocks of bounded memory."""

    path: Path

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """The first pass; `progress` is told how far it has come."""

    def blocks(self, outline: Outline, budget: int, start: int = 0) -> Iterator[Rows]:
        """The rows after position `start`, about `budget` bytes at a time."""


# format -> what opens it: called with the path and the options of that format
SOURCES: dict[str, str] = {
    "libsvm": "hpcsgd.data.libsvm:LibsvmSource",
    "csv": "hpcsgd.data.csv:CsvSource",
    "npy": "hpcsgd.data.npy:NpySource",
    "npz": "hpcsgd.data.npz:NpzSource",
    "hdf5": "hpcsgd.data.foreign_hdf5:Hdf5Source",
}


def open_source(path: Path, kind: str, **options: Any) -> Source:
    """The source of this format; its own constructor checks the options."""
    if kind not in SOURCES:
        raise ConfigError(f"--format {kind}: known: {', '.join(SOURCES)}")
    module, attribute = SOURCES[kind].split(":")
    source: Source = getattr(import_module(module), attribute)(path, **options)
    return source


def block_rows(budget: int, row_bytes: float) -> int:
    """How many rows of about `row_bytes` fit into `budget`; at least one."""
    return max(int(budget // max(row_bytes, 1.0)), 1)


def label_column(y: Any, rows: int) -> Array:
    """Targets as they are stored: float64, one a row."""
    column: Array = np.asarray(y, dtype=np.float64).reshape(rows)
    return column

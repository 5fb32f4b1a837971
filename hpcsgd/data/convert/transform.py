"""Operations of a conversion on rows: split, scale, number, measure."""

import ctypes
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.sparse import issparse

from hpcsgd.data.convert.sources import Outline, SourceRows
from hpcsgd.data.preparation import Preparation, Scales
from hpcsgd.data.readers import differing, non_finite, other_columns
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.formats import Array

# The columns, scales and layout of a file, for conversions with --like.

INDEX_BASE = "index_base"  # attribute of a store that was LIBSVM text


@dataclass(frozen=True)
class Like:
    """The columns of an HDF5 file, their scales and its layout."""

    path: Path
    cols: int
    is_sparse: bool
    preparation: Preparation
    names: list[str] | None
    index_base: int | None  # number of the first column in its LIBSVM text
    categories: dict[str, list[str]] | None = None  # levels of columns of text
    label_numbers: dict[str, float] | None = None  # of labels that were text

    @property
    def is_centred(self) -> bool:
        """Return whether means were subtracted, which leaves no zeros."""
        scales = self.preparation.scales
        return scales is not None and scales.mean is not None

    def fingerprint(self) -> str:
        """Return a hash that must be equal when a conversion resumes."""
        facts = (self.cols, self.is_sparse, self.preparation.unit_rows, self.names)
        digest = hashlib.sha256(repr((*facts, self.index_base)).encode())
        if self.categories or self.label_numbers:
            digest.update(repr((self.categories, self.label_numbers)).encode())
        for array in self.preparation.arrays().values():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def order(self, outline: Outline, path: Path) -> Array | None:
        """Return the numbers of a source's columns in the order of this file.

        Return None if the source's columns are in this order already, or if the source
        or this file has no names of columns.
        """
        if self.names is not None and outline.columns.names is not None:
            names = list(outline.columns.names)
            lacking, unknown = differing(self.names, names)
            if lacking or unknown or len(names) != self.cols:
                raise other_columns(lacking, unknown, f"{path}, beside {self.path},")
            place = {name: number for number, name in enumerate(names)}
            order = np.array([place[name] for name in self.names], dtype=np.intp)
            return None if (order == np.arange(self.cols)).all() else order
        if outline.cols != self.cols:
            raise DataError(
                f"{path} has {outline.cols} columns and {self.path} has {self.cols};"
                " give a source with the same columns"
            )
        return None

    def widened(self, outline: Outline, path: Path) -> Outline:
        """Return the outline with the columns that a LIBSVM text may lack.

        They are zeros in all of its rows: the last columns, and column 0 if only the
        text of this file has an index 0. Other sources are unchanged.
        """
        base = outline.columns.index_base
        if base is None:
            return outline
        if self.index_base is not None and self.index_base != base:
            if base < self.index_base:
                raise DataError(
                    f"{path} has an index 0, and {self.path} was converted from text"
                    " whose indices begin at 1; number columns alike in both, or"
                    " convert both with --index-base 0"
                )
            columns = replace(outline.columns, index_base=0)
            outline = replace(outline, cols=outline.cols + 1, columns=columns)
        cols = max(outline.cols, self.cols)
        return replace(outline, cols=cols)


def read_like(path: Path) -> Like:
    """Return the columns, scales and layout of an HDF5 file of rows."""
    from hpcsgd.data.hdf5 import Hdf5Reader

    reader = Hdf5Reader(path)
    try:
        base = reader.file.attrs.get(INDEX_BASE)
        return Like(
            path=path,
            cols=reader.cols,
            is_sparse=reader.is_sparse,
            preparation=reader.preparation,
            names=reader.column_names,
            index_base=None if base is None else int(base),
            categories=reader.categories,
            label_numbers=reader.label_numbers,
        )
    finally:
        reader.close()


# The options of a conversion: choice of rows, their changes, their storage.

SHARE = 8  # a block takes 1/8 of the memory: it is read, widened, scaled, written
LEAST_MEMORY = 16 * 2**20  # of one rank
LAYOUTS = ("auto", "sparse", "dense")
DENSE_PAYS = 0.05  # density above which rows of text train faster as dense rows


@dataclass(frozen=True)
class RowSelection:
    """The rows of a source that a conversion takes, and which of them are test rows.

    Attributes
    ----------
    test_fraction : float
        Share of the rows that a separate file of test rows gets.
    seed : int
        Seed of the draw of the test rows.
    rows : int or None
        Number of rows that are taken, from the first on; None takes all rows.
    """

    test_fraction: float = 0.0
    seed: int = 0
    rows: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise ConfigError(
                f"--test-fraction {self.test_fraction} must be at least 0 and below 1"
            )
        if self.rows is not None and self.rows < 1:
            raise ConfigError(f"--rows {self.rows} must be at least 1")
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed} must be at least 0; 0 will do")

    @property
    def chooses(self) -> bool:
        """Return whether some rows are left out or go to a file of test rows."""
        return self.rows is not None or bool(self.test_fraction)

    def wanted(self, first: int, count: int) -> int:
        """Return how many of `count` rows from `first` on are converted."""
        return count if self.rows is None else min(max(self.rows - first, 0), count)

    def drawn(self, first: int, count: int) -> Array:
        """Return which of `count` rows from `first` on are test rows, (count,) bool."""
        if not self.test_fraction:
            return np.zeros(count, dtype=bool)
        from hpcsgd.data.preparation import is_test  # loads SciPy

        numbers = np.arange(first, first + count)
        return is_test(numbers, self.test_fraction, self.seed)

    def trained_on(self, X: Any, first: int) -> Any:
        """Return the rows of X, from number `first` on, that determine the scales."""
        if not self.chooses:
            return X
        count = self.wanted(first, X.shape[0])
        return X[:count][~self.drawn(first, count)]


@dataclass(frozen=True)
class Recipe:
    """The options of a conversion: choice of rows, their changes, their storage."""

    element: str = "fp32"  # how X is stored
    standardize: bool = False
    unit_rows: bool = False
    selection: RowSelection = RowSelection()
    layout: str = "auto"  # sparse or dense rows
    labels: tuple[tuple[float, float], ...] = ()  # (old, new)
    memory: int = 512 * 2**20
    like: Like | None = None  # a file whose columns and scales these rows get

    def __post_init__(self) -> None:
        if self.memory < LEAST_MEMORY:
            raise ConfigError(
                f"--memory {self.memory / 2**20:g} MiB is too little; 16 is the least"
            )
        if self.layout not in LAYOUTS:
            raise ConfigError(
                f"--layout {self.layout} is unknown; use one of {', '.join(LAYOUTS)}"
            )
        if self.like is not None:
            self._check_like(self.like)

    def _check_like(self, like: Like) -> None:
        """Raise ConfigError if other options contradict the preparation of the file."""
        if self.standardize or self.unit_rows:
            flag = "--standardize" if self.standardize else "--unit-rows"
            raise ConfigError(
                f"--like scales columns and rows as in {like.path} and cannot be used"
                f" with {flag}; leave {flag} out"
            )
        if self.layout == "sparse" and like.is_centred:
            raise ConfigError(
                f"--layout sparse cannot be used with --like {like.path}, whose columns"
                " are centred and so not sparse; leave --layout out"
            )

    @property
    def block(self) -> int:
        """Return the bytes of one block of rows."""
        return self.memory // SHARE


# The progress of passes over a file.


class ConversionProgress(Protocol):
    """A receiver of progress, which shows, writes or drops it."""

    def begin(self, what: str, size: int) -> None:
        """Begin a pass `what` over `size` units, as `SourceRows.end` counts them."""

    def at(self, position: int) -> None:
        """Report the position of the pass."""


class HeartbeatProgress:
    """A progress that forwards to another one and calls `beat` at every position."""

    def __init__(self, inner: ConversionProgress, beat: Callable[[], None]) -> None:
        self.inner = inner
        self.beat = beat

    def begin(self, what: str, size: int) -> None:
        """Begin a pass `what` over `size` units."""
        self.inner.begin(what, size)

    def at(self, position: int) -> None:
        """Report the position of the pass."""
        self.inner.at(position)
        self.beat()


# Freed memory that stays with the process, since it is requested again at once.

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGEST = 32 * 2**20  # bytes, glibc's own limit of the latter


def retain_freed_memory(size: int) -> bool:
    """Keep up to `size` freed bytes in this process; return False if impossible.

    Without this setting each new block of a megabyte costs a page fault for every 4
    KiB, which is a third of the time of a conversion. The setting is for programs, not
    for libraries, because it affects the whole process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, min(size, LARGEST))
        and mallopt(M_TRIM_THRESHOLD, min(size, 2**31 - 1))
    )


# Blocks of rows with the number of their first row, and parts of them.


def numbered(
    blocks: Iterator[SourceRows], row: int, selection: RowSelection
) -> Iterator[tuple[int, SourceRows]]:
    """Yield (number of the first row, block), up to the last row to be converted."""
    for block in blocks:
        count = block.X.shape[0]
        yield row, first_rows(block, selection.wanted(row, count))
        row += count
        if selection.rows is not None and row >= selection.rows:
            return


def first_rows(block: SourceRows, count: int) -> SourceRows:
    """Return the first `count` rows of a block."""
    return block if count == block.X.shape[0] else choose(block, slice(0, count))


def choose(block: SourceRows, chosen: Any) -> SourceRows:
    """Return the rows of a block that `chosen` (mask or slice) selects."""
    sides = (block.y, block.weights, block.offsets, block.queries)
    y, *rest = (None if s is None else s[chosen] for s in sides)
    return SourceRows(block.X[chosen], y, block.end, *rest)


def refuse_non_finite(
    block: SourceRows, first: int, path: Any, names: Sequence[str] | None = None
) -> None:
    """Raise DataError if a block from row `first` on has NaN or infinity.

    Training would refuse the file, so that it is refused before it is written.
    """
    sides = {"y": block.y, "sample_weight": block.weights, "offset": block.offsets}
    for name, values in sides.items():
        if values is not None and not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise DataError(
                f"{path}: {name} has {values[row]} at row {first + row}; clean the file"
                " or drop that row"
            )
    values = block.X.data if issparse(block.X) else block.X
    with np.errstate(all="ignore"):  # a sum is finite only if all of its terms are
        if np.isfinite(values.sum(dtype=np.float64)):
            return
    bad = np.argwhere(~np.isfinite(values))
    if len(bad) and issparse(block.X):
        place = int(bad[0, 0])
        row = int(np.searchsorted(block.X.indptr, place, "right")) - 1
        column = int(block.X.indices[place])
        raise DataError(
            f"{path}: {non_finite(values[place], first + row, column, names)}"
        )
    if len(bad):
        row, column = (int(number) for number in bad[0])
        raise DataError(
            f"{path}: {non_finite(values[row, column], first + row, column, names)}"
        )


# Numbers and arrays by name as one run of bytes, and back without a copy.

Parts = dict[str, Any]  # name -> an array, a number, or None
ALIGNED = 8  # bytes that arrays begin at multiples of
PADDING = np.zeros(ALIGNED, dtype=np.uint8)
HEAD = 8  # bytes of the length of the description


def pack(parts: Parts) -> Array:
    """Return a description in JSON and then the arrays, in one array of bytes."""
    size, runs = packed(parts)
    whole = np.empty(size, dtype=np.uint8)
    at = 0
    for run in runs:
        whole[at : at + len(run)] = run
        at += len(run)
    return whole


def packed(parts: Parts) -> tuple[int, list[Array]]:
    """Return the number of bytes of `pack(parts)`, and these bytes as several arrays.

    The arrays share memory with the arrays of `parts`.
    """
    arrays = {k: np.ascontiguousarray(v) for k, v in parts.items() if _is_array(v)}
    others = {k: v for k, v in parts.items() if k not in arrays}
    shapes = {k: [a.dtype.str, list(a.shape)] for k, a in arrays.items()}
    text = json.dumps([others, shapes]).encode()
    runs = [np.array([len(text)], dtype="<i8"), np.frombuffer(text, dtype=np.uint8)]
    padded = list[Array]()
    for run in [*runs, *arrays.values()]:
        padded += [run.reshape(-1).view(np.uint8), PADDING[: -run.nbytes % ALIGNED]]
    return sum(len(run) for run in padded), padded


def unpack(whole: Array) -> Parts:
    """Return the parts that `pack` packed; arrays are views of `whole`."""
    length = int(whole[:HEAD].view("<i8")[0])
    others, shapes = json.loads(whole[HEAD : HEAD + length].tobytes())
    parts: Parts = dict(others)
    at = HEAD + _aligned(length)
    for name, (dtype, shape) in shapes.items():
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        parts[name] = whole[at : at + size].view(dtype).reshape(shape)
        at += _aligned(size)
    return parts


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


# Mean and spread of columns, from blocks that any rank measured, merged in order.
#
# Blocks are merged as by Chan, Golub and LeVeque, so that no large mean cancels. Absent
# values (zeros of sparse rows, missing values) are added at the end, so that the cost
# of a merge depends on the values of the block, not on the number of columns.

WASTE = 4  # columns per stored value up to which a table of all columns pays


@dataclass(frozen=True)
class BlockMoments:
    """Count, mean and squared deviations of the columns of one block."""

    columns: Any  # a slice or numbers
    count: Array  # of values present
    mean: Array  # of them
    squares: Array  # Σ (x − mean)² over them

    def parts(self) -> Parts:
        """Return numbers and arrays by name, for a message."""
        is_range = isinstance(self.columns, slice)
        columns = self.columns.stop if is_range else self.columns
        return {
            "columns": columns,
            "count": self.count,
            "mean": self.mean,
            "squares": self.squares,
        }

    @classmethod
    def of(cls, parts: Parts) -> "BlockMoments":
        """Return the moments from the result of `parts`."""
        columns = parts["columns"]
        at = slice(0, columns) if isinstance(columns, int) else columns
        return cls(at, parts["count"], parts["mean"], parts["squares"])


def measure(X: Any) -> BlockMoments:
    """Return the moments of a dense block, NaN ignored, or of stored sparse values."""
    with np.errstate(over="ignore", invalid="ignore"):  # `scales` refuses overflows
        return _sparse(X) if issparse(X) else _dense(X)


def _dense(X: Array) -> BlockMoments:
    whole = slice(0, X.shape[1])
    mean = X.mean(axis=0, dtype=np.float64)
    if not np.isnan(mean).any():
        count = np.full(X.shape[1], len(X), dtype=np.int64)
        return BlockMoments(whole, count, mean, np.square(X - mean).sum(axis=0))
    present = ~np.isnan(X)
    count = present.sum(axis=0)
    mean = np.where(present, X, 0).sum(axis=0, dtype=np.float64) / np.maximum(count, 1)
    return BlockMoments(
        whole, count, mean, np.square(np.where(present, X - mean, 0)).sum(0)
    )


def _sparse(X: Any) -> BlockMoments:
    values = X.data.astype(np.float64)
    columns, places, width = _columns_held(X.indices)
    count = np.bincount(places, minlength=width)
    sums = np.bincount(places, weights=values, minlength=width)
    mean = sums / np.maximum(count, 1)
    apart = np.square(values - mean[places])
    return BlockMoments(columns, count, mean, np.bincount(places, apart, width))


def _columns_held(indices: Array) -> tuple[Any, Array, int]:
    """Return (columns, place of each value among them, number of columns)."""
    width = int(indices.max()) + 1 if len(indices) else 0
    if width <= WASTE * len(indices):
        return slice(0, width), indices, width
    columns, places = np.unique(indices, return_inverse=True)
    return columns, places, len(columns)


class ColumnMoments:
    """Count, mean and squared deviations of columns over all blocks added."""

    def __init__(self, cols: int = 0) -> None:
        self.rows = 0
        self.count = np.zeros(cols, dtype=np.int64)
        self.mean = np.zeros(cols)
        self.squares = np.zeros(cols)

    def add(self, rows: int, block: BlockMoments) -> None:
        """Add the moments of the next block, of `rows` rows."""
        self.rows += rows
        at = block.columns
        width = at.stop if isinstance(at, slice) else int(at[-1]) + 1
        if width > len(self.count):
            self._widen(width)
        before = self.count[at]
        total = np.maximum(before + block.count, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            apart = block.mean - self.mean[at]
            between = apart**2 * (before * block.count / total)
            self.squares[at] += block.squares + between
            self.mean[at] += apart * (block.count / total)
        self.count[at] += block.count

    def add_block(self, X: Any) -> None:
        """Measure the next block and add its moments."""
        if X.shape[0]:
            self.add(X.shape[0], measure(X))

    def of_columns(self, first: int, cols: int) -> "ColumnMoments":
        """Return the moments of `cols` columns from `first` on, 0 for unseen ones."""
        if first + cols > len(self.count):
            self._widen(first + cols)
        chosen = ColumnMoments(cols)
        part = slice(first, first + cols)
        chosen.rows = self.rows
        chosen.count = self.count[part]
        chosen.mean = self.mean[part]
        chosen.squares = self.squares[part]
        return chosen

    def with_zeros(self) -> "ColumnMoments":
        """Return the moments with zeros in place of absent values."""
        full = ColumnMoments(len(self.count))
        rows = max(self.rows, 1)
        full.rows, full.count = self.rows, np.full_like(self.count, self.rows)
        full.mean = self.mean * (self.count / rows)
        left = self.count * ((rows - self.count) / rows)
        with np.errstate(over="ignore", invalid="ignore"):
            full.squares = self.squares + self.mean**2 * left
        return full

    def with_means(self) -> "ColumnMoments":
        """Return the moments with column means in place of absent values."""
        full = self.of_columns(0, len(self.count))
        full.count = np.full_like(self.count, self.rows)
        return full

    def scales(self, centred: bool) -> Scales:
        """Return scales that give columns unit spread, or 1 for columns without spread.

        If `centred`, spread is about the mean, which is subtracted too; else about 0.
        """
        count = np.maximum(self.count, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            mean_square = self.squares / count + (0 if centred else self.mean**2)
        spread = np.sqrt(mean_square)
        if not np.isfinite(spread).all():
            raise DataError(
                f"column {int(np.argmin(np.isfinite(spread)))} has no finite spread: it"
                " holds infinity, or values whose squares overflow; clean it, or leave"
                " out --standardize"
            )
        # A spread due to rounding alone counts as 0.
        flat = spread <= 1e-12 * np.maximum(np.abs(self.mean), np.finfo(float).tiny)
        return Scales(self.mean if centred else None, np.where(flat, 1.0, spread))

    def _widen(self, width: int) -> None:
        """Extend the arrays to `width` columns, at least twofold to amortise copies."""
        more = max(width, 2 * len(self.count)) - len(self.count)
        self.count, self.mean, self.squares = (
            np.concatenate([old, np.zeros(more, old.dtype)])
            for old in (self.count, self.mean, self.squares)
        )

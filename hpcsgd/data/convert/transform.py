"""What a conversion does to rows: split, scale, number, measure."""

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

# A file that others are converted like: its columns, their scales, its layout.

INDEX_BASE = "index_base"  # attribute of a store that was LIBSVM text


@dataclass(frozen=True)
class Like:
    """What a file says of its columns."""

    path: Path
    cols: int
    is_sparse: bool
    preparation: Preparation
    names: list[str] | None
    index_base: int | None  # what its LIBSVM text called the first column
    categories: dict[str, list[str]] | None = None  # levels of columns of text
    label_numbers: dict[str, float] | None = None  # of labels that were text

    @property
    def is_centred(self) -> bool:
        """True where means were subtracted, which leaves no zeros."""
        scales = self.preparation.scales
        return scales is not None and scales.mean is not None

    def fingerprint(self) -> str:
        """Return what a conversion that is gone on with has to find again."""
        said = (self.cols, self.is_sparse, self.preparation.unit_rows, self.names)
        digest = hashlib.sha256(repr((*said, self.index_base)).encode())
        if self.categories or self.label_numbers:
            digest.update(repr((self.categories, self.label_numbers)).encode())
        for array in self.preparation.arrays().values():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def order(self, outline: Outline, path: Path) -> Array | None:
        """Return the numbers of a source's columns in the order of this file.

        None where they are in this order already, or where one of the two has no names.
        """
        if self.names is not None and outline.names is not None:
            names = list(outline.names)
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
        """Return the outline with the last columns, which a LIBSVM text may lack.

        They are all zeros there. Other files have all of their columns.
        """
        base = outline.index_base
        if base is None:
            return outline
        if self.index_base is not None and self.index_base != base:
            if base < self.index_base:
                raise DataError(
                    f"{path} has an index 0 and the text of {self.path} counts columns"
                    " from 1; make both count alike, or give --index-base 0 to both"
                )
            outline = replace(outline, index_base=0, cols=outline.cols + 1)
        cols = max(outline.cols, self.cols)
        return replace(outline, cols=cols)


def read_like(path: Path) -> Like:
    """Return what an HDF5 file of rows says of its columns."""
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


# What is asked of a conversion: which rows, changed how, stored as what.

SHARE = 8  # of the memory that one block takes: it is read, widened, scaled, written
LEAST_MEMORY = 16 * 2**20  # of one rank
LAYOUTS = ("auto", "sparse", "dense")
DENSE_PAYS = 0.05  # density from which rows of text train faster as dense ones


@dataclass(frozen=True)
class Recipe:
    """What happens to the rows on their way."""

    element: str = "fp32"  # how X is stored
    standardize: bool = False
    unit_rows: bool = False
    test_fraction: float = 0.0  # rows that go to a file of their own
    seed: int = 0  # of the choice of those rows
    rows: int | None = None  # the first so many alone; None: all
    layout: str = "auto"  # sparse or dense rows
    labels: tuple[tuple[float, float], ...] = ()  # (as it is, as it shall be)
    memory: int = 512 * 2**20
    like: Like | None = None  # a file whose columns and scales these rows shall have

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise ConfigError(
                f"--test-fraction {self.test_fraction} must be at least 0 and below 1"
            )
        if self.rows is not None and self.rows < 1:
            raise ConfigError(f"--rows {self.rows} must be at least 1")
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed} must be at least 0; 0 will do")
        if self.memory < LEAST_MEMORY:
            raise ConfigError(
                f"--memory {self.memory / 2**20:g} MiB is too little; 16 is the least"
            )
        if self.layout not in LAYOUTS:
            raise ConfigError(f"--layout {self.layout}: known: {', '.join(LAYOUTS)}")
        if self.like is not None:
            self._check_like(self.like)

    def _check_like(self, like: Like) -> None:
        """Refuse what would prepare rows otherwise than those of the file."""
        if self.standardize or self.unit_rows:
            flag = "--standardize" if self.standardize else "--unit-rows"
            raise ConfigError(
                f"--like takes scales and lengths of rows from {like.path}; leave"
                f" {flag} out"
            )
        if self.layout == "sparse" and like.is_centred:
            raise ConfigError(
                f"--layout sparse keeps zeros, and the columns of {like.path} are"
                " centred; leave --layout out"
            )

    @property
    def block(self) -> int:
        """Bytes of one block of rows."""
        return self.memory // SHARE

    @property
    def chooses(self) -> bool:
        """True where not all rows end up in one file."""
        return self.rows is not None or bool(self.test_fraction)

    def wanted(self, first: int, count: int) -> int:
        """How many of `count` rows from `first` on are converted."""
        return count if self.rows is None else min(max(self.rows - first, 0), count)

    def drawn(self, first: int, count: int) -> Array:
        """Which rows of a block are test rows."""
        if not self.test_fraction:
            return np.zeros(count, dtype=bool)
        from hpcsgd.data.preparation import is_test  # loads SciPy

        numbers = np.arange(first, first + count)
        return is_test(numbers, self.test_fraction, self.seed)

    def trained_on(self, X: Any, first: int) -> Any:
        """The rows of a block that scales are made of."""
        if not self.chooses:
            return X
        wanted = self.wanted(first, X.shape[0])
        return X[:wanted][~self.drawn(first, wanted)]


# Who hears how far a pass over a file has come.


class ConversionProgress(Protocol):
    """Shown on a terminal, written as lines, or dropped."""

    def begin(self, what: str, size: int) -> None:
        """A pass over `size` of what `SourceRows.end` counts."""

    def at(self, position: int) -> None:
        """Its position now."""


class HeartbeatProgress:
    """As another one, and something else hears of every step."""

    def __init__(self, inner: ConversionProgress, beat: Callable[[], None]) -> None:
        self.inner, self.beat = inner, beat

    def begin(self, what: str, size: int) -> None:
        """A pass over `size`."""
        self.inner.begin(what, size)

    def at(self, position: int) -> None:
        """Its position now."""
        self.inner.at(position)
        self.beat()


# Memory that is freed and asked for again at once, kept instead of given back.

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGEST = 32 * 2**20  # bytes, glibc's own limit of the latter


def retain_freed_memory(size: int) -> bool:
    """Keep up to `size` bytes for this process; False where the C library cannot.

    Blocks of a megabyte that come and go cost a page fault for every 4 KiB of them each
    time, a third of the time of a conversion. For programs, not for libraries: it is
    a setting of the whole process.
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
    blocks: Iterator[SourceRows], row: int, recipe: Recipe
) -> Iterator[tuple[int, SourceRows]]:
    """(number of its first row, block), up to the last row that is wanted."""
    for block in blocks:
        count = block.X.shape[0]
        yield row, first_rows(block, recipe.wanted(row, count))
        row += count
        if recipe.rows is not None and row >= recipe.rows:
            return


def first_rows(block: SourceRows, count: int) -> SourceRows:
    """The block, or its first rows where fewer are wanted."""
    return block if count == block.X.shape[0] else choose(block, slice(0, count))


def choose(block: SourceRows, chosen: Any) -> SourceRows:
    """Some rows of a block."""
    sides = (block.y, block.weights, block.offsets, block.queries)
    y, *rest = (None if s is None else s[chosen] for s in sides)
    return SourceRows(block.X[chosen], y, block.end, *rest)


def refuse_non_finite(
    block: SourceRows, first: int, path: Any, names: Sequence[str] | None = None
) -> None:
    """Raise DataError where a block from row `first` on holds NaN or infinity.

    Training refuses such a file: it is said before it is written.
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
HEAD = 8  # bytes that say how long the description is


def pack(parts: Parts) -> Array:
    """Return a description in JSON and then the arrays, in one array of bytes."""
    size, runs = packed(parts)
    whole, at = np.empty(size, dtype=np.uint8), 0
    for run in runs:
        whole[at : at + len(run)] = run
        at += len(run)
    return whole


def packed(parts: Parts) -> tuple[int, list[Array]]:
    """Return how many bytes `pack` makes, and these in several arrays, not copied."""
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
    """What was packed; its arrays are views of `whole`."""
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


# Mean and spread of columns, from blocks that anybody measured, added up in order.
#
# Blocks are merged as Chan, Golub and LeVeque do, so that no large mean cancels. What a
# block does not hold, zeros of sparse rows and values that are missing, is counted at
# the end: a merge costs what the block holds, however many columns there are.

WASTE = 4  # columns a stored value for which a table of all columns still pays


@dataclass(frozen=True)
class BlockMoments:
    """The columns of one block."""

    columns: Any  # a slice or numbers
    count: Array  # values there are
    mean: Array  # of them
    squares: Array  # Σ (x − mean)² over them

    def parts(self) -> Parts:
        """As it travels."""
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
        """As it was."""
        columns = parts["columns"]
        at = slice(0, columns) if isinstance(columns, int) else columns
        return cls(at, parts["count"], parts["mean"], parts["squares"])


def measure(X: Any) -> BlockMoments:
    """Of a dense block, where NaN is no value, or of what a sparse one stores."""
    with np.errstate(over="ignore", invalid="ignore"):  # `scales` refuses what is lost
        return _sparse(X) if issparse(X) else _dense(X)


def _dense(X: Array) -> BlockMoments:
    whole = slice(0, X.shape[1])
    mean = X.mean(axis=0, dtype=np.float64)
    if not np.isnan(mean).any():
        count = np.full(X.shape[1], len(X), dtype=np.int64)
        return BlockMoments(whole, count, mean, np.square(X - mean).sum(axis=0))
    there = ~np.isnan(X)
    count = there.sum(axis=0)
    mean = np.where(there, X, 0).sum(axis=0, dtype=np.float64) / np.maximum(count, 1)
    return BlockMoments(
        whole, count, mean, np.square(np.where(there, X - mean, 0)).sum(0)
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
    """(columns, place of each value among them, how many they are)."""
    width = int(indices.max()) + 1 if len(indices) else 0
    if width <= WASTE * len(indices):
        return slice(0, width), indices, width
    columns, places = np.unique(indices, return_inverse=True)
    return columns, places, len(columns)


class ColumnMoments:
    """Of all blocks so far."""

    def __init__(self, cols: int = 0) -> None:
        self.rows = 0
        self.count = np.zeros(cols, dtype=np.int64)
        self.mean, self.squares = np.zeros(cols), np.zeros(cols)

    def add(self, rows: int, block: BlockMoments) -> None:
        """The next block, of `rows` rows."""
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
        """The next block, measured here."""
        if X.shape[0]:
            self.add(X.shape[0], measure(X))

    def of_columns(self, first: int, cols: int) -> "ColumnMoments":
        """Those from `first` on, however many were seen."""
        if first + cols > len(self.count):
            self._widen(first + cols)
        chosen, part = ColumnMoments(cols), slice(first, first + cols)
        chosen.rows, chosen.count = self.rows, self.count[part]
        chosen.mean, chosen.squares = self.mean[part], self.squares[part]
        return chosen

    def with_zeros(self) -> "ColumnMoments":
        """What is not there counts as zeros."""
        full, rows = ColumnMoments(len(self.count)), max(self.rows, 1)
        full.rows, full.count = self.rows, np.full_like(self.count, self.rows)
        full.mean = self.mean * (self.count / rows)
        left = self.count * ((rows - self.count) / rows)
        with np.errstate(over="ignore", invalid="ignore"):
            full.squares = self.squares + self.mean**2 * left
        return full

    def with_means(self) -> "ColumnMoments":
        """What is not there counts as the mean of its column."""
        full = self.of_columns(0, len(self.count))
        full.count = np.full_like(self.count, self.rows)
        return full

    def scales(self, centred: bool) -> Scales:
        """Unit spread about the mean, or else about 0; constant columns keep 1."""
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
        # What rounding leaves of a constant column is no spread.
        flat = spread <= 1e-12 * np.maximum(np.abs(self.mean), np.finfo(float).tiny)
        return Scales(self.mean if centred else None, np.where(flat, 1.0, spread))

    def _widen(self, width: int) -> None:
        """Room for more columns; twice as many, so that growing stays cheap."""
        more = max(width, 2 * len(self.count)) - len(self.count)
        self.count, self.mean, self.squares = (
            np.concatenate([old, np.zeros(more, old.dtype)])
            for old in (self.count, self.mean, self.squares)
        )

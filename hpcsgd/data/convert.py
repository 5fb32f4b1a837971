"""A source of rows becomes a store, in two passes and in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from hpcsgd.data.sink import Journal, Part, Plan, Sinks, kept_scales
from hpcsgd.data.source import Outline, Rows, Source
from hpcsgd.data.streams import open_file
from hpcsgd.data.transform import Moments, Scales, count_test, is_test, unit_rows
from hpcsgd.errors import ConfigError, DataError, HpcsgdError

Array = NDArray[Any]
SHARE = 8  # of the memory that one block takes: it is read, widened, scaled, written
PEEK = 65536  # bytes of the first rows, which show what comes with them
LEAST_MEMORY = 16 * 2**20


@dataclass(frozen=True)
class Recipe:
    """What happens to the rows on their way."""

    element: str = "fp32"  # how X is stored
    standardize: bool = False
    unit_rows: bool = False
    test_fraction: float = 0.0  # rows that go to a file of their own
    seed: int = 0  # of the choice of those rows
    rows: int | None = None  # the first so many alone; None: all
    memory: int = 512 * 2**20

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

    @property
    def block(self) -> int:
        """Bytes of one block of rows."""
        return self.memory // SHARE


class Progress(Protocol):
    """Hears how far a pass has come."""

    def begin(self, what: str, size: int) -> None:
        """A pass over `size` of what `Rows.end` counts."""

    def at(self, position: int) -> None:
        """Its position now."""


# how a stream of blocks is had: (outline, bytes a block, position to start at)
Stream = Callable[[Outline, int, int], Iterator[Rows]]


def convert(
    source: Source,
    target: Path,
    recipe: Recipe,
    progress: Progress,
    resume: bool = False,
    force: bool = False,
    stream: Stream | None = None,
) -> dict[str, Any]:
    """Write the store, and the test rows to another; what was done, as JSON holds it.

    The first pass says how much there is and measures the columns; the second writes.
    `stream` takes the place of the source's own blocks where ranks share the parsing.
    """
    stream = stream or source.blocks
    journal = Journal(target, {})
    check_target(target, recipe, force or (resume and journal.path.exists()))
    check_source(source.path, target)
    progress.begin("counting rows", source.path.stat().st_size)
    outline = source.outline(progress.at)
    check_rows(outline, source.path)
    files = parts(target, wanted_rows(outline, recipe), recipe)
    journal.identity = identity(source, outline, recipe)
    if resume and journal.read():
        means, spread = kept_scales(files)
        scales = None if spread is None else Scales(means, spread)
        plan = _plan(source, outline, recipe, scales)
        sinks = Sinks.reopen(files, plan, journal)
    else:
        scales = measure(stream, outline, recipe, progress)
        sinks = Sinks(files, _plan(source, outline, recipe, scales), journal)
    with _left_whole(sinks):
        write(stream, outline, recipe, scales, sinks, progress)
        sinks.finish()
    return _said(files, outline, recipe, scales)


@contextmanager
def _left_whole(sinks: Sinks) -> Iterator[None]:
    """What breaks off is left to be gone on with; what is wrong leaves nothing."""
    try:
        yield
    except HpcsgdError as error:
        if isinstance(error.__cause__, OSError):
            sinks.leave()
        else:
            sinks.abandon()
        raise
    except BaseException:
        sinks.leave()
        raise


def _plan(
    source: Source, outline: Outline, recipe: Recipe, scales: Scales | None
) -> Plan:
    """What both files have in common."""
    first = next(iter(source.blocks(outline, PEEK, 0)))
    held = {"y": first.y, "sample_weight": first.weights, "offset": first.offsets}
    return Plan(
        cols=outline.cols,
        element=recipe.element,
        is_sparse=issparse(first.X),
        sides=tuple(name for name, side in held.items() if side is not None),
        attributes={"source": source.path.name, "unit_rows": recipe.unit_rows},
        means=None if scales is None else scales.mean,
        scales=None if scales is None else scales.scale,
    )


def _said(
    files: Sequence[Part], outline: Outline, recipe: Recipe, scales: Scales | None
) -> dict[str, Any]:
    """What was done."""
    how = "scaled only, to keep their zeros" if outline.nnz is not None else ""
    return {
        "files": [
            {
                "path": str(part.path),
                "rows": part.rows,
                "bytes": part.path.stat().st_size,
            }
            for part in files
        ],
        "columns": outline.cols,
        "element": recipe.element,
        "labelled": outline.labelled,
        "sparse": outline.nnz is not None,
        "standardized": (how or "mean 0, spread 1") if scales else None,
        "unit_rows": recipe.unit_rows,
    }


def test_path(path: Path) -> Path:
    """DST-test beside DST."""
    return path.with_name(f"{path.stem}-test{path.suffix}")


def parts(path: Path, rows: int, recipe: Recipe) -> list[Part]:
    """The files to write, and how many rows each gets."""
    if not recipe.test_fraction:
        return [Part(path, rows, False)]
    drawn = count_test(rows, recipe.test_fraction, recipe.seed)
    if drawn in (0, rows):
        raise ConfigError(
            f"--test-fraction {recipe.test_fraction} of {rows} rows leaves"
            f" {rows - drawn} to train on and {drawn} to test; choose another"
        )
    return [Part(path, rows - drawn, False), Part(test_path(path), drawn, True)]


def wanted_rows(outline: Outline, recipe: Recipe) -> int:
    """How many of the source's rows are converted."""
    if recipe.rows is not None and recipe.rows > outline.rows:
        raise ConfigError(
            f"--rows {recipe.rows}: the source has {outline.rows}; ask for fewer"
        )
    return recipe.rows or outline.rows


def measure(
    stream: Stream, outline: Outline, recipe: Recipe, progress: Progress
) -> Scales | None:
    """The scales of the columns, from the training rows alone."""
    if not recipe.standardize:
        return None
    moments = Moments(outline.cols)
    progress.begin("measuring columns", outline.size)
    for row, block in numbered(stream(outline, recipe.block, 0), 0, recipe):
        keep = ~_drawn(row, block.X.shape[0], recipe)
        moments.add(block.X if keep.all() else block.X[keep])
        progress.at(block.end)
    return moments.scales(sparse=outline.nnz is not None)


def numbered(
    blocks: Iterator[Rows], row: int, recipe: Recipe
) -> Iterator[tuple[int, Rows]]:
    """(number of its first row, block), up to the last row that is wanted."""
    for block in blocks:
        count = block.X.shape[0]
        left = count if recipe.rows is None else min(count, recipe.rows - row)
        yield row, block if left == count else choose(block, slice(0, left))
        row += count
        if recipe.rows is not None and row >= recipe.rows:
            return


def choose(block: Rows, chosen: Any) -> Rows:
    """Some rows of a block."""
    sides = (block.y, block.weights, block.offsets)
    y, weights, offsets = (None if s is None else s[chosen] for s in sides)
    return Rows(block.X[chosen], y, block.end, weights, offsets)


def write(
    stream: Stream,
    outline: Outline,
    recipe: Recipe,
    scales: Scales | None,
    sinks: Sinks,
    progress: Progress,
) -> None:
    """The second pass: every row into the store it belongs to."""
    row, position = sinks.start
    if row >= wanted_rows(outline, recipe):
        return
    progress.begin("writing", outline.size)
    blocks = stream(outline, recipe.block, position)
    for first, block in numbered(blocks, row, recipe):
        count = block.X.shape[0]
        sinks.will_reach(first + count, block.end)
        test = _drawn(first, count, recipe)
        changed = transformed(block, recipe, scales)
        for number, part in enumerate(sinks.parts):
            # After a break one store may be ahead of the other.
            new = np.arange(first, first + count) >= sinks.starts[number][0]
            ours = (test == part.test) & new
            if ours.any():
                sinks.append(number, changed if ours.all() else choose(changed, ours))
        sinks.reached(first + count, block.end)
        progress.at(block.end)


def transformed(block: Rows, recipe: Recipe, scales: Scales | None) -> Rows:
    """The block as it is stored, but for its element type."""
    X = block.X
    if scales is not None:
        X = scales.apply(X)
    if recipe.unit_rows:
        X = unit_rows(X)
    return Rows(X, block.y, block.end, block.weights, block.offsets)


def _drawn(first: int, count: int, recipe: Recipe) -> Array:
    """Which rows of a block are test rows."""
    if not recipe.test_fraction:
        return np.zeros(count, dtype=bool)
    numbers = np.arange(first, first + count)
    return is_test(numbers, recipe.test_fraction, recipe.seed)


def identity(source: Source, outline: Outline, recipe: Recipe) -> dict[str, Any]:
    """What must be the same for a broken conversion to be gone on with."""
    said = asdict(recipe)
    del said["memory"]
    status = source.path.stat()
    found = {"source": str(source.path.resolve()), "source_bytes": status.st_size}
    return {**said, **found, "source_changed": status.st_mtime_ns, **asdict(outline)}


def check_target(path: Path, recipe: Recipe, force: bool) -> None:
    """Refuse before the first pass what cannot be written after it."""
    for one in [path, test_path(path)] if recipe.test_fraction else [path]:
        if one.is_dir():
            raise ConfigError(f"cannot write {one}: it is a folder; name a file")
        if one.exists() and not force:
            raise ConfigError(f"{one} exists; add --force to replace it")
    if not path.parent.is_dir():
        raise ConfigError(
            f"cannot write {path}: its folder is missing; make it, or name another"
        )


def check_source(path: Path, target: Path) -> None:
    """Refuse what cannot be read, and a source that would be written over."""
    open_file(path, "a file of rows").close()
    if target.exists() and target.samefile(path):
        raise ConfigError(f"{target} is the source itself; name another file")


def check_rows(outline: Outline, path: Path) -> None:
    """A store without a row is good for nothing."""
    if outline.rows < 1 or outline.cols < 1:
        raise DataError(f"{path} has no rows with values; check the file and --format")

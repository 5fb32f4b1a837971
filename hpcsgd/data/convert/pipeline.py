"""A conversion from start to end: survey the source, fill the stores, resume."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from hpcsgd.data.convert.parallel import (
    MOST,
    Crew,
    EncodedRows,
    Encoder,
    SingleRank,
    WorkShares,
)
from hpcsgd.data.convert.sink import ConversionPlan, SealedParts, Sinks, StoreFile, held
from hpcsgd.data.convert.sources import (
    Outline,
    Source,
    SourceRows,
    block_rows,
    open_file,
)
from hpcsgd.data.convert.text import (
    ENDLESS,
    LevelSets,
    PassCounts,
    TextChunk,
    TextSource,
    refuse_changed,
)
from hpcsgd.data.convert.transform import (
    DENSE_PAYS,
    INDEX_BASE,
    LEAST_MEMORY,
    BlockMoments,
    ColumnMoments,
    ConversionProgress,
    HeartbeatProgress,
    Like,
    Parts,
    Recipe,
    choose,
    first_rows,
    measure,
    numbered,
    refuse_non_finite,
)
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.preparation import (
    LABELS,
    RAW,
    Preparation,
    Scales,
    count_test,
    unit_rows,
)
from hpcsgd.errors import ConfigError, DataError, HpcsgdError, TransportError
from hpcsgd.formats import Array

# The first pass: how much there is, and what its columns are like.


@dataclass(frozen=True)
class Survey:
    """What the first pass found."""

    outline: Outline
    is_sparse: bool  # as the rows shall be stored
    scales: Scales | None  # that the rows get
    places: Array | None = None  # (pieces, 2): byte and first row of every piece
    order: Array | None = None  # (cols,), columns of the source as they shall be stored
    unit_rows: bool = False  # rows get length 1

    @property
    def names(self) -> list[str] | None:
        """Names of the columns as they are stored."""
        names = self.outline.names
        if names is None or self.order is None:
            return None if names is None else list(names)
        return [names[number] for number in self.order]

    @property
    def preparation(self) -> Preparation:
        """What was done to the rows that are stored, here and before."""
        before = self.outline.preparation
        return Preparation(
            self.scales or before.scales, self.unit_rows or before.unit_rows
        )


def survey_rows(
    source: Source,
    recipe: Recipe,
    progress: ConversionProgress,
    kept: Callable[[Outline], Scales | None] = lambda outline: None,
) -> Survey:
    """Of a source that says how much it holds; a pass is made only for the scales.

    `kept` are those of a conversion that is gone on with.
    """
    outline = source.outline(progress.at)
    check_rows(outline, source)
    check_raw(outline, source, recipe)
    if recipe.like is not None:
        return survey_like(outline, source, recipe, recipe.like)
    is_sparse = is_stored_sparse(outline, recipe)
    scales = kept(outline)
    if scales is not None or not recipe.standardize:
        return Survey(outline, is_sparse, scales, unit_rows=recipe.unit_rows)
    moments = ColumnMoments(outline.cols)
    progress.begin("measuring columns", outline.size)
    for first, block in numbered(source.blocks(outline, recipe.block, 0), 0, recipe):
        refuse_non_finite(block, first, source.path, outline.names)
        moments.add_block(recipe.trained_on(block.X, first))
        progress.at(block.end)
    full = moments.with_means() if outline.nnz is None else moments.with_zeros()
    scales = full.scales(centred=not is_sparse)
    return Survey(outline, is_sparse, scales, unit_rows=recipe.unit_rows)


def check_raw(outline: Outline, source: Source, recipe: Recipe) -> None:
    """Refuse to prepare rows a second time."""
    changes = recipe.standardize or recipe.like is not None
    if changes and not outline.preparation.is_raw:
        flag = "--standardize" if recipe.standardize else "--like"
        is_scaled = outline.preparation.scales is not None
        what = "scaled columns" if is_scaled else "rows of length 1"
        raise DataError(
            f"{source.path} has {what} already; give {flag} the raw rows that it was"
            " made of"
        )


def survey_like(
    outline: Outline,
    source: Source,
    recipe: Recipe,
    like: Like,
    places: Array | None = None,
) -> Survey:
    """Return how rows become those of another file: its columns, scales and layout."""
    outline = like.widened(outline, source.path)
    order, scales = like.order(outline, source.path), like.preparation.scales
    if outline.means is not None and scales is not None and scales.mean is not None:
        # What is missing becomes the mean of the training, in the source's own order.
        means = np.empty_like(scales.mean)
        means[slice(None) if order is None else order] = scales.mean
        outline = replace(outline, means=means)
    elif outline.means is not None:
        raise ConfigError(
            f"missing values of {source.path} cannot become the means of the training"
            f" rows, because {like.path} does not store them; convert the training rows"
            " with --standardize, or fill in the missing values and leave --missing out"
        )
    if order is None and outline.names is None and like.names is not None:
        outline = replace(outline, names=tuple(like.names))
    if outline.categories is None:
        outline = replace(outline, categories=like.categories)
    is_sparse = like.is_sparse
    if recipe.layout != "auto":
        is_sparse = recipe.layout == "sparse"
    unit_rows = like.preparation.unit_rows
    return Survey(outline, is_sparse, scales, places, order, unit_rows)


def find_levels(
    source: TextSource, recipe: Recipe, crew: Crew, progress: ConversionProgress
) -> None:
    """Find the levels of columns of text, in a pass that all ranks share."""
    found = LevelSets(source.path)
    crew.share(
        source.tasks(),
        lambda task: source.find_levels(source.load(task)),
        lambda parts: progress.at(found.add(parts)),
        WorkShares(workers(crew, recipe)),
        lambda made, said: made,
    )
    levels = crew.on_root(found.in_order)
    source.learn_levels(levels)


def survey_text(
    source: TextSource, recipe: Recipe, crew: Crew, progress: ConversionProgress
) -> Survey:
    """Of a text, in one pass over it that all ranks share; the same on all of them."""
    found = _Findings()
    keep = recipe.standardize or source.fills

    def work(task: int | TextChunk) -> _Scan:
        piece = source.load(task)
        tally, X = source.scan(piece, keep)
        return _Scan(piece.position, tally, X)

    def finish(scans: list[_Scan], said: list[tuple[int, int]]) -> list[Parts]:
        firsts = found.heard(said)
        return [scan.parts(recipe, firsts[scan.position]) for scan in scans]

    crew.share(
        source.tasks(),
        work,
        lambda parts: progress.at(found.add(parts)),
        WorkShares(workers(crew, recipe)),
        finish,
        say=lambda scan: (scan.position, scan.tally.rows),
    )
    crew.everywhere(lambda: refuse_changed(source.path, source.stamp))
    return crew.on_root(lambda: _concluded(source, recipe, found))


@dataclass
class _Scan:
    """One piece: what it holds, and its X where that is to be measured."""

    position: int
    tally: PassCounts
    X: Any

    def parts(self, recipe: Recipe, first: int) -> Parts:
        """What rank 0 has to know of it; its first row has this number."""
        said = {"position": self.position, **asdict(self.tally)}
        if self.X is None:
            return said
        X = recipe.trained_on(self.X, first)
        measured = measure(X).parts() if X.shape[0] else {}
        return {**said, "measured": X.shape[0], **measured}


class _Findings:
    """What is known after some pieces: rows on all ranks, the rest on rank 0."""

    def __init__(self) -> None:
        self.tally, self.moments = PassCounts(), ColumnMoments()
        self.places: list[tuple[int, int]] = []
        self.rows = 0  # in the rounds before this one

    def heard(self, said: list[tuple[int, int]]) -> dict[int, int]:
        """Position -> number of the first row, of the pieces of this round."""
        firsts = {}
        for position, rows in said:
            firsts[position] = self.rows
            self.rows += rows
        return firsts

    def add(self, parts: Parts) -> int:
        """The next piece; where it ends."""
        tally = PassCounts(**{f.name: parts[f.name] for f in fields(PassCounts)})
        if tally.rows:
            self.places.append((parts["position"], self.tally.rows))
        self.tally.add(tally)
        if parts.get("measured"):
            self.moments.add(parts["measured"], BlockMoments.of(parts))
        return tally.end


def _concluded(source: TextSource, recipe: Recipe, found: _Findings) -> Survey:
    outline = source.outline_of(found.tally, found.moments)
    places = np.array(found.places, dtype=np.int64).reshape(-1, 2)
    if recipe.like is not None:
        return survey_like(outline, source, recipe, recipe.like, places)
    is_sparse = is_stored_sparse(outline, recipe, is_text=True)
    scales = None
    if recipe.standardize:
        full = source.moments_of(outline, found.moments)
        scales = full.scales(centred=not is_sparse)
    return Survey(outline, is_sparse, scales, places, unit_rows=recipe.unit_rows)


def is_stored_sparse(outline: Outline, recipe: Recipe, is_text: bool = False) -> bool:
    """Return whether rows are stored sparse: as requested, else text by its density and
    arrays as they are.
    """
    if recipe.layout != "auto":
        return recipe.layout == "sparse"
    if outline.nnz is None:
        return False
    full = outline.nnz > DENSE_PAYS * outline.rows * outline.cols
    return not (is_text and full)


def workers(crew: Crew, recipe: Recipe) -> int:
    """How many ranks parse, rank 0 first: as many as the memory is enough for."""
    return min(crew.size, recipe.memory // LEAST_MEMORY)


def check_rows(outline: Outline, source: Source) -> None:
    """A store without a row is good for nothing."""
    if outline.rows < 1 or outline.cols < 1:
        raise DataError(
            f"{source.path} has no rows with values; check the file and --format"
        )


# What becomes of a block of rows between its source and its store.


def prepared(
    block: SourceRows, first: int, survey: Survey, recipe: Recipe
) -> SourceRows:
    """What is best done where the block was read; too wide a block stays sparse."""
    y = relabelled(block.y, first, recipe)
    block = replace(block, y=y)
    if is_too_wide(block, survey, recipe):
        return block
    return replace(block, X=transformed(block.X, survey))


def is_too_wide(block: SourceRows, survey: Survey, recipe: Recipe) -> bool:
    """True where its zeros would take too much memory if they were written out."""
    rows, cols = block.X.shape
    widens = issparse(block.X) and not survey.is_sparse
    return widens and rows > block_rows(recipe.block, 8 * cols)


def slices(block: SourceRows, survey: Survey, recipe: Recipe) -> Iterator[SourceRows]:
    """Yield a block as it is, or one that is too wide in several transformed slices."""
    rows, cols = block.X.shape
    if not is_too_wide(block, survey, recipe):
        yield block
        return
    step = block_rows(recipe.block, 8 * cols)
    for start in range(0, rows, step):
        part = choose(block, slice(start, start + step))
        yield replace(part, X=transformed(part.X, survey))


def transformed(X: Any, survey: Survey) -> Any:
    """X as it is stored, but for its element type."""
    if survey.order is not None:
        X = X[:, survey.order]
    if issparse(X) and not survey.is_sparse:
        X = X.toarray()
    elif survey.is_sparse and not issparse(X):
        X = csr_array(X)
    if survey.scales is not None:
        X = survey.scales.apply(X)
    return unit_rows(X) if survey.unit_rows else X


def relabelled(y: Array | None, first: int, recipe: Recipe) -> Array | None:
    """Labels as they shall be; every one of them has to be known."""
    if y is None or not recipe.labels:
        return y
    new, found = np.empty_like(y), np.zeros(len(y), dtype=bool)
    for old, label in recipe.labels:
        here = y == old
        new[here], found = label, found | here
    if not found.all():
        row = int(np.argmin(found))
        known = ", ".join(f"{old:g}" for old, _ in recipe.labels)
        raise DataError(
            f"row {first + row} has the label {y[row]:g} and --map-labels knows"
            f" {known}; map all labels, or leave it out"
        )
    return new


# The second pass: every row into the store it belongs to.

SIDES = ("y", "weights", "offsets", "queries")
WIDEST = 8  # bytes of a number in a store
Places = NDArray[np.int64]


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows on their way to the stores."""

    first: int  # number of its first row
    rows: SourceRows

    def parts(self) -> Parts:
        """As it travels."""
        said = {"first": self.first, "end": self.rows.end}
        sides = {name: getattr(self.rows, name) for name in SIDES}
        X = self.rows.X
        if not issparse(X):
            return {**said, **sides, "X": X}
        matrix = {"data": X.data, "indices": X.indices, "indptr": X.indptr}
        return {**said, **sides, **matrix, "cols": X.shape[1]}

    @classmethod
    def of(cls, parts: Parts) -> "RowBatch":
        """As it was."""
        X = parts.get("X")
        if X is None:
            matrix = (parts["data"], parts["indices"], parts["indptr"])
            X = csr_array(matrix, shape=(len(parts["indptr"]) - 1, parts["cols"]))
        sides = {name: parts[name] for name in SIDES}
        return cls(parts["first"], SourceRows(X=X, end=parts["end"], **sides))


class StoreFiller:
    """Rank 0's side: rows in order, into one store or two."""

    def __init__(
        self,
        survey: Survey,
        recipe: Recipe,
        encoder: Encoder,
        sinks: Sinks,
        sealed: SealedParts,
        progress: ConversionProgress,
    ) -> None:
        self.survey, self.recipe, self.encoder = survey, recipe, encoder
        self.sinks, self.sealed, self.progress = sinks, sealed, progress
        self.row = self.position = 0  # of the source that the parts reach

    def restore(self) -> None:
        """Append the complete parts; the source goes on behind them."""
        self.progress.begin("writing", self.survey.outline.size)
        for parts in self.sealed.complete():
            ready = self._append(parts)
            self.row, self.position = ready.first + ready.count, ready.end
            self.progress.at(ready.end)

    def receive(self, parts: Parts) -> None:
        """The next ones, as they travel."""
        if "ready" not in parts:
            self.take(RowBatch.of(parts))
            return
        self.sealed.add(parts)
        self._reach(self._append(parts).end)

    def take(self, batch: RowBatch) -> None:
        """The next ones, which nobody has encoded yet."""
        row = batch.first
        for part in slices(batch.rows, self.survey, self.recipe):
            parts = self.encoder.encode(row, part).parts()
            self.sealed.add(parts)
            self._append(parts)
            row += part.X.shape[0]
        self._reach(batch.rows.end)

    def leave(self, keeps: bool) -> None:
        """End before the last row; `keeps` leaves what a conversion can resume from."""
        self.sinks.abandon()
        if keeps:
            self.sealed.seal()
        else:
            self.sealed.remove()

    def finish(self) -> None:
        """Complete the stores, which need the parts no more."""
        self.sinks.finish()
        self.sealed.remove()

    def _append(self, parts: Parts) -> EncodedRows:
        ready = EncodedRows.of(parts)
        for number, stored in enumerate(ready.stores):
            if stored is not None:
                self.sinks.append(number, stored, ready.end)
        return ready

    def _reach(self, position: int) -> None:
        self.sealed.reach()
        self.progress.at(position)


def fill_from_rows(source: Source, pouring: StoreFiller) -> None:
    """From a source that is read on one rank."""
    survey, recipe = pouring.survey, pouring.recipe
    if pouring.row >= recipe.wanted(0, survey.outline.rows):
        return
    blocks = source.blocks(survey.outline, recipe.block, pouring.position)
    for first, block in numbered(blocks, pouring.row, recipe):
        refuse_non_finite(block, first, source.path, survey.outline.names)
        pouring.take(RowBatch(first, prepared(block, first, survey, recipe)))


def fill_from_text(
    source: TextSource,
    survey: Survey,
    recipe: Recipe,
    crew: Crew,
    encoder: Encoder,
    row: int,
    take: Callable[[Parts], None],
) -> None:
    """From a text, from `row` on: all ranks parse and encode, and the first writes."""
    places = survey.places
    if places is None or row >= recipe.wanted(0, survey.outline.rows):
        return

    def work(task: int | TextChunk) -> list[Parts]:
        piece = source.load(task)
        rows = source.rows(piece, survey.outline)
        if not rows.X.shape[0]:
            return []
        first = _first_row(source, places, piece)
        rows = first_rows(rows, recipe.wanted(first, rows.X.shape[0]))
        rows = prepared(rows, first, survey, recipe)
        if is_too_wide(rows, survey, recipe):
            return [RowBatch(first, rows).parts()]
        return [encoder.encode(first, rows).parts()]

    crew.share(
        source.tasks(*_range(places, recipe, row)),
        work,
        take,
        WorkShares(workers(crew, recipe), _at_once(survey, recipe, crew)),
        lambda made, said: list(chain.from_iterable(made)),
    )
    crew.everywhere(lambda: refuse_changed(source.path, source.stamp))


def _at_once(survey: Survey, recipe: Recipe, crew: Crew) -> int:
    """Pieces of one rank that rank 0 may hold at once, by what they hold on average."""
    outline = survey.outline
    pieces = 1 if survey.places is None else max(len(survey.places), 1)
    numbers = outline.rows * outline.cols
    if survey.is_sparse and outline.nnz is not None:
        numbers = 2 * outline.nnz
    size = WIDEST * (numbers + outline.rows) // pieces
    return max(min(MOST, recipe.block // (crew.size * max(size, 1))), 1)


def _range(places: Places, recipe: Recipe, row: int) -> tuple[int, int]:
    """(byte of the piece that begins with `row`, byte after the rows wanted)."""
    piece = int(np.searchsorted(places[:, 1], row))
    last = len(places)
    if recipe.rows is not None:
        last = int(np.searchsorted(places[:, 1], recipe.rows))
    stop = int(places[last, 0]) if last < len(places) else ENDLESS
    return int(places[piece, 0]), stop


def _first_row(source: TextSource, places: Places, piece: TextChunk) -> int:
    """The number of a piece's first row."""
    at = int(np.searchsorted(places[:, 0], piece.position))
    if at == len(places) or places[at, 0] != piece.position:
        raise DataError(f"{source.path} changed since it was counted; start anew")
    return int(places[at, 1])


# The files a conversion writes, and what is refused before the first pass.


def test_path(path: Path) -> Path:
    """DST-test beside DST."""
    return path.with_name(f"{path.stem}-test{path.suffix}")


def parts(path: Path, rows: int, recipe: Recipe) -> list[StoreFile]:
    """The files to write, and how many rows each gets."""
    if not recipe.test_fraction:
        return [StoreFile(path, rows, False)]
    drawn = count_test(rows, recipe.test_fraction, recipe.seed)
    if drawn in (0, rows):
        raise ConfigError(
            f"--test-fraction {recipe.test_fraction} of {rows} rows leaves"
            f" {rows - drawn} to train on and {drawn} to test; choose another"
        )
    return [
        StoreFile(path, rows - drawn, False),
        StoreFile(test_path(path), drawn, True),
    ]


def requested_rows(outline: Outline, recipe: Recipe) -> int:
    """Return how many of the source's rows are converted."""
    if recipe.rows is not None and recipe.rows > outline.rows:
        raise ConfigError(
            f"--rows {recipe.rows}: the source has {outline.rows}; ask for fewer"
        )
    return recipe.rows or outline.rows


def identity(source: Source, outline: Outline, recipe: Recipe) -> dict[str, Any]:
    """What must be the same for a broken conversion to be gone on with."""
    said = asdict(replace(recipe, like=None))
    del said["memory"]
    said["like"] = None if recipe.like is None else recipe.like.fingerprint()
    said["labels"] = [list(pair) for pair in recipe.labels]
    counted = asdict(replace(outline, preparation=RAW))
    del counted["preparation"]  # the source's own, which stays while it does
    counted["names"] = None if outline.names is None else list(outline.names)
    counted["means"] = None if outline.means is None else outline.means.tolist()
    status = source.path.stat()
    found = {"source": str(source.path.resolve()), "source_bytes": status.st_size}
    return {**said, **found, "source_changed": status.st_mtime_ns, **counted}


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


# A source of rows becomes a store, in two passes and in bounded memory.

log = logging.getLogger(__name__)
PEEK = 65536  # bytes of the first rows, which show what comes with them


def convert(
    source: Source,
    target: Path,
    recipe: Recipe,
    progress: ConversionProgress,
    resume: bool = False,
    force: bool = False,
    crew: Crew | None = None,
) -> dict[str, Any]:
    """Write the store, and the test rows to another; what was done, as JSON holds it.

    The first pass says how much there is and measures the columns; the second writes.
    The ranks of a crew share the parsing of a plain text; `source` is the same on all.
    """
    crew = crew or Crew(SingleRank())
    one = Conversion(source, target, recipe, progress, resume, force)
    crew.on_root(one.check)
    if isinstance(source, TextSource):
        crew.everywhere(lambda: _begin(source, recipe.like))
        if source.packed is None:
            return _shared(one, source, crew)
    if crew.size > 1 and crew.is_root:
        log.info("%s cannot be split; rank 0 converts it alone", source.path)
    one.progress = HeartbeatProgress(progress, crew.beat)
    return crew.on_root_for_long(lambda: _alone(one))


def _begin(source: TextSource, like: Like | None) -> None:
    """Look at a text, whose columns may have to be like those of another file."""
    if like is not None:
        source.follow(like)
    source.begin()


class Conversion:
    """What rank 0 knows and does of one."""

    def __init__(
        self,
        source: Source,
        target: Path,
        recipe: Recipe,
        progress: ConversionProgress,
        resume: bool,
        force: bool,
    ) -> None:
        self.source, self.target, self.recipe = source, target, recipe
        self.progress, self.resume, self.force = progress, resume, force
        self.sealed = SealedParts(target)
        self.pouring: StoreFiller | None = None  # once the stores are open
        self._files: list[StoreFile] = []

    def check(self) -> None:
        """Refuse what cannot end well."""
        goes_on = self.resume and self.sealed.exist
        check_target(self.target, self.recipe, self.force or goes_on)
        check_source(self.source.path, self.target)

    def kept(self, outline: Outline) -> Scales | None:
        """Return the scales of the interrupted conversion that this one resumes."""
        if not self.recipe.standardize:
            return None
        return self.sealed.scales if self._resumes(outline) else None

    def _resumes(self, outline: Outline) -> bool:
        now = identity(self.source, outline, self.recipe)
        return self.resume and self.sealed.resume(now)

    def begin_counting(self) -> None:
        """The first pass."""
        self.progress.begin("counting rows", self.source.path.stat().st_size)

    def files(self, outline: Outline) -> list[StoreFile]:
        """What is written."""
        if not self._files:
            rows = requested_rows(outline, self.recipe)
            self._files = parts(self.target, rows, self.recipe)
        return self._files

    def encoder(self, survey: Survey) -> Encoder:
        """Return what encodes rows for the stores."""
        layout = StoreLayout(
            survey.outline.cols, self.recipe.element, is_sparse=survey.is_sparse
        )
        return Encoder(self.files(survey.outline), layout, self.recipe)

    def open(self, survey: Survey, encoder: Encoder) -> StoreFiller:
        """Open the stores and append what is complete."""
        outline = survey.outline
        resumes = self._resumes(outline)
        sinks = Sinks(self.files(outline), self._plan(survey))
        # From here on no other program writes these stores, or their parts.
        self.pouring = StoreFiller(
            survey, self.recipe, encoder, sinks, self.sealed, self.progress
        )
        if not resumes:
            now = identity(self.source, outline, self.recipe)
            self.sealed.begin(now, survey.scales)
        self.pouring.restore()
        return self.pouring

    def take(self, parts: Parts) -> None:
        """Write the next rows."""
        assert self.pouring is not None
        self.pouring.receive(parts)

    def close(self, survey: Survey) -> dict[str, Any]:
        """Complete the stores; return what was done."""
        assert self.pouring is not None
        self.pouring.finish()
        return _said(self.files(survey.outline), survey, self.recipe)

    @contextmanager
    def left_whole(self) -> Iterator[None]:
        """What breaks off is left to be resumed; what is wrong leaves nothing."""
        try:
            yield
        except BaseException as error:
            is_wrong = isinstance(error, HpcsgdError) and not (
                isinstance(error, TransportError)
                or isinstance(error.__cause__, OSError)
            )
            if self.pouring is not None:
                self.pouring.leave(keeps=not is_wrong)
            raise

    def _plan(self, survey: Survey) -> ConversionPlan:
        """What both files have in common."""
        preparation = survey.preparation
        first = next(iter(self.source.blocks(survey.outline, PEEK, 0)))
        return ConversionPlan(
            cols=survey.outline.cols,
            element=self.recipe.element,
            is_sparse=survey.is_sparse,
            sides=tuple(held(first)),
            attributes={
                "source": self.source.path.name,
                "unit_rows": preparation.unit_rows,
                **_index_base(survey.outline),
                **_label_numbers(survey.outline),
            },
            preparation=preparation,
            names=survey.names,
            categories=survey.outline.categories,
        )


def _index_base(outline: Outline) -> dict[str, Any]:
    """What a LIBSVM text calls its first column, for files that shall be like it."""
    base = outline.index_base
    return {} if base is None else {INDEX_BASE: base}


def _label_numbers(outline: Outline) -> dict[str, Any]:
    """What the labels were called, where they were text."""
    numbers = outline.label_numbers
    return {LABELS: json.dumps(numbers)} if numbers else {}


def _alone(one: Conversion) -> dict[str, Any]:
    """One rank reads, changes and writes."""
    one.begin_counting()
    if isinstance(one.source, TextSource):
        return _shared(one, one.source, Crew(SingleRank()), has_begun=True)
    survey = survey_rows(one.source, one.recipe, one.progress, one.kept)
    with one.left_whole():
        fill_from_rows(one.source, one.open(survey, one.encoder(survey)))
        return one.close(survey)


def _shared(
    one: Conversion, source: TextSource, crew: Crew, has_begun: bool = False
) -> dict[str, Any]:
    """All ranks parse and encode, the first one writes."""
    if crew.is_root and not has_begun:
        one.begin_counting()
    if source.lacks_levels:
        find_levels(source, one.recipe, crew, one.progress)
        if crew.is_root:
            one.begin_counting()
    survey = survey_text(source, one.recipe, crew, one.progress)
    encoder = one.encoder(survey)
    with one.left_whole():
        row = crew.on_root(lambda: one.open(survey, encoder).row)
        fill_from_text(source, survey, one.recipe, crew, encoder, row, one.take)
        return crew.on_root(lambda: one.close(survey))


def _said(files: Sequence[StoreFile], survey: Survey, recipe: Recipe) -> dict[str, Any]:
    """What was done."""
    outline: Outline = survey.outline
    preparation, like = survey.preparation, recipe.like
    how = "mean 0, spread 1"
    if preparation.columns == "scaled":
        how = "scaled only, to keep their zeros"
    if survey.scales is None:
        how = "scaled before, as the source says"
    elif like is not None:
        how = f"scaled with the means and scales of {like.path}"
    said: dict[str, Any] = {}
    if outline.label is not None:
        said["label_column"] = outline.label
    if outline.categories:
        said["categories"] = {k: len(of) for k, of in outline.categories.items()}
    if outline.label_numbers:
        said["label_numbers"] = outline.label_numbers
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
        **said,
        "sparse": survey.is_sparse,
        "standardized": how if preparation.scales else None,
        "unit_rows": preparation.unit_rows,
        **({} if survey.order is None else {"reordered": True}),
    }

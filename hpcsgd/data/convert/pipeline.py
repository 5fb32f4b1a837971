"""The steps of a conversion: survey the source, fill the stores, resume."""

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
    RowSelection,
    choose,
    first_rows,
    measure,
    numbered,
    refuse_non_finite,
)
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.preparation import (
    LABELS,
    Preparation,
    Scales,
    count_test,
    unit_rows,
)
from hpcsgd.data.store import ColumnFacts
from hpcsgd.errors import ConfigError, DataError, HpcsgdError, TransportError
from hpcsgd.formats import Array

# The first pass: sizes of the source, and moments of its columns.


@dataclass(frozen=True)
class Survey:
    """The result of the first pass: outline, layout and scales of the stored rows."""

    outline: Outline
    is_sparse: bool  # as the rows shall be stored
    scales: Scales | None  # of the stored rows
    places: Array | None = None  # (pieces, 2): byte and first row of every piece
    order: Array | None = None  # (cols,), columns of the source as they shall be stored
    unit_rows: bool = False  # rows get length 1

    @property
    def names(self) -> list[str] | None:
        """Return the names of the columns in stored order; None if they have none."""
        names = self.outline.columns.names
        if names is None or self.order is None:
            return None if names is None else list(names)
        return [names[number] for number in self.order]

    @property
    def preparation(self) -> Preparation:
        """Return how the stored rows are prepared, by this conversion or before it."""
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
    """Return the survey of a source other than text, by its method `outline`.

    A pass over the rows is made only if scales must be measured. `kept` returns the
    scales of an interrupted conversion that is resumed, or None.
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
    blocks = source.blocks(outline, recipe.block)
    for first, block in numbered(blocks, 0, recipe.selection):
        refuse_non_finite(block, first, source.path, outline.columns.names)
        moments.add_block(recipe.selection.trained_on(block.X, first))
        progress.at(block.end)
    full = moments.with_means() if outline.nnz is None else moments.with_zeros()
    scales = full.scales(centred=not is_sparse)
    return Survey(outline, is_sparse, scales, unit_rows=recipe.unit_rows)


def check_raw(outline: Outline, source: Source, recipe: Recipe) -> None:
    """Raise DataError if --standardize or --like is given for prepared rows."""
    changes = recipe.standardize or recipe.like is not None
    if changes and not outline.preparation.is_raw:
        flag = "--standardize" if recipe.standardize else "--like"
        is_scaled = outline.preparation.scales is not None
        what = "scaled columns" if is_scaled else "rows of length 1"
        raise DataError(
            f"{flag} cannot be used with {source.path}, which has {what} already;"
            " convert the raw rows from which it was made"
        )


def survey_like(
    outline: Outline,
    source: Source,
    recipe: Recipe,
    like: Like,
    places: Array | None = None,
) -> Survey:
    """Return the survey of rows that get the columns and scales of the file `like`.

    They get its layout, too, unless the recipe names one.
    """
    outline = like.widened(outline, source.path)
    order = like.order(outline, source.path)
    scales = like.preparation.scales
    columns = outline.columns
    if columns.means is not None and scales is not None and scales.mean is not None:
        # Missing values become the means of the training, in the order of the source.
        means = np.empty_like(scales.mean)
        means[slice(None) if order is None else order] = scales.mean
        columns = replace(columns, means=means)
    elif columns.means is not None:
        raise ConfigError(
            f"missing values of {source.path} cannot become the means of the training"
            f" rows, because {like.path} does not store them; convert the training rows"
            " with --standardize, or fill in the missing values and leave --missing out"
        )
    if order is None and columns.names is None and like.names is not None:
        columns = replace(columns, names=tuple(like.names))
    if columns.categories is None:
        columns = replace(columns, categories=like.categories)
    outline = replace(outline, columns=columns)
    is_sparse = like.is_sparse
    if recipe.layout != "auto":
        is_sparse = recipe.layout == "sparse"
    unit_rows = like.preparation.unit_rows
    return Survey(outline, is_sparse, scales, places, order, unit_rows)


def find_levels(
    source: TextSource, recipe: Recipe, crew: Crew, progress: ConversionProgress
) -> None:
    """Find the levels of text columns, in a pass that all ranks share. Collective.

    They are stored in `source` on all ranks.
    """
    level_sets = LevelSets(source.path)
    crew.share(
        source.tasks(),
        lambda task: source.find_levels(source.load(task)),
        lambda parts: progress.at(level_sets.add(parts)),
        WorkShares(workers(crew, recipe)),
        lambda made, said: made,
    )
    levels = crew.on_root(level_sets.in_order)
    source.learn_levels(levels)


def survey_text(
    source: TextSource, recipe: Recipe, crew: Crew, progress: ConversionProgress
) -> Survey:
    """Return the survey of a text, after one pass that all ranks share. Collective."""
    findings = _Findings()
    keep = recipe.standardize or source.fills

    def work(task: int | TextChunk) -> _Scan:
        piece = source.load(task)
        tally, X = source.scan(piece, keep)
        return _Scan(piece.position, tally, X)

    def finish(scans: list[_Scan], said: list[tuple[int, int]]) -> list[Parts]:
        firsts = findings.heard(said)
        return [scan.parts(recipe.selection, firsts[scan.position]) for scan in scans]

    crew.share(
        source.tasks(),
        work,
        lambda parts: progress.at(findings.add(parts)),
        WorkShares(workers(crew, recipe)),
        finish,
        say=lambda scan: (scan.position, scan.tally.rows),
    )
    crew.everywhere(lambda: refuse_changed(source.path, source.stamp))
    return crew.on_root(lambda: _concluded(source, recipe, findings))


@dataclass
class _Scan:
    """The counts of one scanned piece of a text, and its X if columns are measured."""

    position: int
    tally: PassCounts
    X: Any

    def parts(self, selection: RowSelection, first: int) -> Parts:
        """Return the counts and moments of the piece, as a message to rank 0.

        `first` is the number of the piece's first row.
        """
        counts = {"position": self.position, **asdict(self.tally)}
        if self.X is None:
            return counts
        X = selection.trained_on(self.X, first)
        measured = measure(X).parts() if X.shape[0] else {}
        return {**counts, "measured": X.shape[0], **measured}


class _Findings:
    """The collected results of scanned pieces.

    All ranks have the row numbers, and rank 0 has the rest.
    """

    def __init__(self) -> None:
        self.tally = PassCounts()
        self.moments = ColumnMoments()
        self.places: list[tuple[int, int]] = []
        self.rows = 0  # in the rounds before this one

    def heard(self, said: list[tuple[int, int]]) -> dict[int, int]:
        """Return position -> number of the first row for the pieces of this round.

        `said` has (position, rows) of the pieces that all ranks scanned, in order.
        """
        firsts = {}
        for position, rows in said:
            firsts[position] = self.rows
            self.rows += rows
        return firsts

    def add(self, parts: Parts) -> int:
        """Add the results of the next piece, and return the byte where it ends."""
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
    """Return whether rows are stored sparse.

    `recipe.layout` decides if it is not "auto". Otherwise arrays and CSV stay as they
    are, and LIBSVM rows are sparse if at most the share `DENSE_PAYS` of all values is
    stored.
    """
    if recipe.layout != "auto":
        return recipe.layout == "sparse"
    if outline.nnz is None:
        return False
    full = outline.nnz > DENSE_PAYS * outline.rows * outline.cols
    return not (is_text and full)


def workers(crew: Crew, recipe: Recipe) -> int:
    """Return how many ranks, from rank 0 on, parse within the memory limit."""
    return min(crew.size, recipe.memory // LEAST_MEMORY)


def check_rows(outline: Outline, source: Source) -> None:
    """Raise DataError if the source has no rows or no columns."""
    if outline.rows < 1 or outline.cols < 1:
        raise DataError(
            f"{source.path} has no rows with values; check the file and --format"
        )


# Changes of a block of rows between its source and its store.


def prepared(
    block: SourceRows, first: int, survey: Survey, recipe: Recipe
) -> SourceRows:
    """Return a block with mapped labels and transformed X.

    X is not transformed if it is sparse and would take too much memory as a dense
    array; `slices` does it later. `first` is the number of the first row.
    """
    y = relabelled(block.y, first, recipe)
    block = replace(block, y=y)
    if is_too_wide(block, survey, recipe):
        return block
    return replace(block, X=transformed(block.X, survey))


def is_too_wide(block: SourceRows, survey: Survey, recipe: Recipe) -> bool:
    """Return whether a sparse block to be stored dense would take too much memory."""
    rows, cols = block.X.shape
    widens = issparse(block.X) and not survey.is_sparse
    return widens and rows > block_rows(recipe.block, 8 * cols)


def slices(block: SourceRows, survey: Survey, recipe: Recipe) -> Iterator[SourceRows]:
    """Yield a block as it is, or in transformed slices if it is too wide."""
    rows, cols = block.X.shape
    if not is_too_wide(block, survey, recipe):
        yield block
        return
    step = block_rows(recipe.block, 8 * cols)
    for start in range(0, rows, step):
        part = choose(block, slice(start, start + step))
        yield replace(part, X=transformed(part.X, survey))


def transformed(X: Any, survey: Survey) -> Any:
    """Return X as it is to be stored, before its conversion to the element type.

    Columns are reordered and scaled, and rows get length 1, as the survey says.
    """
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
    """Return `y` with labels replaced as `recipe.labels` maps them.

    Return `y` itself if there is no map; raise DataError for a label that is not in it.
    `first` is the number of the first row.
    """
    if y is None or not recipe.labels:
        return y
    new = np.empty_like(y)
    is_mapped = np.zeros(len(y), dtype=bool)
    for old, label in recipe.labels:
        here = y == old
        new[here], is_mapped = label, is_mapped | here
    if not is_mapped.all():
        row = int(np.argmin(is_mapped))
        labels = ", ".join(f"{old:g}" for old, _ in recipe.labels)
        raise DataError(
            f"row {first + row} has the label {y[row]:g}, and --map-labels maps only"
            f" {labels}; map all labels, or leave --map-labels out"
        )
    return new


# The second pass: every row is appended to its store.

SIDES = ("y", "weights", "offsets", "queries")
WIDEST = 8  # bytes of a number in a store
Places = NDArray[np.int64]


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of the source that are not yet encoded."""

    first: int  # number of its first row
    rows: SourceRows

    def parts(self) -> Parts:
        """Return the batch as numbers and arrays by name, for a message."""
        span = {"first": self.first, "end": self.rows.end}
        sides = {name: getattr(self.rows, name) for name in SIDES}
        X = self.rows.X
        if not issparse(X):
            return {**span, **sides, "X": X}
        matrix = {"data": X.data, "indices": X.indices, "indptr": X.indptr}
        return {**span, **sides, **matrix, "cols": X.shape[1]}

    @classmethod
    def of(cls, parts: Parts) -> "RowBatch":
        """Return the batch that a result of `parts` describes."""
        X = parts.get("X")
        if X is None:
            matrix = (parts["data"], parts["indices"], parts["indptr"])
            X = csr_array(matrix, shape=(len(parts["indptr"]) - 1, parts["cols"]))
        sides = {name: parts[name] for name in SIDES}
        return cls(parts["first"], SourceRows(X=X, end=parts["end"], **sides))


class StoreFiller:
    """The writer on rank 0, which appends rows in order to the stores.

    There is one store, or two with test rows.
    """

    def __init__(
        self,
        survey: Survey,
        recipe: Recipe,
        encoder: Encoder,
        sinks: Sinks,
        sealed: SealedParts,
        progress: ConversionProgress,
    ) -> None:
        self.survey = survey
        self.recipe = recipe
        self.encoder = encoder
        self.sinks = sinks
        self.sealed = sealed
        self.progress = progress
        self.row = self.position = 0  # of the source, behind the parts

    def restore(self) -> None:
        """Append the rows that an interrupted conversion had saved, and skip them.

        `row` and `position` are then the place in the source behind them.
        """
        self.progress.begin("writing", self.survey.outline.size)
        for parts in self.sealed.complete():
            ready = self._append(parts)
            self.row = ready.first + ready.count
            self.position = ready.end
            self.progress.at(ready.end)

    def receive(self, parts: Parts) -> None:
        """Append the next rows from a message: encoded rows, or a RowBatch."""
        if "ready" not in parts:
            self.take(RowBatch.of(parts))
            return
        self.sealed.add(parts)
        self._reach(self._append(parts).end)

    def take(self, batch: RowBatch) -> None:
        """Encode the rows of a batch and append them."""
        row = batch.first
        for part in slices(batch.rows, self.survey, self.recipe):
            parts = self.encoder.encode(row, part).parts()
            self.sealed.add(parts)
            self._append(parts)
            row += part.X.shape[0]
        self._reach(batch.rows.end)

    def leave(self, keeps: bool) -> None:
        """Remove the incomplete stores, and the saved rows too unless `keeps`."""
        self.sinks.abandon()
        if keeps:
            self.sealed.seal()
        else:
            self.sealed.remove()

    def finish(self) -> None:
        """Complete the stores, and remove the files of saved rows."""
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
    """Append the rows from `pouring.row` on of a source that one rank reads alone."""
    survey = pouring.survey
    recipe = pouring.recipe
    if pouring.row >= recipe.selection.wanted(0, survey.outline.rows):
        return
    blocks = source.blocks(survey.outline, recipe.block, pouring.position)
    for first, block in numbered(blocks, pouring.row, recipe.selection):
        refuse_non_finite(block, first, source.path, survey.outline.columns.names)
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
    """Append the rows of a text from number `row` on. Collective.

    All ranks parse and encode pieces of the text. Rank 0 calls `take` with the rows, in
    order.
    """
    places = survey.places
    if places is None or row >= recipe.selection.wanted(0, survey.outline.rows):
        return

    def work(task: int | TextChunk) -> list[Parts]:
        piece = source.load(task)
        rows = source.rows(piece, survey.outline)
        if not rows.X.shape[0]:
            return []
        first = _first_row(source, places, piece)
        rows = first_rows(rows, recipe.selection.wanted(first, rows.X.shape[0]))
        rows = prepared(rows, first, survey, recipe)
        if is_too_wide(rows, survey, recipe):
            return [RowBatch(first, rows).parts()]
        return [encoder.encode(first, rows).parts()]

    crew.share(
        source.tasks(*_range(places, recipe.selection, row)),
        work,
        take,
        WorkShares(workers(crew, recipe), _at_once(survey, recipe, crew)),
        lambda made, said: list(chain.from_iterable(made)),
    )
    crew.everywhere(lambda: refuse_changed(source.path, source.stamp))


def _at_once(survey: Survey, recipe: Recipe, crew: Crew) -> int:
    """Return how many pieces of each rank fit into rank 0's memory in a round.

    Pieces are counted with their average size.
    """
    outline = survey.outline
    pieces = 1 if survey.places is None else max(len(survey.places), 1)
    numbers = outline.rows * outline.cols
    if survey.is_sparse and outline.nnz is not None:
        numbers = 2 * outline.nnz
    size = WIDEST * (numbers + outline.rows) // pieces
    return max(min(MOST, recipe.block // (crew.size * max(size, 1))), 1)


def _range(places: Places, selection: RowSelection, row: int) -> tuple[int, int]:
    """Return the byte of the piece that begins with row `row`, and the end byte.

    The end is that of the rows that are converted.
    """
    piece = int(np.searchsorted(places[:, 1], row))
    last = len(places)
    if selection.rows is not None:
        last = int(np.searchsorted(places[:, 1], selection.rows))
    stop = int(places[last, 0]) if last < len(places) else ENDLESS
    return int(places[piece, 0]), stop


def _first_row(source: TextSource, places: Places, piece: TextChunk) -> int:
    """Return the number of the first row of a piece.

    Raise DataError if the text changed since the first pass.
    """
    at = int(np.searchsorted(places[:, 0], piece.position))
    if at == len(places) or places[at, 0] != piece.position:
        raise DataError(
            f"{source.path} changed between the two passes of the conversion; wait"
            " until it is complete and convert it again"
        )
    return int(places[at, 1])


# The files that a conversion writes, and checks before the first pass.


def test_path(path: Path) -> Path:
    """Return the path of the test rows, DST-test beside DST."""
    return path.with_name(f"{path.stem}-test{path.suffix}")


def parts(path: Path, rows: int, selection: RowSelection) -> list[StoreFile]:
    """Return the files to write, each with its number of rows."""
    if not selection.test_fraction:
        return [StoreFile(path, rows, False)]
    drawn = count_test(rows, selection.test_fraction, selection.seed)
    if drawn in (0, rows):
        raise ConfigError(
            f"--test-fraction {selection.test_fraction} of {rows} rows leaves"
            f" {rows - drawn} for training and {drawn} for the test; choose another"
            " share"
        )
    return [
        StoreFile(path, rows - drawn, False),
        StoreFile(test_path(path), drawn, True),
    ]


def requested_rows(outline: Outline, selection: RowSelection) -> int:
    """Return how many rows of the source are converted: `selection.rows`, or all."""
    if selection.rows is not None and selection.rows > outline.rows:
        raise ConfigError(
            f"--rows {selection.rows} is too large: the source has {outline.rows} rows;"
            " give at most that many"
        )
    return selection.rows or outline.rows


def identity(source: Source, outline: Outline, recipe: Recipe) -> dict[str, Any]:
    """Return the facts that must be equal to resume an interrupted conversion.

    They are the recipe (without `memory`), the file of the source, and its outline
    (without the preparation, which the file itself contains).
    """
    selection = vars(recipe.selection).copy()
    settings = {
        "requested_rows": selection.pop("rows"),
        "element": recipe.element,
        "standardize": recipe.standardize,
        "unit_rows": recipe.unit_rows,
        **selection,
        "layout": recipe.layout,
        "labels": [list(pair) for pair in recipe.labels],
        "like": None if recipe.like is None else recipe.like.fingerprint(),
    }
    columns = outline.columns
    counted = {
        "rows": outline.rows,
        "cols": outline.cols,
        "nnz": outline.nnz,
        "labelled": outline.labelled,
        "size": outline.size,
        "index_base": columns.index_base,
        "means": None if columns.means is None else columns.means.tolist(),
        "names": None if columns.names is None else list(columns.names),
        "label": outline.label,
        "categories": columns.categories,
        "label_numbers": outline.label_numbers,
    }
    status = source.path.stat()
    file_facts = {"source": str(source.path.resolve()), "source_bytes": status.st_size}
    return {**settings, **file_facts, "source_changed": status.st_mtime_ns, **counted}


def check_target(path: Path, selection: RowSelection, force: bool) -> None:
    """Raise ConfigError if a file cannot be written, or exists without `force`."""
    for target in [path, test_path(path)] if selection.test_fraction else [path]:
        if target.is_dir():
            raise ConfigError(f"cannot write {target}: it is a folder; name a file")
        if target.exists() and not force:
            raise ConfigError(f"{target} exists; add --force to replace it")
    if not path.parent.is_dir():
        raise ConfigError(
            f"cannot write {path}: its folder is missing; make it, or name another"
        )


def check_source(path: Path, target: Path) -> None:
    """Raise an error if the source cannot be read, or if it is the target itself."""
    open_file(path, "a file of rows").close()
    if target.exists() and target.samefile(path):
        raise ConfigError(
            f"{target} is the source itself; name another file for the output"
        )


# The conversion of a source to a store, in two passes and in bounded memory.

log = logging.getLogger(__name__)
PEEK = 65536  # bytes of the first rows, which show the side columns


def convert(
    source: Source,
    target: Path,
    recipe: Recipe,
    progress: ConversionProgress,
    resume: bool = False,
    force: bool = False,
    crew: Crew | None = None,
) -> dict[str, Any]:
    """Write the store, and one of test rows if any are drawn; return a report for JSON.

    The first pass counts rows and measures columns; the second writes. The ranks of a
    crew share the parsing of a plain text, with the same `source` on all. Collective.
    """
    crew = crew or Crew(SingleRank())
    conversion = Conversion(source, target, recipe, progress, resume, force)
    crew.on_root(conversion.check)
    if isinstance(source, TextSource):
        crew.everywhere(lambda: _begin(source, recipe.like))
        if source.packed is None:
            return _shared(conversion, source, crew)
    if crew.size > 1 and crew.is_root:
        log.info(
            "only uncompressed text can be divided among ranks; rank 0 converts all"
            " of %s",
            source.path,
        )
    conversion.progress = HeartbeatProgress(progress, crew.beat)
    return crew.on_root_for_long(lambda: _alone(conversion))


def _begin(source: TextSource, like: Like | None) -> None:
    """Read the head of a text, after taking over the levels of the file `like`."""
    if like is not None:
        source.follow(like)
    source.begin()


class Conversion:
    """One conversion: its arguments, and the steps that rank 0 performs."""

    def __init__(
        self,
        source: Source,
        target: Path,
        recipe: Recipe,
        progress: ConversionProgress,
        resume: bool,
        force: bool,
    ) -> None:
        self.source = source
        self.target = target
        self.recipe = recipe
        self.progress = progress
        self.resume = resume
        self.force = force
        self.sealed = SealedParts(target)
        self.pouring: StoreFiller | None = None  # once the stores are open
        self._files: list[StoreFile] = []

    def check(self) -> None:
        """Raise an error if the source cannot be read or the target not written."""
        goes_on = self.resume and self.sealed.exist
        check_target(self.target, self.recipe.selection, self.force or goes_on)
        check_source(self.source.path, self.target)

    def kept(self, outline: Outline) -> Scales | None:
        """Return the scales of the interrupted conversion that this one resumes.

        Return None if it resumes none, or does not standardize columns.
        """
        if not self.recipe.standardize:
            return None
        return self.sealed.scales if self._resumes(outline) else None

    def _resumes(self, outline: Outline) -> bool:
        now = identity(self.source, outline, self.recipe)
        return self.resume and self.sealed.resume(now)

    def begin_counting(self) -> None:
        """Start the progress report of the first pass."""
        self.progress.begin("counting rows", self.source.path.stat().st_size)

    def files(self, outline: Outline) -> list[StoreFile]:
        """Return the files that are written, with their numbers of rows."""
        if not self._files:
            selection = self.recipe.selection
            rows = requested_rows(outline, selection)
            self._files = parts(self.target, rows, selection)
        return self._files

    def encoder(self, survey: Survey) -> Encoder:
        """Return the encoder of rows for the stores."""
        files = self.files(survey.outline)
        return Encoder(files, self._layout(survey), self.recipe.selection)

    def _layout(self, survey: Survey) -> StoreLayout:
        return StoreLayout(
            survey.outline.cols, self.recipe.element, is_sparse=survey.is_sparse
        )

    def open(self, survey: Survey, encoder: Encoder) -> StoreFiller:
        """Open the stores; if the conversion resumes, append the saved rows."""
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
        """Write the next rows from a message to the stores."""
        assert self.pouring is not None
        self.pouring.receive(parts)

    def close(self, survey: Survey) -> dict[str, Any]:
        """Complete the stores; return the report."""
        assert self.pouring is not None
        self.pouring.finish()
        return _said(self.files(survey.outline), survey, self.recipe)

    @contextmanager
    def left_whole(self) -> Iterator[None]:
        """Remove the incomplete stores if the body fails, and raise its error again.

        Saved rows are kept after an interruption, to resume, and removed after an error
        of the input. Failures of the system or of messages count as interruptions.
        """
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
        """Return the properties that the files of training and test rows share."""
        preparation = survey.preparation
        first = next(iter(self.source.blocks(survey.outline, PEEK, 0)))
        return ConversionPlan(
            layout=self._layout(survey),
            sides=tuple(held(first)),
            attributes={
                "source": self.source.path.name,
                "unit_rows": preparation.unit_rows,
                **_index_base(survey.outline),
                **_label_numbers(survey.outline),
            },
            column_facts=ColumnFacts(
                preparation.scales, survey.names, survey.outline.columns.categories
            ),
        )


def _index_base(outline: Outline) -> dict[str, Any]:
    """Return the attribute with the number of the first column in a LIBSVM text.

    `--like` reads it. Return an empty dict for other sources.
    """
    base = outline.columns.index_base
    return {} if base is None else {INDEX_BASE: base}


def _label_numbers(outline: Outline) -> dict[str, Any]:
    """Return the attribute with the numbers of labels that were text, or {}."""
    numbers = outline.label_numbers
    return {LABELS: json.dumps(numbers)} if numbers else {}


def _alone(one: Conversion) -> dict[str, Any]:
    """Convert on one rank; return the report."""
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
    """Convert a text on all ranks, and return the report. Collective.

    All ranks parse, and rank 0 writes.
    """
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
    """Return the report of a conversion, for JSON."""
    outline: Outline = survey.outline
    preparation = survey.preparation
    like = recipe.like
    how = "mean 0, spread 1"
    if preparation.columns == "scaled":
        how = "scaled only, to keep their zeros"
    if survey.scales is None:
        how = "scaled before, as the source says"
    elif like is not None:
        how = f"scaled with the means and scales of {like.path}"
    column_facts: dict[str, Any] = {}
    if outline.label is not None:
        column_facts["label_column"] = outline.label
    categories = outline.columns.categories
    if categories:
        column_facts["categories"] = {k: len(of) for k, of in categories.items()}
    if outline.label_numbers:
        column_facts["label_numbers"] = outline.label_numbers
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
        **column_facts,
        "sparse": survey.is_sparse,
        "standardized": how if preparation.scales else None,
        "unit_rows": preparation.unit_rows,
        **({} if survey.order is None else {"reordered": True}),
    }

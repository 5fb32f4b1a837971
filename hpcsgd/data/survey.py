"""The first pass: how much there is, and what its columns are like."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.crew import Crew
from hpcsgd.data.libsvm import LibsvmSource
from hpcsgd.data.like import Like
from hpcsgd.data.moments import Measured, Moments, measure
from hpcsgd.data.numbered import numbered, refuse_non_finite
from hpcsgd.data.packing import Parts
from hpcsgd.data.preparation import Preparation, Scales
from hpcsgd.data.progress import Progress
from hpcsgd.data.recipe import DENSE_PAYS, LEAST_MEMORY, Recipe
from hpcsgd.data.rounds import Pace
from hpcsgd.data.source import Outline, Source
from hpcsgd.data.text import Piece, refuse_changed
from hpcsgd.data.text_source import Tally, TextSource
from hpcsgd.errors import DataError

Array = NDArray[Any]


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
    progress: Progress,
    kept: Callable[[Outline], Scales | None] = lambda outline: None,
) -> Survey:
    """Of a source that says how much it holds; a pass is made only for the scales.

    `kept` are those of a conversion that is gone on with.
    """
    outline = source.outline(progress.at)
    check_rows(outline, source)
    check_raw(outline, source, recipe)
    if recipe.like is not None:
        return as_like(outline, source, recipe, recipe.like)
    is_sparse = wants_sparse(outline, recipe)
    scales = kept(outline)
    if scales is not None or not recipe.standardize:
        return Survey(outline, is_sparse, scales, unit_rows=recipe.unit_rows)
    moments = Moments(outline.cols)
    progress.begin("measuring columns", outline.size)
    for first, block in numbered(source.blocks(outline, recipe.block, 0), 0, recipe):
        refuse_non_finite(block, first, source.path)
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


def as_like(
    outline: Outline,
    source: Source,
    recipe: Recipe,
    like: Like,
    places: Array | None = None,
) -> Survey:
    """Return how rows become those of another file: its columns, scales and layout."""
    if isinstance(source, LibsvmSource):
        outline = like.widened(outline, source.path)
    order, scales = like.order(outline, source.path), like.preparation.scales
    if outline.means is not None and scales is not None and scales.mean is not None:
        # What is missing becomes the mean of the training, in the source's own order.
        means = np.empty_like(scales.mean)
        means[slice(None) if order is None else order] = scales.mean
        outline = replace(outline, means=means)
    if order is None and outline.names is None and like.names is not None:
        outline = replace(outline, names=tuple(like.names))
    is_sparse = like.is_sparse
    if recipe.layout != "auto":
        is_sparse = recipe.layout == "sparse"
    unit_rows = like.preparation.unit_rows
    return Survey(outline, is_sparse, scales, places, order, unit_rows)


def survey_text(
    source: TextSource, recipe: Recipe, crew: Crew, progress: Progress
) -> Survey:
    """Of a text, in one pass over it that all ranks share; the same on all of them."""
    found = _Findings()
    keep = recipe.standardize or source.fills

    def work(task: int | Piece) -> _Scan:
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
        Pace(workers(crew, recipe)),
        finish,
        say=lambda scan: (scan.position, scan.tally.rows),
    )
    crew.everywhere(lambda: refuse_changed(source.path, source.stamp))
    return crew.on_root(lambda: _concluded(source, recipe, found))


@dataclass
class _Scan:
    """One piece: what it holds, and its X where that is to be measured."""

    position: int
    tally: Tally
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
        self.tally, self.moments = Tally(), Moments()
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
        tally = Tally(**{f.name: parts[f.name] for f in fields(Tally)})
        if tally.rows:
            self.places.append((parts["position"], self.tally.rows))
        self.tally.add(tally)
        if parts.get("measured"):
            self.moments.add(parts["measured"], Measured.of(parts))
        return tally.end


def _concluded(source: TextSource, recipe: Recipe, found: _Findings) -> Survey:
    outline = source.outline_of(found.tally, found.moments)
    places = np.array(found.places, dtype=np.int64).reshape(-1, 2)
    if recipe.like is not None:
        return as_like(outline, source, recipe, recipe.like, places)
    is_sparse = wants_sparse(outline, recipe, is_text=True)
    scales = None
    if recipe.standardize:
        full = source.moments_of(outline, found.moments)
        scales = full.scales(centred=not is_sparse)
    return Survey(outline, is_sparse, scales, places, unit_rows=recipe.unit_rows)


def wants_sparse(outline: Outline, recipe: Recipe, is_text: bool = False) -> bool:
    """As asked for; else text goes by its density, and arrays stay what they are."""
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

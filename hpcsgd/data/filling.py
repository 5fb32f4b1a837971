"""The second pass: every row into the store it belongs to."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from hpcsgd.data.changes import is_too_wide, prepared, slices
from hpcsgd.data.crew import Crew
from hpcsgd.data.numbered import first_rows, numbered, refuse_non_finite
from hpcsgd.data.packing import Parts
from hpcsgd.data.progress import Progress
from hpcsgd.data.ready import Encoder, Ready
from hpcsgd.data.recipe import Recipe
from hpcsgd.data.rounds import MOST, Pace
from hpcsgd.data.sink import SealedParts, Sinks
from hpcsgd.data.source import Rows, Source
from hpcsgd.data.survey import Survey, workers
from hpcsgd.data.text import Piece, refuse_changed
from hpcsgd.data.text_source import ENDLESS, TextSource
from hpcsgd.errors import DataError

SIDES = ("y", "weights", "offsets", "queries")
WIDEST = 8  # bytes of a number in a store
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Consecutive rows on their way to the stores."""

    first: int  # number of its first row
    rows: Rows

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
    def of(cls, parts: Parts) -> "Batch":
        """As it was."""
        X = parts.get("X")
        if X is None:
            matrix = (parts["data"], parts["indices"], parts["indptr"])
            X = csr_array(matrix, shape=(len(parts["indptr"]) - 1, parts["cols"]))
        sides = {name: parts[name] for name in SIDES}
        return cls(parts["first"], Rows(X=X, end=parts["end"], **sides))


class Pouring:
    """Rank 0's side: rows in order, into one store or two."""

    def __init__(
        self,
        survey: Survey,
        recipe: Recipe,
        encoder: Encoder,
        sinks: Sinks,
        sealed: SealedParts,
        progress: Progress,
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
            self.take(Batch.of(parts))
            return
        self.sealed.add(parts)
        self._reach(self._append(parts).end)

    def take(self, batch: Batch) -> None:
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

    def _append(self, parts: Parts) -> Ready:
        ready = Ready.of(parts)
        for number, stored in enumerate(ready.stores):
            if stored is not None:
                self.sinks.append(number, stored, ready.end)
        return ready

    def _reach(self, position: int) -> None:
        self.sealed.reach()
        self.progress.at(position)


def fill_from_rows(source: Source, pouring: Pouring) -> None:
    """From a source that is read on one rank."""
    survey, recipe = pouring.survey, pouring.recipe
    if pouring.row >= recipe.wanted(0, survey.outline.rows):
        return
    blocks = source.blocks(survey.outline, recipe.block, pouring.position)
    for first, block in numbered(blocks, pouring.row, recipe):
        refuse_non_finite(block, first, source.path)
        pouring.take(Batch(first, prepared(block, first, survey, recipe)))


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

    def work(task: int | Piece) -> list[Parts]:
        piece = source.load(task)
        rows = source.rows(piece, survey.outline)
        if not rows.X.shape[0]:
            return []
        first = _first_row(source, places, piece)
        rows = first_rows(rows, recipe.wanted(first, rows.X.shape[0]))
        rows = prepared(rows, first, survey, recipe)
        if is_too_wide(rows, survey, recipe):
            return [Batch(first, rows).parts()]
        return [encoder.encode(first, rows).parts()]

    crew.share(
        source.tasks(*_range(places, recipe, row)),
        work,
        take,
        Pace(workers(crew, recipe), _at_once(survey, recipe, crew)),
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


def _first_row(source: TextSource, places: Places, piece: Piece) -> int:
    """The number of a piece's first row."""
    at = int(np.searchsorted(places[:, 0], piece.position))
    if at == len(places) or places[at, 0] != piece.position:
        raise DataError(f"{source.path} changed since it was counted; start anew")
    return int(places[at, 1])

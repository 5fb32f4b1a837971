"""What sources of text have in common: pieces that any rank may parse."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcsgd.data.compressed import Stamp, TextStream
from hpcsgd.data.faults import Fault
from hpcsgd.data.moments import Moments
from hpcsgd.data.source import Outline, Rows
from hpcsgd.data.text import (
    PIECE,
    Piece,
    count_pieces,
    located,
    pieces,
    read_piece,
    refuse_changed,
)
from hpcsgd.errors import DataError

ENDLESS = 2**62  # nobody knows how long a compressed text is


@dataclass
class Tally:
    """What a pass counts."""

    rows: int = 0
    stored: int = 0  # values written out in sparse text
    lowest: int = 2**31  # index, as written
    highest: int = -1
    end: int = 0

    def add(self, other: "Tally") -> None:
        """What was counted in another piece."""
        self.rows += other.rows
        self.stored += other.stored
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.end = max(self.end, other.end)


class TextSource(ABC):
    """Rows of a text, plain or compressed. `begin` comes first."""

    path: Path
    fills: bool  # values that are missing become the mean of their column
    piece = PIECE  # bytes; the same for every rank and every pass
    delimiter = b"\n"  # between fields, or nothing but lines
    first = 0  # byte at which the rows begin
    size = ENDLESS  # of a plain text
    packed: str | None = None  # how it is compressed
    stamp: Stamp | None = None

    def begin(self) -> None:
        """Look at the file: what it is, and what its first lines say."""
        with TextStream(self.path) as stream:
            self.stamp, self.packed = stream.stamp, stream.kind
        self.size = ENDLESS if self.packed else self.stamp[0]
        self._read_head()

    @abstractmethod
    def _read_head(self) -> None:
        """What the first lines say."""

    @abstractmethod
    def scan(self, piece: Piece, keep: bool) -> tuple[Tally, Any]:
        """What it holds, and with `keep` its X: indices and missing values as written.

        Without `keep` it is only gone through.
        """

    @abstractmethod
    def outline_of(self, tally: Tally, moments: Moments) -> Outline:
        """What there is, once all pieces were scanned."""

    @abstractmethod
    def moments_of(self, outline: Outline, moments: Moments) -> Moments:
        """Those of the columns of X, with a value in every place."""

    @abstractmethod
    def rows(self, piece: Piece, outline: Outline) -> Rows:
        """The rows of a piece."""

    def tasks(self, start: int = 0, stop: int = ENDLESS) -> Iterator[int | Piece]:
        """What `load` makes pieces of, those of lines that begin in start..stop."""
        if self.packed is None:
            last = count_pieces(min(stop, self.size), self.piece)
            yield from range(start // self.piece, last)
            return
        for piece in pieces(self.path, start, self.piece):
            if piece.position >= stop:
                return
            yield piece

    def load(self, task: int | Piece) -> Piece:
        """The piece itself: a number is read here, on whatever rank this is."""
        if isinstance(task, int):
            task = read_piece(self.path, task, self.piece)
            refuse_changed(self.path, self.stamp)
        return task.behind(self.first)

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """The first pass, on one rank."""
        self.begin()
        tally, moments = Tally(), Moments()
        for task in self.tasks():
            piece = self.load(task)
            found, X = self.scan(piece, keep=self.fills)
            if X is not None:
                moments.add_block(X)
            tally.add(found)
            progress(piece.end)
        refuse_changed(self.path, self.stamp)
        return self.outline_of(tally, moments)

    def blocks(self, outline: Outline, budget: int, start: int = 0) -> Iterator[Rows]:
        """The rows after byte `start`, in pieces of a size of their own."""
        if self.stamp is None:
            self.begin()
        for task in self.tasks(start):
            rows = self.rows(self.load(task), outline)
            if rows.X.shape[0]:
                yield rows
        refuse_changed(self.path, self.stamp)

    def refused(self, piece: Piece, fault: Fault) -> DataError:
        """The error that names the place of a fault."""
        refuse_changed(self.path, self.stamp)  # then its line is not what it seems
        return located(self.path, piece, fault, self.delimiter)

"""The stores that one conversion writes, and where it goes on after a break.

Each store knows how many rows it holds and the position of the source after them; the
journal beside them knows which row of the source that position is.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.encoding import StoredRows
from hpcsgd.data.layout import COLUMNS
from hpcsgd.data.preparation import MEANS, SCALES, Preparation
from hpcsgd.data.source import Rows
from hpcsgd.data.store_writer import FLUSH_BYTES, StoreWriter
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import write_text
from hpcsgd.json_text import parse_json

Array = NDArray[Any]
FLUSH_SECONDS = 5.0  # between rows that survive a kill
WIDEST = 8  # bytes of an element
NOWHERE = (2**62, 2**62)  # a complete store takes no more rows


@dataclass(frozen=True)
class Part:
    """One of the files a conversion writes: its rows are those with this verdict."""

    path: Path
    rows: int
    test: bool


@dataclass(frozen=True)
class Plan:
    """What the files of one conversion have in common."""

    cols: int
    element: str
    is_sparse: bool
    sides: tuple[str, ...]  # columns that come with X, of COLUMNS
    attributes: dict[str, Any]
    preparation: Preparation
    names: list[str] | None


@dataclass
class Journal:
    """What a broken conversion is known by: its identity and the rows of positions."""

    target: Path
    identity: dict[str, Any]
    places: dict[int, int] = field(default_factory=lambda: {0: 0})  # position -> row

    @property
    def path(self) -> Path:
        """Hidden beside the target."""
        return self.target.with_name(f".{self.target.name}.convert.json")

    def write(self) -> None:
        """Whole or not at all."""
        places = sorted(self.places.items())
        try:
            write_text(
                self.path, json.dumps({"places": places, "identity": self.identity})
            )
        except OSError as error:
            raise DataError(
                f"cannot write {self.target} ({error.strerror}); make room and go on"
                " with --resume, or choose another folder"
            ) from error

    def read(self) -> bool:
        """Take the places of what was begun; False where there is nothing."""
        try:
            known = parse_json(self.path.read_text())
            before, places = known["identity"], dict(known["places"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        now = self.identity
        odd = sorted(k for k in before.keys() | now if before.get(k) != now.get(k))
        if odd:
            raise ConfigError(
                f"--resume: what was begun for {self.target} differs in"
                f" {', '.join(odd)}; give the same source and options, or leave"
                " --resume out"
            )
        self.places = places
        return True

    def remove(self) -> None:
        """The conversion is complete, or leaves nothing."""
        self.path.unlink(missing_ok=True)


class Sinks:
    """The stores of a conversion, flushed together now and then."""

    is_due = False  # True: the next rows are the last ones before a flush

    def __init__(self, parts: list[Part], plan: Plan, journal: Journal) -> None:
        self.parts, self.journal, self.plan = parts, journal, plan
        self.writers: list[StoreWriter | None] = []
        self.starts = [(0, 0)] * len(parts)
        self.flushed = time.monotonic()
        journal.remove()
        try:
            for part in parts:
                self.writers.append(_create(part, plan))
            journal.write()
        except BaseException:
            self.abandon()
            raise

    @classmethod
    def reopen(cls, parts: list[Part], plan: Plan, journal: Journal) -> "Sinks":
        """Those of a conversion that broke off; complete ones take nothing more."""
        self = cls.__new__(cls)
        self.parts, self.journal, self.plan = parts, journal, plan
        self.writers = [_reopen(part) for part in parts]
        self.starts = [
            NOWHERE if w is None else (journal.places[w.position], w.position)
            for w in self.writers
        ]
        self.flushed = time.monotonic()
        return self

    @property
    def start(self) -> tuple[int, int]:
        """(row, position) of the source where the first of them goes on."""
        return min(self.starts)

    def will_reach(self, row: int, position: int, values: int) -> None:
        """Say where the source goes on after the next rows, before they are given.

        The journal goes to disk only where a store may do so after it: that is slow.
        """
        self.journal.places[position] = row
        self.is_due = time.monotonic() - self.flushed >= FLUSH_SECONDS
        pending = max(w.pending for w in self.writers if w is not None)
        if self.is_due or pending + WIDEST * values >= FLUSH_BYTES:
            self.journal.write()

    def append(self, number: int, rows: StoredRows, position: int) -> None:
        """The next rows of one of them; after them the source goes on there."""
        writer = self.writers[number]
        if writer is None:
            raise DataError(f"{self.parts[number].path} is complete already")
        writer.append_stored(rows, position)

    def reached(self, row: int, position: int) -> None:
        """All rows before this place are in; flush them when it is time."""
        if not self.is_due:
            return
        for writer, start in zip(self.writers, self.starts, strict=True):
            if writer is not None and start[1] <= position:
                writer.flush(position)
        ahead = {at: first for first, at in self.starts if at > position}
        self.journal.places = {position: row, **ahead}
        self.flushed = time.monotonic()

    def finish(self) -> None:
        """Give all of them their names."""
        self.journal.write()
        for writer in self.writers:
            if writer is not None:
                writer.finish()
        self.journal.remove()

    def leave(self) -> None:
        """Close what is unfinished, so that it can be gone on with."""
        for writer in self.writers:
            if writer is not None:
                writer.__exit__(InterruptedError, None, None)

    def abandon(self) -> None:
        """Leave nothing behind."""
        for writer in self.writers:
            if writer is not None:
                writer.abandon()
        self.journal.remove()


def held(rows: Rows) -> dict[str, Array]:
    """What comes with X, as stores call it."""
    sides = (rows.y, rows.weights, rows.offsets, rows.queries)
    named = zip(COLUMNS, sides, strict=True)
    return {name: side for name, side in named if side is not None}


def kept_scales(parts: list[Part]) -> tuple[Array | None, Array | None]:
    """Means and scales as an unfinished store keeps them."""
    for part in parts:
        writer = _reopen(part)
        if writer is not None:
            found = [writer.file.get(name) for name in (MEANS, SCALES)]
            means, scales = (None if f is None else np.asarray(f) for f in found)
            writer.__exit__(InterruptedError, None, None)
            return means, scales
    return None, None


def _create(part: Part, plan: Plan) -> StoreWriter:
    scales = plan.preparation.scales
    return StoreWriter(
        part.path,
        plan.cols,
        rows=part.rows,
        element=plan.element,
        is_sparse=plan.is_sparse,
        columns=plan.sides,
        attributes=plan.attributes,
        means=None if scales is None else scales.mean,
        scales=None if scales is None else scales.scale,
        names=plan.names,
        resumable=True,
    )


def _reopen(part: Part) -> StoreWriter | None:
    """None where the store is complete and has its name."""
    hidden = part.path.with_name(f".{part.path.name}.part")
    if part.path.exists() and not hidden.exists():
        return None
    return StoreWriter.reopen(part.path, part.rows)

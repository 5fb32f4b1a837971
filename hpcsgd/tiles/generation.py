"""The files of all ranks as one: a state by its columns, whoever holds them.

    tiles/000001/r0c0/  r1c0/  ...

A run may go on with other tiles, or on another grid. What is on disk is then dealt
anew into the next generation of folders, and the old one goes when all of the new one
is complete. Nothing but the columns of the data says what belongs where.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import DataError
from hpcsgd.files import own_folder
from hpcsgd.tiles.checksums import from_text
from hpcsgd.tiles.files import StateFile, room, unreadable
from hpcsgd.tiles.plan import Plan
from hpcsgd.tiles.stamp import Stamp, Stamps
from hpcsgd.tiles.store import CHECKSUMS, Layout
from hpcsgd.tiles.traffic import Traffic

Array = NDArray[Any]
FOLDER = re.compile(r"\d{6}")
OF_RANK = re.compile(r"r(\d+)c(\d+)")


def generations(folder: Path) -> list[int]:
    """Their numbers, the newest first."""
    if not folder.is_dir():
        return []
    names = [one.name for one in folder.iterdir() if FOLDER.fullmatch(one.name)]
    for name in names:
        check_own(folder / name)
    return sorted(map(int, names), reverse=True)


def check_own(folder: Path) -> None:
    """Refuse a link in place of the folder of a generation or of a rank."""
    try:
        own_folder(folder.parent, folder.name)
    except OSError as error:
        raise unreadable(folder, error) from error


def remove(generation: Path) -> None:
    """The folders of its ranks, and nothing that somebody else may have put there."""
    for one in generation.iterdir():
        if OF_RANK.fullmatch(one.name):
            shutil.rmtree(one, ignore_errors=True)
    with suppress(OSError):
        generation.rmdir()  # where nothing is left


def place_in(folder: Path, generation: int, replica: int, member: int) -> Path:
    """The folder of one rank."""
    return folder / f"{generation:06d}" / f"r{replica}c{member}"


@dataclass(frozen=True)
class Held:
    """What one rank of a generation has on disk."""

    folder: Path
    layout: Layout
    replica: int
    stamps: tuple[Stamp, ...]

    def checksums(self, name: str, version: int) -> Array | None:
        """Of the tiles of a state at that step, if it took any."""
        stamp = next(stamp for stamp in self.stamps if stamp.version == version)
        said = stamp.document.get(CHECKSUMS)
        return None if said is None else from_text(said[name])


class Generation:
    """All folders of a generation that can be seen from here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held = [one for one in map(_held, sorted(folder.iterdir())) if one]

    @property
    def version(self) -> int | None:
        """The newest step that all ranks have; None where one of them is missing."""
        if not self._is_whole():
            return None
        steps = [{stamp.version for stamp in one.stamps} for one in self.held]
        return max(set.intersection(*steps), default=None)

    def document(self, version: int) -> dict[str, Any]:
        """What goes with the tiles of that step."""
        stamps = self.held[0].stamps
        found: dict[str, Any] = next(
            stamp.document["state"] for stamp in stamps if stamp.version == version
        )
        return found

    def fill(self, name: str, version: int, columns: slice, out: Array) -> None:
        """out ← these columns of a state, (columns, width)."""
        for one in self.held:
            layout, plan = one.layout, one.layout.plan(one.replica)
            own = slice(layout.first, layout.first + layout.held)
            if own.start < columns.stop and columns.start < own.stop:
                _fill(one, plan, name, version, columns, out)

    def _is_whole(self) -> bool:
        """Whether every column is with all replicas that a layout speaks of."""
        if not self.held:
            return False
        first = self.held[0].layout
        same = (first.columns, first.widths, first.dtype, first.replicas)
        for one in self.held:
            own = one.layout
            if (own.columns, own.widths, own.dtype, own.replicas) != same:
                return False
        for replica in range(first.replicas):
            parts = [one.layout for one in self.held if one.replica == replica]
            reached = 0
            for part in sorted(parts, key=lambda part: part.first):
                reached += part.held if part.first == reached else 0
            if reached != first.columns:
                return False
        return True


def _held(folder: Path) -> Held | None:
    match, stamps = OF_RANK.fullmatch(folder.name), Stamps(folder / "stamp")
    if match is None:
        return None
    check_own(folder)
    if not stamps.path.exists():
        return None
    found = stamps.read()
    if not found:
        return None
    layout = Layout(**found[0].document["layout"])
    return Held(folder, layout, int(match[1]), tuple(found))


def _fill(
    one: Held, plan: Plan, name: str, version: int, columns: slice, out: Array
) -> None:
    """What this rank has of these columns, a tile at a time."""
    layout, width = one.layout, one.layout.widths[name]
    known = one.checksums(name, version)
    path, dtype = one.folder / f"{name}.state", np.dtype(layout.dtype)
    file = StateFile(path, plan, width, dtype)
    file.open()
    try:
        buffer, traffic = room(file.each), Traffic()
        for number in _tiles(plan, columns, layout.first):
            part = plan.part(number)
            first, last = layout.first + part.start, layout.first + part.stop
            start, stop = max(first, columns.start), min(last, columns.stop)
            if start < stop:
                file.read(version % 2, number, buffer, traffic)
                if known is not None and known[number] != (
                    file.checksum_of(buffer, number)
                ):
                    raise _differs(path, number)
                words = file.view(buffer, number)[start - first : stop - first]
                out[start - columns.start : stop - columns.start] = words
    finally:
        file.close()


def _differs(path: Path, number: int) -> DataError:
    return DataError(
        f"tile {number} of {path} holds other words than a step has written; bring that"
        " file back, go on with the grid and the tile that it was made with, or start"
        " anew with --resume no"
    )


def _tiles(plan: Plan, columns: slice, first: int) -> Iterator[int]:
    """Those that have some of these columns of the data."""
    start = max(columns.start - first, 0) // plan.height
    stop = min(-(-(columns.stop - first) // plan.height), plan.count)
    return iter(range(start, stop))

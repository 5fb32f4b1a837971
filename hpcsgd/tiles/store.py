"""The states of one rank in a folder, and the step that they are complete for.

    tiles/000001/r0c0/    weights.state  adam_m.state  adam_v.state  stamp

A step reads the half of the last commit and writes the other one. `commit` has the
drive take all of it, then the stamp: whatever a kill leaves behind, the newest whole
stamp names a half that nobody has touched since. Ranks commit the same step together,
so that they differ by one at most, and the older one is still in the other half.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import DataError
from hpcsgd.files import own_folder
from hpcsgd.tiles import checksums
from hpcsgd.tiles.files import StateFile, no_room, room, unreadable
from hpcsgd.tiles.pipeline import Pipeline, Words
from hpcsgd.tiles.plan import Plan
from hpcsgd.tiles.stamp import Stamp, Stamps
from hpcsgd.tiles.traffic import Traffic

Array = NDArray[Any]
CHECKSUMS = "checksums"  # of the tiles, in a stamp; earlier ones have none
Fill = Callable[[str, slice, Array], None]  # of a state, columns of the data, into


@dataclass(frozen=True)
class Layout:
    """What the files of all ranks together hold, and how it is dealt to them."""

    columns: int  # of the data
    widths: dict[str, int]  # words a column, by state
    dtype: str
    height: int  # columns of a tile
    replicas: int
    first: int  # column of this member
    held: int  # columns of this member

    def plan(self, replica: int) -> Plan:
        """Of one replica."""
        return Plan(self.held, self.height, self.replicas, replica)


class Store:
    """The files of one rank."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        replica: int,
        direct: bool = False,
        sync: bool = True,
    ) -> None:
        self.folder, self.layout, self.sync = folder, layout, sync
        self.plan = layout.plan(replica)
        self.traffic = Traffic()  # of steps
        self.looks = Traffic()  # of losses, copies and results
        dtype = np.dtype(layout.dtype)
        self.files = {
            name: StateFile(folder / f"{name}.state", self.plan, width, dtype, direct)
            for name, width in layout.widths.items()
        }
        self.stamps = Stamps(folder / "stamp")
        self.version = 0
        self.document: dict[str, Any] = {}
        self._pipeline: Pipeline | None = None
        self._copy: StateFile | None = None
        self._copies = 0

    @property
    def half(self) -> int:
        """That holds the last complete step."""
        return self.version % 2

    @property
    def pipeline(self) -> Pipeline:
        """The buffers and threads, made when they are first needed."""
        if self._pipeline is None:
            self._pipeline = Pipeline(self.files)
        return self._pipeline

    def create(self, document: dict[str, Any], fill: Fill | None = None) -> None:
        """All zeros, or what `fill` puts there; what was there before is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            own_folder(self.folder.parent, self.folder.name, make=True)
        except OSError as error:
            raise no_room(self.folder, error, 0) from error
        for file in self.files.values():
            file.create()
        self._open()
        try:
            for file in self.files.values():
                checksums.of_zeros(file)
            if fill is not None:
                self._fill(fill)
            self.version, self.document = 0, document
            self.stamps.create(self._stamped(0, document))
        except DataError:
            self.close()
            raise

    def versions(self) -> list[Stamp]:
        """What could be gone on from, the newest first."""
        try:
            own_folder(self.folder.parent, self.folder.name)
        except OSError as error:
            raise unreadable(self.folder, error) from error
        if not self.stamps.path.exists():
            return []
        return [stamp for stamp in self.stamps.read() if self._fits(stamp)]

    def differs_at(self, version: int) -> str:
        """Where words are not those that a step wrote; empty if all of them are.

        States of a version that took no checksums are believed as they are.
        """
        said = self._stamp(version).document.get(CHECKSUMS)
        if said is None:
            return ""
        self._open()
        try:
            checksums.put_back(self.files, version % 2, said)
            place = (self.files.values(), version % 2, self.looks)
            found = checksums.differing(*place)
        finally:
            self.close()
        return "" if found is None else f"tile {found[1]} of {found[0].path}"

    def open_at(self, version: int) -> None:
        """Stand where a stamp says that all was complete."""
        stamp = self._stamp(version)
        self.version, self.document = version, stamp.document["state"]
        self._open()

    def _stamp(self, version: int) -> Stamp:
        stamp = next((s for s in self.versions() if s.version == version), None)
        if stamp is None:
            raise DataError(
                f"{self.folder} holds no complete step {version}, which other ranks"
                " stand at; bring the files of all ranks back, or start anew with"
                " --resume no"
            )
        return stamp

    @property
    def is_open(self) -> bool:
        """Whether there are files behind it."""
        return all(file.is_open for file in self.files.values())

    @property
    def is_direct(self) -> bool:
        """Whether the page cache is passed by."""
        return all(file.is_direct for file in self.files.values())

    def copy(self, name: str) -> int:
        """Keep one state as it is now; the number of the copy."""
        if self._copy is None:
            of, path = self.files[name], self.folder / f"{name}.copy"
            self._copy = StateFile(path, self.plan, of.width, of.dtype)
            self._copy.create()
            self._copy.open()
        self._copies += 1
        place, looks = (self.half, self.plan, [name]), self.looks
        for number, buffers in self.pipeline.raw(*place, looks):
            self._copy.write(self._copies % 2, number, buffers[name], looks)
        self.pipeline.check()
        return self._copies

    def read_copy(self, number: int) -> Iterator[tuple[int, Words]]:
        """Every tile of a copy, one of the last two.

        Reads that fail are told where `check` is asked, behind what all ranks do.
        """
        assert self._copy is not None
        buffer = room(self._copy.each)
        for tile in self.plan:
            place = number % 2, tile, buffer, self.looks
            self.pipeline.attempt(self._copy.read, *place)
            yield tile, {"weights": self._copy.view(buffer, tile)}

    def commit(self, document: dict[str, Any]) -> None:
        """The other half is complete: from now on it is the one to read."""
        self.pipeline.check()
        began = perf_counter()
        if self.sync:
            for file in self.files.values():
                file.flush()
        stamp = self._stamped(self.version + 1, document)
        self.stamps.write(stamp, self.sync)
        self.traffic.seconds_flushed += perf_counter() - began
        self.version, self.document = stamp.version, document

    def read(self, name: str, is_step: bool) -> Iterator[tuple[int, Words]]:
        """Every tile of one state after the last complete step, read ahead."""
        traffic = self.traffic if is_step else self.looks
        return self.pipeline.read(self.half, self.plan, [name], traffic)

    def update(self, step: Callable[[int, Words], None]) -> None:
        """Every tile through `step`, in place, into the other half."""
        self.pipeline.update(self.half, self.plan, step, self.traffic)

    def close(self) -> None:
        """Let go of files and threads; the states stay."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        for file in (*self.files.values(), *filter(None, [self._copy])):
            file.close()

    def _fill(self, fill: Fill) -> None:
        for name, file in self.files.items():
            buffer = room(file.each)
            for number in self.plan:
                part = self.plan.part(number)
                first = self.layout.first
                columns = slice(first + part.start, first + part.stop)
                fill(name, columns, file.view(buffer, number))
                file.write(self.half, number, buffer, self.looks)
                file.sum_up(self.half, number, buffer, self.looks)
            file.flush()

    def _stamped(self, version: int, document: dict[str, Any]) -> Stamp:
        said = {
            "layout": asdict(self.layout),
            CHECKSUMS: checksums.in_text(self.files, version % 2),
            "state": document,
        }
        return Stamp(version, said)

    def _fits(self, stamp: Stamp) -> bool:
        return bool(stamp.document["layout"] == asdict(self.layout))

    def _open(self) -> None:
        try:
            for file in self.files.values():
                file.open()
        except DataError:
            self.close()
            raise

"""The store of a rank's tiles: threads read and write them beside the arithmetic."""

import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hpcsgd.agreements.more.infinity import tiles
from hpcsgd.agreements.more.infinity.tiles import (
    Stamp,
    Stamps,
    StateFile,
    TilePlan,
    Traffic,
    aligned_buffer,
    from_text,
    unreadable,
)
from hpcsgd.errors import DataError
from hpcsgd.files import own_folder
from hpcsgd.formats import Array

# Tiles on their way: read(j + 1) | step(j) | write(j − 1), checksum(j − 1).
#
# One thread reads, one writes, one computes checksums, and the step runs between them;
# no more than a ring of buffers is in memory. An error is stored until `check` raises
# it: ranks in the middle of a step finish it together, and stop together.

Words = dict[str, Array]  # of a tile, by state
AHEAD = 1  # tiles that are read before they are needed
RING = AHEAD + 2  # also the tile in use, and the tile that is written


@dataclass
class TileUnderWay:
    """A tile in its buffers, which belong to a thread until `done`."""

    number: int
    buffers: Words
    done: Future[None]
    traffic: Traffic  # the counters of this tile


class Pipeline:
    """The buffers of some states, and the threads that fill and empty them."""

    def __init__(self, files: dict[str, StateFile]) -> None:
        self.files = files
        self.failure: DataError | None = None
        self._ring = deque(
            {name: aligned_buffer(file.each) for name, file in files.items()}
            for _ in range(RING)
        )
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tiles-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="tiles-write")
        self._summer = ThreadPoolExecutor(1, thread_name_prefix="tiles-sum")
        self._writing: deque[TileUnderWay] = deque()

    @property
    def held(self) -> int:
        """Return the bytes of all buffers that no thread uses."""
        return sum(
            buffer.nbytes for buffers in self._ring for buffer in buffers.values()
        )

    def read(
        self, half: int, numbers: Iterable[int], names: list[str], traffic: Traffic
    ) -> Iterator[tuple[int, Words]]:
        """Yield number and words of each tile, the words by name of the state.

        The words are valid until the next tile is requested.
        """
        for number, buffers in self.raw(half, numbers, names, traffic):
            yield number, self._words(number, buffers, names)

    def raw(
        self, half: int, numbers: Iterable[int], names: list[str], traffic: Traffic
    ) -> Iterator[tuple[int, Words]]:
        """Yield number and bytes of each tile, by name of the state, with padding."""
        for tile in self._coming(half, numbers, names, traffic):
            try:
                yield tile.number, tile.buffers
            finally:
                self._ring.append(tile.buffers)

    def update(
        self,
        half: int,
        numbers: Iterable[int],
        step: Callable[[int, Words], None],
        traffic: Traffic,
    ) -> None:
        """Pass every tile of `half` through `step`, and write it to the other half.

        Return when all tiles are written. The halves are those of the state files: one
        contains the last complete step.
        """
        names = list(self.files)
        for tile in self._coming(half, numbers, names, traffic):
            step(tile.number, self._words(tile.number, tile.buffers, names))
            place = (1 - half, tile.number, tile.buffers, names, traffic)
            summed = self._summer.submit(self._sum_up, *place)
            call = self._writer.submit(self._write, *place, summed)
            self._writing.append(replace(tile, done=call))
        while self._writing:
            self._take_back()

    def check(self) -> None:
        """Raise the error that was stored since the last check, if any."""
        failure = self.failure
        self.failure = None
        if failure is not None:
            raise failure

    def attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run an action, and store its DataError for `check`.

        After an error, do nothing until `check` is called.
        """
        if self.failure is not None:
            return
        try:
            action(*arguments)
        except DataError as error:
            self.failure = error

    def close(self) -> None:
        """End the threads that read, write and compute checksums."""
        self._reader.shutdown()
        self._writer.shutdown()
        self._summer.shutdown()

    def _coming(
        self, half: int, numbers: Iterable[int], names: list[str], traffic: Traffic
    ) -> Iterator[TileUnderWay]:
        """Yield each tile in order once it is read; the next tile is read meanwhile."""
        coming: deque[TileUnderWay] = deque()
        try:
            for number in numbers:
                coming.append(self._start(half, number, names, traffic))
                if len(coming) > AHEAD:
                    yield self._arrived(coming.popleft())
            while coming:
                yield self._arrived(coming.popleft())
        finally:  # the caller has stopped early
            for tile in coming:
                self._ring.append(self._arrived(tile).buffers)

    def _start(
        self, half: int, number: int, names: list[str], traffic: Traffic
    ) -> TileUnderWay:
        while not self._ring:
            self._take_back()
        buffers = self._ring.popleft()
        place = (half, number, buffers, names, traffic)
        call = self._reader.submit(self._read, *place)
        return TileUnderWay(number, buffers, call, traffic)

    def _arrived(self, one: TileUnderWay) -> TileUnderWay:
        began = perf_counter()
        one.done.result()
        one.traffic.stood += perf_counter() - began
        return one

    def _take_back(self) -> None:
        """Wait for the oldest write, and put its buffers back into the ring."""
        self._ring.append(self._arrived(self._writing.popleft()).buffers)

    def _words(self, number: int, buffers: Words, names: list[str]) -> Words:
        return {name: self.files[name].view(buffers[name], number) for name in names}

    def _read(
        self,
        half: int,
        number: int,
        buffers: Words,
        names: list[str],
        traffic: Traffic,
    ) -> None:
        for name in names:
            self.attempt(self.files[name].read, half, number, buffers[name], traffic)

    def _write(
        self,
        half: int,
        number: int,
        buffers: Words,
        names: list[str],
        traffic: Traffic,
        summed: Future[None],
    ) -> None:
        for name in names:
            self.attempt(self.files[name].write, half, number, buffers[name], traffic)
        summed.result()  # both threads use the buffers

    def _sum_up(
        self,
        half: int,
        number: int,
        buffers: Words,
        names: list[str],
        traffic: Traffic,
    ) -> None:
        for name in names:
            self.files[name].sum_up(half, number, buffers[name], traffic)


# The states of one rank in a folder, and the step that they are complete for.
#
#     tiles/000001/r0c0/    weights.state  adam_m.state  adam_v.state  stamp
#
# A step reads the half of the last commit and writes the other one. `commit` flushes
# all of it to the drive, then the stamp: after a kill, the newest intact stamp names a
# half that was not written since. Ranks commit the same step together, so that they
# differ by one at most, and the older one is still in the other half.

CHECKSUMS = "checksums"  # of the tiles, in a stamp; earlier ones have none
Fill = Callable[[str, slice, Array], None]  # state, columns of the data, output


@dataclass(frozen=True)
class TileLayout:
    """The layout of the state files of one member, the same on all replicas."""

    columns: int  # of the data
    widths: dict[str, int]  # words a column, by state
    dtype: str
    height: int  # columns of a tile
    replicas: int
    first: int  # column of this member
    held: int  # columns of this member

    def plan(self, replica: int) -> TilePlan:
        """Return the tiles of one replica."""
        return TilePlan(self.held, self.height, self.replicas, replica)


class TileStore:
    """The state files and stamps of one rank, and the threads that access the files."""

    def __init__(
        self,
        folder: Path,
        layout: TileLayout,
        replica: int,
        direct: bool = False,
        sync: bool = True,
    ) -> None:
        self.folder = folder
        self.layout = layout
        self.sync = sync
        self.plan = layout.plan(replica)
        self.traffic = Traffic()  # of steps
        self.read_traffic = Traffic()  # of losses, copies and results
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
        """Return the half, 0 or 1, that contains the last complete step."""
        return self.version % 2

    @property
    def pipeline(self) -> Pipeline:
        """Return the buffers and threads, made when they are first needed."""
        if self._pipeline is None:
            self._pipeline = Pipeline(self.files)
        return self._pipeline

    def create(self, document: dict[str, Any], fill: Fill | None = None) -> None:
        """Create files of zeros, or of the words that `fill` writes, and a stamp.

        Earlier files of this rank in the folder are removed.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            own_folder(self.folder.parent, self.folder.name, make=True)
        except OSError as error:
            raise DataError(
                f"{self.folder} cannot be made ({error.strerror}); make room, remove"
                " what is in its place, or name another [agreement] store"
            ) from error
        for file in self.files.values():
            file.create()
        self._open()
        try:
            for file in self.files.values():
                tiles.of_zeros(file)
            if fill is not None:
                self._fill(fill)
            self.version = 0
            self.document = document
            self.stamps.create(self._stamped(0, document))
        except DataError:
            self.close()
            raise

    def versions(self) -> list[Stamp]:
        """Return the stamps from which a run can resume, the newest first.

        These are the intact stamps of files with the layout of this store.
        """
        try:
            own_folder(self.folder.parent, self.folder.name)
        except OSError as error:
            raise unreadable(self.folder, error) from error
        if not self.stamps.path.exists():
            return []
        return [stamp for stamp in self.stamps.read() if self._fits(stamp)]

    def differs_at(self, version: int) -> str:
        """Return the first tile with a wrong checksum at a step, and its file, as text.

        Return "" if no checksum is wrong. States of a version of hpcsgd that took no
        checksums are not checked.
        """
        checksums = self._stamp(version).document.get(CHECKSUMS)
        if checksums is None:
            return ""
        self._open()
        try:
            tiles.restore_checksums(self.files, version % 2, checksums)
            place = (self.files.values(), version % 2, self.read_traffic)
            mismatch = tiles.differing(*place)
        finally:
            self.close()
        return "" if mismatch is None else f"tile {mismatch[1]} of {mismatch[0].path}"

    def open_at(self, version: int) -> None:
        """Open the files at the complete step `version`, of which a stamp exists."""
        stamp = self._stamp(version)
        self.version = version
        self.document = stamp.document["state"]
        self._open()

    def _stamp(self, version: int) -> Stamp:
        stamp = next((s for s in self.versions() if s.version == version), None)
        if stamp is None:
            raise DataError(
                f"{self.folder} holds no complete step {version}, from which other"
                " ranks resume; restore the files of all ranks, or start anew with"
                " --resume no"
            )
        return stamp

    @property
    def is_open(self) -> bool:
        """Return whether all files are open."""
        return all(file.is_open for file in self.files.values())

    @property
    def is_direct(self) -> bool:
        """Return whether reads and writes bypass the page cache."""
        return all(file.is_direct for file in self.files.values())

    def copy(self, name: str) -> int:
        """Copy one state as it is now into a second file; return the copy's number."""
        if self._copy is None:
            of = self.files[name]
            path = self.folder / f"{name}.copy"
            self._copy = StateFile(path, self.plan, of.width, of.dtype)
            self._copy.create()
            self._copy.open()
        self._copies += 1
        place = (self.half, self.plan, [name])
        traffic = self.read_traffic
        for number, buffers in self.pipeline.raw(*place, traffic):
            self._copy.write(self._copies % 2, number, buffers[name], traffic)
        self.pipeline.check()
        return self._copies

    def read_copy(self, number: int) -> Iterator[tuple[int, Words]]:
        """Yield number and words of each tile of copy `number`, one of the last two.

        An error of these reads is stored, and `Pipeline.check` raises it after ranks
        have finished their collective calls.
        """
        assert self._copy is not None
        buffer = aligned_buffer(self._copy.each)
        for tile in self.plan:
            place = number % 2, tile, buffer, self.read_traffic
            self.pipeline.attempt(self._copy.read, *place)
            yield tile, {"weights": self._copy.view(buffer, tile)}

    def commit(self, document: dict[str, Any]) -> None:
        """Commit the step in the other half of the files, which is complete.

        Raise a stored read or write error first. If `sync`, flush the files; write a
        stamp with `document`, and read that half from now on.
        """
        self.pipeline.check()
        began = perf_counter()
        if self.sync:
            for file in self.files.values():
                file.flush()
        stamp = self._stamped(self.version + 1, document)
        self.stamps.write(stamp, self.sync)
        self.traffic.seconds_flushed += perf_counter() - began
        self.version = stamp.version
        self.document = document

    def read(self, name: str, is_step: bool) -> Iterator[tuple[int, Words]]:
        """Yield number and words of every tile of one state at the last complete step.

        The next tile is read ahead. `is_step`: the traffic counts as that of steps.
        """
        traffic = self.traffic if is_step else self.read_traffic
        return self.pipeline.read(self.half, self.plan, [name], traffic)

    def update(self, step: Callable[[int, Words], None]) -> None:
        """Pass every tile through `step`, in place, and write it to the other half."""
        self.pipeline.update(self.half, self.plan, step, self.traffic)

    def close(self) -> None:
        """Close files and end threads; the states stay on disk."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        for file in (*self.files.values(), *filter(None, [self._copy])):
            file.close()

    def _fill(self, fill: Fill) -> None:
        for name, file in self.files.items():
            buffer = aligned_buffer(file.each)
            for number in self.plan:
                part = self.plan.part(number)
                first = self.layout.first
                columns = slice(first + part.start, first + part.stop)
                fill(name, columns, file.view(buffer, number))
                file.write(self.half, number, buffer, self.read_traffic)
                file.sum_up(self.half, number, buffer, self.read_traffic)
            file.flush()

    def _stamped(self, version: int, document: dict[str, Any]) -> Stamp:
        contents = {
            "layout": asdict(self.layout),
            CHECKSUMS: tiles.in_text(self.files, version % 2),
            "state": document,
        }
        return Stamp(version, contents)

    def _fits(self, stamp: Stamp) -> bool:
        return bool(stamp.document["layout"] == asdict(self.layout))

    def _open(self) -> None:
        try:
            for file in self.files.values():
                file.open()
        except DataError:
            self.close()
            raise


# The files of all ranks as one: a state by its columns, on whichever rank they are.
#
#     tiles/000001/r0c0/  r1c0/  ...
#
# A run may resume with other tiles, or on another grid. The states on disk are then
# copied into the next generation of folders, in the new distribution, and the old one
# is removed when all of the new one is complete. The columns of the data alone
# determine where a word belongs.

FOLDER = re.compile(r"\d{6}")
OF_RANK = re.compile(r"r(\d+)c(\d+)")


def generations(folder: Path) -> list[int]:
    """Return the numbers of the generations in a folder, the newest first."""
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if FOLDER.fullmatch(entry.name)]
    for name in names:
        check_own(folder / name)
    return sorted(map(int, names), reverse=True)


def check_own(folder: Path) -> None:
    """Raise DataError if a link or a file is in place of `folder`.

    The folder is that of a generation or of a rank.
    """
    try:
        own_folder(folder.parent, folder.name)
    except OSError as error:
        raise unreadable(folder, error) from error


def remove(generation: Path) -> None:
    """Remove the folders of the ranks of a generation.

    Other entries, which another program may have made, stay, and the folder with them.
    """
    for entry in generation.iterdir():
        if OF_RANK.fullmatch(entry.name):
            shutil.rmtree(entry, ignore_errors=True)
    with suppress(OSError):
        generation.rmdir()  # if it is empty


def place_in(folder: Path, generation: int, replica: int, member: int) -> Path:
    """Return the folder of one rank in a generation."""
    return folder / f"{generation:06d}" / f"r{replica}c{member}"


@dataclass(frozen=True)
class TilesOnDisk:
    """The files of one rank in a generation, as their stamps describe them."""

    folder: Path
    layout: TileLayout
    replica: int
    stamps: tuple[Stamp, ...]

    def checksums(self, name: str, version: int) -> Array | None:
        """Return the checksums of all tiles of a state at a step, or None.

        None if an earlier version of hpcsgd has written the state without checksums.
        """
        stamp = next(stamp for stamp in self.stamps if stamp.version == version)
        texts = stamp.document.get(CHECKSUMS)
        return None if texts is None else from_text(texts[name])


class Generation:
    """All rank folders of a generation that this rank can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held = [rank for rank in map(_held, sorted(folder.iterdir())) if rank]

    @property
    def version(self) -> int | None:
        """Return the newest step that all ranks have stored.

        None if the files of a rank are missing, or if there is no such step.
        """
        if not self._is_whole():
            return None
        steps = [{stamp.version for stamp in rank.stamps} for rank in self.held]
        return max(set.intersection(*steps), default=None)

    def document(self, version: int) -> dict[str, Any]:
        """Return the document that was stored with step `version`."""
        stamps = self.held[0].stamps
        state: dict[str, Any] = next(
            stamp.document["state"] for stamp in stamps if stamp.version == version
        )
        return state

    def fill(self, name: str, version: int, columns: slice, out: Array) -> None:
        """Copy these columns of a state at a step into `out`, (columns, width)."""
        for rank in self.held:
            layout = rank.layout
            plan = rank.layout.plan(rank.replica)
            own_columns = slice(layout.first, layout.first + layout.held)
            if own_columns.start < columns.stop and columns.start < own_columns.stop:
                _fill(rank, plan, name, version, columns, out)

    def _is_whole(self) -> bool:
        """Return whether the files contain every column of every replica.

        All of them must have the same columns, widths, dtype and number of replicas.
        """
        if not self.held:
            return False
        first = self.held[0].layout
        same = (first.columns, first.widths, first.dtype, first.replicas)
        for rank in self.held:
            layout = rank.layout
            if (layout.columns, layout.widths, layout.dtype, layout.replicas) != same:
                return False
        for replica in range(first.replicas):
            parts = [rank.layout for rank in self.held if rank.replica == replica]
            reached = 0
            for part in sorted(parts, key=lambda part: part.first):
                reached += part.held if part.first == reached else 0
            if reached != first.columns:
                return False
        return True


def _held(folder: Path) -> TilesOnDisk | None:
    match = OF_RANK.fullmatch(folder.name)
    stamp_file = Stamps(folder / "stamp")
    if match is None:
        return None
    check_own(folder)
    if not stamp_file.path.exists():
        return None
    stamps = stamp_file.read()
    if not stamps:
        return None
    layout = TileLayout(**stamps[0].document["layout"])
    return TilesOnDisk(folder, layout, int(match[1]), tuple(stamps))


def _fill(
    one: TilesOnDisk,
    plan: TilePlan,
    name: str,
    version: int,
    columns: slice,
    out: Array,
) -> None:
    """Copy the columns that one rank's files contain into `out`, tile by tile."""
    layout = one.layout
    width = one.layout.widths[name]
    checksums = one.checksums(name, version)
    path = one.folder / f"{name}.state"
    dtype = np.dtype(layout.dtype)
    file = StateFile(path, plan, width, dtype)
    file.open()
    try:
        buffer = aligned_buffer(file.each)
        traffic = Traffic()
        for number in _tiles(plan, columns, layout.first):
            part = plan.part(number)
            first = layout.first + part.start
            last = layout.first + part.stop
            start = max(first, columns.start)
            stop = min(last, columns.stop)
            if start < stop:
                file.read(version % 2, number, buffer, traffic)
                if checksums is not None and checksums[number] != (
                    file.checksum_of(buffer, number)
                ):
                    raise _differs(path, number)
                words = file.view(buffer, number)[start - first : stop - first]
                out[start - columns.start : stop - columns.start] = words
    finally:
        file.close()


def _differs(path: Path, number: int) -> DataError:
    return DataError(
        f"tile {number} of {path} does not match its checksum; restore that file,"
        " resume with the --grid and agreement.tile that wrote it, or start anew with"
        " --resume no"
    )


def _tiles(plan: TilePlan, columns: slice, first: int) -> Iterator[int]:
    """Return the numbers of the tiles that contain some of `columns` of the data.

    `first` is the first column of the member.
    """
    start = max(columns.start - first, 0) // plan.height
    stop = min(-(-(columns.stop - first) // plan.height), plan.count)
    return iter(range(start, stop))

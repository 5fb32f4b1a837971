"""The stores that one conversion writes, and the sealed parts that it resumes from.

Every conversion writes its stores from the start. All appended rows are also written to
parts beside them: files of consecutive encoded rows that get their names once they are
on disk, so that a part with a name is complete. A conversion that resumes fills its
stores from the complete parts and then reads the source from the end of these rows.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import numpy as np

from hpcsgd.data.convert.sources import SourceRows
from hpcsgd.data.convert.transform import Parts, pack, packed, unpack
from hpcsgd.data.hdf5 import COLUMNS, StoreLayout
from hpcsgd.data.preparation import Scales
from hpcsgd.data.store import ColumnFacts, StoredRows, StoreWriter
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import own_folder, publish, replace_file
from hpcsgd.formats import Array

log = logging.getLogger(__name__)
SEAL_SECONDS = 5.0  # of work that a kill may cost


@dataclass(frozen=True)
class StoreFile:
    """One of the files that a conversion writes: all test rows, or all other rows."""

    path: Path
    rows: int
    test: bool


@dataclass(frozen=True)
class ConversionPlan:
    """The properties that the files of one conversion have in common."""

    layout: StoreLayout
    sides: tuple[str, ...]  # columns that come with X, of COLUMNS
    attributes: dict[str, Any]
    column_facts: ColumnFacts


class SealedParts:
    """The complete parts of a conversion, in a hidden folder beside its target.

    The folder also contains the identity of the conversion, which is written first and
    removed first: without it, no conversion can be resumed.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.parent / f".{target.name}.parts"
        self.count = 0  # complete parts
        self.scales: Scales | None = None  # that an interrupted conversion measured
        self._file: BinaryIO | None = None  # the part that is being written
        self._end = 0  # byte of this part behind which the source can resume
        self._sealed_at = monotonic()
        self._is_kept = True

    @property
    def exist(self) -> bool:
        """Return whether there is an interrupted conversion to resume."""
        return self._head.exists()

    def resume(self, identity: dict[str, Any]) -> bool:
        """Read the scales of the interrupted conversion; return False if there is none.

        Return False too if its parts belong to another user or cannot be read.

        Raises
        ------
        ConfigError
            It had another source or other settings than in `identity`.
        """
        try:
            folder = own_folder(self.target.parent, self.folder.name)
            if os.lstat(folder).st_uid != os.getuid():
                return False  # parts of another user are not converted
            head = unpack(np.fromfile(self._head, dtype=np.uint8))
            before = head["identity"]
            mean = head["mean"]
            spread = head["spread"]
        except (OSError, ValueError, LookupError, TypeError):
            return False
        odd = sorted(
            k for k in before.keys() | identity if before.get(k) != identity.get(k)
        )
        if odd:
            raise ConfigError(
                f"--resume: the interrupted conversion to {self.target} had another"
                f" {', '.join(odd)}; give the same source and options, or leave"
                " --resume out"
            )
        self.scales = None if spread is None else Scales(mean, spread)
        return True

    def begin(self, identity: dict[str, Any], scales: Scales | None) -> None:
        """Remove the parts of earlier conversions; save the identity for new ones.

        `scales` are saved too, for a conversion that resumes.
        """
        mean, spread = (None, None) if scales is None else (scales.mean, scales.scale)
        head = pack({"identity": identity, "mean": mean, "spread": spread})
        self.remove()
        try:
            self.folder.mkdir(mode=0o700)
            replace_file(self._head, head.data)
        except OSError as error:
            self._give_up(error)

    def complete(self) -> Iterator[Parts]:
        """Yield the rows of all complete parts, in the order of the source."""
        while (path := self._path(self.count)).exists():
            with open(path, "rb") as file:
                while size := int.from_bytes(file.read(8), "little"):
                    yield _unpacked(path, file.read(size))
            self.count += 1
        self._sealed_at = monotonic()

    def add(self, parts: Parts) -> None:
        """Add rows to the part that is being written."""
        if not self._is_kept:
            return
        size, runs = packed(parts)
        try:
            if self._file is None:
                self._file = open(self.folder / "unsealed", "wb")  # noqa: SIM115
            self._file.write(size.to_bytes(8, "little"))
            self._file.writelines(run.data for run in runs)
        except OSError as error:
            self._give_up(error)

    def reach(self) -> None:
        """Note that the source can resume after the rows added so far.

        Seal the part if the last one was sealed `SEAL_SECONDS` ago.
        """
        if self._file is not None:
            self._end = self._file.tell()
            if monotonic() - self._sealed_at >= SEAL_SECONDS:
                self.seal()

    def seal(self) -> None:
        """Complete the part: write it to disk as far as `reach` noted, then name it."""
        if self._file is None:
            return
        try:
            self._file.truncate(self._end)
            self._file.flush()
            number = self._file.fileno()
            part = self._path(self.count)
            publish(number, self.folder / "unsealed", part)
            self._close()
        except OSError as error:
            self._give_up(error)
        self.count += 1
        self._sealed_at = monotonic()

    def remove(self) -> None:
        """Remove all parts, after a complete conversion or one that cannot resume."""
        self._close()
        with suppress(OSError):
            folder = own_folder(self.target.parent, self.folder.name)
            self._head.unlink(missing_ok=True)
            shutil.rmtree(folder)

    @property
    def _head(self) -> Path:
        return self.folder / "conversion"

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}"

    def _close(self) -> None:
        file = self._file
        self._file = None
        self._end = 0
        if file is not None:
            with suppress(OSError):
                file.close()

    def _give_up(self, error: OSError) -> None:
        """Continue without parts, which leaves their disk space to the stores."""
        self._is_kept = False
        self.remove()
        log.debug("%s cannot be resumed if it breaks off (%s)", self.target, error)


def _unpacked(path: Path, content: bytes) -> Parts:
    try:
        return unpack(np.frombuffer(content, dtype=np.uint8))
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{path} is damaged ({error}); leave --resume out to convert anew"
        ) from error


class Sinks:
    """The stores of a conversion."""

    def __init__(self, parts: list[StoreFile], plan: ConversionPlan) -> None:
        self.parts = parts
        self.writers: list[StoreWriter] = []
        try:
            for part in parts:
                self.writers.append(_create(part, plan))
        except BaseException:
            self.abandon()
            raise

    def append(self, number: int, rows: StoredRows, position: int) -> None:
        """Append rows to store `number`; the source continues at `position`."""
        self.writers[number].append_stored(rows, position)

    def finish(self) -> None:
        """Complete all stores and give them their names."""
        for writer in self.writers:
            writer.finish()

    def abandon(self) -> None:
        """Remove all unfinished stores."""
        for writer in self.writers:
            writer.abandon()


def held(rows: SourceRows) -> dict[str, Array]:
    """Return the side columns of rows, by their names in stores."""
    sides = (rows.y, rows.weights, rows.offsets, rows.queries)
    named = zip(COLUMNS, sides, strict=True)
    return {name: side for name, side in named if side is not None}


def _create(part: StoreFile, plan: ConversionPlan) -> StoreWriter:
    return StoreWriter(
        part.path,
        plan.layout,
        rows=part.rows,
        columns=plan.sides,
        attributes=plan.attributes,
        column_facts=plan.column_facts,
    )

"""Which step the files of a rank are complete for.

A stamp is written after all words of its step are there, in the one of two slots that
the last stamp is not in. A kill tears at most the slot that is being written; its
checksum then fails, and the other one holds.
"""

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcsgd.files import CREATE, open_entry, read_entry
from hpcsgd.tiles.files import no_room, unreadable
from hpcsgd.tiles.plan import padded


@dataclass(frozen=True)
class Stamp:
    """Steps that were committed since the files were made, and what goes with them."""

    version: int
    document: dict[str, Any]


class Stamps:
    """The stamps of one rank, in a file of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.slot = 0

    def create(self, first: Stamp) -> None:
        """With room for documents twice as large as the first."""
        self.slot = padded(2 * len(_line(first)) + 256)
        try:
            with open(open_entry(self.path, CREATE), "wb") as file:
                file.write(f"{self.slot}\n".encode().ljust(padded(1)))
                file.write(bytes(2 * self.slot))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise no_room(self.path, error, 2 * self.slot) from error
        self.write(first)

    def write(self, stamp: Stamp, sync: bool = True) -> None:
        """Into the slot of its parity."""
        line = _line(stamp).ljust(self.slot)
        try:
            number = open_entry(self.path, os.O_RDWR)
            with open(number, "r+b", buffering=0) as file:
                file.seek(padded(1) + stamp.version % 2 * self.slot)
                file.write(line)
                if sync:
                    os.fdatasync(file.fileno())
        except OSError as error:
            raise no_room(self.path, error, len(line)) from error

    def read(self) -> list[Stamp]:
        """Those that are whole, the newest first."""
        try:
            data = read_entry(self.path)
        except OSError as error:
            raise unreadable(self.path, error) from error
        head = data[: padded(1)].split(b"\n")[0]
        if not head.isdigit() or not int(head):
            return []
        self.slot = int(head)
        slots = (padded(1) + k * self.slot for k in (0, 1))
        found = [_parsed(data[first : first + self.slot]) for first in slots]
        known = [stamp for stamp in found if stamp is not None]
        return sorted(known, key=lambda stamp: -stamp.version)


def _line(stamp: Stamp) -> bytes:
    said = json.dumps([stamp.version, stamp.document]).encode()
    return b"%08x %s\n" % (zlib.crc32(said), said)


def _parsed(slot: bytes) -> Stamp | None:
    line, end, _ = slot.partition(b"\n")
    checksum, _, said = line.partition(b" ")
    if not end or checksum != b"%08x" % zlib.crc32(said):
        return None
    version, document = json.loads(said)
    return Stamp(version, document)

"""A checksum of every tile: whether the words that lie there are those of a step.

A stamp says that a step is complete. It cannot say that the drive has kept its word,
or that no other program has written since: the CRC-32 of each tile can. They are taken
beside the writes, travel in the stamp, and are held against the tiles once, where a run
goes on.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable

import numpy as np

from hpcsgd.tiles.files import StateFile, room
from hpcsgd.tiles.traffic import Traffic

WORD = np.dtype("<u4")


def in_text(files: dict[str, StateFile], half: int) -> dict[str, str]:
    """The checksums of one half, by state."""
    return {
        name: b64encode(file.checksums[half].astype(WORD).tobytes()).decode()
        for name, file in files.items()
    }


def put_back(files: dict[str, StateFile], half: int, said: dict[str, str]) -> None:
    """What `in_text` has made, into the files."""
    for name, file in files.items():
        file.checksums[half] = from_text(said[name])


def from_text(said: str) -> np.ndarray:
    """Of all tiles of a state."""
    return np.frombuffer(b64decode(said), dtype=WORD)


def differing(
    files: Iterable[StateFile], half: int, traffic: Traffic
) -> tuple[StateFile, int] | None:
    """The first tile whose words are not those that were written; all are read."""
    for file in files:
        buffer = room(file.each)
        for number in file.plan:
            file.read(half, number, buffer, traffic)
            if file.checksum_of(buffer, number) != file.checksums[half, number]:
                return file, number
    return None


def of_zeros(file: StateFile) -> None:
    """Of a file as it is made: every tile holds zeros."""
    known: dict[int, int] = {}
    for number in file.plan:
        size = file.bytes_of(number)
        if size not in known:
            known[size] = zlib.crc32(bytes(size))
        file.checksums[:, number] = known[size]

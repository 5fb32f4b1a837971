"""Files as training uses them: written whole, flushed, moved, seen by all ranks."""

import os
import shutil
import time
import uuid
from pathlib import Path

from hpcsgd.comm.base import Communicator
from hpcsgd.errors import DataError
from hpcsgd.files import replace_file

PATIENCE = 10.0  # seconds for a network file system to show what another node wrote
MOST_READ = 64  # files that a rank reads of others
SIZE = 2**16


def look_at_files(world: Communicator, folder: Path) -> str:
    """Every rank writes, all see it; the time of the slowest write."""
    names = world.exchange_objects(f"smoke-{uuid.uuid4().hex[:12]}")
    place = folder / names[0]
    try:
        seconds = world.exchange_objects(world.together(lambda: _write(place, world)))
        waited = world.exchange_objects(world.together(lambda: _read(place, world)))
    finally:
        world.exchange_objects(None)
        if world.rank == 0:
            shutil.rmtree(place, ignore_errors=True)
    return (
        f"files of {folder} written in {1e3 * max(seconds):.0f} ms, seen by all after"
        f" {max(waited):.1f} s"
    )


def content(rank: int) -> bytes:
    """What a rank writes: no two alike."""
    return f"rank {rank}\n".encode() * (SIZE // 8)


def _write(place: Path, world: Communicator) -> float:
    """Seconds to write, flush and move a file."""
    began = time.perf_counter()
    try:
        place.mkdir(parents=True, exist_ok=True)
        replace_file(place / f"{world.rank}", content(world.rank))
    except OSError as error:
        raise DataError(
            f"rank {world.rank} on {os.uname().nodename} cannot write into"
            f" {place.parent}: {error.strerror}; choose a folder that all nodes share"
        ) from error
    return time.perf_counter() - began


def _read(place: Path, world: Communicator) -> float:
    """Seconds until the files of others were there with all that they hold."""
    began = time.perf_counter()
    step = max(1, world.size // MOST_READ)
    for rank in range(0, world.size, step):
        while not _holds(place / f"{rank}", rank):
            if time.perf_counter() - began > PATIENCE:
                raise DataError(
                    f"rank {world.rank} on {os.uname().nodename} does not see the file"
                    f" of rank {rank} in {place.parent}; choose a folder that all nodes"
                    " share"
                )
            time.sleep(0.05)
    return time.perf_counter() - began


def _holds(path: Path, rank: int) -> bool:
    try:
        return path.read_bytes() == content(rank)
    except OSError:
        return False

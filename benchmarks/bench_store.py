"""What shape the tiles of a store should have, and what its checksums cost.

A matrix of 200 MB is read whole by 1 and 2 processes, cut by rows and by columns, from
the page cache and (as far as the system lets go of it) from disk; the fastest of a few,
as other programs share the machine. The second part times reading a store with and
without its checksums.
"""

import os
import tempfile
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from zlib import crc32

import h5py
import numpy as np

from hpcsgd.data.checksums import block_sum
from hpcsgd.data.shard import split_range

ROWS, COLS, REPEATS = 25_600, 2000, 5
TURNS = range(REPEATS)
AT_ONCE = 4096  # rows of one read
TILES = [(64, 256), (256, 256), (1024, 256), (256, 1024), (64, 2000), (256, 2000), None]


def measure() -> dict:
    """Tiles first, then checksums."""
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(2) as pool:
        X = np.random.default_rng(0).standard_normal((ROWS, COLS), dtype=np.float32)
        tiles = _of_tiles(Path(folder), X, pool)
        return {
            "megabytes": X.nbytes / 1e6,
            "tiles": tiles,
            "checksums": _of_checksums(Path(folder), X),
        }


def _of_tiles(folder: Path, X: np.ndarray, pool) -> list[dict]:
    """MB/s of all processes together; shapes take turns, so that all meet all loads."""
    paths = {}
    for tile in TILES:
        name = "contiguous" if tile is None else f"{tile[0]}x{tile[1]}"
        paths[name] = folder / f"{name}.h5"
        with h5py.File(paths[name], "w") as file:
            file.create_dataset("X", data=X, chunks=tile)
    rows = [{"tile": name} for name in paths]
    for case in product(("rows", "columns"), (1, 2), ("cache", "disk")):
        times = [[_time(path, *case, pool) for path in paths.values()] for _ in TURNS]
        key = f"{case[0]}, {case[1]} processes, {case[2]}"
        for row, own in zip(rows, zip(*times, strict=True), strict=True):
            row[key] = round(X.nbytes / 1e6 / min(own))
    print(*rows, sep="\n", flush=True)
    return rows


def _time(path: Path, cut: str, processes: int, where: str, pool) -> float:
    if where == "disk":
        _forget(path)
    jobs = [(path, cut, processes, number) for number in range(processes)]
    start = perf_counter()
    pool.starmap(_read, jobs, chunksize=1)
    return perf_counter() - start


def _read(path: Path, cut: str, processes: int, number: int) -> None:
    """The share of one process, a few thousand rows at a time."""
    with h5py.File(path, "r") as file:
        X = file["X"]
        rows, cols = slice(0, len(X)), slice(0, X.shape[1])
        if cut == "rows":
            rows = split_range(len(X), processes, number)
        else:
            cols = split_range(X.shape[1], processes, number)
        for start in range(rows.start, rows.stop, AT_ONCE):
            X[start : min(start + AT_ONCE, rows.stop), cols]


def _forget(path: Path) -> None:
    """Ask the system to drop the file from its cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _of_checksums(folder: Path, X: np.ndarray) -> dict:
    """Kinds of checksum on one tile, and whole reads with and without ours."""
    from hpcsgd.data.hdf5 import Hdf5Reader, StoreLayout
    from hpcsgd.data.store import StoreWriter

    path, tile = folder / "store.h5", np.ascontiguousarray(X[:1024, :256])
    start = perf_counter()
    with StoreWriter(path, StoreLayout(COLS)) as writer:
        for first in range(0, ROWS, AT_ONCE):
            part = X[first : first + AT_ONCE]
            writer.append(part, np.zeros(len(part)))
    figures = {"write_MB_s": X.nbytes / 1e6 / (perf_counter() - start)}
    for name, total in (("block_sum", block_sum), ("crc32", crc32)):
        figures[f"{name}_MB_s"] = tile.nbytes / 1e6 / _fastest(partial(total, tile))
    reader = Hdf5Reader(path)
    for name, checks in (("unchecked", False), ("checked", True)):
        reader.checks = checks
        figures[f"read_{name}_MB_s"] = X.nbytes / 1e6 / _fastest(partial(_all, reader))
    reader.close()
    cost = figures["read_unchecked_MB_s"] / figures["read_checked_MB_s"] - 1
    figures["checking_adds_percent"] = 100 * cost
    figures = {name: round(value) for name, value in figures.items()}
    print(figures, flush=True)
    return figures


def _all(reader) -> None:
    for start in range(0, ROWS, AT_ONCE):
        reader.read(slice(start, min(start + AT_ONCE, ROWS)), slice(0, COLS))


def _fastest(call) -> float:
    times = []
    for _ in range(REPEATS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)

"""The model of a run whose weights are on disk: a file, of which an array is a view."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.agreement import Infinity
from hpcsgd.agreement.on_disk import OnDisk
from hpcsgd.assembly.engine_parts import Live
from hpcsgd.columns import Columns
from hpcsgd.files import CREATE, check_entry, open_entry
from hpcsgd.products.base import Array
from hpcsgd.tiles.files import no_room

NAME = "weights.npy"


class ModelFile:
    """(d, K) words that are written tile by tile.

    A write that fails is told at the end: other ranks are waiting for the next tile.
    """

    def __init__(
        self, path: Path, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> None:
        self.path, self.width = path, shape[1]
        self.failure: OSError | None = None
        try:
            with open(open_entry(path, CREATE), "wb") as file:
                said = {"descr": dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, said)
                self.first = file.tell()
        except OSError as error:
            self.failure = error

    def put(self, column: int, words: Array) -> None:
        """These columns and those that follow."""
        flat = np.ascontiguousarray(words).reshape(-1).view(np.uint8)
        if self.failure is not None:
            return
        try:
            number = open_entry(self.path, os.O_RDWR)
            with open(number, "r+b", buffering=0) as file:
                file.seek(self.first + column * self.width * words.itemsize)
                left = memoryview(flat.data)
                while left:
                    left = left[file.write(left) :]
        except OSError as error:
            self.failure = error

    def finish(self) -> None:
        """Raise what has failed."""
        if self.failure is not None:
            raise no_room(self.path, self.failure, self.path.stat().st_size)


def write_model(weights: OnDisk, columns: Columns, folder: Path, height: int) -> Path:
    """All columns of w by tiles; every rank writes a file of its own.

    Members hold other columns of them, and some have fewer tiles than others.
    """
    K, parts, world = weights.columns, columns.parts, columns.grid.world
    file = ModelFile(folder / NAME, (columns.total, K), weights.dtype)
    tiles = weights.tiles("control")
    nothing = slice(0), np.empty((0, K), weights.dtype)
    for number in range(-(-max(part.stop - part.start for part in parts) // height)):
        _, own = next(tiles, nothing)
        pieces = [_piece(part, number * height, height) for part in parts]
        for piece, words in zip(pieces, _all(own, pieces, columns, K), strict=True):
            file.put(piece.start, words)
    weights.check_reads()
    world.together(file.finish)
    return file.path


def open_model(path: Path, budget: float) -> Array:
    """In memory where it is no larger than the budget, in MiB; else a view of it."""
    check_entry(path)
    weights: Array = np.load(path, mmap_mode="r")
    return np.array(weights) if weights.nbytes <= budget * 2**20 else weights


def _piece(part: slice, first: int, height: int) -> slice:
    """Of all columns, those of a member's tile that begins `first` into its part."""
    start = min(part.start + first, part.stop)
    return slice(start, min(start + height, part.stop))


def _all(own: Array, pieces: list[slice], columns: Columns, K: int) -> list[Array]:
    """The tiles of all members."""
    if columns.grid.members.size == 1:
        return [own]
    counts = [(piece.stop - piece.start) * K for piece in pieces]
    out = np.empty(sum(counts), dtype=own.dtype)
    flat = np.ascontiguousarray(own).reshape(-1)
    columns.grid.members.gather(flat, counts, out, "control")
    return np.split(out, np.cumsum(counts)[:-1])


def model_of(live: Live) -> Array:
    """The weights of all members, on every rank."""
    agreement = live.engine.agreement
    assert isinstance(agreement, Infinity)
    weights: Any = live.state.weights
    folder = agreement.store.folder
    path = write_model(weights, live.columns, folder, agreement.height)
    return open_model(path, agreement.means.settings.tile)

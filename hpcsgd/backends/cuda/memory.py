"""Memory of a run on a GPU, counted before it is taken."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.data.sparse import Csr
from hpcsgd.files import format_bytes

CHUNK = 16  # bytes; rows are whole chunks
COLUMNS = 3  # of every row: its target, weight, offset
NAMES = {
    "matrix": "the matrix",
    "rows": "what belongs to its rows",
    "exchange": "the buffers of exchanges",
    "weights": "the weights",
    "kept": "Grams or rows beside it",
    "asked": "what makes the Gram",
}


@dataclass(frozen=True)
class DeviceNeed:
    """Bytes of one rank, by what they are for."""

    matrix: int
    rows: int  # targets, weights, offsets, their order
    exchange: int  # tiles of the Gram, their parts, margins
    weights: int
    kept: int = 0  # Grams of all exchanges, rows of other members
    asked: int = 0  # what another Gram than our plain one works in

    @property
    def total(self) -> int:
        """All of them."""
        return sum(vars(self).values())

    @property
    def largest(self) -> str:
        """What takes most."""
        return max(vars(self), key=lambda name: getattr(self, name))

    def describe(self, form: str) -> str:
        """Describe the parts, the largest first; `form` is the format of the matrix."""
        parts = sorted(vars(self).items(), key=lambda part: -part[1])
        parts = [part for part in parts if part[1]]
        return ", ".join(
            f"{NAMES[name]} {format_bytes(size)}"
            f"{f' in {form}' if name == 'matrix' else ''}"
            for name, size in parts
        )


def device_need(
    matrix: Any,
    plans: Iterable[Sequence[int]],
    multiprocessors: int,
    wide: int = 1,
    sets: int = 1,
    kept: int = 0,
    held: int | None = None,
    asked: int = 0,
) -> DeviceNeed:
    """Return the device memory for a host matrix and `sets` of exchanges of these batch
    sizes.

    `wide` columns of weights, or `held` bytes of some; beside them `kept` bytes, and
    those `asked` for by another Gram than our plain one. Beside the matrix lie targets,
    weights and offsets of 4 bytes each, and an order of 8.
    """
    height, width = matrix.shape
    item = matrix.dtype.itemsize if not isinstance(matrix, Csr) else 4
    each = {tuple(sizes) for sizes in plans}
    exchanges = [
        exchange_bytes(sizes, width, item, multiprocessors, wide) for sizes in each
    ]
    return DeviceNeed(
        matrix=matrix_bytes(matrix),
        rows=height * (4 * COLUMNS + 8),
        exchange=sets * sum(exchanges),
        weights=4 * width * wide if held is None else held,
        kept=kept,
        asked=asked,
    )


def matrix_bytes(matrix: Any) -> int:
    """As it lies there: dense rows of whole chunks, or three arrays."""
    if isinstance(matrix, Csr):
        parts = (matrix.data, matrix.indices, matrix.indptr)
        return sum(int(part.nbytes) for part in parts)
    height, width = matrix.shape
    return rows_bytes(height, width, matrix.dtype.itemsize)


def grams_bytes(plans: Iterable[Sequence[int]], width: int, margins: int) -> int:
    """Tiles and margins of every one of these exchanges."""
    total = 0
    for sizes, count in Counter(map(tuple, plans)).items():
        rows = sum(sizes)
        side = kernels.tile_for(rows, width)
        starts = np.array([0, *accumulate(sizes)])
        words = len(kernels.tiles_of(starts, side)[0]) * side * side
        total += 4 * count * (words + rows * margins)
    return total


def rows_bytes(height: int, width: int, item: int) -> int:
    """Dense rows of whole chunks."""
    return height * -(-width * item // CHUNK) * CHUNK


def exchange_bytes(
    sizes: Sequence[int], width: int, item: int, multiprocessors: int, wide: int = 1
) -> int:
    """Tiles and the parts they are summed of, the map of them, and columns of rows.

    Those are numbers, targets and the like, and margins, residuals and factors.
    """
    starts = np.array([0, *accumulate(sizes)])
    rows = int(starts[-1])
    side = kernels.tile_for(rows, width)
    tiles, places = kernels.tiles_of(starts, side)
    count = max(len(tiles), 1)
    splits = kernels.splits_of(count, width, side, item, multiprocessors)
    plan = kernels.launch_of(
        len(tiles), rows, width, tile=side, itemsize=item, splits=splits
    )
    words = plan.result + plan.workspace + places.size + 2 * count
    if wide == 1:
        words += kernels.update_room(width, kernels.update(rows, width, item))
    return 4 * (words + (5 + 3 * wide) * rows)

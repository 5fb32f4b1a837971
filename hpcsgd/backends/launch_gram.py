"""How the kernel `gram` is launched: which tiles, how many parts, how much room.

Everything here depends on sizes and on the GPU's number of processors alone: the order
of every sum, and so its bits, are those of the next run.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
STAGES = 3  # as in gram.cu; more hide more latency and take more shared memory
STAGE_BYTES = 16384
RESIDENT = 2  # blocks that every processor has room for
MOST_SPLITS = 16
SMALL, LARGE = 64, 128  # rows of a tile
LARGE_ROWS, LARGE_COLS = 1024, 512  # of an exchange, from which on tiles are large


@dataclass(frozen=True)
class GramLaunch:
    """One launch; G, z and the workspace are counted in words of 32 bits."""

    grid: int
    block: int
    shared: int  # bytes
    splits: int
    per_split: int  # columns
    result: int  # of G; z follows it
    workspace: int
    tickets: int


def tiles_of(starts: Array, tile: int) -> tuple[Array, Array]:
    """(tiles that a recurrence reads, place of each in that list or -1).

    `starts` has the first row of every batch, then the number of rows. Entry (i, k) is
    read where i is in a later batch than k.
    """
    rows = int(starts[-1])
    firsts = np.arange(0, rows, tile)
    lasts = np.minimum(firsts + tile, rows) - 1
    batch_of_last = np.searchsorted(starts, lasts, side="right")
    batch_of_first = np.searchsorted(starts, firsts, side="right")
    down, across = np.nonzero(batch_of_last[:, None] > batch_of_first[None, :])
    lower = across <= down
    down, across = down[lower], across[lower]
    places = np.full((len(firsts), len(firsts)), -1, dtype=np.int32)
    places[down, across] = np.arange(len(down))
    return (down << 16 | across).astype(np.uint32), places


def tile_for(rows: int, cols: int) -> int:
    """Rows and columns of a tile.

    Every entry of a tile needs its two rows once: larger ones take half the reads, and
    where there are columns enough to be multiplied, reads are what it waits for. They
    are fewer, too: only long exchanges have enough of them for all processors.
    """
    return LARGE if rows >= LARGE_ROWS and cols >= LARGE_COLS else SMALL


def shared_bytes(stages: int = STAGES) -> int:
    """Of all stages."""
    return stages * STAGE_BYTES


def step_of(tile: int, itemsize: int) -> int:
    """Columns of one stage: half of it are `tile` rows."""
    return STAGE_BYTES // 2 // tile // itemsize


def splits_of(tiles: int, cols: int, tile: int, itemsize: int, sms: int) -> int:
    """Parts of the columns, so that a GPU of `sms` processors has enough to do.

    The fewest of least cost, which counts stages: what a processor reads from L2 for
    the blocks that it gets, a start, and partial tiles, which are written by all and
    read again by the last. Two blocks of one processor share what it reads: they hide
    each other's waits, and take no less time for it.
    """
    steps = max(1, -(-cols // step_of(tile, itemsize)))
    partial = 4 * tile * tile // STAGE_BYTES

    def cost(splits: int) -> int:
        blocks, own = -(-tiles * splits // sms), -(-steps // splits)
        if splits == 1:
            return blocks * own + STAGES
        joining = -(-tiles // sms) * splits * partial
        return blocks * (own + partial) + STAGES + joining

    best = min(range(1, min(MOST_SPLITS, steps) + 1), key=cost)
    each = -(-steps // best)
    return -(-steps // each)  # none is left without columns


def per_split_of(splits: int, cols: int, tile: int, itemsize: int) -> int:
    """Columns of one part, whole stages."""
    step = step_of(tile, itemsize)
    return max(1, -(-cols // (step * splits))) * step


def launch_of(
    tiles: int,
    rows: int,
    cols: int,
    *,
    tile: int,
    itemsize: int,
    splits: int,
    margins: bool = True,
    stages: int = STAGES,
) -> GramLaunch:
    """The launch for `tiles` tiles, and for the margins of `rows` rows if wanted."""
    warps = 2 * tile // 32
    words = tiles * tile * tile
    return GramLaunch(
        grid=tiles * splits + (-(-rows // warps) if margins else 0),
        block=2 * tile,
        shared=shared_bytes(stages),
        splits=splits,
        per_split=per_split_of(splits, cols, tile, itemsize),
        result=words,
        workspace=words * splits if splits > 1 else 0,
        tickets=tiles,
    )


def pitch_of(rows: int, tile: int = 64) -> int:
    """Floats from one row of a square to the next: whole tiles."""
    return -(-rows // tile) * tile


def strips_of(rows: int, parts: int, tile: int = 64) -> list[tuple[int, int]]:
    """(first, last) columns of block columns that begin at the diagonal."""
    wide = pitch_of(-(-rows // parts), tile)
    return [(first, min(first + wide, rows)) for first in range(0, rows, wide)]


def pack(tiles: int) -> tuple[int, int]:
    """Blocks and threads of pack_tiles."""
    return tiles, 256

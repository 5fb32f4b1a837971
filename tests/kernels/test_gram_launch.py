"""How Gram tiles are chosen and launched: against counting, on ragged batches."""

import numpy as np
import pytest

from hpcsgd.backends.cuda.kernels import (
    MOST_SPLITS,
    RESIDENT,
    STAGES,
    launch_of,
    per_split_of,
    shared_bytes,
    splits_of,
    step_of,
    tiles_of,
)

STARTS = [
    (0, 1),
    (0, 200),
    (0, 64, 128, 192),
    (0, 1, 2, 300),
    (0, 20, 20, 90, 170, 257),
    tuple(range(0, 513, 32)),
]


def counted(starts, tile):
    """Tiles with an entry (i, k) whose row i is in a later batch than k."""
    batch = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    entries = np.argwhere(batch[:, None] > batch[None, :])
    return sorted({(int(i), int(k)) for i, k in entries // tile})


@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("starts", STARTS, ids=str)
def test_tiles_are_those_that_are_read(starts, tile):
    tiles, places = tiles_of(np.array(starts), tile)
    assert tiles.dtype == np.uint32 and places.dtype == np.int32
    assert [(int(t) >> 16, int(t) & 0xFFFF) for t in tiles] == counted(starts, tile)
    wanted = np.full((-(-starts[-1] // tile),) * 2, -1)
    for number, (down, across) in enumerate(counted(starts, tile)):
        wanted[down, across] = number
    np.testing.assert_array_equal(places, wanted)


@pytest.mark.parametrize("sms", [1, 20, 132])
@pytest.mark.parametrize("cols", [1, 37, 520, 2000, 100_000])
@pytest.mark.parametrize("tiles", [0, 1, 10, 36, 5000])
def test_parts_have_all_columns_once(tiles, cols, sms):
    for tile, itemsize in ((64, 2), (128, 1), (64, 4)):
        splits = splits_of(tiles, cols, tile, itemsize, sms)
        each = per_split_of(splits, cols, tile, itemsize)
        assert 1 <= splits <= MOST_SPLITS and each % step_of(tile, itemsize) == 0
        assert (splits - 1) * each < cols <= splits * each


def test_parts_are_for_gpus_with_nothing_else_to_do():
    assert splits_of(1, 100_000, 64, 2, 132) == MOST_SPLITS
    assert splits_of(RESIDENT * 132, 100_000, 64, 2, 132) == 1
    assert splits_of(10, 64, 64, 2, 132) == 1


def test_a_stage_is_as_wide_in_bytes_in_every_format():
    assert [step_of(64, itemsize) for itemsize in (1, 2, 4)] == [128, 64, 32]
    assert [step_of(128, itemsize) for itemsize in (1, 2, 4)] == [64, 32, 16]


def test_small_tiles_have_room_twice_on_every_gpu_with_tensor_cores():
    """100 KiB is the least that one has from sm_80 on; 1 KiB a block is CUDA's own."""
    assert RESIDENT * (shared_bytes() + 1024) <= 100 * 1024
    assert shared_bytes() <= 64 * 1024  # the least of all that are served


def test_sizes_of_a_launch():
    given = {"tile": 64, "itemsize": 2}
    plain = launch_of(3, 150, 520, splits=1, **given)
    assert (plain.grid, plain.block, plain.per_split) == (3 + 38, 128, 576)
    assert (plain.result, plain.workspace, plain.tickets) == (3 * 4096, 0, 3)
    parts = launch_of(3, 150, 520, splits=3, margins=False, **given)
    assert (parts.grid, parts.workspace, parts.per_split) == (9, 9 * 4096, 192)
    assert parts.shared == STAGES * 16384

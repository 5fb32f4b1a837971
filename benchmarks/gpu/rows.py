"""Rows of random bf16 on the GPU, and kernels launched on some of them."""

from typing import Any

import numpy as np

from hpcsgd.backends import launch_gram, launch_steps
from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.kernel_table import build_of

PIECE = 2**24  # values that are drawn; longer matrices repeat them
TILE = 64


def random_bits(device: Any, height: int, width: int, seed: int = 0) -> Any:
    """Normal values over the root of a row's length, in bf16."""
    rng = np.random.default_rng(seed)
    tall = min(max(PIECE // width, 1), height)
    values = rng.standard_normal((tall, width), dtype=np.float32) / np.sqrt(width)
    piece = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    held = device.empty((height, width), np.uint16)
    for first in range(0, height, tall):
        part = held[first : first + tall]
        device.fill(part, piece[: part.shape[0]])
    return held


class Rows:
    """A matrix, sets of its rows that are read in turn, and what kernels need."""

    def __init__(self, bench: Any, height: int, count: int, width: int) -> None:
        self.device, self.count, self.width = bench.device, count, width
        stride = -(-width // 8) * 8
        values = random_bits(self.device, height, stride)
        self.matrix = DeviceMatrix(values, "bf16", height, width)
        sizes, rng = bench.sizes, np.random.default_rng(3)
        each = 2 * count * stride
        many = min(max(-(-sizes.rotate_bytes // each), 2), sizes.most_sets)
        self.sets = [
            sent(self.device, rng.permutation(height)[:count].astype(np.int64))
            for _ in range(many)
        ]
        weights = rng.standard_normal((width, 1)).astype(np.float32)
        self.weights = sent(self.device, weights)
        self.out = self.device.empty((count,), np.float32)

    @property
    def nbytes(self) -> int:
        """Of one set of rows."""
        return 2 * self.count * int(self.matrix.stride)

    def head(self, numbers: Any) -> tuple[Any, ...]:
        """What every kernel is given first."""
        matrix = self.matrix
        place = matrix.values, matrix.stride, numbers, np.int32(self.count)
        return (*place, np.int32(self.width))

    def margin(self, numbers: Any) -> None:
        """out ← Y w."""
        given = (*self.head(numbers), self.weights, self.out)
        self.launch("margin", -(-self.count // 8), 256, given)

    def update(self, numbers: Any, factors: Any, carry: Any) -> None:
        """w ← carry w + Yᵀ factors."""
        given = (*self.head(numbers), factors, carry, self.weights)
        grid, shared = -(-self.width // 64), 4 * 32 * 65
        self.launch("update", grid, 256, given, shared=shared)

    def gather(self, numbers: Any, out: Any) -> None:
        """out ← Y, by our kernel."""
        given = (*self.head(numbers), out, self.matrix.stride)
        self.launch("gather_rows", *launch_steps.gather_rows(self.count)[:2], given)

    def launch(self, kernel: str, grid: Any, block: int, given: Any, **more: Any):
        """One kernel for bf16."""
        build = build_of(kernel, "bf16", self.device.arch)
        self.device.kernel(build)(grid, block, given, **more)


class OurGram:
    """Tiles and margins of a set of rows, in one launch."""

    def __init__(self, rows: Rows, batch: int) -> None:
        self.rows, self.device = rows, rows.device
        starts = np.append(np.arange(0, rows.count, batch), rows.count)
        tiles, places = launch_gram.tiles_of(starts, TILE)
        self.tiles, self.places, self.count = tiles, places, len(tiles)
        self.numbers = sent(self.device, tiles)
        shape = len(tiles), rows.width, TILE, 2, self.device.multiprocessors
        splits = launch_gram.splits_of(*shape)
        sizes = len(tiles), rows.count, rows.width
        self.plan = launch_gram.launch_of(*sizes, tile=TILE, itemsize=2, splits=splits)
        self.out = self.device.empty((self.plan.result,), np.float32)
        self._room = self.device.empty((max(self.plan.workspace, 1),), np.float32)
        self._tickets = self.device.zeros((len(tiles),), np.uint32)

    def __call__(self, numbers: Any) -> None:
        """out ← tiles, and the margins of the rows."""
        plan, rows = self.plan, self.rows
        sizes = [np.int32(n) for n in (self.count, plan.splits, plan.per_split)]
        given = (*rows.head(numbers), self.numbers, *sizes, rows.weights, self.out)
        more = rows.out, self._room, self._tickets
        shape = f"gram-{TILE}", plan.grid, plan.block
        rows.launch(*shape, (*given, *more), shared=plan.shared)

    def square(self) -> np.ndarray:
        """Entries below the diagonal as a matrix; what was not made is NaN."""
        side = len(self.places) * TILE
        found = np.full((side, side), np.nan, dtype=np.float32)
        tiles = self.device.fetch(self.out).reshape(-1, TILE, TILE)
        for number, tile in enumerate(tiles):
            down, across = (TILE * int(n) for n in self._place(number))
            found[down : down + TILE, across : across + TILE] = tile
        return found[: self.rows.count, : self.rows.count]

    def _place(self, number: int) -> tuple[int, int]:
        return int(self.tiles[number]) >> 16, int(self.tiles[number]) & 0xFFFF

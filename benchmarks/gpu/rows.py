"""Rows of random bf16 on the GPU, and kernels launched on some of them."""

from typing import Any

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.exchange import DenseProducts, GramTiles, Widths
from hpcsgd.backends.cuda.kernels import build_of, tile_for
from hpcsgd.backends.cuda.matrix import DeviceMatrix, sent
from hpcsgd.glm.unrolling import blocks_of

PIECE = 2**24  # values that are drawn; longer matrices repeat them


def random_bits(device: Any, height: int, width: int, seed: int = 0) -> Any:
    """Normal values over the root of a row's length, in bf16."""
    rng = np.random.default_rng(seed)
    tall = min(max(PIECE // width, 1), height)
    values = rng.standard_normal((tall, width), dtype=np.float32) / np.float32(
        np.sqrt(width)
    )
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
        self.parts: Any = None  # of an update, and its tickets

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
        plan, count = kernels.update(self.count, self.width, 2), self.count
        if self.parts is None:
            room = kernels.update_room(self.width, plan)
            self.parts = self.device.empty((room,), np.float32)
            self.tickets = self.device.zeros(plan.grid[:1], np.uint32)
        each = np.int32(kernels.update_rows(count, plan.grid[1]))
        given = (*self.head(numbers), factors, carry, self.weights)
        given = (*given, each, self.parts, self.tickets)
        self.launch("update", plan.grid, plan.block, given, shared=plan.shared)

    def gather(self, numbers: Any, out: Any) -> None:
        """out ← Y, by our kernel."""
        given = (*self.head(numbers), out, self.matrix.stride)
        self.launch("gather_rows", *kernels.gather_rows(self.count)[:2], given)

    def launch(self, kernel: str, grid: Any, block: int, given: Any, **more: Any):
        """One kernel for bf16."""
        build = build_of(kernel, "bf16", self.device.arch)
        self.device.kernel(build)(grid, block, given, **more)


class OurGram:
    """Tiles and margins of a set of rows, in one launch."""

    def __init__(self, rows: Rows, batch: int) -> None:
        self.rows, self.device = rows, rows.device
        whole, rest = divmod(rows.count, batch)
        blocks = blocks_of((*[batch] * whole, *([rest] if rest else [])))
        side = tile_for(rows.count, rows.matrix.width)
        self.tiles = GramTiles(self.device, blocks, side)
        given = self.device, rows.matrix, blocks, self.tiles, Widths()
        self.products = DenseProducts(*given)
        self.out = self.device.empty((self.tiles.words,), np.float32)

    def __call__(self, numbers: Any) -> None:
        """out ← tiles, and the margins of the rows."""
        self.products.both(numbers, self.rows.weights, self.out, self.rows.out)

    def square(self) -> np.ndarray:
        """Entries below the diagonal as a matrix; what was not made is NaN."""
        side = self.tiles.side
        whole = int(self.tiles.across) * side
        found = np.full((whole, whole), np.nan, dtype=np.float32)
        tiles = self.device.fetch(self.out).reshape(-1, side, side)
        places = self.device.fetch(self.tiles.numbers)
        for place, tile in zip(places.tolist(), tiles, strict=True):
            down, across = side * (place >> 16), side * (place & 0xFFFF)
            found[down : down + side, across : across + side] = tile
        return found[: self.rows.count, : self.rows.count]

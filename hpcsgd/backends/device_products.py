"""Products of the rows of one exchange on a device: Gram, margins, update."""

from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import launch_gram, launch_steps
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.backends.launch_steps import MOST_COLUMNS
from hpcsgd.errors import ConfigError
from hpcsgd.schedule import Blocks

Array = NDArray[Any]
THREADS = 256  # of margin and update
ROWS_A_BLOCK = 8  # of margin: a warp a row


class Tiles:
    """Those of the Gram that the recurrence of some blocks reads."""

    def __init__(
        self, device: Device, blocks: Blocks, side: int = launch_gram.SMALL
    ) -> None:
        tiles, places = launch_gram.tiles_of(np.asarray(blocks.starts), side)
        self.side, self.count = side, len(tiles)
        self.shift = np.int32(side.bit_length() - 1)
        self.words = self.count * side * side
        self.numbers = sent(device, tiles)  # I << 16 | J of each
        self.places = sent(device, places.ravel())  # of each, or -1
        self.across = np.int32(len(places))
        self._at, self._blocks = places, blocks

    def packed(self, tiles: Array) -> Array:
        """What a copy of them holds, as the host packs the Gram."""
        side, blocks = self.side, self._blocks
        parts = tiles.reshape(-1, side, side)
        found = np.empty(blocks.gram_words, dtype=tiles.dtype)
        for j, (first, last) in enumerate(pairwise(blocks.starts)):
            rows, columns = np.arange(first, last)[:, None], np.arange(first)
            place = self._at[rows // side, columns // side]
            panel = parts[place, rows % side, columns % side]
            found[blocks.gram_starts[j] : blocks.gram_starts[j + 1]] = panel.ravel()
        return found


@dataclass(frozen=True)
class Widths:
    """Columns of weights and of scores: K classes, and what an update remembers."""

    classes: int = 1
    states: int = 1
    read: int = 1  # of a row's margins, times K: all states, or one point of them

    @property
    def weights(self) -> int:
        """Columns of weights, and of factors."""
        return self.classes * self.states

    @property
    def margins(self) -> int:
        """Columns of margins."""
        return self.classes * self.read


class Products(Protocol):
    """What exchanges ask of rows, however those are held."""

    def gram(self, numbers: Any, out: Any) -> None:
        """Tiles of Y Yᵀ."""

    def margins(self, numbers: Any, weights: Any, out: Any) -> None:
        """Y W."""

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """The two, in one launch where there is one."""

    def update(self, numbers: Any, factors: Any, carry: Any, weights: Any) -> None:
        """W ← W carryᵀ + Yᵀ factors."""


class DenseProducts:
    """Rows of whole chunks."""

    def __init__(
        self,
        device: Device,
        matrix: DeviceMatrix,
        blocks: Blocks,
        tiles: Tiles,
        widths: Widths,
    ) -> None:
        check_wide(widths.weights)
        self.device, self.matrix, self.tiles = device, matrix, tiles
        self.widths, self.count = widths, blocks.rows
        item, count = matrix.values.dtype.itemsize, max(tiles.count, 1)
        self.splits = launch_gram.splits_of(
            *(count, matrix.width, tiles.side, item, device.multiprocessors)
        )
        plan = self._launch_of(margins=False)
        self._workspace = device.empty((plan.workspace,), np.float32)
        self._tickets = device.zeros((max(tiles.count, 1),), np.uint32)
        self._plan_update(item)

    def part(self, columns: slice) -> "DenseProducts":
        """Of some columns, which begin with a chunk of a row."""
        part = copy(self)
        part.matrix = self.matrix.part(columns)
        return part

    def gram(self, numbers: Any, out: Any) -> None:
        """Tiles of Y Yᵀ alone."""
        self._gram(numbers, out, None, None)

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """One launch reads the rows for both, unless there are many margins a row."""
        if self.tiles.count and self.widths.margins == 1:
            self._gram(numbers, gram, weights, margins)
            return
        if self.tiles.count:
            self.gram(numbers, gram)
        self.margins(numbers, weights, margins)

    def margins(self, numbers: Any, weights: Any, out: Any) -> None:
        """Y W."""
        wide = self.widths.margins
        if wide == 1:
            grid = -(-self.count // ROWS_A_BLOCK)
            self._launch("margin", grid, THREADS, (*self._rows(numbers), weights, out))
            return
        item = self.matrix.values.dtype.itemsize
        shape = launch_steps.margins_columns(self.count, wide, item)
        arguments = (*self._rows(numbers), np.int32(wide), weights, out)
        self._launch("margins_columns", *shape[:2], arguments, shared=shape.shared)

    def update(self, numbers: Any, factors: Any, carry: Any, weights: Any) -> None:
        """W ← W carryᵀ + Yᵀ factors."""
        wide, states = self.widths.weights, self.widths.states
        if wide > 1:
            shape = launch_steps.update_columns(self.matrix.width)
            sizes = np.int32(wide), np.int32(states)
            arguments = (*self._rows(numbers), *sizes, factors, carry, weights)
            self._launch("update_columns", *shape[:2], arguments, shared=shape.shared)
            return
        arguments = (*self._rows(numbers), factors, carry, weights, *self._parts)
        plan = self._update
        self._launch("update", plan.grid, plan.block, arguments, shared=plan.shared)

    def _plan_update(self, item: int) -> None:
        """Its launch, and where parts of the rows are added."""
        cols, plan = (
            self.matrix.width,
            launch_steps.update(*(self.count, self.matrix.width, item)),
        )
        room = launch_steps.update_room(cols, plan) if self.widths.weights == 1 else 0
        self._update = plan
        self._parts = (
            np.int32(launch_steps.update_rows(self.count, plan.grid[1])),
            self.device.empty((room,), np.float32),
            self.device.zeros((plan.grid[0] if room else 1,), np.uint32),
        )

    def fetched(self, numbers: Any) -> Array:
        """The rows on the host, as float32: their stored values, scaled down."""
        matrix, device = self.matrix, self.device
        wide = matrix.element == "fp32"
        shape = (self.count, matrix.values.shape[1])
        block = device.empty(shape, np.float32)
        rows = (*self._rows(numbers), block, np.int64(shape[1]))
        plan = launch_steps.gather_rows(self.count)
        kernel = "gather_rows" if wide else "gather_rows_wide"
        self._launch(kernel, *plan[:2], rows)
        found: Array = device.fetch(block)[:, : matrix.width]
        return found / np.float32(matrix.scale)

    def _gram(self, numbers: Any, out: Any, weights: Any, margins: Any) -> None:
        plan, tiles = self._launch_of(margins is not None), self.tiles
        sizes = (np.int32(tiles.count), np.int32(plan.splits), np.int32(plan.per_split))
        arguments = (
            *(*self._rows(numbers), tiles.numbers, *sizes),
            *(weights, out, margins, self._workspace, self._tickets),
        )
        kernel = f"{self.matrix.multiplied}-{tiles.side}"
        self._launch(kernel, plan.grid, plan.block, arguments, shared=plan.shared)

    def _launch_of(self, margins: bool) -> launch_gram.GramLaunch:
        return launch_gram.launch_of(
            *(self.tiles.count, self.count, self.matrix.width),
            tile=self.tiles.side,
            itemsize=self.matrix.values.dtype.itemsize,
            splits=self.splits,
            margins=margins,
        )

    def _rows(self, numbers: Any) -> tuple[Any, ...]:
        matrix, m = self.matrix, np.int32(self.count)
        return matrix.values, matrix.stride, numbers, m, np.int32(matrix.width)

    def _launch(
        self, kernel: str, grid: Any, block: int, arguments: Any, **more: Any
    ) -> None:
        build = build_of(kernel, self.matrix.element, self.device.arch)
        self.device.kernel(build)(grid, block, arguments, **more)


def check_wide(wide: int) -> None:
    """Refuse more columns of weights than a kernel takes."""
    if wide > MOST_COLUMNS:
        raise ConfigError(
            f"a GPU takes {MOST_COLUMNS} columns of weights at most and these are"
            f" {wide} (classes, times 2 with momentum); use --device cpu"
        )

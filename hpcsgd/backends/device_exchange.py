"""One member's part of an exchange on a device: kernels, their buffers, in order."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import launch_gram, launch_recurrence
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import Coefficients, Order, Sampled, sent
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.families.base import Family, exp_bound
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.schedule import Blocks

Array = NDArray[Any]
TILE = 64  # rows and columns of a tile of the Gram
THREADS = 256  # of margin, update and round
ROWS_A_BLOCK = 8  # of margin: a warp a row
CHUNKS_A_BLOCK = 8  # of update, 16 bytes each


class DeviceExchange:
    """Exchanges of the sizes `blocks`: buffers stay, what is in them changes."""

    def __init__(
        self,
        device: Device,
        matrix: DeviceMatrix,
        order: Order,
        blocks: Blocks,
        family: Family,
        precision: Precision,
    ) -> None:
        self.device, self.matrix, self.blocks = device, matrix, blocks
        self.precision = precision
        self.sampled = Sampled(device, order, blocks.rows)
        self.coefficients = Coefficients(device, blocks)
        self.residuals = device.empty((blocks.rows,), np.float32)
        self.factors = device.empty((blocks.rows,), np.float32)
        self._is_warm = False
        self._replay: Callable[[], None] | None = None
        self._plan_gram()
        self._plan_recurrence(family)

    def at_once(self, weights: Any, intercept: Any) -> None:
        """All of it, where no message lies between: one launch from the third time on.

        The first time compiles, the second records what the GPU then repeats: arrays
        stay where they are, only what is in them changes.
        """
        if self._replay is not None:
            self._replay()
            return
        if self._is_warm:
            self._replay = self.device.capture(lambda: self._all(weights, intercept))
            self._replay()
        else:
            self._all(weights, intercept)
        self._is_warm = True

    def _all(self, weights: Any, intercept: Any) -> None:
        self.sample()
        self.products(weights)
        self.iterate(intercept)
        self.descend(weights)

    def sample(self) -> None:
        """The rows that come next."""
        self._launch("sample", 1, 1024, self.sampled.arguments, element="fp32")

    def products(self, weights: Any) -> None:
        """Tiles of this member's Gram, if there are any, and its margins."""
        width = np.int32(self.matrix.width)
        if not self.tiles:
            grid = -(-self.blocks.rows // ROWS_A_BLOCK)
            arguments = (*self._rows(), width, weights, self.margins)
            self._launch("margin", grid, THREADS, arguments)
            return
        plan = self.gram_launch
        sizes = (np.int32(self.tiles), np.int32(plan.splits), np.int32(plan.per_split))
        arguments = (
            *(*self._rows(), width, self._tiles, *sizes),
            *(weights, self.gram, self.margins, self._workspace, self._tickets),
        )
        kernel = f"gram-{TILE}"
        self._launch(kernel, plan.grid, plan.block, arguments, shared=plan.shared)

    def iterate(self, intercept: Any) -> None:
        """Residuals of all steps, and what the update multiplies rows with."""
        self._round_margins()
        sampled, plan = self.sampled, self.recurrence_launch
        states = len(self.coefficients.carry)
        arguments = (
            *(self.gram, self._map, np.int32(self._across), self.margins),
            *(sampled.targets, sampled.weights, sampled.offsets, intercept),
            *(self.coefficients.starts, np.int32(len(self.blocks.sizes))),
            *(np.int32(states), *self.coefficients.arrays, self._setting),
            *(self.residuals, self.factors, self._pitch),
        )
        build = build_of(self._recurrence, "fp32", self.device.arch)
        launch = self.device.kernel(build)
        launch(plan.grid, plan.block, arguments, plan.shared, cluster=plan.grid)

    def descend(self, weights: Any) -> None:
        """weights ← carry weights + Yᵀ factors."""
        wide = CHUNKS_A_BLOCK * 16 // self.matrix.values.dtype.itemsize
        arguments = (
            *(*self._rows(), np.int32(self.matrix.width)),
            *(self.factors, self.coefficients.carry, weights),
        )
        grid = -(-self.matrix.width // wide)
        self._launch("update", grid, THREADS, arguments, shared=4 * 32 * (wide + 1))

    def _plan_gram(self) -> None:
        """Which tiles, how many parts, and one buffer for tiles and margins."""
        device, blocks, matrix = self.device, self.blocks, self.matrix
        tiles, places = launch_gram.tiles_of(np.asarray(blocks.starts), TILE)
        self.tiles, self._across = len(tiles), len(places)
        width, item = matrix.width, matrix.values.dtype.itemsize
        splits = launch_gram.splits_of(
            *(max(self.tiles, 1), width, TILE, item, device.multiprocessors)
        )
        self.gram_launch = launch_gram.launch_of(
            self.tiles, blocks.rows, width, tile=TILE, itemsize=item, splits=splits
        )
        self._tiles, self._map = sent(device, tiles), sent(device, places.ravel())
        self._workspace = device.empty((self.gram_launch.workspace,), np.float32)
        self._tickets = device.zeros((max(self.tiles, 1),), np.uint32)
        words = self.gram_launch.result
        self.message = device.zeros((words + blocks.rows,), np.float32)
        self.gram, self.margins = self.message[:words], self.message[words:]

    def _plan_recurrence(self, family: Family) -> None:
        """One block or a cluster of them, and how much they hold."""
        arch, blocks = self.device.arch, self.blocks
        cluster = launch_recurrence.cluster_for(blocks.rows, arch)
        largest = max(blocks.sizes)
        self._recurrence = launch_recurrence.kernel_for(family.name, cluster)
        self._pitch = np.int32(launch_recurrence.pitch_of(largest))
        self.recurrence_launch = launch_recurrence.recurrence_launch(
            blocks.rows, largest, 1, cluster, arch
        )
        self._setting = np.float32(getattr(family, "delta", exp_bound(np.float32)))

    def _round_margins(self) -> None:
        """To the format that they are stored in."""
        stored, summed = self.precision.margin, self.precision.margin_sum
        if get_format(stored).unit_roundoff <= get_format(summed).unit_roundoff:
            return
        m = self.blocks.rows
        arguments = (self.margins, np.int32(m))
        self._launch("round", -(-m // THREADS), THREADS, arguments, element=stored)

    def _rows(self) -> tuple[Any, ...]:
        numbers, m = self.sampled.numbers, self.blocks.rows
        return self.matrix.values, self.matrix.stride, numbers, np.int32(m)

    def _launch(
        self,
        kernel: str,
        grid: int,
        block: int,
        arguments: Any,
        element: str = "",
        **more: Any,
    ) -> None:
        build = build_of(kernel, element or self.matrix.element, self.device.arch)
        self.device.kernel(build)(grid, block, arguments, **more)

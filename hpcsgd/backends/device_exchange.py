"""One member's part of an exchange on a device: kernels, their buffers, in order."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import launch_gram, launch_steps
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import Coefficients, Order, Sampled
from hpcsgd.backends.device_csr import DeviceCsr, SparseProducts
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.device_products import DenseProducts, Products, Tiles, Widths
from hpcsgd.backends.device_steps import Recurrence
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.families.base import Family
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.schedule import Blocks

Array = NDArray[Any]
ONE_SCORE = Widths()
THREADS = 256  # of round


class DeviceExchange:
    """Exchanges of the sizes `blocks`: buffers stay, what is in them changes."""

    def __init__(
        self,
        device: Device,
        matrix: DeviceMatrix | DeviceCsr,
        order: Order,
        blocks: Blocks,
        family: Family,
        precision: Precision,
        widths: Widths = ONE_SCORE,
    ) -> None:
        self.device, self.matrix, self.blocks = device, matrix, blocks
        self.precision, self.widths = precision, widths
        self.sampled = Sampled(device, order, blocks.rows)
        self.coefficients = Coefficients(device, blocks, matrix.scale)
        self.tiles = Tiles(device, blocks, self._side_of(matrix))
        self.rows = self._products_of(matrix)
        self.recurrence = Recurrence(device, blocks, family, self.tiles, widths)
        self._make_message()
        self._point = self._room_for_point()

    @property
    def residuals(self) -> Any:
        """Of the steps that were taken last."""
        return self.recurrence.residuals

    def before(self, weights: Any) -> None:
        """What members make of their own columns."""
        self.sample()
        self.products(weights)

    def after(self, weights: Any, intercept: Any) -> None:
        """What follows from the sums."""
        self.iterate(intercept)
        self.descend(weights)

    def sample(self) -> None:
        """The rows that come next."""
        self._launch("sample", 1, 1024, self.sampled.arguments, element="fp32")

    def products(self, weights: Any) -> None:
        """Tiles of this member's Gram, if there are any, and its margins."""
        if not self.tiles.count:
            self.scores(weights)
            return
        numbers, point = self.sampled.numbers, self._read(weights)
        self.rows.both(numbers, point, self.gram, self.margins)

    def scores(self, weights: Any) -> None:
        """Its margins alone."""
        point = self._read(weights)
        self.rows.margins(self.sampled.numbers, point, self.margins)

    def gram_alone(self) -> None:
        """Its tiles alone."""
        if self.tiles.count:
            self.rows.gram(self.sampled.numbers, self.gram)

    def iterate(self, intercept: Any) -> None:
        """Residuals of all steps, and what the update multiplies rows with."""
        self._round_margins()
        self.recurrence.take_steps(
            *(self.gram, self.margins, self.sampled, intercept, self.coefficients)
        )

    def descend(self, weights: Any) -> None:
        """weights ← weights carryᵀ + Yᵀ factors."""
        factors, carry = self.recurrence.factors, self.coefficients.carry
        self.rows.update(self.sampled.numbers, factors, carry, weights)

    def _products_of(self, matrix: DeviceMatrix | DeviceCsr) -> Products:
        sizes = self.blocks, self.tiles, self.widths
        if isinstance(matrix, DeviceCsr):
            return SparseProducts(self.device, matrix, *sizes)
        return DenseProducts(self.device, matrix, *sizes)

    def _side_of(self, matrix: DeviceMatrix | DeviceCsr) -> int:
        """Of tiles: rows that store few values have no large ones."""
        if isinstance(matrix, DeviceCsr):
            return launch_gram.SMALL
        return launch_gram.tile_for(self.blocks.rows, matrix.width)

    def _make_message(self) -> None:
        """One buffer for tiles and margins: what members sum."""
        margins = self.blocks.rows * self.widths.margins
        words = self.tiles.words + margins
        self.use(self.device.zeros((words,), np.float32))

    def use(self, message: Any) -> None:
        """From now on this one, of the same size."""
        words = self.tiles.words
        self.message = message
        self.gram, self.margins = message[:words], message[words:]

    def _room_for_point(self) -> Any:
        """Of what plain steps with momentum read; None where the weights are read."""
        if self.widths.read == self.widths.states:
            return None
        shape = (self.matrix.width, self.widths.classes)
        return self.device.empty(shape, np.float32)

    def _read(self, weights: Any) -> Any:
        """Where scores are read: the weights, or a point of all their states."""
        if self._point is None:
            return weights
        widths, count = self.widths, self.matrix.width * self.widths.classes
        sizes = np.int32(count), np.int32(widths.states), np.int32(widths.classes)
        arguments = (weights, *sizes, self.coefficients.probe, self._point)
        shape = launch_steps.blend(count)
        self._launch("blend", *shape[:2], arguments, element="fp32")
        return self._point

    def _round_margins(self) -> None:
        """To the format that they are stored in."""
        stored, summed = self.precision.margin, self.precision.margin_sum
        if get_format(stored).unit_roundoff <= get_format(summed).unit_roundoff:
            return
        count = self.blocks.rows * self.widths.margins
        arguments = (self.margins, np.int32(count))
        self._launch("round", -(-count // THREADS), THREADS, arguments, element=stored)

    def _launch(
        self, kernel: str, grid: Any, block: int, arguments: Any, element: str
    ) -> None:
        build = build_of(kernel, element, self.device.arch)
        self.device.kernel(build)(grid, block, arguments)

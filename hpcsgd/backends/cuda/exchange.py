"""The kernels of an exchange on a GPU: sample, products, steps, update."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.device import PIECE, Device
from hpcsgd.backends.cuda.kernels import MOST_COLUMNS, StepLaunch, build_of, serves
from hpcsgd.backends.cuda.matrix import (
    TF32,
    DeviceCoefficients,
    DeviceMatrix,
    DeviceSampled,
    Order,
    bytes_of_order,
    check_element,
    sent,
)
from hpcsgd.data.matrix import Csr
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, get_format
from hpcsgd.glm.families import Family, kernel_setting
from hpcsgd.glm.unrolling import Blocks, PlainSteps
from hpcsgd.precision import Precision

# Products of the rows of one exchange on a device: Gram, margins, update.

THREADS = 256  # of margin and update
ROWS_A_BLOCK = 8  # of margin: a warp a row


class GramTiles:
    """The tiles of the Gram matrix that the recurrence of `blocks` reads."""

    def __init__(
        self, device: Device, blocks: Blocks, side: int = kernels.SMALL
    ) -> None:
        tiles, places = kernels.tiles_of(np.asarray(blocks.starts), side)
        self.side = side
        self.count = len(tiles)
        self.shift = np.int32(side.bit_length() - 1)
        self.words = self.count * side * side
        self.numbers = sent(device, tiles)  # I << 16 | J of each
        self.places = sent(device, places.ravel())  # of each tile in that list, or -1
        self.across = np.int32(len(places))
        self._at = places
        self._blocks = blocks

    def packed(self, tiles: Array) -> Array:
        """Return the Gram of `tiles`, an array on the host, in the host's layout."""
        side = self.side
        blocks = self._blocks
        parts = tiles.reshape(-1, side, side)
        gram = np.empty(blocks.gram_words, dtype=tiles.dtype)
        for j, (first, last) in enumerate(pairwise(blocks.starts)):
            rows = np.arange(first, last)[:, None]
            columns = np.arange(first)
            place = self._at[rows // side, columns // side]
            panel = parts[place, rows % side, columns % side]
            gram[blocks.gram_starts[j] : blocks.gram_starts[j + 1]] = panel.ravel()
        return gram


@dataclass(frozen=True)
class Widths:
    """How many columns the arrays of weights and of margins have.

    Weights have one for each class in each state of the update rule (weights, and a
    velocity).
    """

    classes: int = 1
    states: int = 1
    read: int = 1  # of a row's margins, times K: all states, or one point of them

    @property
    def weights(self) -> int:
        """Return the number of columns of weights, and of factors."""
        return self.classes * self.states

    @property
    def margins(self) -> int:
        """Return the number of columns of margins."""
        return self.classes * self.read


class Products(Protocol):
    """The products of sampled rows in an exchange, whatever their storage.

    Y are the rows with the given `numbers` in the matrix, and W the weights.
    """

    def gram(self, numbers: Any, out: Any) -> None:
        """Compute out ← tiles of Y Yᵀ for the rows Y with these numbers."""

    def margins(self, numbers: Any, weights: Any, out: Any) -> None:
        """Compute out ← Y W for the rows Y with these numbers and the weights W."""

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """Compute gram ← tiles of Y Yᵀ and margins ← Y W, in one launch if possible."""

    def update(self, numbers: Any, factors: Any, carry: Any, weights: Any) -> None:
        """Compute W ← W carryᵀ + Yᵀ factors for the rows Y and the weights W."""


class DenseProducts:
    """The products of dense rows, which consist of whole chunks of 16 bytes.

    Y are the rows with the given `numbers` in the matrix, and W the weights. See
    `Products`.
    """

    def __init__(
        self,
        device: Device,
        matrix: DeviceMatrix,
        blocks: Blocks,
        tiles: GramTiles,
        widths: Widths,
    ) -> None:
        check_wide(widths.weights)
        self.device = device
        self.matrix = matrix
        self.tiles = tiles
        self.widths = widths
        self.count = blocks.rows
        item = matrix.values.dtype.itemsize
        count = max(tiles.count, 1)
        self.splits = kernels.splits_of(
            count, matrix.width, tiles.side, item, device.multiprocessors
        )
        plan = self._launch_of(margins=False)
        self._workspace = device.empty((plan.workspace,), np.float32)
        self._tickets = device.zeros((max(tiles.count, 1),), np.uint32)
        self._plan_update(item)

    @staticmethod
    def bytes_of(
        rows: int,
        width: int,
        item: int,
        tiles: int,
        side: int,
        multiprocessors: int,
        columns: int,
    ) -> int:
        """Return the bytes of the partial sums of the products of `rows` rows.

        Rows have `width` values of `item` bytes, weights have `columns` columns, and
        the Gram has `tiles` tiles of side `side`.
        """
        count = max(tiles, 1)
        splits = kernels.splits_of(count, width, side, item, multiprocessors)
        plan = kernels.launch_of(
            tiles, rows, width, tile=side, itemsize=item, splits=splits
        )
        update = kernels.update(rows, width, item)
        parts = kernels.update_room(width, update) if columns == 1 else 0
        return 4 * (plan.workspace + count + parts)

    def part(self, columns: slice) -> "DenseProducts":
        """Return the products of some columns, the first of which begins a chunk.

        A chunk is 16 bytes of a row.
        """
        part = copy(self)
        part.matrix = self.matrix.part(columns)
        return part

    def gram(self, numbers: Any, out: Any) -> None:
        """Compute out ← tiles of Y Yᵀ for the rows Y with these numbers."""
        self._gram(numbers, out, None, None)

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """Compute Gram and margins, in one launch if there is one margin a row."""
        if self.tiles.count and self.widths.margins == 1:
            self._gram(numbers, gram, weights, margins)
            return
        if self.tiles.count:
            self.gram(numbers, gram)
        self.margins(numbers, weights, margins)

    def margins(self, numbers: Any, weights: Any, out: Any) -> None:
        """Compute out ← Y W for the rows Y with these numbers and the weights W."""
        wide = self.widths.margins
        if wide == 1:
            grid = -(-self.count // ROWS_A_BLOCK)
            self._launch("margin", grid, THREADS, (*self._rows(numbers), weights, out))
            return
        item = self.matrix.values.dtype.itemsize
        shape = kernels.margins_columns(self.count, wide, item)
        arguments = (*self._rows(numbers), np.int32(wide), weights, out)
        self._launch("margins_columns", *shape[:2], arguments, shared=shape.shared)

    def update(self, numbers: Any, factors: Any, carry: Any, weights: Any) -> None:
        """Compute W ← W carryᵀ + Yᵀ factors for the rows Y and the weights W."""
        wide = self.widths.weights
        states = self.widths.states
        if wide > 1:
            shape = kernels.update_columns(self.matrix.width)
            sizes = np.int32(wide), np.int32(states)
            arguments = (*self._rows(numbers), *sizes, factors, carry, weights)
            self._launch("update_columns", *shape[:2], arguments, shared=shape.shared)
            return
        arguments = (*self._rows(numbers), factors, carry, weights, *self._parts)
        plan = self._update
        self._launch("update", plan.grid, plan.block, arguments, shared=plan.shared)

    def _plan_update(self, item: int) -> None:
        """Plan the launch of the update, and allocate its partial sums."""
        cols = self.matrix.width
        plan = kernels.update(self.count, self.matrix.width, item)
        workspace = kernels.update_room(cols, plan) if self.widths.weights == 1 else 0
        self._update = plan
        self._parts = (
            np.int32(kernels.update_rows(self.count, plan.grid[1])),
            self.device.empty((workspace,), np.float32),
            self.device.zeros((plan.grid[0] if workspace else 1,), np.uint32),
        )

    def fetched(self, numbers: Any) -> Array:
        """Return a copy of the rows with these numbers on the host, in float32.

        They are divided by the factor with which the device stores values.
        """
        matrix = self.matrix
        device = self.device
        wide = matrix.element == "fp32"
        shape = (self.count, matrix.values.shape[1])
        block = device.empty(shape, np.float32)
        rows = (*self._rows(numbers), block, np.int64(shape[1]))
        plan = kernels.gather_rows(self.count)
        kernel = "gather_rows" if wide else "gather_rows_wide"
        self._launch(kernel, *plan[:2], rows)
        values: Array = device.fetch(block)[:, : matrix.width]
        return values / np.float32(matrix.scale)

    def _gram(self, numbers: Any, out: Any, weights: Any, margins: Any) -> None:
        plan = self._launch_of(margins is not None)
        tiles = self.tiles
        sizes = (np.int32(tiles.count), np.int32(plan.splits), np.int32(plan.per_split))
        arguments = (
            *(*self._rows(numbers), tiles.numbers, *sizes),
            *(weights, out, margins, self._workspace, self._tickets),
        )
        kernel = f"{self.matrix.multiplied}-{tiles.side}"
        self._launch(kernel, plan.grid, plan.block, arguments, shared=plan.shared)

    def _launch_of(self, margins: bool) -> kernels.GramLaunch:
        return kernels.launch_of(
            self.tiles.count,
            self.count,
            self.matrix.width,
            tile=self.tiles.side,
            itemsize=self.matrix.values.dtype.itemsize,
            splits=self.splits,
            margins=margins,
        )

    def _rows(self, numbers: Any) -> tuple[Any, ...]:
        matrix = self.matrix
        m = np.int32(self.count)
        return matrix.values, matrix.stride, numbers, m, np.int32(matrix.width)

    def _launch(
        self, kernel: str, grid: Any, block: int, arguments: Any, **more: Any
    ) -> None:
        build = build_of(kernel, self.matrix.element, self.device.arch)
        self.device.kernel(build)(grid, block, arguments, **more)


def check_wide(wide: int) -> None:
    """Raise ConfigError if a kernel does not take `wide` columns of weights."""
    if wide > MOST_COLUMNS:
        raise ConfigError(
            f"--device cuda supports at most {MOST_COLUMNS} columns of weights and this"
            f" run has {wide} (the number of classes, times 2 with momentum); use"
            " --device cpu"
        )


# Sparse rows as a device stores them, and their products in an exchange.


@dataclass(frozen=True)
class DeviceCsr:
    """`Csr` on a device, in the format that the host stores its values in."""

    is_sparse: ClassVar[Literal[True]] = True

    indptr: Any  # (rows + 1,) int64
    indices: Any  # (nnz,) int32 or int64
    data: Any  # (nnz,)
    element: str
    width: int
    scale: float = 1.0  # factor of stored values: a power of two
    first: int = 0  # number of the first column in use

    def part(self, columns: slice) -> "DeviceCsr":
        """Return some columns of all rows, without a copy."""
        width = columns.stop - columns.start
        return replace(self, first=self.first + columns.start, width=width)

    @property
    def suffix(self) -> str:
        """Return the suffix of kernels for the type of the column numbers."""
        return "_64" if self.indices.dtype == np.int64 else ""


def put_csr(device: Device, matrix: Csr, element: str, scale: float = 1.0) -> DeviceCsr:
    """Return a copy of `matrix` on the device, sent piece by piece.

    `element` is the format of the stored values, and `scale` the factor that they have
    already.
    """
    check_element(element)
    parts = matrix.indptr, matrix.indices, matrix.data
    indptr, indices, data = (_put(device, part) for part in parts)
    stored = "fp32" if element == TF32 else element
    return DeviceCsr(indptr, indices, data, stored, matrix.width, scale)


def _put(device: Device, values: Array) -> Any:
    buffer = device.empty(values.shape, values.dtype)
    step = PIECE // values.itemsize
    for first in range(0, len(values), step):
        device.fill(buffer[first : first + step], values[first : first + step])
    return buffer


class SparseProducts:
    """The products of CSR rows, by their stored values alone.

    Y are the rows with the given `numbers` in the matrix, and W the weights. See
    `Products`.
    """

    def __init__(
        self,
        device: Device,
        matrix: DeviceCsr,
        blocks: Blocks,
        tiles: GramTiles,
        widths: Widths,
    ) -> None:
        check_wide(widths.weights)
        self.device = device
        self.matrix = matrix
        self.tiles = tiles
        self.widths = widths
        self.count = blocks.rows
        numbers = np.arange(len(blocks.sizes), dtype=np.int32)
        self._batches = sent(device, np.repeat(numbers, blocks.sizes))
        self._seen = np.int64(0), np.int64(0)  # all columns

    @staticmethod
    def bytes_of(rows: int) -> int:
        """Return the bytes of the batch numbers of `rows` rows."""
        return 4 * rows

    def part(self, columns: slice) -> "SparseProducts":
        """Return the products of some columns; kernels search each row for them."""
        part = copy(self)
        part.matrix = self.matrix.part(columns)
        part._seen = np.int64(part.matrix.first), np.int64(part.matrix.width)
        return part

    def gram(self, numbers: Any, out: Any) -> None:
        """Compute out ← tiles of Y Yᵀ for the rows Y with these numbers."""
        shape = kernels.csr_gram(self.tiles.count, self.tiles.side)
        self._launch("csr_gram", shape, numbers, self._batches, self.tiles.numbers, out)

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """Compute Gram, then margins, each in a launch of its own.

        The two kernels read sparse rows in different orders.
        """
        if self.tiles.count:
            self.gram(numbers, gram)
        self.margins(numbers, weights, margins)

    def margins(self, numbers: Any, weights: Any, out: Any) -> None:
        """Compute out ← Y W for the rows Y with these numbers and the weights W."""
        wide = self.widths.margins
        shape = kernels.csr_margin(self.count, wide)
        if wide == 1:
            self._launch("csr_margin", shape, numbers, *self._seen, weights, out)
            return
        across = np.int32(kernels.csr_across(wide))
        sizes = *self._seen, np.int32(wide), across
        self._launch("csr_margins_columns", shape, numbers, *sizes, weights, out)

    def update(self, numbers: Any, factors: Any, carry: Any, weights: Any) -> None:
        """Compute W ← W carryᵀ + Yᵀ factors for the rows Y and the weights W."""
        wide = self.widths.weights
        cols = self.matrix.width
        shape = kernels.csr_update(cols, wide)
        span = np.int32(kernels.csr_span(cols, wide))
        sizes = np.int64(self.matrix.first), np.int64(cols), span
        rest = factors, carry, weights
        if wide == 1:
            self._launch("csr_update", shape, numbers, *sizes, *rest)
            return
        across = kernels.csr_across(wide)
        more = np.int32(wide), np.int32(self.widths.states), np.int32(across)
        self._launch("csr_update_columns", shape, numbers, *sizes, *more, *rest)

    def _launch(self, kernel: str, shape: StepLaunch, numbers: Any, *rest: Any) -> None:
        matrix = self.matrix
        build = build_of(kernel + matrix.suffix, matrix.element, self.device.arch)
        rows = matrix.indptr, matrix.indices, matrix.data, numbers
        arguments = (*rows, np.int32(self.count), *rest)
        self.device.kernel(build)(
            shape.grid, shape.block, arguments, shared=shape.shared
        )


# The s steps of an exchange on a device, from summed products to factors of rows.


class DeviceRecurrence:
    """The recurrence of s steps: their residuals, and factors of rows in the update."""

    def __init__(
        self,
        device: Device,
        blocks: Blocks,
        family: Family,
        tiles: GramTiles,
        widths: Widths,
    ) -> None:
        self.device, self.blocks, self.tiles, self.widths = (
            *(device, blocks),
            *(tiles, widths),
        )
        m = blocks.rows
        self.residuals = device.empty((m, widths.classes), np.float32)
        self.factors = device.empty((m, widths.weights), np.float32)
        if widths.classes > 1:
            self._plan_softmax()
        else:
            self._plan_one_score(family)

    def take_steps(
        self,
        gram: Any,
        margins: Any,
        sampled: DeviceSampled,
        intercept: Any,
        coefficients: DeviceCoefficients,
    ) -> None:
        """Compute `residuals` and `factors` of s steps; `intercept` advances in place.

        It is one launch. `gram` and `margins` are summed over members.
        """
        plan = self.launch
        widths = self.widths
        tiles = self.tiles
        arguments = (
            *(gram, tiles.places, tiles.across, tiles.shift, margins),
            *(sampled.targets, sampled.weights, sampled.offsets, intercept),
            *(coefficients.starts, np.int32(len(self.blocks.sizes))),
            *(np.int32(widths.states), np.int32(widths.read), *self._classes),
            *(*coefficients.arrays, *self._setting),
            *(self.residuals, self.factors, *self._pitch),
        )
        build = build_of(self._kernel, "fp32", self.device.arch)
        kernel = self.device.kernel(build)
        kernel(plan.grid, plan.block, arguments, plan.shared, cluster=plan.grid)

    def _plan_one_score(self, family: Family) -> None:
        """Plan the launch for one score a row: one block, or a cluster of blocks."""
        arch = self.device.arch
        blocks = self.blocks
        cluster = kernels.cluster_for(blocks.rows, arch)
        largest = max(blocks.sizes)
        self._kernel = kernels.kernel_for(family.name, cluster)
        self.launch = kernels.recurrence_launch(
            blocks.rows, largest, self.widths.states, cluster, arch
        )
        self._classes: tuple[Any, ...] = ()
        setting = kernel_setting(family, np.float32)
        self._setting: tuple[Any, ...] = (np.float32(setting),)
        self._pitch: tuple[Any, ...] = (np.int32(kernels.recurrence_pitch_of(largest)),)

    def _plan_softmax(self) -> None:
        """Plan a launch of one block, whatever the number of classes."""
        widths = self.widths
        self._kernel = "softmax"
        self.launch = kernels.softmax_launch(self.blocks.rows, widths.states)
        self._classes = (np.int32(widths.classes),)
        self._setting = ()
        self._pitch = ()


# The kernels beneath an exchange on a device, and their buffers.


@dataclass(frozen=True)
class DeviceShard:
    """The rows of a rank on its GPU: the matrix, and their order with their targets.

    `in_order`: an exchange takes all rows of the matrix, in the order of the matrix.
    `widest`: the columns of the member that has most of them, by which all members
    choose the tiles of the Gram matrices that they sum.
    """

    matrix: DeviceMatrix | DeviceCsr
    order: Order
    widest: int
    in_order: bool = False


ONE_SCORE = Widths()


def side_of(rows: int, widest: int, is_sparse: bool) -> int:
    """Return the side of Gram tiles; sparse rows always take the small tiles.

    `widest` is the number of columns of the member that has most of them.
    """
    return kernels.SMALL if is_sparse else kernels.tile_for(rows, widest)


class ExchangeKernels:
    """The kernels of exchanges of the sizes `blocks`, and their buffers.

    Buffers are allocated once. `hpcsgd.backends.cuda.sequences.CudaExchange` calls the
    kernels in the order of a product.
    """

    def __init__(
        self,
        device: Device,
        shard: DeviceShard,
        blocks: Blocks,
        family: Family,
        precision: Precision,
        widths: Widths = ONE_SCORE,
    ) -> None:
        self.device = device
        self.matrix = matrix = shard.matrix
        self.blocks = blocks
        self.precision = precision
        self.widths = widths
        self.sampled = DeviceSampled(device, shard.order, blocks.rows)
        self.coefficients = DeviceCoefficients(device, blocks, matrix.scale)
        self.rows: Products
        side = side_of(blocks.rows, shard.widest, matrix.is_sparse)
        self.tiles = GramTiles(device, blocks, side)
        if matrix.is_sparse:
            self.rows = SparseProducts(device, matrix, blocks, self.tiles, widths)
        else:
            self.rows = DenseProducts(device, matrix, blocks, self.tiles, widths)
        self.recurrence = DeviceRecurrence(device, blocks, family, self.tiles, widths)
        self._make_message()
        self._point = self._room_for_point()

    @staticmethod
    def holds(
        blocks: Blocks,
        width: int,
        item: int,
        multiprocessors: int,
        columns: int = 1,
        is_sparse: bool = False,
        widest: int = 0,
    ) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of the buffers of exchanges of the sizes `blocks`.

        Rows have `width` values of `item` bytes, and weights have `columns` columns.
        `widest` is that of `DeviceShard`.
        """
        rows = blocks.rows
        side = side_of(blocks.rows, widest or width, is_sparse)
        tiles, places = kernels.tiles_of(np.asarray(blocks.starts), side)
        count = len(tiles)
        yield "message", 4 * (count * side**2 + rows * columns)
        yield "sampled rows", bytes_of_order(rows)
        yield "map of tiles", 4 * (count + places.size)
        if is_sparse:
            yield "batches of rows", SparseProducts.bytes_of(rows)
        else:
            sizes = rows, width, item, count, side, multiprocessors, columns
            yield "parts of sums", DenseProducts.bytes_of(*sizes)
        yield "residuals and factors", 4 * 2 * rows * columns

    @property
    def residuals(self) -> Any:
        """Return the residuals of the steps that were taken last."""
        return self.recurrence.residuals

    def before(self, weights: Any) -> None:
        """Sample the next rows, and compute the products of this member's columns."""
        self.sample()
        self.products(weights)

    def after(self, weights: Any, intercept: Any) -> None:
        """Take the steps from the summed products, and update the weights."""
        self.iterate(intercept)
        self.apply_update(weights)

    def sample(self) -> None:
        """Launch the kernel that samples the next rows: numbers, targets and others."""
        self._launch("sample", 1, 1024, self.sampled.arguments, element="fp32")

    def products(self, weights: Any) -> None:
        """Compute this member's margins, and its Gram tiles if there are any."""
        if not self.tiles.count:
            self.scores(weights)
            return
        numbers = self.sampled.numbers
        point = self._read(weights)
        self.rows.both(numbers, point, self.gram, self.margins)

    def scores(self, weights: Any) -> None:
        """Compute the margins of this member, without its Gram tiles."""
        point = self._read(weights)
        self.rows.margins(self.sampled.numbers, point, self.margins)

    def gram_alone(self) -> None:
        """Compute the Gram tiles of this member, without its margins."""
        if self.tiles.count:
            self.rows.gram(self.sampled.numbers, self.gram)

    def iterate(self, intercept: Any) -> None:
        """Compute residuals of all steps, and factors of rows in the update.

        The margins are rounded to their storage format before.
        """
        self._round_margins()
        self.recurrence.take_steps(
            self.gram, self.margins, self.sampled, intercept, self.coefficients
        )

    def apply_update(self, weights: Any) -> None:
        """Compute weights ← weights carryᵀ + Yᵀ factors."""
        factors = self.recurrence.factors
        carry = self.coefficients.carry
        self.rows.update(self.sampled.numbers, factors, carry, weights)

    def _make_message(self) -> None:
        """Allocate one buffer for tiles and margins, which members sum."""
        margins = self.blocks.rows * self.widths.margins
        words = self.tiles.words + margins
        self.use(self.device.zeros((words,), np.float32))

    def use(self, message: Any) -> None:
        """Write tiles and margins into `message`, of the same size, from now on."""
        words = self.tiles.words
        self.message = message
        self.gram = message[:words]
        self.margins = message[words:]

    def _room_for_point(self) -> Any:
        """Return an array for the point at which scores are read.

        Return None if scores are read at the weights; plain steps with momentum read
        them at a point.
        """
        if self.widths.read == self.widths.states:
            return None
        shape = (self.matrix.width, self.widths.classes)
        return self.device.empty(shape, np.float32)

    def _read(self, weights: Any) -> Any:
        """Return the array at which scores are computed.

        It is the weights, or for plain steps with momentum a combination of their
        states.
        """
        if self._point is None:
            return weights
        widths = self.widths
        count = self.matrix.width * self.widths.classes
        sizes = np.int32(count), np.int32(widths.states), np.int32(widths.classes)
        arguments = (weights, *sizes, self.coefficients.probe, self._point)
        shape = kernels.blend(count)
        self._launch("blend", *shape[:2], arguments, element="fp32")
        return self._point

    def _round_margins(self) -> None:
        """Round the margins to the format that they are stored in."""
        stored = self.precision.margin
        summed = self.precision.margin_sum
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


# s plain steps in one launch: on sampled rows of a matrix, or on all of a block.

# Bytes of a batch up to which one block is faster than several that synchronise: it
# reads the batch twice in each step, at some 100 GB/s.
ONE_BLOCK = 64 * 1024


class WalkRows(Protocol):
    """The numbers of rows, with their targets, weights and offsets."""

    numbers: Any
    targets: Any
    weights: Any
    offsets: Any


class StepArithmetic(Protocol):
    """The loss and the formats of the steps, as a `Task` has them."""

    @property
    def family(self) -> Family:
        """Return the GLM family."""

    @property
    def precision(self) -> Precision:
        """Return the number formats."""


class DeviceFusedSteps:
    """Plain steps of the sizes `blocks` in one launch; one score a row, one state."""

    def __init__(
        self,
        device: Device,
        matrix: DeviceMatrix,
        rows: WalkRows,
        blocks: Blocks,
        task: StepArithmetic,
        in_order: bool = False,
    ) -> None:
        family = task.family
        self.device = device
        self.matrix = matrix
        self.rows = rows
        self._tall = max(blocks.sizes)
        self._item = matrix.values.dtype.itemsize
        size = self._tall * matrix.width * self._item
        self._is_narrow = in_order and size <= ONE_BLOCK
        kind = "gather-steps" if self._is_narrow else "direct-steps"
        build = build_of(f"{kind}-{family.name}", matrix.element, device.arch)
        self._kernel = device.kernel(build)
        self._steps = np.int32(len(blocks.sizes))
        self._starts = sent(device, np.asarray(blocks.starts, dtype=np.int32))
        setting = kernel_setting(family, np.float32)
        rounds = _rounds_margins(task.precision)
        self._setting = np.float32(setting), np.int32(rounds)
        self._coefficients = _Coefficients(device, matrix.scale)
        self.residuals = device.empty((blocks.rows, 1), np.float32)
        self._plan()

    def load(self, plain: PlainSteps) -> None:
        """Use the coefficients of these steps from now on."""
        self._coefficients.load(plain)

    def launch(self, weights: Any, intercept: Any) -> None:
        """Launch all steps; weights and intercept advance in place."""
        rows = self.rows
        matrix = self.matrix
        arguments = (
            *(self._starts, self._steps, np.int32(matrix.width)),
            *(rows.targets, rows.weights, rows.offsets, *self._setting),
            *self._coefficients.arrays,
            *(intercept, weights, self.residuals),
        )
        numbers = () if self._is_narrow else (rows.numbers,)
        shape = self._shape
        head = (matrix.values, matrix.stride, *numbers)
        self._kernel(
            shape.grid,
            shape.block,
            (*head, *arguments, *self._between),
            shared=shape.shared,
            cluster=shape.grid[0],  # all blocks at once
        )

    def _plan(self) -> None:
        """Plan the launch, and allocate arrays by which its blocks synchronise."""
        tall = self._tall
        item = self._item
        device = self.device
        self._between: tuple[Any, ...] = ()
        if self._is_narrow:
            self._shape = kernels.gather_steps(tall)
            return
        width = self.matrix.width
        self._shape = kernels.direct_steps(width, item, tall, device.multiprocessors)
        partials = kernels.direct_partials(self._shape, tall)
        chunks = kernels.direct_room(self._shape, item, tall)
        ahead = kernels.direct_ahead(width, item, tall, device.cache)
        self._between = (
            *(device.empty((partials,), np.float32), np.int32(tall)),
            *(np.int32(chunks), np.int32(ahead), device.zeros((2,), np.uint32)),
        )


def has_fused_kernel(
    device: Device,
    matrix: DeviceMatrix,
    blocks: Blocks,
    task: StepArithmetic,
    in_order: bool = False,
) -> bool:
    """Return whether one kernel takes all plain steps of the sizes `blocks`.

    Otherwise each step is an exchange. The caller ensures that the steps are plain SGD
    with one score a row. `in_order`: they take all rows of the matrix in its order.
    """
    tall = max(blocks.sizes)
    item = matrix.values.dtype.itemsize
    kinds = ("direct-steps", "gather-steps") if in_order else ("direct-steps",)
    names = (f"{kind}-{task.family.name}" for kind in kinds)
    shape = kernels.direct_steps(matrix.width, item, tall, device.multiprocessors)
    return (
        task.precision.margin in ("fp32", "bf16")
        and kernels.direct_fits(item, tall)
        and all(serves(name, matrix.element, device.arch) for name in names)
        # Blocks of several ranks that wait for blocks of their own could deadlock.
        and not (device.is_shared and shape.grid[0] > 1)
    )


def _rounds_margins(precision: Precision) -> bool:
    """Return whether margins are stored in a narrower format than that of their sum."""
    stored = get_format(precision.margin)
    summed = get_format(precision.margin_sum)
    return stored.unit_roundoff > summed.unit_roundoff


class _Coefficients:
    """The coefficients of plain steps with one state, in one array on the device.

    They are carry, gain and free of `PlainSteps`; the gain is there once for weights of
    scaled rows, and once for the intercept.
    """

    def __init__(self, device: Device, scale: float) -> None:
        self._device = device
        # As in `DeviceCoefficients`, gains of weights are for rows times `scale`.
        self._down = 1.0 / scale**2
        self._loaded: PlainSteps | None = None
        self._values: Array | None = None
        self._room: Any = None

    def load(self, plain: PlainSteps) -> None:
        """Send the coefficients of `plain` to the device, unless it has equal ones."""
        if plain is self._loaded:
            return
        self._loaded = plain
        parts = (plain.carry, plain.gain * self._down, plain.gain, plain.free)
        values = np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)
        if self._values is not None and np.array_equal(values, self._values):
            return
        if self._room is None:
            self._room = self._device.empty(values.shape, np.float32)
        self._device.fill(self._room, values)
        self._values = values

    @property
    def arrays(self) -> list[Any]:
        """Return carry, both gains and free, as the kernels take them."""
        edges = np.arange(5) * (len(self._room) // 4)
        return [self._room[first:last] for first, last in pairwise(edges.tolist())]

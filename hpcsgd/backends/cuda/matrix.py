"""Matrices and buffers of an exchange on a GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.device import PIECE, Device
from hpcsgd.backends.cuda.kernels import build_of, coefficients
from hpcsgd.data.matrix import DenseMatrix
from hpcsgd.data.stream import Unheld
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array
from hpcsgd.glm.unrolling import Blocks, UnrolledSteps

# A member's block as a device stores it: rows of whole 16-byte chunks.

CHUNK = 16  # bytes that a thread reads at once
ELEMENTS = ("fp32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2", "tf32")
TF32 = "tf32"  # values in fp32, of which a product of tensor cores loses nothing


@dataclass(frozen=True)
class DeviceMatrix:
    """Dense rows with a stride on a device, in the format of the host's storage."""

    is_sparse: ClassVar[Literal[False]] = False

    values: Any  # (n, stride)
    element: str
    height: int
    width: int
    scale: float = 1.0  # factor of stored values: a power of two
    multiplied: str = "gram"  # its Gram kernel; tensor cores may round
    pitch: int = 0  # elements of a whole row, if some columns are in use

    def part(self, columns: slice) -> "DeviceMatrix":
        """Return some columns of all rows, without a copy.

        The first of these columns must begin at a multiple of 16 bytes in a row.
        """
        assert columns.start % (CHUNK // self.values.dtype.itemsize) == 0
        return replace(
            self,
            values=self.values[:, columns.start :],
            width=columns.stop - columns.start,
            pitch=int(self.stride),
        )

    @property
    def stride(self) -> np.int64:
        """Return the number of elements from the start of a row to the next start."""
        return np.int64(self.pitch or self.values.shape[1])


def stride_of(width: int, item: int) -> int:
    """Return the elements of a row of `width` elements, padded to whole 16-byte chunks.

    An element has `item` bytes.
    """
    return -(-width * item // CHUNK) * CHUNK // item


def bytes_of_rows(height: int, width: int, item: int) -> int:
    """Return the bytes of `height` rows of `width` values, padded to 16-byte chunks.

    A value has `item` bytes.
    """
    return height * stride_of(width, item) * item


def put_matrix(
    device: Device, matrix: DenseMatrix | Unheld, element: str, scale: float = 1.0
) -> DeviceMatrix:
    """Return a copy of `matrix` on the device, with zeros behind the ends of rows.

    `element` is the format of the stored values, and `scale` the factor that they have
    already. Rows of a file are read in pieces: while one piece is copied to the device,
    the next is read.
    """
    check_element(element)
    height, width = matrix.shape
    shape = height, stride_of(width, matrix.dtype.itemsize)
    values = device.empty(shape, matrix.dtype)
    if matrix.is_in_memory or not matrix.straight(values, device):
        _send(device, values, width, matrix.read_into)
    if element == TF32:
        return DeviceMatrix(values, "fp32", height, width, scale, "gram-tf32")
    return DeviceMatrix(values, element, height, width, scale)


def _send(
    device: Device, held: Any, width: int, read: Callable[[slice, Array], None]
) -> None:
    """Fill the device array `held` with rows, through pinned memory of the host.

    `read` writes some rows of `width` columns to an array; zeros fill the rest of each
    row.
    """
    height, stride = held.shape
    step = max(PIECE // (stride * held.dtype.itemsize), 1)
    for first in range(0, height, step):
        part = slice(first, min(first + step, height))

        def write(padded: Array, part: slice = part) -> None:
            read(part, padded[:, :width])
            padded[:, width:] = 0

        device.upload(held[part], write)


def check_element(element: str) -> None:
    """Raise ConfigError if kernels do not read the format `element`."""
    if element not in ELEMENTS:
        raise ConfigError(
            f"a GPU does not compute with a matrix in {element}; use --precision fp32"
            " or c, or --device cpu"
        )


# What one exchange of certain sizes needs on a device, made once for all of them.

PROBE = 4  # index of the probe in `DeviceCoefficients.arrays`


def bytes_of_order(rows: int) -> int:
    """Return the bytes of a `DeviceSampled` of `rows` rows; an `Order` has no more."""
    return rows * (8 + 3 * 4)  # a number, and a target, weight and offset


class Order:
    """The row order of an epoch, and targets, weights and offsets, on the device.

    The position of the next exchange is stored on the device, too, and needs no copy.
    """

    def __init__(
        self,
        device: Device,
        targets: Array,
        weights: Array | None,
        offsets: Array | None,
    ) -> None:
        self._device = device
        self.columns = [
            None if column is None else sent(device, column[:, 0].astype(np.float32))
            for column in (targets, weights, offsets)
        ]
        self.rows = device.empty((len(targets),), np.int64)
        self.position = device.empty((1,), np.int64)
        self._there: Array | None = None  # the order that was sent
        self._next = -1

    @classmethod
    def of(cls, device: Device, sampled: "DeviceSampled") -> "Order":
        """Return an order for a matrix that has only the rows of `sampled`.

        Row i of that matrix has the targets, weights and offsets at position i of
        `sampled`.
        """
        order = cls.__new__(cls)
        order._device = device
        order.columns = [sampled.targets, sampled.weights, sampled.offsets]
        order.rows = device.empty(sampled.numbers.shape, np.int64)
        order.position = device.empty((1,), np.int64)
        order._there = None
        order._next = -1
        return order

    def seek(self, order: Array, first: int, count: int) -> None:
        """Let the next exchange take `count` rows of `order`, from position `first`.

        The order and the position are copied to the device only where they have
        changed.
        """
        if order is not self._there:
            self._device.fill(self.rows, order.astype(np.int64, copy=False))
            self._there = order
        if first != self._next:
            self._device.fill(self.position, np.array([first], dtype=np.int64))
        self._next = first + count


class DeviceSampled:
    """The sampled rows of an exchange: numbers, targets, weights and offsets."""

    def __init__(self, device: Device, order: Order, rows: int) -> None:
        self.order = order
        self.numbers = device.empty((rows,), np.int64)
        self.targets, self._weights, self._offsets = (
            device.empty((rows,), np.float32) for _ in range(3)
        )
        _, weights, offsets = order.columns
        self.weights = None if weights is None else self._weights
        self.offsets = None if offsets is None else self._offsets

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of the kernel `sample`, which fills the arrays."""
        order = self.order
        outputs = (self.targets, self._weights, self._offsets)
        count = np.int32(len(self.numbers))
        return (
            order.rows,
            order.position,
            count,
            *order.columns,
            self.numbers,
            *outputs,
        )


def sent(device: Device, values: Array) -> Any:
    """Return a copy of a host array on the device."""
    array = device.empty(values.shape, values.dtype)
    device.fill(array, values)
    return array


class DeviceCoefficients:
    """The coefficients of an exchange, in the same device arrays for every exchange."""

    def __init__(self, device: Device, blocks: Blocks, scale: float = 1.0) -> None:
        self._device = device
        # G has rows times `scale`; factors are for such rows, and for weights divided
        # by `scale`: a power of two, so that rounding errors stay the same.
        self._down = np.float32(1.0 / scale**2)
        self._loaded: UnrolledSteps | None = None
        self._room: Any = None
        self._values: Array | None = None  # on the device
        self._places: list[slice] = []
        self.starts = device.empty((len(blocks.sizes) + 1,), np.int32)
        device.fill(self.starts, np.asarray(blocks.starts, dtype=np.int32))

    def load(self, unrolled: UnrolledSteps) -> None:
        """Copy the coefficients `unrolled` to the device, unless it has equal ones."""
        if unrolled is self._loaded:
            return
        self._loaded = unrolled
        factors = coefficients(unrolled)
        factors = replace(
            factors, couple=factors.couple * self._down, gain=factors.gain * self._down
        )
        carry = np.ravel(unrolled.carry).astype(np.float32)
        arrays = [np.ravel(part) for part in (*factors.arrays, carry)]
        if self._room is None:
            ends = np.cumsum([0, *map(len, arrays)]).tolist()
            self._places = [slice(*pair) for pair in pairwise(ends)]
            self._room = self._device.empty((ends[-1],), np.float32)
        values = np.concatenate(arrays)
        if self._values is None or not np.array_equal(values, self._values):
            self._device.fill(self._room, values)
            self._values = values

    @property
    def arrays(self) -> list[Any]:
        """Return lead, couple, free, push, probe and gain, as kernels take them."""
        return [self._room[place] for place in self._places[:-1]]

    @property
    def probe(self) -> Any:
        """Return q, (states,), with which states are combined to read scores."""
        return self.arrays[PROBE]

    @property
    def carry(self) -> Any:
        """Return the matrix by which weights are multiplied, (states, states), flat."""
        return self._room[self._places[-1]]


# Sampled rows on their way between members: packed, and put side by side.


def whole_matrix(
    device: Device, own: DeviceMatrix, height: int, width: int
) -> DeviceMatrix:
    """Return a matrix for `height` rows of all columns, with undefined values.

    `width` is the number of all columns. The matrix has the format and the scale of
    `own`.
    """
    kind = own.values.dtype
    values = device.empty((height, stride_of(width, kind.itemsize)), kind)
    return DeviceMatrix(values, own.element, height, width, own.scale)


def bytes_of_member_rows(rows: int, own: int, columns: int, item: int) -> int:
    """Return the bytes of the two buffers of `DeviceMemberRows`.

    They have `rows` rows of `own` columns and of all `columns`, in elements of `item`
    bytes.
    """
    return rows * (own + columns) * item


class DeviceMemberRows:
    """Buffers for the all-gather of `rows` rows from the columns of all members.

    `own` is this member's matrix; member i has widths[i] columns.
    """

    def __init__(
        self, device: Device, own: DeviceMatrix, rows: int, widths: Sequence[int]
    ) -> None:
        self.device = device
        self.own = own
        self.rows = rows
        self.counts = [rows * width for width in widths]
        kind = own.values.dtype
        self.packed = device.empty((rows * own.width,), kind)
        self.flat = device.empty((sum(self.counts),), kind)
        edges = np.array([0, *accumulate(widths)], dtype=np.int32)
        self._edges = sent(device, edges)
        self._members = np.int32(len(widths))

    def pack(self, numbers: Any) -> None:
        """Pack this member's columns of the rows `numbers` into the send buffer."""
        count = np.int32(self.rows)
        matrix = self.own
        columns = np.int32(matrix.width)
        arguments = (matrix.values, matrix.stride, numbers, count, columns, self.packed)
        self._launch("pack_rows", arguments)

    def join(self, whole: DeviceMatrix, numbers: Any = None) -> None:
        """Write the gathered rows into `whole`.

        `numbers` are the rows of `whole` to write to; None writes its first rows, in
        order.
        """
        head = (self.flat, self._edges, self._members, np.int32(self.rows), numbers)
        self._launch("join_rows", (*head, whole.values, whole.stride))

    def _launch(self, kernel: str, arguments: Any) -> None:
        shape = kernels.gather_rows(self.rows)
        build = build_of(kernel, self.own.element, self.device.arch)
        self.device.kernel(build)(shape.grid, shape.block, arguments)

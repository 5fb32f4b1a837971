"""s plain steps in one launch: on sampled rows of a matrix, or on all of a block."""

from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import launch_steps
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.kernel_table import build_of, serves
from hpcsgd.families.base import Family, exp_bound
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.schedule import Blocks
from hpcsgd.updates.unroll import PlainSteps

Array = NDArray[Any]
# Bytes of a batch up to which one block is done before several have met: each step it
# reads them twice, at some 100 GB/s.
ONE_BLOCK = 64 * 1024


class Rows(Protocol):
    """Which rows, and what belongs to them."""

    numbers: Any
    targets: Any
    weights: Any
    offsets: Any


class Walk:
    """Steps of the sizes `blocks`, whatever their rates; one score a row, one state."""

    def __init__(
        self,
        device: Device,
        matrix: DeviceMatrix,
        rows: Rows,
        blocks: Blocks,
        family: Family,
        precision: Precision,
        in_order: bool = False,
    ) -> None:
        self.device, self.matrix, self.rows = device, matrix, rows
        self._tall, self._item = max(blocks.sizes), matrix.values.dtype.itemsize
        size = self._tall * matrix.width * self._item
        self._is_narrow = in_order and size <= ONE_BLOCK
        kind = "gather-steps" if self._is_narrow else "direct-steps"
        build = build_of(f"{kind}-{family.name}", matrix.element, device.arch)
        self._kernel = device.kernel(build)
        self._steps = np.int32(len(blocks.sizes))
        self._starts = sent(device, np.asarray(blocks.starts, dtype=np.int32))
        bound = getattr(family, "delta", exp_bound(np.float32))
        rounds = _rounds_margins(precision)
        self._setting = np.float32(bound), np.int32(rounds)
        self._coefficients = _Coefficients(device, matrix.scale)
        self.residuals = device.empty((blocks.rows, 1), np.float32)
        self._plan()

    def load(self, plain: PlainSteps) -> None:
        """These rates from now on."""
        self._coefficients.load(plain)

    def launch(self, weights: Any, intercept: Any) -> None:
        """All steps."""
        rows, matrix = self.rows, self.matrix
        given = (
            *(self._starts, self._steps, np.int32(matrix.width)),
            *(rows.targets, rows.weights, rows.offsets, *self._setting),
            *self._coefficients.arrays,
            *(intercept, weights, self.residuals),
        )
        numbers = () if self._is_narrow else (rows.numbers,)
        shape, head = self._shape, (matrix.values, matrix.stride, *numbers)
        self._kernel(
            shape.grid,
            shape.block,
            (*head, *given, *self._between),
            shared=shape.shared,
            cluster=shape.grid[0],  # all blocks at once
        )

    def _plan(self) -> None:
        """The shape of the launch, and what its blocks meet through."""
        tall, item, device = self._tall, self._item, self.device
        self._between: tuple[Any, ...] = ()
        if self._is_narrow:
            self._shape = launch_steps.gather_steps(tall)
            return
        width = self.matrix.width
        self._shape = launch_steps.direct_steps(
            width, item, tall, device.multiprocessors
        )
        partials = launch_steps.direct_partials(self._shape, tall)
        room = launch_steps.direct_room(self._shape, item, tall)
        ahead = launch_steps.direct_ahead(width, item, tall, device.cache)
        self._between = (
            *(device.empty((partials,), np.float32), np.int32(tall)),
            *(np.int32(room), np.int32(ahead), device.zeros((2,), np.uint32)),
        )


def can_walk(
    device: Device,
    matrix: DeviceMatrix,
    blocks: Blocks,
    family: Family,
    precision: Precision,
    in_order: bool = False,
) -> bool:
    """Whether a kernel takes such steps at once; else each is an exchange.

    Of plain SGD with one score a row: that is for the caller to know.
    """
    tall, item = max(blocks.sizes), matrix.values.dtype.itemsize
    kinds = ("direct-steps", "gather-steps") if in_order else ("direct-steps",)
    names = (f"{kind}-{family.name}" for kind in kinds)
    shape = launch_steps.direct_steps(matrix.width, item, tall, device.multiprocessors)
    return (
        precision.margin in ("fp32", "bf16")
        and launch_steps.direct_fits(item, tall)
        and all(serves(name, matrix.element, device.arch) for name in names)
        # Blocks of several ranks that wait for their own could wait for ever.
        and not (device.is_shared and shape.grid[0] > 1)
    )


def _rounds_margins(precision: Precision) -> bool:
    """To bf16: what is summed in less is stored as it comes."""
    stored, summed = get_format(precision.margin), get_format(precision.margin_sum)
    return stored.unit_roundoff > summed.unit_roundoff


class _Coefficients:
    """carry, gain, push and free of every step, one behind the other."""

    def __init__(self, device: Device, scale: float) -> None:
        self._device = device
        # As in `Coefficients`: gains are for rows that are stored times `scale`.
        self._down = 1.0 / scale**2
        self._loaded: PlainSteps | None = None
        self._values: Array | None = None
        self._room: Any = None

    def load(self, plain: PlainSteps) -> None:
        """Sent where they are others than before."""
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
        """In the order of the kernels' parameters."""
        edges = np.arange(5) * (len(self._room) // 4)
        return [self._room[first:last] for first, last in pairwise(edges.tolist())]

"""gather and gather-once on a device: rows travel, then steps without a message.

Of several members: one has all columns of all rows as it is.
"""

from typing import Any

import numpy as np

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import Order, Sampled
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.device_pieces import Pieces, whole_matrix
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.comm.on_device import OnDevice as CarriesArrays
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import Array, Group, State, Task
from hpcsgd.products.device_alone import Alone
from hpcsgd.products.held import HeldState
from hpcsgd.products.on_device import OnDevice


class DeviceGather(OnDevice):
    """One all-gather of the members' sampled rows, as they are stored."""

    holds_all_columns = True

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.bringer = Bringer(self)
        self._blocks: dict[int, OfRows] = {}

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Rows of all columns, then plain steps on them."""
        assert isinstance(state, HeldState)
        rows, task = group.blocks.rows, self.task
        block = self._blocks.get(rows)
        if block is None:
            block = self._blocks[rows] = OfRows(self, rows)
        self.order.seek(*group.place, rows)
        self.bringer.bring(block.sampled, block.whole)
        block.order.seek(block.numbers, 0, rows)
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        residuals = block.alone.advance(group, weights, intercept)
        task.clock.lap("steps")
        state.written(residuals)
        return state


class DeviceGatherOnce(OnDevice):
    """The first epoch as gather; rows stay at their numbers, for all later ones.

    What follows is plain SGD of one member: no message, one launch an exchange.
    """

    holds_all_columns = True

    def __init__(self, task: Task, device: Device) -> None:
        super().__init__(task, device)
        self.bringer = Bringer(self)
        height = task.shard.height
        self.whole = self._room(height)
        self.alone = Alone(task, device, self.whole, self.order)
        self._is_here = np.zeros(height, dtype=bool)
        self._sampled: dict[int, Sampled] = {}

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Rows that are not here yet, then plain steps on them."""
        assert isinstance(state, HeldState)
        if not self._is_here[group.rows].all():
            self._bring(group)
        self.order.seek(*group.place, group.blocks.rows)
        weights, intercept = state.on_device("weights"), state.on_device("intercept")
        residuals = self.alone.advance(group, weights, intercept)
        self.task.clock.lap("steps")
        state.written(residuals)
        return state

    def _room(self, height: int) -> DeviceMatrix:
        width = sum(self.bringer.widths)
        try:
            return whole_matrix(self.device, self.bringer.own, height, width)
        except ConfigError as error:
            raise ConfigError(
                "[products] kind = 'gather-once' keeps all rows on each GPU, and"
                f" {error}; use kind = 'gather', or 'gram'"
            ) from error

    def _bring(self, group: Group) -> None:
        rows = group.blocks.rows
        if rows not in self._sampled:
            self._sampled[rows] = Sampled(self.device, self.order, rows)
        sampled = self._sampled[rows]
        self.order.seek(*group.place, rows)
        self.bringer.bring(sampled, self.whole, sampled.numbers)
        self._is_here[group.rows] = True


class OfRows:
    """A block of so many rows, with what belongs to them: filled anew each time."""

    def __init__(self, product: DeviceGather, rows: int) -> None:
        device, width = product.device, sum(product.bringer.widths)
        self.sampled = Sampled(device, product.order, rows)
        self.whole = whole_matrix(device, product.bringer.own, rows, width)
        self.numbers: Array = np.arange(rows, dtype=np.int64)
        self.order = Order.of(device, self.sampled)
        self.alone = Alone(product.task, device, self.whole, self.order, in_order=True)


class Bringer:
    """Sampled rows with the columns of all members, on all of them."""

    def __init__(self, product: OnDevice) -> None:
        assert isinstance(product.matrix, DeviceMatrix)  # sparse rows are refused
        self.task, self.device, self.own = product.task, product.device, product.matrix
        self.widths = tuple(part.stop - part.start for part in self.task.shard.parts)
        self._pieces: dict[int, Pieces] = {}

    def bring(self, sampled: Sampled, whole: DeviceMatrix, places: Any = None) -> None:
        """The rows that the order has next, to `whole`: in order, or at `places`."""
        task, rows = self.task, len(sampled.numbers)
        pieces = self._pieces.get(rows)
        if pieces is None:
            pieces = self._pieces[rows] = Pieces(
                self.device, self.own, rows, self.widths
            )
        build = build_of("sample", "fp32", self.device.arch)
        self.device.kernel(build)(1, 1024, sampled.arguments)
        pieces.pack(sampled.numbers)
        task.clock.lap("gather")
        self._gather(pieces)
        task.clock.lap("communicate")
        pieces.join(whole, places)
        task.clock.lap("gather")

    def _gather(self, pieces: Pieces) -> None:
        """One message; by the host where members carry nothing else."""
        members, device = self.task.members, self.device
        counts, packed, flat = pieces.counts, pieces.packed, pieces.flat
        if isinstance(members, CarriesArrays):
            members.gather(packed, counts, flat, "products")
            return
        out = np.empty(sum(counts), dtype=flat.dtype)
        members.gather(device.fetch(packed), counts, out, "products")
        device.fill(flat, out)

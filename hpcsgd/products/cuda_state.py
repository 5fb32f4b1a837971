"""The gap monitor beside a GPU."""

from typing import Protocol

import numpy as np

from hpcsgd.backends.cuda.device import Device
from hpcsgd.backends.cuda.exchange import DenseProducts, DeviceExchange
from hpcsgd.backends.cuda.gram import OtherGram
from hpcsgd.data.stream import Unheld
from hpcsgd.formats import Array
from hpcsgd.products.base import Group, Rows, Scratch, State, Task, gather_rows

# The gap monitor beside a device: the host looks at an exchange now and then.
#
# A look is rare, and what it does is the host's: it walks its slice of weights through
# the steps as plain SGD would, in the arithmetic that the device's is held against. The
# words that members compare travel as a message of their own, by the host: the device's
# messages, and the graphs that hold them, stay as they are.


class ByHand(Protocol):
    """What comes ahead of the steps, launch by launch."""

    def before(self) -> None:
        """What members make of their own columns."""

    def send(self) -> None:
        """The sums."""


class DeviceWatch:
    """Where the monitor of a task meets exchanges on a device."""

    def __init__(self, task: Task, device: Device) -> None:
        self.task, self.device = task, device
        self.scratch = Scratch()

    def run(
        self,
        state: State,
        group: Group,
        exchange: DeviceExchange,
        cycle: ByHand,
    ) -> bool:
        """Do the exchange by hand if a look is due; False: it is still to be done."""
        monitor = self.task.monitor
        if monitor.words:
            self._judge()
        if not monitor.is_due(group):
            monitor.before(state, group, np.empty(0))
            return False
        cycle.before()
        cycle.send()
        self._look(state, group, exchange)
        return True

    def _judge(self) -> None:
        """Sum what the last look left over members."""
        task, form = self.task, self.task.precision.margin_sum
        words = task.monitor.words
        message = self.scratch.message(task.members, "gap", words, form)
        task.monitor.post(message.array)
        task.monitor.judge(message.sum("products"))
        task.clock.lap("gap")

    def _look(self, state: State, group: Group, exchange: DeviceExchange) -> None:
        """The steps, with the monitor around the residuals."""
        task, monitor = self.task, self.task.monitor
        margins = self.device.fetch(exchange.margins)
        margins = margins.reshape(group.blocks.rows, -1)
        seen = monitor.before(state, group, margins)
        exchange.iterate(state.on_device("intercept"))
        rows = self._rows(group, exchange)
        monitor.after(
            *(seen, task, self._as_before(state, exchange), group),
            *(rows, self._gram(exchange)),
        )
        exchange.apply_update(state.on_device("weights"))

    def _rows(self, group: Group, exchange: DeviceExchange) -> Rows:
        """Of the host where it holds them, else from the device."""
        if isinstance(self.task.shard.matrix, Unheld):
            rows = exchange.rows
            assert isinstance(rows, DenseProducts | OtherGram)
            return rows.fetched(exchange.sampled.numbers)
        return gather_rows(self.task, self.scratch, "rows", group)

    def _as_before(self, state: State, exchange: DeviceExchange) -> State:
        """The weights that the steps began with, and the residuals that they had."""
        weights = state.host_array("weights").astype(self.task.precision.working)
        residuals = self.device.fetch(exchange.residuals)
        return State(weights, None, residuals)

    def _gram(self, exchange: DeviceExchange) -> Array:
        """As it was summed, of rows that are not scaled."""
        tiles = self.device.fetch(exchange.gram)
        scale = np.float32(exchange.matrix.scale)
        return exchange.tiles.packed(tiles) / scale**2

"""Sums over members of arrays on a device, in whatever format they travel."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcsgd.backends.device import Device, Graph
from hpcsgd.comm.narrow_device import DeviceNarrowSum
from hpcsgd.comm.on_device import OnDevice
from hpcsgd.comm.pending import Pending
from hpcsgd.comm.workspace import Array, Message
from hpcsgd.formats import get_format
from hpcsgd.products.base import Scratch, Task

PURPOSE = "products"
BF16 = "bf16"  # what transports round on the device


class DeviceSums:
    """array ← Σ over members, in place; there where that can be, else by the host.

    Whoever sums an array sums it again and again: what that needs is kept with it.
    """

    def __init__(self, task: Task, device: Device) -> None:
        self.members = task.members
        self.clock = task.clock
        self.device = device
        self._scratch = Scratch()
        self._narrow: dict[int, tuple[Any, DeviceNarrowSum]] = {}

    def sum(self, name: str, array: Any, form: str) -> None:
        """All members call it in one order, with one name for one kind of message."""
        members = self.members
        if members.size == 1:
            return
        if self._goes_wide(form):
            members.sum(array, PURPOSE)
        elif form == BF16 and isinstance(members, OnDevice):
            self._message(members, array).sum(PURPOSE)
        else:
            message = self._written(name, array, form)
            self._read(message.sum(PURPOSE), array)
        self.clock.lap("communicate")

    def start(self, name: str, array: Any, form: str) -> Pending:
        """Begin it; the array belongs to it until `wait`, which gives it back."""
        members = self.members
        if members.size == 1:
            return Pending(array)
        if self._goes_wide(form):
            return members.start_sum(array, PURPOSE)
        if form == BF16 and isinstance(members, OnDevice):
            return self._message(members, array).start(PURPOSE)
        travelling = self._written(name, array, form, travels=True).start(PURPOSE)
        return Pending(array, lambda: self._read(travelling.wait(), array))

    def captures(self, *forms: str) -> bool:
        """Whether sums in these formats may be part of a graph of the device."""
        if self.members.size == 1:
            return True
        can = isinstance(self.members, OnDevice) and self.members.captures
        return can and all(self._goes_wide(form) for form in forms)

    def capture(self, action: Callable[[], None]) -> Graph:
        """A graph of what `action` launches and queues, which has run once."""
        graph = self.device.capture(action)
        if isinstance(self.members, OnDevice):
            self.members.adopt(graph)
        return graph

    def queue(self, array: Any) -> None:
        """Its sum, into the graph that is being recorded; `captures` was asked."""
        if self.members.size > 1:
            assert isinstance(self.members, OnDevice)
            self.members.queue_sum(array)

    def replay(self, graph: Graph, arrays: Sequence[Any]) -> None:
        """Launch a graph that holds the sums of these arrays, in this order."""
        if self.members.size == 1:
            graph()
            return
        assert isinstance(self.members, OnDevice)
        self.members.replay(graph, arrays, PURPOSE)
        self.clock.lap("communicate")

    def _goes_wide(self, form: str) -> bool:
        """As it is, by a transport that knows arrays of the device."""
        return isinstance(self.members, OnDevice) and get_format(form).is_wide

    def _message(self, members: OnDevice, array: Any) -> DeviceNarrowSum:
        kept = self._narrow.get(id(array))
        if kept is None:  # the array is kept, too, and so its number stays its own
            message = DeviceNarrowSum(members, len(array), array)
            kept = self._narrow[id(array)] = array, message
        return kept[1]

    def _written(
        self, name: str, array: Any, form: str, travels: bool = False
    ) -> Message:
        """A message of the host that holds the array."""
        message: Message = self._scratch.message(
            self.members, name, len(array), form, travels
        )
        message.array[:] = self.device.fetch(array)
        self.clock.lap("copy")
        return message

    def _read(self, total: Array, array: Any) -> None:
        self.device.fill(array, np.ascontiguousarray(total, dtype=np.float32))

"""The state of a run on a GPU, mirrored on the host, and the monitor beside it."""

from typing import Any, Protocol

import numpy as np

from hpcsgd.backends.cuda.device import Device, Mirrored
from hpcsgd.backends.cuda.exchange import DenseProducts, DeviceExchange
from hpcsgd.backends.cuda.gram import OtherGram
from hpcsgd.backends.cuda.weights import DeviceAverage
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.gpu import DeviceCommunicator
from hpcsgd.data.stream import Unheld
from hpcsgd.formats import Array
from hpcsgd.products.base import Group, Rows, Scratch, State, Task, gather_rows

# The state of a run whose weights live on a device between exchanges.
#
# Everybody else sees arrays of the host: they come when somebody asks for them, and go
# back when the next exchange begins. Those to be read alone (`host_array`,
# `host_state`) are not sent back.


class MirroredState(State):
    """A `State` whose arrays have mirrors on a device, once `hold` was called."""

    def hold(self, device: Device, scale: float = 1.0) -> None:
        """From now on an exchange reads and writes the device's copies.

        `scale` is what rows are stored times there: weights are divided by it.
        """
        self.__dict__["device"], self.__dict__["scale"] = device, scale
        kinds = {"weights": ("float32", scale), "intercept": ("float64", 1.0)}
        self.__dict__["mirrors"] = {
            name: Mirrored(device, self.__dict__[name], *kind)
            for name, kind in kinds.items()
            if self.__dict__[name] is not None
        }

    def on_device(self, name: str) -> Any:
        """An array there, to be read and written; None where the state has none."""
        mirror = self._mirror_of(name)
        return super().on_device(name) if mirror is None else mirror.on_device()

    def host_array(self, name: str) -> Any:
        """Return one of its arrays on the host, read-only; nothing is sent back."""
        mirror = self.mirror(name)
        return self.__dict__[name] if mirror is None else mirror.host_view()

    def host_state(self) -> State:
        """Return weights and intercept on the host, read-only, without residuals."""
        weights, intercept = self.host_array("weights"), self.host_array("intercept")
        return State(
            *(weights, intercept, None),
            memory=self.memory,
            rank_arrays=self.rank_arrays,
            shared=self.shared,
        )

    def written(self, residuals: Any) -> None:
        """An exchange has written all of it there; `residuals` are of that one."""
        for mirror in self.__dict__["mirrors"].values():
            mirror.written()
        self.__dict__["there"] = residuals

    def mark_written(self, name: str) -> None:
        """Mark one of its arrays as written on the device."""
        mirror = self._mirror_of(name)
        if mirror is not None:
            mirror.written()

    def _mirror_of(self, name: str) -> Mirrored | None:
        """Of its own arrays, or of those in its memory."""
        kept: dict[str, Mirrored] = getattr(self.memory, "mirrors", {})
        return kept.get(name) or self.mirror(name)

    @property
    def scale(self) -> float:
        """What weights on the device are divided by."""
        scale: float = self.__dict__["scale"]
        return scale

    def portion(self, share: float, group: Communicator) -> Any:
        """On the device, where the group knows arrays that are there."""
        if not isinstance(group, DeviceCommunicator) or not self.__dict__.get(
            "mirrors"
        ):
            return self.host_state().portion(share, group)
        weights, intercept = self.on_device("weights"), self.on_device("intercept")
        average = self.__dict__.get("average")
        if average is None:
            device, scale = self.__dict__["device"], self.__dict__["scale"]
            average = DeviceAverage(device, weights, intercept, scale)
            self.__dict__["average"] = average
        return average.portion(weights, intercept, share)

    def become(self, total: Any) -> Any:
        """Where the total is."""
        average = self.__dict__.get("average")
        if average is None or total is not average.buffer:
            return super().become(total)
        weights, intercept = self.on_device("weights"), self.on_device("intercept")
        average.become(weights, intercept)
        for mirror in self.__dict__["mirrors"].values():
            mirror.written()
        return intercept

    def mirror(self, name: str) -> Mirrored | None:
        """Of one of its arrays; None where it has none."""
        mirrors: dict[str, Mirrored] = self.__dict__.get("mirrors", {})
        return mirrors.get(name)


def _held(name: str) -> Any:
    def look(self: MirroredState) -> Array | None:
        mirror = self.mirror(name)
        found: Array | None = (
            self.__dict__[name] if mirror is None else mirror.on_host()
        )
        return found

    def put(self: MirroredState, values: Array | None) -> None:
        mirror = self.mirror(name)
        if mirror is None or values is None:
            self.__dict__[name] = values
        else:
            mirror.replace(values)

    return property(look, put)


def _residuals() -> Any:
    """They are made there, and only ever read here."""

    def look(self: MirroredState) -> Array | None:
        there = self.__dict__.get("there")
        found: Array | None = self.__dict__.get("residuals")
        if there is not None:
            found = self.__dict__["device"].fetch(there)
        return found

    def put(self: MirroredState, values: Array | None) -> None:
        self.__dict__["there"] = None
        self.__dict__["residuals"] = values

    return property(look, put)


MirroredState.weights = _held("weights")
MirroredState.intercept = _held("intercept")
MirroredState.residuals = _residuals()


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
        state: MirroredState,
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

    def _look(
        self, state: MirroredState, group: Group, exchange: DeviceExchange
    ) -> None:
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

    def _as_before(self, state: MirroredState, exchange: DeviceExchange) -> State:
        """The weights that the steps began with, and the residuals that they had."""
        weights = state.host_array("weights").astype(self.task.precision.working)
        residuals = self.device.fetch(exchange.residuals)
        return State(weights, None, residuals)

    def _gram(self, exchange: DeviceExchange) -> Array:
        """As it was summed, of rows that are not scaled."""
        tiles = self.device.fetch(exchange.gram)
        scale = np.float32(exchange.matrix.scale)
        return exchange.tiles.packed(tiles) / scale**2

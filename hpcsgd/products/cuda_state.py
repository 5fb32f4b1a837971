"""The state of a run on a GPU, mirrored on the host."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from hpcsgd.backends.cuda.device import Device, Mirrored
from hpcsgd.backends.cuda.weights import DeviceAverage
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.gpu import DeviceCommunicator
from hpcsgd.formats import Array
from hpcsgd.products.base import State

# The state of a run whose weights live on a device between exchanges.
#
# Everybody else sees arrays of the host: they come when somebody asks for them, and go
# back when the next exchange begins. Those to be read alone (`host_array`,
# `host_state`) are not sent back.


class MirroredMemory(dict[str, Array]):
    """What is kept beside the weights, of which some lives on a device.

    Who looks, sees arrays of the host, as with `MirroredState`.
    """

    def __init__(self, device: Device, kept: dict[str, Array], names: Iterable[str]):
        super().__init__(kept)
        self._mirrors = {
            name: Mirrored(device, kept[name], np.float32) for name in names
        }

    def on_device(self, name: str) -> Any:
        """An array there, to be read and written."""
        return self._mirrors[name].on_device()

    def mark_written(self, name: str) -> None:
        """Mark an array as written on the device."""
        self._mirrors[name].written()

    def __getitem__(self, name: str) -> Array:
        mirror = self._mirrors.get(name)
        return super().__getitem__(name) if mirror is None else mirror.on_host()

    def items(self) -> Any:
        """As the host sees them."""
        return [(name, self[name]) for name in self]

    def values(self) -> Any:
        """As the host sees them."""
        return [self[name] for name in self]


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
        mirror = self.mirror(name)
        return None if mirror is None else mirror.on_device()

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
        self.__dict__["mirrors"][name].written()

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

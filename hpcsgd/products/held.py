"""The state of a run whose weights live on a device between exchanges.

Everybody else sees arrays of the host: they come when somebody looks, and go back when
the next exchange begins.
"""

from typing import Any

from hpcsgd.backends.device import Device, Mirror
from hpcsgd.products.base import Array, State

HELD = ("weights", "intercept", "residuals")


class HeldState(State):
    """A `State` whose arrays have mirrors on a device, once `hold` was called."""

    def hold(self, device: Device) -> None:
        """From now on an exchange reads and writes the device's copies."""
        kinds = {"weights": "float32", "intercept": "float64"}
        self.__dict__["mirrors"] = {
            name: Mirror(device, self.__dict__[name], kind)
            for name, kind in kinds.items()
            if self.__dict__[name] is not None
        }

    def mirror(self, name: str) -> Mirror | None:
        """Of one of its arrays; None where it has none."""
        mirrors: dict[str, Mirror] = self.__dict__.get("mirrors", {})
        return mirrors.get(name)


def _held(name: str) -> Any:
    def look(self: HeldState) -> Array | None:
        mirror = self.mirror(name)
        return self.__dict__[name] if mirror is None else mirror.on_host()

    def put(self: HeldState, values: Array | None) -> None:
        mirror = self.mirror(name)
        if mirror is None or values is None:
            self.__dict__[name] = values
        else:
            mirror.replace(values)

    return property(look, put)


for _name in HELD:
    setattr(HeldState, _name, _held(_name))

"""What one exchange of certain sizes needs on a device, made once for all of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.base import Batch
from hpcsgd.backends.device import Device
from hpcsgd.schedule import Blocks
from hpcsgd.updates.unroll import Unrolled

Array = NDArray[Any]


class Sampled:
    """Row numbers of a group, and what belongs to these rows: sent in one copy."""

    def __init__(self, device: Device, rows: int) -> None:
        self._device, self._rows = device, rows
        self._room = device.empty((20 * rows,), np.uint8)
        self._host = np.zeros(20 * rows, dtype=np.uint8)
        self.numbers = self._room[: 8 * rows].view(np.int64)
        parts = self._room[8 * rows :].view(np.float32)
        self.targets, self._weights, self._offsets = (
            parts[k * rows : (k + 1) * rows] for k in range(3)
        )
        self.weights: Any = None
        self.offsets: Any = None

    def load(self, numbers: Array, batch: Batch) -> None:
        """These rows from now on."""
        m, host = self._rows, self._host
        host[: 8 * m].view(np.int64)[:] = numbers
        parts = host[8 * m :].view(np.float32)
        parts[:m] = batch.targets[:, 0]
        self.weights = self.offsets = None
        if batch.weights is not None:
            parts[m : 2 * m] = batch.weights[:, 0]
            self.weights = self._weights
        if batch.offsets is not None:
            parts[2 * m :] = batch.offsets[:, 0]
            self.offsets = self._offsets
        self._device.fill(self._room, host)


class Coefficients:
    """Those of one exchange of one state, in device arrays: launches stay the same."""

    def __init__(self, device: Device, blocks: Blocks) -> None:
        self._device, s = device, len(blocks.sizes)
        sizes = {"lead": s, "couple": s * (s - 1) // 2, "free": s, "push": s}
        sizes |= {"gain": s, "carry": 1, "probe": 1}
        self._places: dict[str, slice] = {}
        first = 0
        for name, size in sizes.items():
            self._places[name] = slice(first, first + size)
            first += max(size, 1)
        self._room = device.empty((first,), np.float32)
        self._host = np.zeros(first, dtype=np.float32)
        self._loaded: Unrolled | None = None
        self.starts = device.empty((s + 1,), np.int32)
        device.fill(self.starts, np.asarray(blocks.starts, dtype=np.int32))

    def load(self, unrolled: Unrolled) -> None:
        """These from now on; a constant rate sends them once."""
        if unrolled is self._loaded:
            return
        self._loaded = unrolled
        given = {
            "lead": unrolled.lead,
            "couple": np.concatenate([*unrolled.couple, np.empty(0)]),
            "free": unrolled.free,
            "push": unrolled.push,
            "gain": unrolled.gain,
            "carry": unrolled.carry,
            "probe": unrolled.probe,
        }
        for name, values in given.items():
            self._host[self._places[name]] = np.ravel(values)
        self._device.fill(self._room, self._host)

    def __getitem__(self, name: str) -> Any:
        """The device array called so."""
        return self._room[self._places[name]]

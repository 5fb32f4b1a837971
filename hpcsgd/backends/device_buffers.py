"""What one exchange of certain sizes needs on a device, made once for all of them."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.base import Batch
from hpcsgd.backends.device import Device
from hpcsgd.backends.launch_recurrence import coefficients
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
    """Those of an exchange, in device arrays: launches stay the same."""

    def __init__(self, device: Device, blocks: Blocks) -> None:
        self._device, self._blocks = device, blocks
        self._loaded: Unrolled | None = None
        self._room: Any = None
        self._places: list[slice] = []
        self.starts = device.empty((len(blocks.sizes) + 1,), np.int32)
        device.fill(self.starts, np.asarray(blocks.starts, dtype=np.int32))

    def load(self, unrolled: Unrolled) -> None:
        """These from now on; a constant rate sends them once."""
        if unrolled is self._loaded:
            return
        self._loaded = unrolled
        carry = np.ravel(unrolled.carry).astype(np.float32)
        given = [np.ravel(part) for part in (*coefficients(unrolled).arrays, carry)]
        if self._room is None:
            ends = np.cumsum([0, *map(len, given)]).tolist()
            self._places = [slice(*pair) for pair in pairwise(ends)]
            self._room = self._device.empty((ends[-1],), np.float32)
        self._device.fill(self._room, np.concatenate(given))

    @property
    def arrays(self) -> list[Any]:
        """In the order of the recurrence's parameters."""
        return [self._room[place] for place in self._places[:-1]]

    @property
    def carry(self) -> Any:
        """What the weights are multiplied by."""
        return self._room[self._places[-1]]

"""What the work of a GPU is asked for: memory, copies, launches, in one order."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.kernel_table import Build

Array = NDArray[Any]
# grid, block, arguments: device arrays, NumPy scalars of the very size, None for NULL.
Launch = Callable[..., None]


class Device(Protocol):
    """One GPU as one rank sees it; whatever is asked for happens in that order."""

    layer: Any  # what transports ask for
    stream: Any  # on which all of it happens
    # Called before the host waits: transports see there how their collectives ended.
    settle: Callable[[], None]
    arch: str  # as NVRTC calls it: "90a"
    multiprocessors: int
    cache: int  # bytes of what all of them share
    is_shared: bool  # by other ranks, whose kernels may run beside those of this one

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A device array; what is in it is not known."""

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A device array of zeros."""

    def fill(self, array: Any, values: Array) -> None:
        """array ← values of the host, of its shape; they may change at once."""

    def fetch(self, array: Any) -> Array:
        """A copy on the host, when all that was asked for before is done."""

    def kernel(self, build: Build) -> Launch:
        """launch(grid, block, arguments, shared=0, cluster=1)."""

    def capture(self, action: Callable[[], None]) -> Callable[[], None]:
        """What repeats the launches of `action`, which has run once, as one launch."""

    def wait(self) -> None:
        """For the stream alone, whatever becomes of collectives."""

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""


class Mirror:
    """One array on the host and on the device; the newer one is copied when asked for.

    Whoever is given the host's copy may write into it: from then on it is the newer
    one, until the device has written again.
    """

    def __init__(
        self, device: Device, host: Array, kind: Any, scale: float = 1.0
    ) -> None:
        self._device, self._scale = device, scale  # the device's copy times it: host's
        self._host = host
        self._held = device.empty(host.shape, kind)
        self._newer_here, self._newer_there = True, False

    def on_host(self) -> Array:
        """To be read or written there."""
        if self._newer_there:
            self._host[...] = self._device.fetch(self._held) * self._scale
        self._newer_here, self._newer_there = True, False
        return self._host

    def on_device(self) -> Any:
        """To be read there; what may have changed on the host is sent first."""
        if self._newer_here:
            values = (self._host / self._scale).astype(self._held.dtype)
            self._device.fill(self._held, values)
            self._newer_here = False
        return self._held

    def written(self) -> None:
        """The device's copy has been written: it is the newer one."""
        self._newer_there = True

    def replace(self, values: Array) -> None:
        """From now on these, on the host."""
        self._host = np.asarray(values)
        self._newer_here, self._newer_there = True, False

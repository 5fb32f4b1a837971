"""What the work of a GPU is asked for: memory, copies, launches, in one order."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.kernel_table import Build

Array = NDArray[Any]
# grid, block, arguments: device arrays, NumPy scalars of the very size, None for NULL.
Launch = Callable[..., None]


class Graph:
    """Launches that were recorded: called, it repeats them as one."""

    def __init__(self, launch: Launch) -> None:
        self._launch: Launch | None = launch

    def __call__(self) -> None:
        """Queue all of them."""
        assert self._launch is not None, "a graph was launched after its release"
        self._launch()

    def release(self) -> None:
        """Let the GPU forget it; NCCL ends no group that a graph still speaks of."""
        self._launch = None


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

    def clear(self, array: Any) -> None:
        """array ← 0, of an array without gaps."""

    def fill(self, array: Any, values: Array) -> None:
        """array ← values of the host, of its shape; they may change at once."""

    def upload(self, array: Any, write: Callable[[Array], None]) -> None:
        """array ← what `write` puts into the host's memory that it is given.

        That has the array's shape and type, and what was there before in it; at most
        `PIECE` bytes. Copies travel while the next array is written.
        """

    def put_rows(self, array: Any, rows: Any) -> None:
        """array ← rows that are there already, and zeros behind their ends."""

    def memory(self) -> tuple[int, int]:
        """(bytes that are free, bytes in all)."""

    def fetch(self, array: Any) -> Array:
        """A copy on the host, when all that was asked for before is done."""

    def kernel(self, build: Build) -> Launch:
        """launch(grid, block, arguments, shared=0, cluster=1)."""

    def capture(self, action: Callable[[], None]) -> Graph:
        """What repeats the launches of `action`, which has run once, as one launch."""

    def gemm_bf16(self, out: Any, left: Any, right: Any) -> None:
        """out ← left rightᵀ by the vendor's library: bits of bf16, sums in fp32.

        All three have two dimensions, and no gaps along the second one.
        """

    def seconds(self, action: Callable[[], None], times: int) -> float:
        """Of one of `times` runs of it, by the clock of the GPU."""

    def aside(self) -> AbstractContextManager[None]:
        """Launches within begin after what was asked for before, and wait for no more.

        They go on beside those that follow, up to `join`.
        """

    def join(self) -> None:
        """What follows begins after what was asked for aside."""

    def wait(self) -> None:
        """For the stream alone, whatever becomes of collectives."""

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""


class Mirror:
    """One array on the host and on the device; the newer one is copied when asked for.

    Whoever is given the host's copy may write into it: from then on it is the newer
    one, until the device has written again. Whoever only looks is given what cannot be
    written to, and nothing goes up again for it.
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
        self._come()
        self._newer_here = True
        return self._host

    def to_look_at(self) -> Array:
        """To be read there, and no more."""
        self._come()
        seen = self._host.view()
        seen.flags.writeable = False
        return seen

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

    def _come(self) -> None:
        if self._newer_there:
            self._host[...] = self._device.fetch(self._held) * self._scale
            self._newer_there = False

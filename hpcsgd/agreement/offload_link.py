"""The way between a device and its host, for slices of gradient and of weights.

    down    a gradient slice, into memory of the host, which takes the step
    up      the weights that came of it

On a CPU both are memory of the host: the same calls copy, and count the same bytes.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from hpcsgd.comm.layer import Layer
from hpcsgd.products.base import Array

Arrive = Callable[[], None]  # returns once the copy is there


class Link(Protocol):
    """Copies of whole slices; `host` arrays are those that `room` gave."""

    down_bytes: int
    up_bytes: int

    def room(self, shape: tuple[int, int], dtype: np.dtype) -> Array:
        """Zeros in the memory of the host, from which the device copies."""

    def down(self, part: Any, host: Array) -> Arrive:
        """host ← part, begun; both belong to it until it is there."""

    def up(self, host: Array, part: Any) -> Arrive:
        """part ← host, begun."""


class HostLink:
    """Host and device are one."""

    def __init__(self) -> None:
        self.down_bytes = self.up_bytes = 0

    def room(self, shape: tuple[int, int], dtype: np.dtype) -> Array:
        """Any memory."""
        return np.zeros(shape, dtype=dtype)

    def down(self, part: Array, host: Array) -> Arrive:
        """At once."""
        np.copyto(host, part)
        self.down_bytes += host.nbytes
        return _there

    def up(self, host: Array, part: Array) -> Arrive:
        """At once."""
        np.copyto(part, host)
        self.up_bytes += host.nbytes
        return _there


class PinnedLink:
    """Pinned memory, and a stream for each direction beside that of the kernels."""

    def __init__(self, layer: Layer, kernels: Any) -> None:
        self.layer, self._kernels = layer, kernels
        self.down_bytes = self.up_bytes = 0
        self._down, self._up = layer.new_stream(), layer.new_stream()

    def room(self, shape: tuple[int, int], dtype: np.dtype) -> Array:
        """Pinned: copies of other memory would hold the device up."""
        host = self.layer.pinned(shape[0] * shape[1], dtype)
        host[...] = 0
        return host.reshape(shape)

    def down(self, part: Any, host: Array) -> Arrive:
        """Behind what the kernels have been given so far."""
        layer, stream = self.layer, self._down
        layer.hold_back(stream, layer.record(self._kernels))
        layer.to_host(part.reshape(-1), host.reshape(-1), stream)
        self.down_bytes += host.nbytes
        done = layer.record(stream)
        return lambda: layer.wait(done)

    def up(self, host: Array, part: Any) -> Arrive:
        """Before what the kernels are given from now on."""
        layer, stream = self.layer, self._up
        layer.hold_back(stream, layer.record(self._kernels))
        layer.to_device(host.reshape(-1), part.reshape(-1), stream)
        self.up_bytes += host.nbytes
        done = layer.record(stream)
        layer.hold_back(self._kernels, done)
        return lambda: layer.wait(done)


def _there() -> None: ...

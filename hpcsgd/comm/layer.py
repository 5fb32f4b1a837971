"""What transports ask of a GPU; `hpcsgd.backends.device_layer` does it through CuPy.

Streams and events are whatever the layer makes of them. Work that is given to a stream
happens later; only `synchronize`, `wait` and a true `is_done` say that it is over.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Graph(Protocol):
    """Work that a stream was recorded with; called to queue all of it once more."""

    def __call__(self) -> None: ...

    def release(self) -> None:
        """It will not be called again: the GPU forgets it, once it has run."""


class Layer(Protocol):
    """One GPU, as the rank that it belongs to sees it."""

    @property
    def nccl(self) -> Any:
        """The module of NCCL, named as in CuPy."""

    @property
    def place(self) -> str:
        """Equal for two ranks of a node that use the same GPU."""

    def owns(self, array: Any) -> bool:
        """Whether an array is in the memory of GPUs."""

    def empty(self, words: int, dtype: Any) -> Any:
        """A new array on the GPU."""

    def pinned(self, words: int, dtype: Any) -> Array:
        """A new array of the host that the GPU copies from and to by itself."""

    def current_stream(self) -> Any:
        """Where work goes that names no stream."""

    def new_stream(self) -> Any:
        """One more, beside it."""

    def synchronize(self, stream: Any) -> None:
        """Wait until all its work is done."""

    def record(self, stream: Any) -> Any:
        """An event that is done once the work so far is."""

    def hold_back(self, stream: Any, event: Any) -> None:
        """What the stream is given from now on begins after the event."""

    def is_done(self, event: Any) -> bool:
        """Whether it is, without waiting."""

    def wait(self, event: Any) -> None:
        """Wait until it is."""

    def address(self, array: Any) -> int:
        """Where its first element is, for NCCL."""

    def handle(self, stream: Any) -> int:
        """The stream, for NCCL."""

    def to_host(self, array: Any, host: Array, stream: Any) -> None:
        """host ← array, later; `host` is pinned and as long, both without gaps."""

    def to_device(self, host: Array, array: Any, stream: Any) -> None:
        """array ← host, later."""

    def for_mpi(self, array: Any) -> Any:
        """What MPI is given of an array whose work is done."""

    def narrow(self, values: Any, bits: Any, stream: Any) -> None:
        """bits ← float32 values as bf16, rounded to nearest even."""

    def widen(self, bits: Any, values: Any, stream: Any) -> None:
        """values ← bf16 bits as float32."""

    def add_bits(self, parts: Any, ranks: int, total: Any, stream: Any) -> None:
        """total ← Σ of `ranks` parts in bf16 bits, in order, in float32, rounded."""


def is_half(dtype: np.dtype[Any]) -> bool:
    """A 16-bit float; bf16 is held as the bits that it is."""
    return dtype.char in "eH"


def fetched(layer: Layer, array: Any, stream: Any) -> Array:
    """A copy in the host's memory, there when this returns."""
    host = layer.pinned(array.size, array.dtype)
    layer.to_host(array, host, stream)
    layer.synchronize(stream)
    return host

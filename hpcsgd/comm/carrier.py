"""What carries arrays of GPUs: the hooks of a transport, for the device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.layer import Layer


class Carrier(ABC):
    """Collectives of device arrays without gaps, as `Hooks` has them for the host's."""

    def __init__(self, host: Communicator, layer: Layer, stream: Any = None) -> None:
        self.host, self.layer = host, layer
        self._stream = stream
        self.up = self.down = 0  # bytes that it copied by way of the host

    @property
    def stream(self) -> Any:
        """Whose work comes before a collective, and what follows comes after it."""
        given = self._stream
        return self.layer.current_stream() if given is None else given

    @abstractmethod
    def _sum(self, buffer: Any) -> None: ...

    @abstractmethod
    def _start_sum(self, buffer: Any) -> Callable[[], None]: ...

    @abstractmethod
    def _reduce(self, buffer: Any) -> None: ...

    @abstractmethod
    def _broadcast(self, buffer: Any, root: int) -> None: ...

    @abstractmethod
    def _gather(self, part: Any, counts: Sequence[int], out: Any) -> None: ...

    @abstractmethod
    def _start_exchange(
        self, pieces: Any, counts: Sequence[int], out: Any
    ) -> Callable[[], None]: ...

    @abstractmethod
    def _start_sum_parts(
        self, buffer: Any, counts: Sequence[int]
    ) -> Callable[[], None]: ...

    @abstractmethod
    def _start_parts_in_order(
        self, buffer: Any, counts: Sequence[int]
    ) -> Callable[[], None]: ...

    def _own_part(self, buffer: Any, counts: Sequence[int]) -> Any:
        """Where that of this rank lay all along."""
        first = sum(counts[: self.host.rank])
        return buffer[first : first + counts[self.host.rank]]

    def _start_gather(
        self, part: Any, counts: Sequence[int], out: Any
    ) -> Callable[[], None]:
        self._gather(part, counts, out)
        return lambda: None

    def _exchange(self, pieces: Any, counts: Sequence[int], out: Any) -> None:
        self._start_exchange(pieces, counts, out)()

    def _to_host(self, array: Any, host: Any) -> None:
        self.layer.to_host(array, host, self.stream)
        self.down += array.nbytes

    def _to_device(self, host: Any, array: Any) -> None:
        self.layer.to_device(host, array, self.stream)
        self.up += array.nbytes

    def close(self) -> None:
        """Let go of what it holds."""
        return

    def give_up(self) -> None:
        """The same where other ranks may be gone."""
        return

"""transport = mpi-cuda: MPI is given the addresses of device arrays."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from hpcsgd.comm.carrier import Carrier
from hpcsgd.comm.gpu_paths import mpi_way
from hpcsgd.comm.layer import fetched
from hpcsgd.comm.on_device import OnDevice
from hpcsgd.errors import ConfigError

REMEDY = "use transport = mpi-host, or transport = nccl"


class CudaAware(Carrier):
    """The stream is waited for before MPI sees an address: MPI knows no streams."""

    def _ready(self, *arrays: Any) -> list[Any]:
        self.layer.synchronize(self.stream)
        return [self.layer.for_mpi(array) for array in arrays]

    def _sum(self, buffer: Any) -> None:
        self.host._sum(*self._ready(buffer))

    def _start_sum(self, buffer: Any) -> Callable[[], None]:
        return self.host._start_sum(*self._ready(buffer))

    def _reduce(self, buffer: Any) -> None:
        self.host._reduce(*self._ready(buffer))

    def _broadcast(self, buffer: Any, root: int) -> None:
        (ready,) = self._ready(buffer)
        self.host._broadcast(ready, root)

    def _gather(self, part: Any, counts: Sequence[int], out: Any) -> None:
        sent, received = self._ready(part, out)
        self.host._gather(sent, counts, received)

    def _start_gather(
        self, part: Any, counts: Sequence[int], out: Any
    ) -> Callable[[], None]:
        sent, received = self._ready(part, out)
        return self.host._start_gather(sent, counts, received)

    def _own_part(self, buffer: Any, counts: Sequence[int]) -> Any:
        """Where MPI leaves it."""
        return buffer[: counts[self.host.rank]]

    def _start_sum_parts(
        self, buffer: Any, counts: Sequence[int]
    ) -> Callable[[], None]:
        (ready,) = self._ready(buffer)
        return self.host._start_sum_parts(ready, counts)

    def _start_parts_in_order(
        self, buffer: Any, counts: Sequence[int]
    ) -> Callable[[], None]:
        """Added by the host, by way of pinned memory: MPI promises no order."""
        layer, own = self.layer, self._own_part(buffer, counts)
        below = fetched(layer, buffer, self.stream)
        self.down += buffer.nbytes
        arrived = self.host._start_parts_in_order(below, counts)

        def finish() -> None:
            arrived()
            self._to_device(below[: own.size], own)
            layer.synchronize(self.stream)

        return finish

    def _exchange(self, pieces: Any, counts: Sequence[int], out: Any) -> None:
        sent, received = self._ready(pieces, out)
        self.host._exchange(sent, counts, received)

    def _start_exchange(
        self, pieces: Any, counts: Sequence[int], out: Any
    ) -> Callable[[], None]:
        sent, received = self._ready(pieces, out)
        return self.host._start_exchange(sent, counts, received)


class CudaAwareCommunicator(OnDevice):
    """An explicit choice: nobody can find out safely whether an MPI can do it."""

    kind = "mpi-cuda"
    remedy = f"this MPI does not read the memory of GPUs: {REMEDY}"

    def _described(self) -> str:
        if self.host.mpi_handle is None:
            return self.kind
        from hpcsgd.comm.mpi_facts import reads_device_memory

        return f"{self.kind} {mpi_way(reads_device_memory(), os.environ)}"

    def _open(self) -> CudaAware:
        if self.host.mpi_handle is not None:
            check_support()
        return CudaAware(self.host, self.layer, self._stream)


def check_support() -> None:
    """Refuse an MPI that says no: an address that it cannot read would end the job."""
    from hpcsgd.comm.mpi_facts import reads_device_memory

    if reads_device_memory() is False:
        raise ConfigError(
            "transport mpi-cuda needs a CUDA-aware MPI and this one says that it is"
            f" none; {REMEDY}, or load the site's CUDA-aware MPI (MPICH reads device"
            " memory with MPICH_GPU_SUPPORT_ENABLED=1 only)"
        )

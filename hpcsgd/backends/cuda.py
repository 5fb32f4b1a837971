"""A GPU through CuPy: memory, copies and launches of one rank, on one stream."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.cublas import Cublas
from hpcsgd.backends.device import Graph
from hpcsgd.backends.device_faults import guard, guarded
from hpcsgd.backends.device_layer import DeviceLayer, check_arch
from hpcsgd.backends.kernel_table import Build
from hpcsgd.backends.uploads import Uploads

Array = NDArray[Any]


@guarded
class CudaDevice:
    """See `hpcsgd.backends.device.Device`."""

    def __init__(self, number: int = 0, cupy: Any = None) -> None:
        self.layer = DeviceLayer(number, cupy)
        self.cupy, self.faults = self.layer.cupy, self.layer.faults
        self.is_shared = False
        self.device = self.cupy.cuda.Device(number)
        built = self.cupy.cuda.runtime.runtimeGetVersion() // 1000
        check_arch(str(self.device.compute_capability), built)
        self.stream = self.layer.new_stream()
        self._side = self.layer.new_stream()
        self._now = self.stream  # where launches go
        self.uploads = Uploads(self.layer, self.stream)
        self.settle: Callable[[], None] = self.wait
        self.arch = str(self.device.compute_capability)
        self.multiprocessors = int(self.device.attributes["MultiProcessorCount"])
        self.cache = int(self.device.attributes.get("L2CacheSize", 0))
        self._cublas: Cublas | None = None
        self._kernels: dict[Build, Callable[..., None]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A device array; what is in it is not known."""
        return self._room(shape, dtype, self.cupy.empty)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A device array of zeros."""
        return self._room(shape, dtype, self.cupy.zeros)

    def _room(self, shape: tuple[int, ...], dtype: Any, make: Any) -> Any:
        try:
            # CuPy gives what is let go of to whoever asks next on the same stream.
            with self.stream:
                return make(shape, dtype=dtype)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            raise self.faults.no_room(size) from error

    def memory(self) -> tuple[int, int]:
        """(bytes that are free, bytes in all)."""
        found: tuple[int, int] = self.layer.memory()
        return found

    def clear(self, array: Any) -> None:
        """array ← 0, of an array without gaps."""
        with self.stream:
            array.fill(0)

    def fill(self, array: Any, values: Array) -> None:
        """array ← values of the host, of its shape; they may change at once."""
        self.uploads.fill(array, values)

    def upload(self, array: Any, write: Callable[[Array], None]) -> None:
        """array ← what `write` puts into pinned memory of its shape."""
        self.uploads.put(array, write)

    def put_rows(self, array: Any, rows: Any) -> None:
        """array ← rows that are there already, and zeros behind their ends."""
        width = rows.shape[1]
        # What makes them may not be done yet, on a stream that ours does not wait for.
        before = self.layer.record(self.layer.current_stream())
        self.layer.hold_back(self.stream, before)
        with self.stream:
            array[:, :width] = rows
            if width < array.shape[1]:
                array[:, width:] = 0
        # Their owner may write to them on another stream.
        self.stream.synchronize()

    def fetch(self, array: Any) -> Array:
        """A copy on the host, when all that was asked for before is done."""
        self.settle()
        with self.stream:
            found: Array = self.cupy.asnumpy(array, stream=self.stream)
        self.stream.synchronize()
        return found

    def kernel(self, build: Build) -> Callable[..., None]:
        """launch(grid, block, arguments, shared=0, cluster=1)."""
        if build not in self._kernels:
            compiled = self.layer.kernels.get(build)
            launch = lambda *given, **more: compiled(self._now, *given, **more)  # noqa: E731
            self._kernels[build] = self._safe(launch)
        return self._kernels[build]

    def _safe(self, action: Callable[..., None]) -> Callable[..., None]:
        """The same with errors of ours."""
        call = guard(lambda _, *given, **more: action(*given, **more))
        return lambda *given, **more: call(self, *given, **more)

    def capture(self, action: Callable[[], None]) -> Graph:
        """A graph of the launches of `action`.

        Relaxed, as NCCL may ask for memory while its collectives are recorded, and
        other threads of this process for whatever they like.
        """
        mode = self.cupy.cuda.runtime.streamCaptureModeRelaxed
        with self.stream:
            self.stream.begin_capture(mode)
            try:
                action()
            except BaseException:
                with suppress(RuntimeError):  # what went wrong first is said
                    self.stream.end_capture()
                raise
            graph = self.stream.end_capture()
        return Graph(self._safe(lambda: graph.launch(stream=self.stream)))

    def gemm_bf16(self, out: Any, left: Any, right: Any) -> None:
        """out ← left rightᵀ by cuBLAS: bits of bf16, sums in fp32."""
        if self._cublas is None:
            self._cublas = Cublas(self.layer)
        self._cublas.multiply_bf16(out, left, right, self._now)

    def seconds(self, action: Callable[[], None], times: int) -> float:
        """Of one of `times` runs of it, by the clock of the GPU."""
        first, last = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        first.record(self.stream)
        for _ in range(times):
            action()
        last.record(self.stream)
        last.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(first, last)) / 1e3 / times

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On a second stream, from where the first is now; a branch of a graph."""
        self.layer.hold_back(self._side, self.layer.record(self.stream))
        self._now = self._side
        try:
            yield
        finally:
            self._now = self.stream

    def join(self) -> None:
        """The first waits for the second."""
        self.layer.hold_back(self.stream, self.layer.record(self._side))

    def wait(self) -> None:
        """For the stream alone, whatever becomes of collectives."""
        self.stream.synchronize()

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""
        self.settle()


class Opened(threading.local):
    """The GPUs of one thread: two on one stream would be in each other's graphs."""

    def __init__(self) -> None:
        self.devices: dict[int, CudaDevice] = {}


opened = Opened()
_users: dict[int, WeakSet[threading.Thread]] = {}  # of each GPU
_one_at_a_time = threading.Lock()


def device_of_rank(number: int) -> CudaDevice:
    """One for each GPU that this thread uses, and current there from now on.

    A caller that has used another GPU meanwhile would else be told by CuPy that the
    stream is none of its own. It is shared where another thread has it, too.
    """
    if number not in opened.devices:
        opened.devices[number] = CudaDevice(number)
    device = opened.devices[number]
    with _one_at_a_time:
        users = _users.setdefault(number, WeakSet())
        users.add(threading.current_thread())
        device.is_shared = sum(user.is_alive() for user in users) > 1
    device.device.use()
    return device

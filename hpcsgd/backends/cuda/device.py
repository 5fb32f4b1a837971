"""One GPU: its arrays, streams and recorded launches."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np

from hpcsgd.backends.cuda.driver import Cublas, DeviceLayer, check_arch, guard, guarded
from hpcsgd.backends.cuda.kernels import Build
from hpcsgd.formats import Array

# Requests to a GPU: memory, copies and launches, which it completes in one order.

# grid, block, arguments: device arrays, NumPy scalars of the very size, None for NULL.
Launch = Callable[..., None]


class LaunchGraph:
    """Recorded launches; a call repeats them as one launch."""

    def __init__(self, launch: Launch) -> None:
        self._launch: Launch | None = launch

    def __call__(self) -> None:
        """Queue all recorded launches."""
        assert self._launch is not None, "a graph was launched after its release"
        self._launch()

    def release(self) -> None:
        """Drop the graph: NCCL cannot end a communicator that a graph still uses."""
        self._launch = None


class Device(Protocol):
    """One GPU as one rank uses it.

    The GPU completes requests, such as copies and launches, in the order of the calls.
    """

    layer: Any  # for transports
    stream: Any  # of all requests
    # Waits until all requests are done; transports set one that checks how their
    # collectives ended.
    settle: Callable[[], None]
    arch: str  # its name in NVRTC, such as "90a"
    multiprocessors: int
    cache: int  # bytes of the L2 cache
    is_shared: bool  # by other ranks, whose kernels may run beside those of this one

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a device array with undefined values."""

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a device array of zeros."""

    def clear(self, array: Any) -> None:
        """Set all values of a contiguous device array to 0."""

    def fill(self, array: Any, values: Array) -> None:
        """Copy host values of the same shape into `array`.

        A caller may change `values` as soon as this method has returned.
        """

    def upload(self, array: Any, write: Callable[[Array], None]) -> None:
        """Copy into `array` what `write` writes into a host array.

        The host array has the shape and type of `array`, and undefined values before
        `write`. It is pinned as a whole, so callers send large arrays in parts of
        `PIECE` bytes, or of one row if that is longer. Copies run while the next array
        is written.
        """

    def put_rows(self, array: Any, rows: Any) -> None:
        """Copy device rows into the first columns of `array`; the rest becomes 0."""

    def memory(self) -> tuple[int, int]:
        """Return (free bytes, all bytes) of the GPU's memory."""

    def fetch(self, array: Any) -> Array:
        """Return a copy of `array` on the host, made after all earlier requests."""

    def kernel(self, build: Build) -> Launch:
        """Return the kernel of `build` as a function that launches it.

        The function is launch(grid, block, arguments, shared=0, cluster=1). `shared` is
        the bytes of shared memory of a block. `cluster` blocks of the grid run at once;
        a GPU knows that from the kernel, and ignores it.
        """

    def capture(self, action: Callable[[], None]) -> LaunchGraph:
        """Record the launches of `action` as a graph, and return the graph.

        `action` must have run once before.
        """

    def gemm_bf16(self, out: Any, left: Any, right: Any) -> None:
        """Compute out ← left rightᵀ by the vendor's library: bf16 bits, sums in fp32.

        All three arrays have two dimensions, and are contiguous along the second one.
        """

    def seconds(self, action: Callable[[], None], times: int) -> float:
        """Return the mean seconds of `times` runs of `action`, by the GPU's clock."""

    def aside(self) -> AbstractContextManager[None]:
        """Put launches of the `with` block on a branch that waits for earlier requests.

        The branch runs concurrently with later requests, up to `join`.
        """

    def join(self) -> None:
        """Make later requests wait for the launches of the branch of `aside`."""

    def wait(self) -> None:
        """Wait for all requests of the stream, without a check of collectives."""

    def synchronize(self) -> None:
        """Wait until all requests are done, and check how collectives ended."""


class Mirrored:
    """An array with a copy on the host and one on the device.

    The newer copy overwrites the older one when the older one is requested. A caller of
    `on_host` may write to the host's copy until the next call of `on_device`, which
    sends it to the device. A caller of `host_view` gets a read-only array, and the
    device's copy stays valid.
    """

    def __init__(
        self, device: Device, host: Array, kind: Any, scale: float = 1.0
    ) -> None:
        self._device, self._scale = device, scale  # host = scale · device
        self._host = host
        self._held = device.empty(host.shape, kind)
        self._newer_here = True
        self._newer_there = False

    def on_host(self) -> Array:
        """Return the host's copy, to be read or written."""
        self._come()
        self._newer_here = True
        return self._host

    def host_view(self) -> Array:
        """Return a read-only view of the host's copy; the device's copy stays valid."""
        self._come()
        seen = self._host.view()
        seen.flags.writeable = False
        return seen

    def on_device(self) -> Any:
        """Return the device's copy; newer values of the host are sent to it first.

        A caller that writes to it calls `written` afterwards.
        """
        if self._newer_here:
            values = (self._host / self._scale).astype(self._held.dtype)
            self._device.fill(self._held, values)
            self._newer_here = False
        return self._held

    def written(self) -> None:
        """Mark the device's copy as the newer one, after a kernel has written to it."""
        self._newer_there = True

    def replace(self, values: Array) -> None:
        """Replace the host's copy by `values`, which the next `on_device` sends."""
        self._host = np.asarray(values)
        self._newer_here = True
        self._newer_there = False

    def _come(self) -> None:
        if self._newer_there:
            self._host[...] = self._device.fetch(self._held) * self._scale
            self._newer_there = False


class MirroredArrays(dict[str, Array]):
    """Arrays by name, some of them mirrored: reading one returns the host's copy."""

    def __init__(
        self, device: Device, kept: dict[str, Array], names: Iterable[str]
    ) -> None:
        super().__init__(kept)
        self.mirrors = {
            name: Mirrored(device, kept[name], np.float32) for name in names
        }

    def __getitem__(self, name: str) -> Array:
        mirror = self.mirrors.get(name)
        return super().__getitem__(name) if mirror is None else mirror.on_host()

    def items(self) -> Any:
        """Return (name, host array) of every array."""
        return [(name, self[name]) for name in self]

    def values(self) -> Any:
        """Return the host array of every name."""
        return [self[name] for name in self]


# Copies from the host to a device through pinned memory, for which no rank waits.
#
# Small arrays take turns in a ring of buffers, large ones go in pieces through two of
# them: while one travels, the next is written. A buffer is written again once the event
# behind its last copy has happened, which in a steady state was long ago.

Write = Callable[[Array], None]
PIECE = 16 * 2**20  # bytes that are sent together
SMALL = 64 * 2**10  # bytes up to which the ring serves
RING = 16  # larger = the host runs further ahead of its GPU


class Slots:
    """Pinned host buffers for copies to a device, which take turns.

    Each buffer grows to the largest copy so far.
    """

    def __init__(self, layer: Any, stream: Any, count: int) -> None:
        self._layer = layer
        self._stream = stream
        self._buffers: list[Array | None] = [None] * count
        self._copies: list[Any] = [None] * count  # the event behind each last copy
        self._turn = 0

    def send(self, array: Any, write: Write) -> None:
        """Copy into `array` what `write` writes into a buffer of its shape and type."""
        turn = self._turn
        self._turn = (self._turn + 1) % len(self._buffers)
        if self._copies[turn] is not None:
            self._layer.wait(self._copies[turn])
        buffer = self._room(turn, array.nbytes)
        host = buffer[: array.nbytes].view(array.dtype)
        write(host.reshape(array.shape))
        self._layer.to_device(host, array, self._stream)
        self._copies[turn] = self._layer.record(self._stream)

    def _room(self, turn: int, size: int) -> Array:
        buffer = self._buffers[turn]
        if buffer is None or buffer.size < size:
            buffer = self._layer.pinned(1 << max(size - 1, 1023).bit_length(), np.uint8)
            self._buffers[turn] = buffer
        return buffer


def bytes_of_uploads(row: int) -> int:
    """Return the bytes of pinned memory for uploads of large arrays.

    A row of the largest array has `row` bytes, and is sent as a whole.
    """
    return 2 * max(PIECE, row)


class Uploads:
    """Copies from the host to a device on one stream, through pinned buffers."""

    def __init__(self, layer: Any, stream: Any) -> None:
        self._small = Slots(layer, stream, RING)
        self._large = Slots(layer, stream, 2)

    def fill(self, array: Any, values: Array) -> None:
        """Copy `values` into `array`; a caller may change `values` afterwards."""
        values = np.asarray(values)
        assert values.shape == tuple(array.shape) and values.dtype == array.dtype
        if array.nbytes <= PIECE:
            self.put(array, _copying(values))
            return
        flat = array.reshape(-1)
        flat_values = np.ascontiguousarray(values).reshape(-1)
        step = PIECE // flat_values.itemsize
        for first in range(0, flat_values.size, step):
            part = flat_values[first : first + step]
            self.put(flat[first : first + step], _copying(part))

    def put(self, array: Any, write: Write) -> None:
        """Copy into `array`, in one copy, what `write` writes into pinned memory."""
        if array.nbytes == 0:
            return
        slots = self._small if array.nbytes <= SMALL else self._large
        slots.send(array, write)


def _copying(values: Array) -> Write:
    return lambda host: np.copyto(host, values)


# A GPU through CuPy: memory, copies and launches of one rank, on one stream.


@guarded
class CudaDevice:
    """A `Device` by CuPy: memory, copies and launches of one rank on one stream."""

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
        """Return a device array with undefined values."""
        return self._room(shape, dtype, self.cupy.empty)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a device array of zeros."""
        return self._room(shape, dtype, self.cupy.zeros)

    def _room(self, shape: tuple[int, ...], dtype: Any, make: Any) -> Any:
        try:
            # CuPy reuses released memory for the next request on the same stream.
            with self.stream:
                return make(shape, dtype=dtype)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            raise self.faults.out_of_memory_error(size) from error

    def memory(self) -> tuple[int, int]:
        """Return (free bytes, all bytes) of the GPU's memory."""
        sizes: tuple[int, int] = self.layer.memory()
        return sizes

    def clear(self, array: Any) -> None:
        """Set all values of a contiguous device array to 0."""
        with self.stream:
            array.fill(0)

    def fill(self, array: Any, values: Array) -> None:
        """Copy host values of the same shape into `array`.

        A caller may change `values` as soon as this method has returned.
        """
        self.uploads.fill(array, values)

    def upload(self, array: Any, write: Callable[[Array], None]) -> None:
        """Copy into `array` what `write` writes into pinned memory of its shape."""
        self.uploads.put(array, write)

    def put_rows(self, array: Any, rows: Any) -> None:
        """Copy device rows into the first columns of `array`; the rest becomes 0."""
        width = rows.shape[1]
        # The work that writes them may still run, on a stream unknown to ours.
        before = self.layer.record(self.layer.current_stream())
        self.layer.stream_wait_event(self.stream, before)
        with self.stream:
            array[:, :width] = rows
            if width < array.shape[1]:
                array[:, width:] = 0
        # Their owner may write to them on another stream.
        self.stream.synchronize()

    def fetch(self, array: Any) -> Array:
        """Return a copy of `array` on the host, made after all earlier requests."""
        self.settle()
        with self.stream:
            host_copy: Array = self.cupy.asnumpy(array, stream=self.stream)
        self.stream.synchronize()
        return host_copy

    def kernel(self, build: Build) -> Callable[..., None]:
        """Return the kernel of `build` as a function that launches it.

        The function is launch(grid, block, arguments, shared=0, cluster=1). `shared` is
        the bytes of shared memory of a block; `cluster` is ignored.
        """
        if build not in self._kernels:
            compiled = self.layer.kernels.get(build)
            launch = lambda *given, **more: compiled(self._now, *given, **more)  # noqa: E731
            self._kernels[build] = self._safe(launch)
        return self._kernels[build]

    def _safe(self, action: Callable[..., None]) -> Callable[..., None]:
        """Return `action` with errors of CUDA raised as errors of this package."""
        call = guard(lambda _, *given, **more: action(*given, **more))
        return lambda *given, **more: call(self, *given, **more)

    def capture(self, action: Callable[[], None]) -> LaunchGraph:
        """Record the launches of `action` as a graph, and return the graph.

        `action` must have run once before. The capture is relaxed: NCCL may allocate
        memory while its collectives are recorded, and other threads of this process may
        call CUDA.
        """
        mode = self.cupy.cuda.runtime.streamCaptureModeRelaxed
        with self.stream:
            self.stream.begin_capture(mode)
            try:
                action()
            except BaseException:
                with suppress(RuntimeError):  # the first error is raised
                    self.stream.end_capture()
                raise
            graph = self.stream.end_capture()
        return LaunchGraph(self._safe(lambda: graph.launch(stream=self.stream)))

    def gemm_bf16(self, out: Any, left: Any, right: Any) -> None:
        """Compute out ← left rightᵀ by cuBLAS: bits of bf16, sums in fp32."""
        if self._cublas is None:
            self._cublas = Cublas(self.layer)
        self._cublas.multiply_bf16(out, left, right, self._now)

    def seconds(self, action: Callable[[], None], times: int) -> float:
        """Return the mean seconds of `times` runs of `action`, by the GPU's clock."""
        first = self.cupy.cuda.Event()
        last = self.cupy.cuda.Event()
        first.record(self.stream)
        for _ in range(times):
            action()
        last.record(self.stream)
        last.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(first, last)) / 1e3 / times

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Put launches inside the `with` block on a second stream: a branch of a graph.

        The second stream first waits for the earlier requests of the first stream.
        """
        self.layer.stream_wait_event(self._side, self.layer.record(self.stream))
        self._now = self._side
        try:
            yield
        finally:
            self._now = self.stream

    def join(self) -> None:
        """Make the first stream wait for the launches on the second stream."""
        self.layer.stream_wait_event(self.stream, self.layer.record(self._side))

    def wait(self) -> None:
        """Wait for all requests of the stream, without a check of collectives."""
        self.stream.synchronize()

    def synchronize(self) -> None:
        """Wait until all requests are done, and check how collectives ended."""
        self.settle()


class ThreadDevices(threading.local):
    """The devices that the present thread has opened, by GPU number.

    Each thread has its own: a capture on a stream that two threads share would also
    record the launches of the other thread.
    """

    def __init__(self) -> None:
        self.devices: dict[int, CudaDevice] = {}


opened = ThreadDevices()
users_of_gpus: dict[int, WeakSet[threading.Thread]] = {}  # threads by GPU number
_one_at_a_time = threading.Lock()


def device_of_rank(number: int) -> CudaDevice:
    """Return the device of GPU `number` for this thread, and make it the current one.

    CuPy would refuse the stream if the thread had used another GPU in between. The
    device is marked as shared if another thread uses the same GPU.
    """
    if number not in opened.devices:
        opened.devices[number] = CudaDevice(number)
    device = opened.devices[number]
    with _one_at_a_time:
        threads = users_of_gpus.setdefault(number, WeakSet())
        threads.add(threading.current_thread())
        device.is_shared = sum(user.is_alive() for user in threads) > 1
    device.device.use()
    return device


# Launches that repeat are recorded, and become one launch.


def _launch(graph: LaunchGraph) -> None:
    graph()


class Captures(Protocol):
    """A recorder of graphs: a device, or `DeviceSums`, which registers the graphs."""

    def capture(self, action: Callable[[], None]) -> LaunchGraph:
        """Record the launches of `action` as a graph, and return the graph.

        `action` must have run once before.
        """


class GraphAction:
    """An action that is called once, then recorded as a graph, which later runs launch.

    The first run compiles and allocates; from then on, only the values of arrays
    change. `recording` is the action without anything besides launches, if that
    differs from `action`.
    """

    def __init__(
        self,
        recorder: Captures,
        action: Callable[[], None],
        recording: Callable[[], None] | None = None,
    ) -> None:
        self._recorder = recorder
        self._action = action
        self._recording = recording or action
        self._is_warm = False
        self._graph: LaunchGraph | None = None

    def run(self, launch: Callable[[LaunchGraph], None] = _launch) -> None:
        """Call the action in the first run; record its graph in the second run.

        From the second run on, `launch` receives the graph instead.
        """
        if self._is_warm and self._graph is None:
            self._graph = self._recorder.capture(self._recording)
        if self._graph is None:
            self._action()
            self._is_warm = True
        else:
            launch(self._graph)

"""CuPy made of NumPy: what runs on it is the very code that a GPU runs on.

Streams are those of `fake_cuda`, so copies and kernels are late; kernels run
under the emulation. `FakeCupy.broken` is a status of CUDA that the work fails with when
its turn comes, and everything afterwards.
"""

import ctypes
from types import ModuleType, SimpleNamespace

import numpy as np

from hpcsgd.backends.cuda.driver import ascii_of
from tests.helpers.fake_cuda import Event, Node, Stream
from tests.helpers.kernels.emulator import KERNELS, Kernel, check_guards, empty

NAMES = {
    **{2: "cudaErrorMemoryAllocation: out of memory", 100: "cudaErrorNoDevice: none"},
    **{214: "cudaErrorECCUncorrectable: uncorrectable ECC error encountered"},
    **{46: "cudaErrorDevicesUnavailable: busy", 802: "cudaErrorSystemNotReady: no"},
    **{700: "cudaErrorIllegalAddress: an illegal memory access was encountered"},
    **{719: "cudaErrorLaunchFailure: unspecified launch failure"},
}
SIZES = {"i4": ctypes.c_int, "i8": ctypes.c_longlong, "f4": ctypes.c_float}


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(NAMES[status])
        self.status = status


class CUDADriverError(RuntimeError):
    status = 0


class OutOfMemoryError(MemoryError):
    """As CuPy's pool raises it."""


class CompileException(Exception):
    """As NVRTC's log comes."""


class Ndarray:
    """Device memory: an address and a shape; NumPy does not get at it."""

    def __init__(self, held, whole=None, put=None):
        self.held, self.whole = held, held if whole is None else whole
        self.put = put  # onto the current stream
        self.shape, self.dtype, self.size = held.shape, held.dtype, held.size
        self.nbytes, self.flags = held.nbytes, held.flags
        self.data = SimpleNamespace(ptr=held.ctypes.data)

    def __getitem__(self, key):
        return Ndarray(self.held[key], self.whole, self.put)

    def __setitem__(self, key, values):
        given = values.held if isinstance(values, Ndarray) else values
        self.put(lambda: self.held.__setitem__(key, given))

    def __len__(self):
        return len(self.held)

    def reshape(self, *shape):
        return Ndarray(self.held.reshape(*shape), self.whole, self.put)

    def fill(self, value):
        self.put(lambda: self.held.fill(value))

    def __array__(self, *_, **__):
        raise TypeError("a device array was used as one of the host")


RELAXED = 2  # cudaStreamCaptureModeRelaxed


class CupyStream(Stream):
    """With what CuPy's has beyond ours."""

    def __init__(self, cupy):
        super().__init__(cupy.node)
        self.cupy, self.ptr = cupy, id(self)

    def put(self, action, *arrays):
        self.check()

        def late():
            if self.cupy.broken:
                self.broken = CUDARuntimeError(self.cupy.broken)
                return False
            return action()

        super().put(late, *arrays)

    def __enter__(self):
        self.cupy.current.append(self)

    def __exit__(self, *_):
        self.cupy.current.pop()

    def synchronize(self):
        self.cupy.waits += 1
        self.until(lambda: not self.queue)

    def wait_event(self, event):
        self.put(event.is_over)

    def begin_capture(self, mode):
        assert mode == RELAXED
        self.before, self.queue = self.queue, type(self.queue)()

    def end_capture(self):
        recorded, self.queue = list(self.queue), self.before
        self.cupy.graphs += 1

        def launch(stream):
            self.cupy.replayed += 1
            self.cupy.tick("replay")
            for one in recorded:
                stream.put(one)

        return SimpleNamespace(launch=launch)


class FakeCupy(ModuleType):
    """The module, with one GPU in it."""

    ndarray = Ndarray

    def __init__(self, free=2**30, major=13, capability="90", gpus=1):
        super().__init__("cupy")
        self.node, self.broken, self.breaks = Node(), 0, {}
        self.status = 700  # that it will break with
        self.free, self.total, self.waits = free, 2**31, 0
        self.graphs = self.replayed = 0
        self.events, self.kept, self.current = {}, {}, []
        self.current.append(CupyStream(self))
        device = SimpleNamespace(
            **{"id": 0, "compute_capability": capability, "use": lambda: None},
            **{"pci_bus_id": "0000:3B:00.0", "attributes": {"MultiProcessorCount": 4}},
        )
        self.cuda = SimpleNamespace(
            Device=lambda number: device,
            Stream=lambda non_blocking: CupyStream(self),
            Event=lambda disable_timing: self._event(),
            get_current_stream=lambda: self.current[-1],
            alloc_pinned_memory=lambda size: bytearray(size * b"\x63"),  # no zeros
            runtime=self._runtime(major, gpus),
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            compiler=SimpleNamespace(CompileException=CompileException),
            nvrtc=SimpleNamespace(getVersion=lambda: (major, 0)),
        )

    def fail(self, status):
        raise CUDARuntimeError(status)

    def tick(self, what):
        """Counts down `breaks`: the work of the last one fails."""
        if what in self.breaks:
            self.breaks[what] -= 1
            if self.breaks[what] == 0:
                self.broken = self.status

    def empty(self, shape, dtype):
        if np.prod(shape, dtype=float) * np.dtype(dtype).itemsize > self.free:
            raise OutOfMemoryError("Out of memory allocating")
        put = lambda action: self.current[-1].put(action)  # noqa: E731
        return Ndarray(empty(shape, dtype), put=put)

    def zeros(self, shape, dtype):
        found = self.empty(shape, dtype)
        self.current[-1].put(lambda: found.held.fill(0))
        return found

    def asnumpy(self, array, stream):
        stream.synchronize()
        return array.held.copy()

    def get_default_memory_pool(self):
        return SimpleNamespace(free_all_blocks=lambda: None)

    def RawModule(self, code, options):  # noqa: N802
        (name,) = [p.stem for p in KERNELS.glob("*.cu") if ascii_of(p) == code]
        defines = [option[2:] for option in options if option.startswith("-D")]
        make = lambda entry: Function(self, Kernel(name, *defines, entry=entry))  # noqa: E731
        return SimpleNamespace(get_function=make)

    def _event(self):
        found = SimpleNamespace(ptr=len(self.events) + 1)

        def record(stream):
            self.events[found.ptr] = Event(stream)
            found.is_over = self.events[found.ptr].is_over

        def synchronize():
            event = self.events[found.ptr]
            self.waits += not event.done
            event.stream.until(lambda: event.done)

        found.record, found.synchronize = record, synchronize
        return found

    def _query(self, address):
        event = self.events[address]
        if not event.is_over():
            self.node.run_all()
        broken = event.stream.broken
        return 0 if event.done else broken.status if broken else 600

    def _runtime(self, major, gpus):
        def count():
            if not gpus:
                raise CUDARuntimeError(100)
            return gpus

        return SimpleNamespace(
            **{"memcpyDeviceToHost": 2, "memcpyHostToDevice": 1},
            streamCaptureModeRelaxed=RELAXED,
            memcpyAsync=self._copy,
            eventQuery=self._query,
            memGetInfo=lambda: (self.free, self.total),
            getDeviceCount=count,
            getDeviceProperties=lambda number: {"uuid": b"\x01\xff"},
            runtimeGetVersion=lambda: 1000 * major + 20,
            CUDARuntimeError=CUDARuntimeError,
        )

    def _copy(self, to, source, size, kind, stream):
        self.tick("sum" if kind == 2 else "fill")
        action = lambda: ctypes.memmove(to, source, size) and None  # noqa: E731
        self.node.streams[stream].put(action)


class Function:
    """A kernel, launched as CuPy launches it."""

    max_dynamic_shared_size_bytes = 48 * 1024

    def __init__(self, cupy, kernel):
        self.cupy, self.kernel = cupy, kernel

    def __call__(self, grid, block, arguments, shared_mem=0):
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        self.cupy.tick("launch")
        given = [_given(one) for one in arguments]
        arrays = [one for one in arguments if isinstance(one, Ndarray)]

        def action():
            self.kernel(grid, block, given, shared=shared_mem, seed=1)
            for array in arrays:
                check_guards(array.whole)

        self.cupy.current[-1].put(action)


def _given(argument):
    if isinstance(argument, Ndarray):
        return ctypes.c_void_p(argument.data.ptr)
    assert isinstance(argument, np.generic), f"of no certain size: {argument!r}"
    if argument.dtype == np.uint64:
        return ctypes.c_void_p(int(argument))
    return SIZES[argument.dtype.str[1:]](argument.item())

"""CuPy made of NumPy: what this project uses of it, with its names and no others.

Signatures are those of CuPy 13.6 and 14.2. Kernels run under the emulation. Work is
done at once, but whoever gives it to the null stream, which the project's own stream
does not wait for, gets an error; so does whoever records what cannot be recorded, or
launches with more shared memory than was asked for.
"""

import ctypes
import math
import pickle
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import numpy as np

from hpcsgd.backends.cuda.driver import ascii_of
from tests.helpers.kernels.emulator import KERNELS, Kernel, check_guards
from tests.helpers.kernels.emulator import empty as guarded

LAUNCHED = (np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64)
SCALARS = {"i4": ctypes.c_int, "u4": ctypes.c_uint, "i8": ctypes.c_longlong}
SCALARS |= {"u8": ctypes.c_ulonglong, "f4": ctypes.c_float, "f8": ctypes.c_double}


class CUDARuntimeError(RuntimeError):
    """Of the runtime."""


class CUDADriverError(RuntimeError):
    """Of the driver."""


class CompileException(Exception):
    """Of the compiler."""


class OutOfMemoryError(MemoryError):
    """Of the pool."""


class Strict(ModuleType):
    """A module with these names; another one is an error by itself."""

    def __init__(self, name, **names):
        super().__init__(name)
        self.__dict__.update(names)


class Stream:
    """cupy.cuda.Stream; ptr 0 is the null stream."""

    count = 0
    made = {}  # noqa: RUF012

    def __init__(self, null=False, non_blocking=False, ptds=False):
        assert non_blocking or null
        Stream.count += 1
        self.ptr = 0 if null else 0x5000 + Stream.count
        self.recorded = None
        self.made[self.ptr] = self

    def __enter__(self):
        STACK.append(self)
        return self

    def __exit__(self, *_):
        assert STACK.pop() is self

    def synchronize(self):
        assert self.recorded is None, "cudaErrorStreamCaptureUnsupported"

    def begin_capture(self, mode=None):
        assert self.ptr and self.recorded is None and mode in (None, 0, 1, 2)
        self.recorded = []

    def end_capture(self):
        recorded, self.recorded = self.recorded, None
        return Graph(recorded)

    def wait_event(self, event):
        assert event.at is not None

    def put(self, action, is_recordable=True):
        assert self.ptr, "given to the null stream"
        if self.recorded is None:
            action()
            return
        assert is_recordable, "cudaErrorStreamCaptureUnsupported"
        self.recorded.append(action)


class Graph:
    """cupy.cuda.Graph."""

    launches = 0

    def __init__(self, recorded):
        self.recorded = recorded

    def launch(self, stream=None):
        stream = stream or STACK[-1]
        Graph.launches += 1
        for action in self.recorded:
            stream.put(action)


class Event:
    """cupy.cuda.Event."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self.at, self.ptr, self.is_timed = None, id(self), not disable_timing

    def record(self, stream=None):
        # One that is named may be the caller's, whose work we wait for.
        assert stream or STACK[-1].ptr, "given to the null stream"
        self.at = time.perf_counter()

    def synchronize(self):
        assert self.at is not None


NULL = Stream(null=True)


class Current(threading.local):
    """Streams that a thread is in: each has its own, as in CuPy."""

    def __init__(self):
        self.streams = [NULL]

    def append(self, stream):
        self.streams.append(stream)

    def pop(self):
        return self.streams.pop()

    def __getitem__(self, place):
        return self.streams[place]


STACK = Current()
ALIVE = {}  # address -> bytes, of what is there


class ndarray:  # noqa: N801
    """cupy.ndarray, as far as it is used."""

    def __init__(self, held, whole=None):
        self.held = held
        self.whole = held if whole is None else whole
        self.shape, self.dtype, self.ndim = held.shape, held.dtype, held.ndim
        self.size, self.nbytes, self.strides = held.size, held.nbytes, held.strides
        self.flags = held.flags
        if whole is None:
            ALIVE[held.ctypes.data] = held  # kept: addresses are not used again

    @property
    def data(self):
        return Strict("data", ptr=self.held.ctypes.data)

    @property
    def T(self):  # noqa: N802
        return ndarray(self.held.T, self.whole)

    def __len__(self):
        return len(self.held)

    def set(self, arr, stream=None):
        assert isinstance(arr, np.ndarray) and arr.flags.c_contiguous
        assert arr.dtype == self.dtype and arr.shape == self.shape
        assert self.flags.c_contiguous
        action = lambda: np.copyto(self.held, arr)  # noqa: E731
        (stream or STACK[-1]).put(action, is_recordable=False)

    def copy(self):
        return _new(lambda: self.held.copy())

    def fill(self, value):
        STACK[-1].put(lambda: self.held.fill(value))

    def reshape(self, *shape):
        return ndarray(self.held.reshape(*shape), self.whole)

    def __getitem__(self, key):
        if isinstance(key, ndarray):
            return _new(lambda: self.held[key.held])
        found = self.held[key]
        if isinstance(found, np.ndarray):
            return ndarray(found, self.whole)
        return ndarray(np.array(found))

    def __setitem__(self, key, value):
        held = value.held if isinstance(value, ndarray) else value
        STACK[-1].put(lambda: self.held.__setitem__(key, held))

    def __array__(self, *_, **__):
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __matmul__(self, other):
        return _new(lambda: self.held @ other.held)

    def __sub__(self, other):
        return _new(lambda: self.held - other.held)

    def __isub__(self, other):
        return _into(self, self.held - other.held)

    def __neg__(self):
        return _new(lambda: -self.held)

    def __radd__(self, other):
        return _new(lambda: np.float32(other) + self.held)

    def __rtruediv__(self, other):
        return _new(lambda: np.float32(other) / self.held)

    def __rmul__(self, other):
        return _new(lambda: np.float32(other) * self.held)


def _new(make):
    """What a new array is made for cannot be recorded here."""
    found = []
    STACK[-1].put(lambda: found.append(make()), is_recordable=False)
    return ndarray(found[0])


def _into(array, values):
    STACK[-1].put(lambda: np.copyto(array.held, values))
    return array


def empty(shape, dtype=float, order="C"):
    assert STACK[-1].recorded is None, "memory is not taken while recording"
    return ndarray(guarded(shape, dtype))


def zeros(shape, dtype=float, order="C"):
    found = empty(shape, dtype)
    STACK[-1].put(lambda: found.held.fill(0), is_recordable=False)
    return found


def asarray(a, dtype=None, order=None, *, blocking=False):
    return _new(lambda: np.array(a, dtype))


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    assert isinstance(a, ndarray) and (stream or STACK[-1]).recorded is None
    return a.held.copy()


def copyto(dst, src, casting="same_kind", where=None):
    assert isinstance(src, ndarray)
    STACK[-1].put(lambda: np.copyto(dst.held, src.held))


def take(a, indices, axis=None, out=None):
    assert out.dtype == a.dtype and indices.held.dtype == np.int64
    STACK[-1].put(lambda: np.copyto(out.held, np.take(a.held, indices.held, axis)))


def exp(x):
    return _new(lambda: np.exp(x.held))


class RawModule:
    """cupy.RawModule: compiled when a function is asked for."""

    made = []  # (entry, options)

    def __init__(self, *, code=None, path=None, options=(), backend="nvrtc"):
        assert (code is None) != (path is None) and isinstance(options, tuple)
        assert code is None or code.isascii(), "CuPy writes it in the user's encoding"
        self.code, self.path, self.options = code, path, options

    def get_function(self, name):
        if self.path is not None:
            return FileKernel(self.path, name)
        self.made.append((name, self.options))
        return RawKernel(self.code, name, self.options)


class RawKernel:
    """cupy.RawKernel."""

    def __init__(self, code, name, options):
        defines = [o[2:] for o in options if o.startswith("-D")]
        (folder,) = [o[2:] for o in options if o.startswith("-I")]
        sources = {ascii_of(p): p.stem for p in KERNELS.glob("*.cu")}
        assert folder == str(KERNELS) and "--std=c++17" in options
        defines = [d for d in defines if not d.startswith("HEADERS=")]
        self.kernel = Kernel(sources[code], *defines, entry=name)
        # Blocks that wait for each other are let run at once.
        self.meets = name == "direct_steps" or "NC=8" in defines
        self.max_dynamic_shared_size_bytes = 48 * 1024

    def __call__(self, grid, block, args, *, shared_mem=0):
        for shape in (grid, block):
            assert len(shape) == 3 and all(type(n) is int and n > 0 for n in shape)
        assert shared_mem <= self.max_dynamic_shared_size_bytes <= 227 * 1024
        assert isinstance(args, tuple)
        given = [_argument(one) for one in args]
        cluster = math.prod(grid) if self.meets else 1
        how = {"shared": shared_mem, "cluster": cluster, "seed": 1}
        kept = [one.whole for one in args if isinstance(one, ndarray)]

        def action():
            self.kernel(grid, block[0], given, **how)
            for array in kept:
                check_guards(array)

        STACK[-1].put(action)


class FileKernel(RawKernel):
    """Of a cubin, which is read when something of it is asked for."""

    def __init__(self, path, name):
        self.path, self.name = path, name

    def __getattr__(self, missing):
        assert missing in ("kernel", "meets", "max_dynamic_shared_size_bytes")
        code, options = pickle.loads(Path(self.path).read_bytes())
        RawModule.made.append((self.name, options))
        super().__init__(code, self.name, options)
        return getattr(self, missing)


class Nvrtc(Strict):
    """cupy.cuda.nvrtc: a program is its text, its cubin the text and its options."""

    class NVRTCError(RuntimeError):
        """Of the compiler."""

    def __init__(self):
        super().__init__("cupy.cuda.nvrtc", getVersion=lambda: (13, 2))
        self.programs = {}

    def createProgram(self, src, name, headers, include_names, /):  # noqa: N802
        assert headers == include_names == () and name.endswith(".cu")
        self.programs[len(self.programs) + 1] = [src, None]
        return len(self.programs)

    def compileProgram(self, prog, options, /):  # noqa: N802
        archs = [one for one in options if "arch" in one.split("=")[0]]
        assert len(archs) == 1 and isinstance(options, tuple)
        self.programs[prog][1] = options

    def getCUBIN(self, prog, /):  # noqa: N802
        return pickle.dumps(tuple(self.programs[prog]))

    def getProgramLog(self, prog, /):  # noqa: N802
        return f"program {prog}: an error\nand more"

    def destroyProgram(self, prog, /):  # noqa: N802
        self.programs[prog] = None


def _argument(one):
    if isinstance(one, ndarray):
        return ctypes.c_void_p(one.held.ctypes.data)
    assert type(one) in LAUNCHED, f"of no certain size: {one!r}"
    return SCALARS[one.dtype.str[1:]](one.item())


def at(address, shape, kind, leading=None):
    """Memory of the GPU as a matrix; it has to be there as a whole."""
    item, (tall, wide) = np.dtype(kind).itemsize, shape
    leading = leading or wide
    assert leading >= wide
    last = address + ((tall - 1) * leading + wide) * item
    inside = [a for a, h in ALIVE.items() if a <= address and last <= a + h.nbytes]
    assert inside, "beyond what was taken"
    facts = {"data": (address, False), "shape": shape, "typestr": np.dtype(kind).str}
    facts |= {"strides": (leading * item, item), "version": 3}
    return np.asarray(type("View", (), {"__array_interface__": facts})())


def _set_stream(handle, stream):
    assert handle.value == HANDLE
    CUBLAS.update(stream=Stream.made[stream.value], room=None)
    return 0


def _set_workspace(handle, room, size):
    assert handle.value == HANDLE and room.value % 128 == 0
    CUBLAS["room"] = at(room.value, (1, size.value), "u1")
    return 0


def _gemm_ex(  # as cublas_api.h has it; CuPy's own refuses while a stream is recorded
    handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C,  # noqa: N803
    Ctype, ldc, computeType, algo, /,  # noqa: N803
):  # fmt: skip
    """C ← alpha op(A) op(B) + beta C, in columns; here with A transposed alone."""
    m, n, k, lda, ldb, ldc = (one.value for one in (m, n, k, lda, ldb, ldc))
    kinds = (transa, transb, Atype, Btype, Ctype, computeType, algo)
    assert handle.value == HANDLE and [*map(_value, kinds)] == [1, 0, 14, 14, 0, 68, 99]
    one, zero = (one._obj.value for one in (alpha, beta))
    assert (one, zero) == (1.0, 0.0) and CUBLAS["room"] is not None
    left, right = at(A.value, (m, k), "u2", lda), at(B.value, (n, k), "u2", ldb)
    out = at(C.value, (n, m), "f4", ldc)

    def action():
        wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in (left, right)]
        out[...] = wide[1] @ wide[0].T

    CUBLAS["stream"].put(action)
    return 0


def _value(one):
    return one.value


CUBLAS = {}  # the stream of the handle, and its room
HANDLE = 77


class NcclCommunicator:
    """cupy.cuda.nccl.NcclCommunicator of one rank."""

    sums = 0

    def __init__(self, ndev, commId, rank, /):  # noqa: N803
        assert (ndev, rank, len(commId)) == (1, 0, 128)
        self.ended = False

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream, /):  # noqa: N802, N803
        assert sendbuf == recvbuf and (datatype, op) == (7, 0)
        assert not self.ended
        at(sendbuf, (1, count), "f4")
        NcclCommunicator.sums += 1

    def destroy(self):
        self.ended = True


class Device:
    """cupy.cuda.Device."""

    compute_capability = "90"
    pci_bus_id = "0000:3B:00.0"
    attributes = {"MultiProcessorCount": 3, "L2CacheSize": 2**20}  # noqa: RUF012

    def __init__(self, number=0):
        self.id = number

    def use(self):
        return self


def _memcpy_async(dst, src, size, kind, stream, /):
    assert kind in (1, 2, 3) and stream, "given to the null stream"
    ctypes.memmove(dst, src, size)


def _elapsed(start_event, end_event):
    assert start_event.is_timed and end_event.is_timed
    return max(1e3 * (end_event.at - start_event.at), 1e-6)


def install(monkeypatch):
    """`import cupy` is this, in the test that asks; the module."""
    runtime = Strict(
        "cupy.cuda.runtime",
        runtimeGetVersion=lambda: 13020,
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda device: {"name": b"Made of NumPy", "uuid": b"1"},
        CUDARuntimeError=CUDARuntimeError,
        memcpyAsync=_memcpy_async,
        eventQuery=lambda event: 0,
        streamCaptureModeRelaxed=2,
        memGetInfo=lambda: (2**33, 2**34),
        **{"memcpyHostToDevice": 1, "memcpyDeviceToHost": 2, "memcpyDeviceToDevice": 3},
    )
    library = Strict("libcublas.so.13", cublasGemmEx=_gemm_ex)
    library.cublasSetStream_v2 = _set_stream
    library.cublasSetWorkspace_v2 = _set_workspace
    nccl = Strict(
        *("cupy.cuda.nccl",),
        **{"available": True, "NcclCommunicator": NcclCommunicator},
        get_unique_id=lambda: b"\0" * 128,
    )
    cuda = Strict(
        "cupy.cuda",
        **{"runtime": runtime, "nccl": nccl, "Device": Device},
        **{"Stream": Stream, "Event": Event, "get_elapsed_time": _elapsed},
        nvrtc=Nvrtc(),
        driver=Strict("cupy.cuda.driver", CUDADriverError=CUDADriverError),
        compiler=Strict("cupy.cuda.compiler", CompileException=CompileException),
        memory=Strict("cupy.cuda.memory", OutOfMemoryError=OutOfMemoryError),
        device=Strict("cupy.cuda.device", get_cublas_handle=lambda: HANDLE),
        get_current_stream=lambda device_id=-1: STACK[-1],
        alloc_pinned_memory=lambda size: bytearray(size),
    )
    names = {"ndarray": ndarray, "empty": empty, "zeros": zeros, "asarray": asarray}
    pool = Strict("pool", free_all_blocks=lambda: None)
    names |= {"get_default_memory_pool": lambda: pool}
    names |= {"asnumpy": asnumpy, "copyto": copyto, "take": take, "exp": exp}
    cupy = Strict("cupy", cuda=cuda, RawModule=RawModule, __version__="14.2.0", **names)
    for module in (cupy, cuda, runtime, nccl):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("hpcsgd.backends.cuda.driver.driver_major", lambda: 13)
    monkeypatch.setattr("hpcsgd.backends.cuda.driver.load", lambda _: library)
    monkeypatch.setattr("hpcsgd.backends.cuda.driver.ROOM", 2**12)
    for counted in (Graph, NcclCommunicator):
        name = "launches" if counted is Graph else "sums"
        monkeypatch.setattr(counted, name, 0)
    monkeypatch.setattr(RawModule, "made", [])
    ALIVE.clear()
    return cupy

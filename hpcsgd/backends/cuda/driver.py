"""The only file that imports CuPy: memory, streams, kernels, libraries."""

import ctypes
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import (
    FOLDER,
    PLAIN_SHARED,
    Build,
    build_of,
    compiled_for,
    options,
)
from hpcsgd.errors import ConfigError, DeviceLost, HpcsgdError, MissingPackage
from hpcsgd.files import asset_path, format_bytes
from hpcsgd.formats import Array

# Errors of CuPy as errors of this package: a GPU that is full, lost, or unavailable.

T = TypeVar("T")
FULL = 2  # cudaErrorMemoryAllocation, and the driver's name for the same
SMALLER = (
    "use more members (--grid), --precision c where the matrix is fp32, or a smaller"
    " --steps or --batch"
)


class Faults:
    """Translates errors of CUDA on one GPU to errors of this package.

    `place` is the name of the GPU in messages. It is read beforehand, since a lost GPU
    does not answer.
    """

    def __init__(self, cupy: Any, place: str) -> None:
        self.cupy = cupy
        self.place = place
        self._of_cuda = (
            cupy.cuda.runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
        )
        self._full = cupy.cuda.memory.OutOfMemoryError

    def as_package_error(self, error: BaseException, asked: int = 0) -> BaseException:
        """Return the error of this package for `error`, if it is one of CUDA.

        Any other error is returned as it is. `asked` is the number of bytes of a failed
        allocation, 0 if it is not known.
        """
        if isinstance(error, self._full):
            return self.out_of_memory_error(asked)
        if not isinstance(error, self._of_cuda):
            return error
        if getattr(error, "status", None) == FULL:
            return self.out_of_memory_error(asked)
        return device_lost_error(self.place, str(error))

    def out_of_memory_error(self, asked: int = 0) -> ConfigError:
        """Return the error of a failed allocation, with the memory that is free now."""
        try:
            free, total = self.cupy.cuda.runtime.memGetInfo()
        except self._of_cuda:
            free = total = 0
        return out_of_memory_error(self.place, asked, free, total)


def out_of_memory_error(place: str, asked: int, free: int, total: int) -> ConfigError:
    """Return the error of a GPU that has no memory for `asked` bytes.

    `asked` or `total` is 0 if the number is not known.
    """
    more = f"{format_bytes(asked)} more" if asked else "what it was asked for"
    figures = (
        f" ({format_bytes(free)} of {format_bytes(total)} are free)" if total else ""
    )
    return ConfigError(f"the GPU {place} has no room for {more}{figures}; {SMALLER}")


def device_lost_error(place: str, why: str) -> DeviceLost:
    """Return the error of a GPU that failed, for the reason `why`.

    The run adds to its message which checkpoint is saved.
    """
    return DeviceLost(f"the GPU {place} failed ({' '.join(why.split())})")


def guarded(kind: type[T]) -> type[T]:
    """Decorate a class: its public methods turn errors of CUDA into this package's.

    Its instances need the attribute `faults`.
    """
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(kind, name, guard(method))
    return kind


def guard(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return `method` such that errors of CUDA become errors of this package.

    The first argument of the method is an object with the attribute `faults`.
    """

    @wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        try:
            return method(self, *arguments, **more)
        except HpcsgdError:
            raise
        except Exception as error:
            package_error = self.faults.as_package_error(error)
            if package_error is error:
                raise
            raise package_error from error

    return call


# The locale of a thread, as it was before a library was called.
#
# NVRTC of CUDA 12.0 to 12.4 leaves its thread in the locale "C": files that Python
# opens there later would be ASCII, whatever the user's locale is.


@contextmanager
def kept_locale() -> Iterator[None]:
    """Restore the locale of this thread at the end of the context.

    The context does nothing if the C library has no locales of threads.
    """
    use = _use_locale()
    before = use(None) if use else None
    try:
        yield
    finally:
        if use:
            use(before)


def _use_locale() -> Any:
    """Return the C function `uselocale`, or None if the C library has none.

    The function sets the locale of the thread and returns the one before; with NULL it
    changes nothing.
    """
    try:
        uselocale = ctypes.CDLL(None).uselocale
    except (AttributeError, OSError, TypeError):  # TypeError: Windows
        return None
    uselocale.argtypes = [ctypes.c_void_p]
    uselocale.restype = ctypes.c_void_p
    return uselocale


# Kernels of the table as CuPy compiles and launches them on one GPU.

OnStream = Callable[..., None]
# The options that CuPy passes to NVRTC besides the architecture.
OF_CUPY = ("-ftz=true", "--device-as-default-execution-space")


class RawKernels:
    """Kernels of one GPU, each compiled when it is first needed.

    CuPy caches them on disk, except those for one exact architecture (wgmma).
    """

    def __init__(self, cupy: Any, arch: str) -> None:
        self.cupy = cupy
        self.arch = arch
        self._known: dict[Build, OnStream] = {}

    def get(self, build: Build) -> OnStream:
        """Return launch(stream, grid, block, arguments, shared=0, cluster=1).

        It launches the kernel of `build`, which is compiled if it was not before.
        `shared` is the bytes of shared memory of a block; `cluster` is ignored, since
        CUDA knows it from the kernel.
        """
        if build not in self._known:
            self._known[build] = self._launcher(build)
        return self._known[build]

    def _launcher(self, build: Build) -> OnStream:
        function = self._function(build)

        def launch(
            stream: Any,
            grid: Any,
            block: int,
            arguments: Any,
            shared: int = 0,
            cluster: int = 1,
        ) -> None:
            if (
                shared > PLAIN_SHARED
                and function.max_dynamic_shared_size_bytes < shared
            ):
                function.max_dynamic_shared_size_bytes = shared
            values = tuple(np.uint64(0) if a is None else a for a in arguments)
            with stream:
                function(_three(grid), (block, 1, 1), values, shared_mem=shared)

        return launch

    def _function(self, build: Build) -> Any:
        folder = asset_path(f"kernels/{FOLDER}")
        text = ascii_of(folder / f"{build.source}.cu")
        compile_options = (*options(build, str(folder)), _headers(folder))
        try:
            with kept_locale(), one_at_a_time(kernel_folder(os.environ)):
                if compiled_for(build, self.arch) != self.arch:
                    return self._of_one_arch(build, text, compile_options)
                module = self.cupy.RawModule(code=text, options=compile_options)
                return module.get_function(build.entry)
        except self.cupy.cuda.compiler.CompileException as error:
            raise self._uncompiled(build, error) from error
        except OSError as error:
            raise no_folder(error) from error
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # of CUDA
                raise
            raise ConfigError(  # of CuPy, where CUDA's headers are not found
                f"CuPy cannot compile kernel {build.entry} here ({error}); install the"
                " headers of CUDA with: pip install"
                ' "cupy-cudaNNx[ctk]", where NN is the CUDA version of this CuPy'
            ) from error

    def _of_one_arch(self, build: Build, text: str, given: tuple[str, ...]) -> Any:
        """Return a kernel that NVRTC compiles for one exact architecture, as "90a".

        CuPy itself compiles for "90" only. `given` are the options of the compiler.
        """
        nvrtc = self.cupy.cuda.nvrtc
        arch = f"-arch=sm_{compiled_for(build, self.arch)}"
        program = nvrtc.createProgram(text, f"{build.source}.cu", (), ())
        try:
            nvrtc.compileProgram(program, (*given, *OF_CUPY, arch))
            cubin = nvrtc.getCUBIN(program)
        except nvrtc.NVRTCError as error:
            raise self._uncompiled(build, nvrtc.getProgramLog(program)) from error
        finally:
            nvrtc.destroyProgram(program)
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{build.source}.cubin"
            path.write_bytes(cubin)
            function = self.cupy.RawModule(path=str(path)).get_function(build.entry)
            _ = function.max_dynamic_shared_size_bytes  # read from the file by now
        return function

    def _uncompiled(self, build: Build, error: Exception | str) -> ConfigError:
        (first, *_) = [*str(error).strip().splitlines(), ""]
        return ConfigError(
            f"NVRTC cannot compile the kernel {build.entry} for sm_{self.arch}"
            f" ({first}); install the newest CuPy and NVRTC that the driver takes, or"
            " use --device cpu"
        )


# One rank of a node compiles a kernel, and the others load its file.

LOCK = "hpcsgd.lock"  # in the folder of compiled kernels
PATIENCE = 120.0  # seconds for a rank to compile; then the others compile, too
LOOK = 0.05  # seconds between looks at the lock


def kernel_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder in which CuPy keeps compiled kernels."""
    named = environment.get("CUPY_CACHE_DIR")
    return Path(named) if named else Path.home() / ".cupy" / "kernel_cache"


@contextmanager
def one_at_a_time(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Enter the body when no other process of this node is in it.

    Ranks reach a kernel at the same time. The first one compiles it into `folder`, from
    where CuPy loads it for the others. Where the folder cannot be locked, or another
    process stays in the body for `patience` seconds, the body is entered all the same.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # CuPy says why, if it cannot write there either
        yield
        return
    try:
        late = time.monotonic() + patience
        while not _locked(number) and time.monotonic() < late:
            time.sleep(LOOK)
        yield
    finally:
        os.close(number)


def _locked(number: int) -> bool:
    """Lock an open file unless another process has it; return False if one has."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def no_folder(error: OSError) -> ConfigError:
    """Return the error that CuPy cannot write compiled kernels to its cache folder."""
    return ConfigError(
        f"CuPy cannot keep compiled kernels ({error}); set CUPY_CACHE_DIR (or"
        " TMPDIR, if the path is in it) to a folder that can be written, on a disk with"
        " room"
    )


def ascii_of(path: Path) -> str:
    """Return the text of a kernel file in ASCII, with `?` for any other character.

    Only comments have such characters. CuPy writes the text in the user's encoding,
    which may lack them.
    """
    return path.read_text("utf-8").encode("ascii", "replace").decode()


def _headers(folder: Path) -> str:
    """Return a compiler option that contains a hash of all headers in `folder`.

    CuPy's cache finds a compiled kernel by its text and options. With this option, a
    change of a header compiles the kernel again.
    """
    texts = [path.read_bytes() for path in sorted(folder.glob("*.cuh"))]
    return f"-DHEADERS=0x{sha256(b''.join(texts)).hexdigest()[:8]}"


def _three(size: Any) -> tuple[int, int, int]:
    parts = (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*parts, 1, 1)[:3]
    return int(x), int(y), int(z)


# What sums of bf16 bits need of a GPU besides messages: three launches.

ITEM = 2  # bytes of the bits of one number


class DeviceCasts:
    """Casts between float32 and bf16 bits on a GPU of `arch`, and sums of such bits.

    `get` returns the compiled kernel of a build.
    """

    def __init__(self, arch: str, get: Callable[[Build], OnStream]) -> None:
        self._arch = arch
        self._get = get

    def narrow(self, stream: Any, values: Any, bits: Any) -> None:
        """Compute bits ← values rounded to bf16, on `stream`."""
        arguments = (values, np.int64(bits.size), None, bits)
        self._launch(stream, "narrow", bits.size, arguments)

    def widen(self, stream: Any, bits: Any, values: Any) -> None:
        """Compute values ← the numbers of bf16 `bits`, exactly, on `stream`."""
        arguments = (bits, np.int64(bits.size), None, values)
        self._launch(stream, "widen", bits.size, arguments)

    def add(self, stream: Any, parts: Any, ranks: int, total: Any) -> None:
        """Compute total ← the sum of the parts of `ranks` ranks, in bf16 bits.

        Parts are added in rank order, and the sum is rounded once.
        """
        arguments = (parts, np.int32(ranks), np.int64(total.size), total)
        self._launch(stream, "add_parts", total.size, arguments)

    def _launch(self, stream: Any, name: str, count: int, arguments: Any) -> None:
        if count:  # a grid of no blocks is an error
            shape = kernels.cast(count, ITEM)
            kernel = self._get(build_of(name, "bf16", self._arch))
            kernel(stream, *shape[:2], arguments)


# A GPU's arrays, streams and copies through CuPy, for transports.
#
# CuPy is imported only when it is needed, so all users of this class can also run with
# a layer made of NumPy.

OLDEST = 12  # CUDA majors that wheels are named after
NEWEST = 13
DOWN = "memcpyDeviceToHost"
UP = "memcpyHostToDevice"
NOT_READY = 600  # cudaErrorNotReady
NO_DEVICE = 100  # cudaErrorNoDevice
OLDEST_ARCH = {12: 70, 13: 75}  # CUDA -> the oldest GPU that it compiles for


def load_cupy() -> Any:
    """Import and return CuPy, after checks of the driver, CuPy and CUDA."""
    driver = driver_major()
    if driver is None:
        raise ConfigError(
            "no NVIDIA driver is here (libcuda.so.1 does not load, or reports no"
            " version of CUDA); run on a node with a GPU, or use --device cpu"
        )
    if driver < OLDEST:
        raise ConfigError(
            f"the NVIDIA driver here supports CUDA {driver} at most and hpcsgd needs"
            f" CUDA {OLDEST} or newer; update the driver to version 525 or newer, or"
            " use --device cpu"
        )
    cupy = _import_cupy(driver)
    built = _built_for(cupy, driver)
    if built > driver:
        raise ConfigError(
            f"CuPy is built for CUDA {built} and the NVIDIA driver here supports CUDA"
            f" {driver} at most; replace CuPy with: pip uninstall cupy-cuda{built}x &&"
            f" {_install(driver)}"
        )
    return cupy


def _import_cupy(driver: int) -> Any:
    try:
        import cupy
    except ModuleNotFoundError as missing:
        raise MissingPackage(
            f"a GPU needs CuPy ({missing}); install it with: {_install(driver)}"
        ) from missing
    except (ImportError, OSError) as broken:
        if isinstance(broken, OSError) and broken.filename:
            raise no_folder(broken) from broken
        raise _broken(broken, min(driver, NEWEST)) from broken
    return cupy


def _built_for(cupy: Any, driver: int) -> int:
    """Return the major version of CUDA that CuPy was built for.

    Raise MissingPackage if a library of CUDA does not load.
    """
    try:
        built = int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
    except (ImportError, OSError, RuntimeError) as broken:
        raise _broken(broken, min(driver, NEWEST)) from broken
    try:
        cupy.cuda.nvrtc.getVersion()  # loaded late: kernels could not be compiled
    except (ImportError, OSError, RuntimeError) as broken:
        raise _broken(broken, built) from broken
    return built


def _broken(error: Exception, major: int) -> MissingPackage:
    """Return the error of an installed CuPy that lacks a library of CUDA `major`."""
    lines = [line.strip() for line in str(error).splitlines()]
    why = next((line for line in reversed(lines) if ".so" in line), " ".join(lines))
    return MissingPackage(
        f"CuPy is installed, but a CUDA library that it needs is not ({why});"
        f' install the CUDA libraries with: pip install "cupy-cuda{major}x[ctk]"'
    )


def driver_major() -> int | None:
    """Return the newest major version of CUDA that the driver supports.

    Return None if no NVIDIA driver is found, or if it reports no version.
    """
    version = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed or not version.value else version.value // 1000


def _install(driver: int) -> str:
    return f"pip install cupy-cuda{min(driver, NEWEST)}x"


def count_gpus() -> int:
    """Return the number of GPUs that this process can use."""
    runtime = load_cupy().cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        if getattr(error, "status", NO_DEVICE) == NO_DEVICE:
            return 0
        raise ConfigError(
            f"the GPUs of this node do not answer ({error}); see what nvidia-smi says,"
            " or use --device cpu"
        ) from error


def gpu_buses() -> list[str]:
    """Return the PCI address of each GPU that this process can use, in their order."""
    device = load_cupy().cuda.Device
    return [str(device(number).pci_bus_id) for number in range(count_gpus())]


def check_arch(arch: str, built: int) -> None:
    """Raise ConfigError if CUDA, or our kernels, do not support a GPU of sm_`arch`.

    `built` is the major version of CUDA that CuPy was built for.
    """
    age = int(arch)
    if age < OLDEST_ARCH[OLDEST]:
        raise ConfigError(
            f"this GPU is of sm_{arch} and kernels need sm_{OLDEST_ARCH[OLDEST]} or"
            " newer; use --device cpu"
        )
    if age < OLDEST_ARCH.get(built, 0):
        raise ConfigError(
            f"this GPU is of sm_{arch}, which CUDA {built} no longer serves; replace"
            f" CuPy with: pip uninstall cupy-cuda{built}x && pip install"
            f" cupy-cuda{OLDEST}x"
        )


@guarded
class DeviceLayer:
    """One GPU: its arrays, streams and copies through CuPy.

    It becomes the current GPU of the thread that creates the object.
    """

    def __init__(self, number: int = 0, cupy: Any = None) -> None:
        self.cupy = cupy or load_cupy()
        try:
            self._device = self.cupy.cuda.Device(number)
            self._device.use()
            self.cupy.cuda.runtime.memGetInfo()  # opens it, not its first use
            self._place = self._look()
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise ConfigError(
                f"GPU {number} of {os.uname().nodename} cannot be opened ({error});"
                " check with nvidia-smi that it works and that no other program uses it"
                " exclusively"
            ) from error
        self.faults = Faults(self.cupy, self._place)
        self._kernels: RawKernels | None = None

    @property
    def kernels(self) -> RawKernels:
        """Return the compiler and cache of kernels for this GPU."""
        if self._kernels is None:
            arch = str(self._device.compute_capability)
            self._kernels = RawKernels(self.cupy, arch)
        return self._kernels

    @property
    def nccl(self) -> Any:
        """Return CuPy's NCCL module; raise MissingPackage if there is no NCCL."""
        try:
            from cupy.cuda import nccl

            if nccl.available:
                return nccl
            why = "CuPy finds none"
        except (ImportError, AttributeError) as missing:
            why = str(missing)
        major = self.cupy.cuda.runtime.runtimeGetVersion() // 1000
        raise MissingPackage(
            f"transport nccl needs NCCL ({why}); install it with:"
            f" pip install nvidia-nccl-cu{major}, or use transport = mpi-host"
        )

    @property
    def place(self) -> str:
        """Return a name of the GPU: node, PCI bus address, and UUID.

        The UUID tells slices of a divided GPU (MIG) apart.
        """
        return self._place  # looked up once: a GPU that is lost does not answer

    def _look(self) -> str:
        facts = self.cupy.cuda.runtime.getDeviceProperties(self._device.id)
        unit = bytes(facts.get("uuid", b"")).hex()  # slices of a GPU share its bus
        return f"{os.uname().nodename} {self._device.pci_bus_id} {unit}".rstrip()

    def owns(self, array: Any) -> bool:
        """Return whether the array is a CuPy array."""
        return isinstance(array, self.cupy.ndarray)

    def empty(self, words: int, dtype: Any) -> Any:
        """Return a CuPy array of `words` elements with undefined values."""
        return self.cupy.empty(words, dtype=dtype)

    def pinned(self, words: int, dtype: Any) -> Array:
        """Return a NumPy array of `words` elements in page-locked memory."""
        kind = np.dtype(dtype)
        size = max(words * kind.itemsize, 1)
        try:
            memory = self.cupy.cuda.alloc_pinned_memory(size)
        except (self.cupy.cuda.runtime.CUDARuntimeError, MemoryError) as error:
            if getattr(error, "status", FULL) != FULL:
                raise
            raise ConfigError(
                f"the host cannot page-lock {format_bytes(size)} for the GPU"
                f" {self.place}; put fewer ranks on a node, or raise ulimit -l"
            ) from error
        return np.frombuffer(memory, kind, words)

    def memory(self) -> tuple[int, int]:
        """Return (free bytes, all bytes) of the GPU, with unused blocks released."""
        self.cupy.get_default_memory_pool().free_all_blocks()
        free, total = self.cupy.cuda.runtime.memGetInfo()
        return int(free), int(total)

    def current_stream(self) -> Any:
        """Return CuPy's current stream of this thread."""
        return self.cupy.cuda.get_current_stream()

    def new_stream(self) -> Any:
        """Return a new stream that runs independently of the default stream."""
        return self.cupy.cuda.Stream(non_blocking=True)

    def synchronize(self, stream: Any) -> None:
        """Wait on the host until all work of the stream is done."""
        stream.synchronize()

    def record(self, stream: Any) -> Any:
        """Record a new event on the stream, without timing, and return the event."""
        event = self.cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        return event

    def stream_wait_event(self, stream: Any, event: Any) -> None:
        """Make later work of the stream wait for the event; the host does not wait."""
        stream.wait_event(event)

    def is_done(self, event: Any) -> bool:
        """Return whether the work before the event is done; raise its error."""
        status = self.cupy.cuda.runtime.eventQuery(event.ptr)
        if status not in (0, NOT_READY):
            event.synchronize()  # raises what has failed: it would never be done
        return bool(status == 0)

    def wait(self, event: Any) -> None:
        """Wait on the host until the work before the event is done."""
        event.synchronize()

    def address(self, array: Any) -> int:
        """Return the address of the array in the GPU's memory."""
        return int(array.data.ptr)

    def handle(self, stream: Any) -> int:
        """Return the stream's cudaStream_t as a number."""
        return int(stream.ptr)

    def to_host(self, array: Any, host: Array, stream: Any) -> None:
        """Queue a copy of `array` to `host`, complete once `stream` is synchronized."""
        self._check(array, host)
        self._copy(host.ctypes.data, array.data.ptr, host.nbytes, DOWN, stream)

    def to_device(self, host: Array, array: Any, stream: Any) -> None:
        """Queue a copy of `host` to `array`; do not change `host` until it is done."""
        self._check(array, host)
        self._copy(array.data.ptr, host.ctypes.data, host.nbytes, UP, stream)

    def for_mpi(self, array: Any) -> Any:
        """Return the array itself, since mpi4py can read its address on the GPU."""
        return array

    def narrow(self, values: Any, bits: Any, stream: Any) -> None:
        """Compute bits ← values rounded to bf16, on `stream`."""
        self._casts.narrow(stream, values, bits)

    def widen(self, bits: Any, values: Any, stream: Any) -> None:
        """Compute values ← the numbers of bf16 `bits`, exactly, on `stream`."""
        self._casts.widen(stream, bits, values)

    def add_bits(self, parts: Any, ranks: int, total: Any, stream: Any) -> None:
        """Compute total ← the sum of the parts of `ranks` ranks, in bf16 bits."""
        self._casts.add(stream, parts, ranks, total)

    @property
    def _casts(self) -> DeviceCasts:
        return DeviceCasts(self.kernels.arch, self.kernels.get)

    def _check(self, array: Any, host: Array) -> None:
        assert array.nbytes == host.nbytes and array.flags.c_contiguous

    def _copy(self, to: int, source: int, size: int, kind: str, stream: Any) -> None:
        runtime = self.cupy.cuda.runtime
        if size:
            runtime.memcpyAsync(to, source, size, getattr(runtime, kind), stream.ptr)


# Calls of cuBLAS without CuPy, whose own calls of it refuse to be part of a graph.
#
# Before each of them CuPy checks whether the stream is being recorded, and raises
# NotImplementedError if so; cuBLAS itself can be recorded. A workspace that is
# allocated beforehand keeps allocations out of graphs.

FP32, BF16 = 0, 14  # of cudaDataType
TURNED, AS_IT_IS = 1, 0  # of cublasOperation_t
COMPUTE_32F = 68
DEFAULT_TENSOR_OP = 99
ROOM = 32 * 2**20  # bytes, what NVIDIA names for Hopper
LOST = (1, 13, 14)  # not initialized any more, execution failed, internal error


def load(major: int) -> Any:
    """Return the cuBLAS library for CUDA `major`, which CuPy has already loaded."""
    return ctypes.CDLL(f"libcublas.so.{major}")


class Cublas:
    """A cuBLAS handle with a workspace, for the thread that creates it."""

    def __init__(self, layer: Any) -> None:
        cupy = layer.cupy
        self._place = layer.place
        try:
            handle = cupy.cuda.device.get_cublas_handle()  # loads it, too
            self._library = load(cupy.cuda.runtime.runtimeGetVersion() // 1000)
        except (ImportError, OSError) as missing:
            raise MissingPackage(
                f"CuPy finds no cuBLAS ({missing}); install CUDA, or use [products]"
                " gram_kernel = 'own'"
            ) from missing
        self._handle = ctypes.c_void_p(handle)
        self._room = layer.empty(ROOM, np.uint8)

    def multiply_bf16(self, out: Any, left: Any, right: Any, stream: Any) -> None:
        """Compute out ← left rightᵀ on a stream: bf16 bits in, fp32 sums out."""
        (m, inner), n = left.shape, right.shape[0]
        one = ctypes.c_float(1.0)
        zero = ctypes.c_float(0.0)
        # A new stream resets the workspace, so it is set again each time.
        self._call("cublasSetStream_v2", _pointer(stream.ptr))
        workspace = _pointer(self._room.data.ptr), ctypes.c_size_t(self._room.nbytes)
        self._call("cublasSetWorkspace_v2", *workspace)
        self._call(  # what is columns to cuBLAS is rows here
            "cublasGemmEx",
            ctypes.c_int(TURNED),
            ctypes.c_int(AS_IT_IS),
            *(ctypes.c_int(size) for size in (n, m, inner)),
            ctypes.byref(one),
            *_matrix(right, BF16),
            *_matrix(left, BF16),
            ctypes.byref(zero),
            *_matrix(out, FP32),
            ctypes.c_int(COMPUTE_32F),
            ctypes.c_int(DEFAULT_TENSOR_OP),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(self._handle, *arguments)
        if status in LOST:
            raise device_lost_error(self._place, f"{name} of cuBLAS: status {status}")
        if status:
            raise ConfigError(
                f"cuBLAS cannot multiply on the GPU {self._place} ({name}: status"
                f" {status}); use [products] gram_kernel = 'own'"
            )


def _pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(int(address))


def _matrix(array: Any, kind: int) -> tuple[Any, ...]:
    """Return the arguments of cuBLAS for a matrix: address, type, row stride.

    The stride is in elements; `kind` is the type as cudaDataType numbers it.
    """
    apart = array.strides[0] // array.dtype.itemsize
    return _pointer(array.data.ptr), ctypes.c_int(kind), ctypes.c_int(apart)

"""A GPU's arrays, streams and copies through CuPy; what transports ask of it.

CuPy is loaded when it is asked for and nowhere else, so all that uses this can be run
with a layer made of NumPy.
"""

import ctypes
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.device_casts import DeviceCasts
from hpcsgd.backends.device_faults import FULL, Faults, guarded, shown
from hpcsgd.backends.raw_kernels import RawKernels, no_folder
from hpcsgd.errors import ConfigError, MissingPackage

Array = NDArray[Any]
OLDEST = 12  # CUDA majors that wheels are named after
NEWEST = 13
DOWN, UP = "memcpyDeviceToHost", "memcpyHostToDevice"
NOT_READY = 600  # cudaErrorNotReady
NO_DEVICE = 100  # cudaErrorNoDevice
OLDEST_ARCH = {12: 70, 13: 75}  # CUDA -> the oldest GPU that it compiles for


def load_cupy() -> Any:
    """CuPy, once it is sure that it can work here."""
    driver = driver_major()
    if driver is None:
        raise ConfigError(
            "no NVIDIA driver is here (libcuda.so.1 does not load); run on a node with"
            " a GPU, or use --device cpu"
        )
    if driver < OLDEST:
        raise ConfigError(
            f"the NVIDIA driver here knows CUDA {driver} and CUDA {OLDEST} is the"
            " oldest that serves; update it to 525 or newer, or use --device cpu"
        )
    cupy = _import_cupy(driver)
    built = _built_for(cupy, driver)
    if built > driver:
        raise ConfigError(
            f"CuPy is made for CUDA {built} and the driver here knows CUDA {driver};"
            f" replace it with: pip uninstall cupy-cuda{built}x && {_install(driver)}"
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
    """The major version of CUDA that it is made for; its libraries load, too."""
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
    """CuPy is there, and a library that it needs is not."""
    lines = [line.strip() for line in str(error).splitlines()]
    why = next((line for line in reversed(lines) if ".so" in line), " ".join(lines))
    return MissingPackage(
        f"CuPy is installed and a library of CUDA that it needs is not ({why});"
        f' install them with: pip install "cupy-cuda{major}x[ctk]"'
    )


def driver_major() -> int | None:
    """The newest major version of CUDA that the driver knows; None without one."""
    version = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed or not version.value else version.value // 1000


def _install(driver: int) -> str:
    return f"pip install cupy-cuda{min(driver, NEWEST)}x"


def count_gpus() -> int:
    """Those that this process sees."""
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


def check_arch(arch: str, built: int) -> None:
    """Refuse a GPU that this CUDA, or our kernels, no longer know."""
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
    """One GPU, made the current one of the thread that opens it."""

    def __init__(self, number: int = 0, cupy: Any = None) -> None:
        self.cupy = cupy or load_cupy()
        try:
            self._device = self.cupy.cuda.Device(number)
            self._device.use()
            self.cupy.cuda.runtime.memGetInfo()  # opens it, not its first use
            self._place = self._look()
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise ConfigError(
                f"GPU {number} of {os.uname().nodename} cannot be opened ({error}); see"
                " with nvidia-smi whether it is well and no program holds it alone"
            ) from error
        self.faults = Faults(self.cupy, self._place)
        self._kernels: RawKernels | None = None

    @property
    def kernels(self) -> RawKernels:
        """Those that are compiled for it."""
        if self._kernels is None:
            arch = str(self._device.compute_capability)
            self._kernels = RawKernels(self.cupy, arch)
        return self._kernels

    @property
    def nccl(self) -> Any:
        """CuPy's module of NCCL."""
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
        """The node, the GPU's address on its bus, and which part of it."""
        return self._place  # looked up once: a GPU that is lost does not answer

    def _look(self) -> str:
        facts = self.cupy.cuda.runtime.getDeviceProperties(self._device.id)
        unit = bytes(facts.get("uuid", b"")).hex()  # slices of a GPU share its bus
        return f"{os.uname().nodename} {self._device.pci_bus_id} {unit}".rstrip()

    def owns(self, array: Any) -> bool:
        """Whether it is CuPy's."""
        return isinstance(array, self.cupy.ndarray)

    def empty(self, words: int, dtype: Any) -> Any:
        """An array of CuPy."""
        return self.cupy.empty(words, dtype=dtype)

    def pinned(self, words: int, dtype: Any) -> Array:
        """An array of NumPy in page-locked memory."""
        kind = np.dtype(dtype)
        size = max(words * kind.itemsize, 1)
        try:
            memory = self.cupy.cuda.alloc_pinned_memory(size)
        except (self.cupy.cuda.runtime.CUDARuntimeError, MemoryError) as error:
            if getattr(error, "status", FULL) != FULL:
                raise
            raise ConfigError(
                f"the host cannot page-lock {shown(size)} for the GPU {self.place}; put"
                " fewer ranks on a node, or raise ulimit -l"
            ) from error
        return np.frombuffer(memory, kind, words)

    def memory(self) -> tuple[int, int]:
        """(bytes that are free, bytes in all), after what nobody uses was let go."""
        self.cupy.get_default_memory_pool().free_all_blocks()
        free, total = self.cupy.cuda.runtime.memGetInfo()
        return int(free), int(total)

    def current_stream(self) -> Any:
        """CuPy's current stream of this thread."""
        return self.cupy.cuda.get_current_stream()

    def new_stream(self) -> Any:
        """One that the default stream does not wait for."""
        return self.cupy.cuda.Stream(non_blocking=True)

    def synchronize(self, stream: Any) -> None:
        """Wait for it."""
        stream.synchronize()

    def record(self, stream: Any) -> Any:
        """An event without a time."""
        event = self.cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        return event

    def hold_back(self, stream: Any, event: Any) -> None:
        """The GPU waits, not the host."""
        stream.wait_event(event)

    def is_done(self, event: Any) -> bool:
        """Whether it is."""
        status = self.cupy.cuda.runtime.eventQuery(event.ptr)
        if status not in (0, NOT_READY):
            event.synchronize()  # raises what has failed: it would never be done
        return bool(status == 0)

    def wait(self, event: Any) -> None:
        """Wait for it."""
        event.synchronize()

    def address(self, array: Any) -> int:
        """In the GPU's memory."""
        return int(array.data.ptr)

    def handle(self, stream: Any) -> int:
        """cudaStream_t as a number."""
        return int(stream.ptr)

    def to_host(self, array: Any, host: Array, stream: Any) -> None:
        """Queue the copy; `host` is read after the stream was waited for."""
        self._check(array, host)
        self._copy(host.ctypes.data, array.data.ptr, host.nbytes, DOWN, stream)

    def to_device(self, host: Array, array: Any, stream: Any) -> None:
        """Queue the copy; `host` is written again after the stream was waited for."""
        self._check(array, host)
        self._copy(array.data.ptr, host.ctypes.data, host.nbytes, UP, stream)

    def for_mpi(self, array: Any) -> Any:
        """Itself: mpi4py asks it for its address."""
        return array

    def narrow(self, values: Any, bits: Any, stream: Any) -> None:
        """bits ← values as bf16."""
        self._casts.narrow(stream, values, bits)

    def widen(self, bits: Any, values: Any, stream: Any) -> None:
        """values ← bits."""
        self._casts.widen(stream, bits, values)

    def add_bits(self, parts: Any, ranks: int, total: Any, stream: Any) -> None:
        """total ← Σ parts."""
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

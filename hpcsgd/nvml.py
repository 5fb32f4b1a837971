"""The energy that an NVIDIA GPU has used, as its driver's library counts it."""

import ctypes
from collections.abc import Callable
from typing import Any

LIBRARY = "libnvidia-ml.so.1"  # comes with the driver, not with a package


def gpu_counter(address: str, library: Any = None) -> Callable[[], int]:
    """A reader of millijoules since the driver was loaded, of the whole GPU.

    `address` is the GPU's on its bus; OSError says why there is no such counter.
    """
    nvml = library or open_library()
    _check(nvml, nvml.nvmlInit_v2(), "opened")
    handle = ctypes.c_void_p()
    found = nvml.nvmlDeviceGetHandleByPciBusId_v2(
        ctypes.c_char_p(address.encode()), ctypes.byref(handle)
    )
    _check(nvml, found, f"asked for the GPU {address}")

    def read() -> int:
        count = ctypes.c_ulonglong()
        code = nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(count))
        _check(nvml, code, f"asked for the energy of the GPU {address}")
        return int(count.value)

    read()
    return read


def open_library() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise OSError(f"{LIBRARY} cannot be loaded ({error})") from error


def _check(nvml: Any, code: int, what: str) -> None:
    if code:
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        said = nvml.nvmlErrorString(code)
        raise OSError(f"{LIBRARY} cannot be {what}: {(said or b'').decode()}")

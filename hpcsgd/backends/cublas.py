"""cuBLAS as it is: CuPy's own calls of it refuse to be part of a graph.

Before each of them CuPy asks whether the stream is being recorded, and raises
NotImplementedError if so; cuBLAS itself can be recorded. Room of its own, taken
beforehand, keeps allocations out of graphs.
"""

import ctypes
from typing import Any

import numpy as np

from hpcsgd.backends.device_faults import lost
from hpcsgd.errors import ConfigError, MissingPackage

FP32, BF16 = 0, 14  # of cudaDataType
TURNED, AS_IT_IS = 1, 0  # of cublasOperation_t
COMPUTE_32F, DEFAULT_TENSOR_OP = 68, 99
ROOM = 32 * 2**20  # bytes, what NVIDIA names for Hopper
LOST = (1, 13, 14)  # not initialized any more, execution failed, internal error


def load(major: int) -> Any:
    """The library that CuPy has loaded, by the name that the loader knows it under."""
    return ctypes.CDLL(f"libcublas.so.{major}")


class Cublas:
    """One handle, and its room; both for the thread that makes this."""

    def __init__(self, layer: Any) -> None:
        cupy, self._place = layer.cupy, layer.place
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
        """out ← left rightᵀ on a stream: bits of bf16, sums in fp32."""
        (m, inner), n = left.shape, right.shape[0]
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        # Another stream takes the room away: it is given anew each time.
        self._call("cublasSetStream_v2", _pointer(stream.ptr))
        room = _pointer(self._room.data.ptr), ctypes.c_size_t(self._room.nbytes)
        self._call("cublasSetWorkspace_v2", *room)
        self._call(  # what is columns to cuBLAS is rows here
            *("cublasGemmEx", ctypes.c_int(TURNED), ctypes.c_int(AS_IT_IS)),
            *(ctypes.c_int(size) for size in (n, m, inner)),
            *(ctypes.byref(one), *_matrix(right, BF16), *_matrix(left, BF16)),
            *(ctypes.byref(zero), *_matrix(out, FP32)),
            *(ctypes.c_int(COMPUTE_32F), ctypes.c_int(DEFAULT_TENSOR_OP)),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(self._handle, *arguments)
        if status in LOST:
            raise lost(self._place, f"{name} of cuBLAS: status {status}")
        if status:
            raise ConfigError(
                f"cuBLAS cannot multiply on the GPU {self._place} ({name}: status"
                f" {status}); use [products] gram_kernel = 'own'"
            )


def _pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(int(address))


def _matrix(array: Any, kind: int) -> tuple[Any, ...]:
    """Where it is, of what, and elements from one row to the next."""
    apart = array.strides[0] // array.dtype.itemsize
    return _pointer(array.data.ptr), ctypes.c_int(kind), ctypes.c_int(apart)

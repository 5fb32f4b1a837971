"""A GPU through CuPy: memory, copies and launches of one rank, on one stream."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd import assets
from hpcsgd.backends.device_layer import DeviceLayer
from hpcsgd.backends.kernel_table import FOLDER, Build, options
from hpcsgd.backends.launch_steps import PLAIN_SHARED
from hpcsgd.errors import ConfigError

Array = NDArray[Any]


class CudaDevice:
    """See `hpcsgd.backends.device.Device`."""

    def __init__(self, number: int = 0) -> None:
        self.layer = DeviceLayer(number)
        self.is_shared = False
        self.cupy = self.layer.cupy
        self.device = self.cupy.cuda.Device(number)
        self.stream = self.layer.new_stream()
        self.settle: Callable[[], None] = self.wait
        self.arch = str(self.device.compute_capability)
        self.multiprocessors = int(self.device.attributes["MultiProcessorCount"])
        self.cache = int(self.device.attributes["L2CacheSize"])
        self._kernels: dict[Build, Callable[..., None]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A device array; what is in it is not known."""
        return self._room(shape, dtype, self.cupy.empty)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A device array of zeros."""
        with self.stream:
            return self._room(shape, dtype, self.cupy.zeros)

    def _room(self, shape: tuple[int, ...], dtype: Any, make: Any) -> Any:
        try:
            return make(shape, dtype=dtype)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize / 2**30
            raise ConfigError(
                f"the GPU has no room for {size:.2f} GiB more; use more members,"
                " --precision c, or fewer --steps"
            ) from error

    def fill(self, array: Any, values: Array) -> None:
        """array ← values of the host, of its shape; they may change at once."""
        # What CuPy copies from pageable memory it has read when it returns.
        with self.stream:
            array.set(np.ascontiguousarray(values))

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
            self._kernels[build] = self._launcher(build)
        return self._kernels[build]

    def _launcher(self, build: Build) -> Callable[..., None]:
        folder = assets.path(f"kernels/{FOLDER}")
        text = (folder / f"{build.source}.cu").read_text()
        module = self.cupy.RawModule(code=text, options=options(build, str(folder)))
        function = module.get_function(build.entry)

        def launch(
            grid: Any, block: int, arguments: Any, shared: int = 0, cluster: int = 1
        ) -> None:
            if shared > max(PLAIN_SHARED, function.max_dynamic_shared_size_bytes):
                function.max_dynamic_shared_size_bytes = shared
            given = tuple(np.uint64(0) if a is None else a for a in arguments)
            with self.stream:
                function(_three(grid), (block, 1, 1), given, shared_mem=shared)

        return launch

    def capture(self, action: Callable[[], None]) -> Callable[[], None]:
        """A graph of the launches of `action`."""
        with self.stream:
            self.stream.begin_capture()
            try:
                action()
            finally:
                graph = self.stream.end_capture()

        def replay() -> None:
            graph.launch(stream=self.stream)

        return replay

    def wait(self) -> None:
        """For the stream alone, whatever becomes of collectives."""
        self.stream.synchronize()

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""
        self.settle()


def _three(size: Any) -> tuple[int, int, int]:
    parts = (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*parts, 1, 1)[:3]
    return int(x), int(y), int(z)


@lru_cache
def device_of_rank(number: int) -> CudaDevice:
    """One for each GPU that this process uses."""
    return CudaDevice(number)

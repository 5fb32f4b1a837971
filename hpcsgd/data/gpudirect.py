"""Blocks of a store read into the caller's array by kvikio (GPUDirect Storage).

The drive writes directly to an array on a GPU if the system supports it; otherwise
kvikio copies through host memory. NumPy arrays can be filled too. Elements (or their
bits) are read as the file stores them and are not compared with checksums. No other
module imports kvikio.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.data.hdf5 import check_finished, open_hdf5, shape_of
from hpcsgd.data.preads import is_plain, places_of
from hpcsgd.errors import ConfigError, DataError, MissingPackage
from hpcsgd.formats import Array


def need_kvikio() -> Any:
    """Import and return kvikio; raise MissingPackage, with a remedy, without it."""
    try:
        import kvikio
    except (ImportError, OSError) as missing:  # OSError: a library of CUDA is missing
        raise MissingPackage(
            f"GPUDirect Storage needs kvikio ({missing}); install it with:"
            " pip install kvikio-cu12, or kvikio-cu13 for CUDA 13"
        ) from missing
    return kvikio


def has_gds() -> bool:
    """Return whether GPUDirect Storage is available.

    Without it, kvikio reads through host memory.
    """
    try:
        driver = need_kvikio().cufile_driver
        if hasattr(driver, "get"):
            return bool(driver.get("is_gds_available"))
        return bool(driver.DriverProperties().is_gds_available)
    except (MissingPackage, RuntimeError, AttributeError, OSError):
        return False


class DirectReader:
    """A reader of a dense /X without filters, which bypasses HDF5.

    Parameters
    ----------
    path : a store, or any HDF5 file with such a matrix
    synchronize : waits until the kernels that use the arrays to be filled have ended,
        for example a backend's `synchronize`; arrays in host memory need none
    """

    def __init__(
        self, path: str | Path, synchronize: Callable[[], None] = lambda: None
    ) -> None:
        kvikio = need_kvikio()
        self.path = Path(path)
        self.synchronize = synchronize
        with open_hdf5(self.path) as file:
            check_finished(self.path, file)
            self.shape = shape_of(self.path, file)
            self.dtype, self.tile, self.offsets = _where(self.path, file["X"])
        self._file = self._asked(kvikio.CuFile, str(self.path), "r")

    def read_into(self, out: Any, rows: slice, cols: slice) -> None:
        """Fill `out` with a block of rows and columns, as the file stores it.

        `out` is an array of NumPy or CuPy, C-contiguous, of the shape of the block and
        of this reader's `dtype`. The columns of exactly one tile, or whole rows of a
        contiguous matrix, are read directly into `out`; other blocks through a buffer
        of the same library.
        """
        self._check(out, rows, cols)
        if rows.start == rows.stop:
            return
        height = self.tile[0]
        for i in range(rows.start // height, -(-rows.stop // height)):
            first = max(rows.start, i * height)
            last = min(rows.stop, (i + 1) * height)
            part = out[first - rows.start : last - rows.start]
            self._fill(part, i, first - i * height, cols)

    def reads_in_place(self, cols: slice) -> bool:
        """Return whether a block of these columns is read without a buffer.

        It is if they are the columns of exactly one tile.
        """
        width = self.tile[1]
        return bool(cols.start % width == 0 and cols.stop - cols.start == width)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _fill(self, part: Any, i: int, skipped: int, cols: slice) -> None:
        """Fill `part` with rows of the tiles in tile row `i`.

        The first row of `part` is row `skipped` of these tiles.
        """
        width = self.tile[1]
        tiles = range(cols.start // width, -(-cols.stop // width))
        in_place = self.reads_in_place(cols)
        size = len(part) * width * self.dtype.itemsize
        buffers = part[None]
        if not in_place:
            buffers = np.empty_like(part, shape=(len(tiles), len(part), width))
        self.synchronize()  # kernels may still use this memory
        begin = skipped * width * self.dtype.itemsize
        self._read(buffers, size, [int(self.offsets[i, j]) + begin for j in tiles])
        if in_place:
            return
        for buffer, j in zip(buffers, tiles, strict=True):
            near = max(cols.start, j * width)
            far = min(cols.stop, (j + 1) * width)
            target_columns = slice(near - cols.start, far - cols.start)
            part[:, target_columns] = buffer[:, near - j * width : far - j * width]

    def _read(self, buffers: Any, size: int, offsets: list[int]) -> None:
        pairs = zip(buffers, offsets, strict=True)
        pread = self._file.pread
        started = [self._asked(pread, buffer, size, at) for buffer, at in pairs]
        for future, at in zip(started, offsets, strict=True):
            if self._asked(future.get) != size:
                raise self._cut(f"it ends within the {size} bytes from byte {at}")

    def _asked(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of kvikio and return its result.

        Raise DataError if the call fails.
        """
        try:
            return call(*arguments)
        except (RuntimeError, OSError) as error:
            raise self._cut(str(error)) from error

    def _cut(self, why: str) -> DataError:
        return DataError(
            f"{self.path} cannot be read by kvikio ({why}); check that the file is"
            " whole and that a CUDA driver is there, or read it through HDF5"
        )

    def _check(self, out: Any, rows: slice, cols: slice) -> None:
        inside = 0 <= rows.start <= rows.stop <= self.shape[0]
        if not inside or not 0 <= cols.start < cols.stop <= self.shape[1]:
            raise ConfigError(
                f"rows {rows} and columns {cols} are not a block of /X of shape"
                f" {self.shape}; give ranges inside it"
            )
        shape = (rows.stop - rows.start, cols.stop - cols.start)
        if out.shape != shape or out.dtype != self.dtype:
            raise ConfigError(
                f"the array to read into has shape {out.shape} and dtype {out.dtype};"
                f" give one of shape {shape} and dtype {self.dtype}"
            )
        if not out.flags.c_contiguous:
            raise ConfigError("the array to read into must be C-contiguous; copy it")


def _where(path: Path, dataset: Any) -> tuple[Any, tuple[int, int], Array]:
    """Return the dtype, the shape of a tile, and the byte offsets of all tiles.

    Raise DataError if /X cannot be read without HDF5.
    """
    if not hasattr(dataset, "chunks") or not is_plain(dataset):
        raise DataError(
            f"{path}: /X cannot be read directly, because it is sparse, compressed,"
            " virtual, boolean, in other files or not in native byte order; convert it"
            " to a dense store"
        )
    try:
        return dataset.dtype, *places_of(dataset)
    except LookupError as error:
        raise DataError(
            f"{path}: /X cannot be read directly ({error}); write the file again"
        ) from error

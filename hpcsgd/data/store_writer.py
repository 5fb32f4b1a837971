"""Writes a store row by row; the file takes its name only when it is complete."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.encoding import StoredRows, encode_rows
from hpcsgd.data.layout import COLUMNS, Layout
from hpcsgd.data.part_file import open_part
from hpcsgd.data.preparation import MEANS, NAMES, SCALES
from hpcsgd.data.store_blocks import CsrBlocks, DenseBlocks, Held, make_blocks
from hpcsgd.errors import ConfigError, DataError, MissingPackage

Array = NDArray[Any]


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as missing:
        raise MissingPackage(
            "HDF5 files need h5py; install it with: pip install h5py"
        ) from missing
    return h5py


class StoreWriter:
    """Appends blocks of rows to a hidden `.part` file beside the one it will be.

    Parameters
    ----------
    path : where the complete file will stand
    cols : columns of X
    rows : how many there will be, where that is known: checked at the end
    element : fp64, fp32, fp16, bf16, fp8-e4m3 or fp8-e5m2
    scale : stored elements are values / scale
    is_sparse : True keeps X as CSR
    columns : of y, sample_weight, offset and qid, those that every `append` brings
    attributes : kept with the file, such as task, classes and source
    means, scales : (cols,) of standardised columns, as they were before
    names : of the columns, where they have any
    """

    layout: Layout
    held: Held
    done: int  # rows appended
    position: int  # where the source goes on after them
    max_norm: float  # of the rows as they were given

    def __init__(
        self,
        path: str | Path,
        cols: int,
        *,
        rows: int | None = None,
        element: str = "fp32",
        scale: float = 1.0,
        is_sparse: bool = False,
        columns: tuple[str, ...] = ("y",),
        attributes: dict[str, Any] | None = None,
        means: Array | None = None,
        scales: Array | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.path, self.rows = Path(path), rows
        self.layout = Layout(cols, element, scale, is_sparse)
        self.done = self.position = 0
        self.max_norm = 0.0
        self.held = Held(is_sparse)
        if self.path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a folder; name a file")
        if set(columns) - set(COLUMNS):
            raise ConfigError(f"columns are of {', '.join(COLUMNS)}, not {columns}")
        self._check_room(len(columns))
        self.raw = open_part(self.path)
        self.file: Any = None
        try:
            self.file = _h5py().File(self.raw, "w", libver=("v108", "v108"))
            self._lay_out(columns, attributes or {}, means, scales, names)
        except OSError as error:
            self.abandon()
            raise self._unwritten(error) from error
        except BaseException:
            self.abandon()
            raise

    def append(
        self,
        X: Any,
        y: Array | None = None,
        sample_weight: Array | None = None,
        offset: Array | None = None,
        position: int | None = None,
        qid: Array | None = None,
    ) -> None:
        """The next rows; `position` is where the source goes on after them."""
        given = zip(COLUMNS, (y, sample_weight, offset, qid), strict=True)
        columns = {name: column for name, column in given if column is not None}
        self._check_fit(X.shape, columns)
        self._take(encode_rows(self.layout, X, columns, self.done, self.path), position)

    def append_stored(self, rows: StoredRows, position: int) -> None:
        """The next rows, encoded for this store by whoever read them."""
        width = rows.matrix.shape[1:] or (self.layout.cols,)
        self._check_fit((len(rows), *width), rows.columns)
        self._take(rows, position)

    def _take(self, rows: StoredRows, position: int | None) -> None:
        self.max_norm = max(self.max_norm, rows.largest)
        self.held.add(rows.matrix, rows.columns)
        self.done += len(rows)
        self.position = self.done if position is None else position
        try:
            while len(self.held) >= self.layout.block_rows:
                self.blocks.write(self.held.cut(self.layout.block_rows))
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unwritten(error) from error
        if self.raw.error is not None:
            raise self._unwritten(self.raw.error)

    def finish(self) -> None:
        """Give the complete file its name; an incomplete one is not kept."""
        if self.done == 0 or self.done != (self.rows or self.done):
            self.abandon()
            raise DataError(
                f"{self.path}: {self.done} of {self.rows or 'some'} rows were written;"
                " append all of them, or ask for fewer"
            )
        try:
            if len(self.held):
                self.blocks.write(self.held.all())
            self.file.attrs["shape"] = (self.done, self.layout.cols)
            self.file.attrs["position"] = self.position
            self.file.attrs["max_row_norm"] = self.max_norm
            self.file.attrs["finished"] = True
            self.file.close()
            self.raw.publish()
        except (OSError, RuntimeError, ValueError) as error:
            self.abandon()
            raise self._unwritten(error) from error

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._close()
        self.raw.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abandon()

    def _lay_out(
        self,
        columns: tuple[str, ...],
        attributes: dict[str, Any],
        means: Array | None,
        scales: Array | None,
        names: Sequence[str] | None,
    ) -> None:
        self.columns = tuple(name for name in COLUMNS if name in columns)
        self.file.attrs.update(attributes)
        self.file.attrs.update(self.layout.attributes(), finished=False)
        for name, values in ((MEANS, means), (SCALES, scales)):
            if values is not None:
                kept = np.asarray(values, "<f8").reshape(self.layout.cols)
                self.file.create_dataset(name, data=kept)
        if names is not None:
            text = _h5py().string_dtype()
            self.file.create_dataset(NAMES, data=list(names), dtype=text)
        self.blocks: DenseBlocks | CsrBlocks = make_blocks(
            self.file, self.layout, self.columns
        )

    def _check_fit(self, shape: tuple[int, ...], columns: dict[str, Array]) -> None:
        stop = self.done + shape[0]
        lengths = {name: len(column) for name, column in columns.items()}
        wanted = dict.fromkeys(self.columns, shape[0])
        too_many = self.rows is not None and stop > self.rows
        if too_many or shape[1:] != (self.layout.cols,) or lengths != wanted:
            raise DataError(
                f"{self.path}: rows {self.done} to {stop} of shape {shape} do not fit"
                f" a file of {self.rows or 'any'} x {self.layout.cols} with"
                f" {', '.join(self.columns) or 'no y'}; give the sizes of the data"
            )

    def _check_room(self, columns: int) -> None:
        """Say at once what cannot end well; a sparse matrix cannot tell its size."""
        if not self.path.parent.is_dir() or self.rows is None:
            return
        width = 0 if self.layout.is_sparse else self.layout.cols
        need = self.rows * (self.layout.stored.itemsize * width + 8 * columns)
        free = shutil.disk_usage(self.path.parent).free
        if need > free:
            raise ConfigError(
                f"cannot write {self.path}: it needs {need / 2**30:.3g} GiB and its"
                f" folder has {free / 2**30:.3g} GiB free; use fewer rows or another"
                " folder"
            )

    def _close(self) -> None:
        with suppress(OSError, RuntimeError, ValueError):
            if self.file is not None:
                self.file.close()

    def _unwritten(self, error: Exception) -> DataError:
        cause = self.raw.error or error
        number = getattr(cause, "errno", None)
        reason = os.strerror(number) if number else str(cause).split("(")[0].strip()
        return DataError(
            f"{self.path} cannot be written ({reason}); make room or choose"
            " another folder"
        )

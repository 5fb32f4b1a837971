"""The members of a .npz as streams, and the CSR matrix that SciPy keeps in one."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hpcsgd.data.arrays import real
from hpcsgd.data.hdf5_open import check_file
from hpcsgd.data.source import Outline
from hpcsgd.data.streams import ArrayStream
from hpcsgd.errors import DataError

Array = NDArray[Any]
POINTERS = 65536  # row pointers of a sparse file that are held at once


class Archive:
    """The members of a .npz, each opened as a stream of its own."""

    def __init__(self, path: Path) -> None:
        check_file(path, "a .npz file")
        self.path, self.streams = path, list[ArrayStream]()
        try:
            self.zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{path} is no .npz file (truncated, or another format); write it"
                " with numpy.savez"
            ) from error
        self.names = {name.removesuffix(".npy") for name in self.zip.namelist()}

    def open(self, name: str) -> ArrayStream:
        """The member called `name`."""
        if name not in self.names:
            raise DataError(
                f"{self.path} has no {name}; it holds {sorted(self.names)}, and either"
                " X (and y) or what scipy.sparse.save_npz writes is needed"
            )
        stream = ArrayStream(self.zip.open(f"{name}.npy"), f"{self.path}: {name}")
        self.streams.append(stream)
        return stream

    def text(self, name: str) -> str:
        """A short text, which SciPy stores as an array of bytes."""
        with self.zip.open(f"{name}.npy") as file:
            value = np.lib.format.read_array(file, allow_pickle=False)
        return value.tobytes().replace(b"\0", b"").decode(errors="replace")

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *raised: object) -> None:
        for stream in self.streams:
            stream.close()
        self.zip.close()


def sparse_shape(archive: Archive) -> tuple[int, int]:
    """Rows and columns of a sparse matrix that is stored by rows."""
    found = archive.text("format")
    if found != "csr":
        raise DataError(
            f"{archive.path} is sparse in format {found}; save its .tocsr() instead"
        )
    rows, cols = archive.open("shape").take(2).tolist()
    counts = [len(archive.open(name)) for name in ("indptr", "data", "indices")]
    if counts[0] != rows + 1 or counts[1] != counts[2] or min(rows, cols) < 1:
        raise DataError(
            f"{archive.path}: its row pointers, columns and values do not fit its"
            f" shape {rows} x {cols}; write it again with scipy.sparse.save_npz"
        )
    return int(rows), int(cols)


def pointer_pieces(
    archive: Archive, outline: Outline, start: int
) -> Iterator[tuple[int, Array]]:
    """(first row, its pointers and those of the rows after it, and one more)."""
    stream = archive.open("indptr")
    for row in range(start, outline.rows, POINTERS):
        stream.seek(row)
        count = min(POINTERS, outline.rows - row)
        pointers = stream.take(count + 1).astype(np.int64)
        if (np.diff(pointers) < 0).any() or pointers[-1] > (outline.nnz or 0):
            raise DataError(
                f"{archive.path}: row pointers after row {row} are out of order;"
                " write it again with scipy.sparse.save_npz"
            )
        yield row, pointers


def csr_blocks(
    path: Path,
    outline: Outline,
    pointers: Array,
    data: ArrayStream,
    indices: ArrayStream,
    most: int,
) -> Iterator[Any]:
    """Rows of at most about `most` stored values at a time."""
    first = 0
    while first < len(pointers) - 1:
        fits = np.searchsorted(pointers, pointers[first] + most, side="right") - 1
        last = max(int(fits), first + 1)
        count = int(pointers[last] - pointers[first])
        columns = indices.take(count)
        if count and not 0 <= columns.min() <= columns.max() < outline.cols:
            raise DataError(
                f"{path}: a stored value lies outside its {outline.cols} columns;"
                " write it again with scipy.sparse.save_npz"
            )
        block = csr_array(
            (
                real(data.take(count)),
                columns,
                pointers[first : last + 1] - pointers[first],
            ),
            shape=(last - first, outline.cols),
        )
        if not block.has_canonical_format:
            block = block.copy()  # what was read cannot be written to
            block.sum_duplicates()
        yield block
        first = last

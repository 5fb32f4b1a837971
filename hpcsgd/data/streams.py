"""NumPy arrays read in pieces: .npy files and the members of .npz files."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.hdf5_open import check_file
from hpcsgd.errors import DataError

Array = NDArray[Any]
REAL = "fiub"  # kinds of elements that are real numbers
TEXT_PIECE = 65536  # labels of a text file that are held as Python objects


class ArrayStream:
    """One array, row by row from an open file; nothing in it is ever unpickled."""

    def __init__(self, file: IO[bytes], said: str) -> None:
        self.file, self.said = file, said
        try:
            self.shape, self.fortran, self.dtype = _header(file)
        except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{said} is no NumPy array; write it with numpy.save or numpy.savez"
            ) from error
        if self.dtype.kind not in REAL:
            raise DataError(
                f"{said} has elements of type {self.dtype}; give real numbers"
            )
        if self.fortran and len(self.shape) > 1 and 1 not in self.shape:
            raise DataError(
                f"{said} is stored by columns and rows are needed; write"
                " numpy.ascontiguousarray of it"
            )
        self.begin = file.tell()
        self.width = int(np.prod(self.shape[1:], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.shape[0])

    def seek(self, row: int) -> None:
        """The next `take` begins at this row."""
        self.file.seek(self.begin + row * self.width * self.dtype.itemsize)

    def take(self, rows: int) -> Array:
        """The next rows."""
        count = rows * self.width
        need = count * self.dtype.itemsize
        try:
            content = self.file.read(need)
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise self._damaged(f"({error})") from error
        if len(content) < need:
            raise self._damaged("(it ends too early)")
        return np.frombuffer(content, self.dtype, count).reshape(rows, *self.shape[1:])

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()

    def _damaged(self, why: str) -> DataError:
        return DataError(f"{self.said} is damaged {why}; write or copy it again")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and elements, as the header of any version says."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def open_file(path: Path, what: str) -> IO[bytes]:
    """The file, for reading."""
    check_file(path, what)
    try:
        return open(path, "rb")
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); change its permissions"
        ) from error


def open_array(path: Path) -> ArrayStream:
    """A .npy file."""
    return ArrayStream(open_file(path, "a .npy file"), str(path))


def label_pieces(path: Path, start: int, rows: int) -> Iterator[Array]:
    """Labels from row `start` on: of a .npy vector, or of a text of one a line."""
    if path.suffix.lower() == ".npy":
        yield from _array_pieces(path, start, rows)
        return
    with open_file(path, "a file of labels") as file:
        piece: list[bytes] = []
        for number, line in enumerate(file):
            if number >= start:
                piece.append(line)
            if len(piece) == TEXT_PIECE:
                yield _numbers(path, piece, number + 1)
                piece = []
        if any(line.strip() for line in piece):
            yield _numbers(path, piece, number + 1)


def _array_pieces(path: Path, start: int, rows: int) -> Iterator[Array]:
    stream = open_array(path)
    try:
        check_labels(stream.shape, rows, str(path))
        stream.seek(start)
        for row in range(start, rows, TEXT_PIECE):
            taken = stream.take(min(TEXT_PIECE, rows - row))
            yield taken.astype(np.float64).reshape(-1)
    finally:
        stream.close()


def check_labels(shape: tuple[int, ...] | None, rows: int, said: str) -> None:
    """Refuse labels that are not one for each row; `shape` is None of an empty set."""
    if shape not in ((rows,), (rows, 1)):
        raise DataError(
            f"{said} has shape {shape} and X has {rows} rows; give one label"
            " for each row"
        )


def _numbers(path: Path, lines: list[bytes], stop: int) -> Array:
    """Lines as numbers; the first that is none is named."""
    values = np.empty(len(lines))
    for place, line in enumerate(lines):
        try:
            values[place] = float(line)
        except ValueError as error:
            raise DataError(
                f"{path}, line {stop - len(lines) + place + 1}: {line.strip()[:40]!r}"
                " is no number; write one label a line"
            ) from error
    return values


class Labels:
    """The labels that belong to consecutive rows, as many at a time as are asked."""

    def __init__(self, path: Path, start: int, rows: int) -> None:
        self.path, self.rows = path, rows
        self.pieces = label_pieces(path, start, rows)
        self.held, self.at = np.empty(0), start

    def take(self, count: int) -> Array:
        """The labels of the next `count` rows."""
        parts = [self.held]
        while sum(map(len, parts)) < count:
            parts.append(self._next())
        self.held = np.concatenate(parts)
        taken, self.held = self.held[:count], self.held[count:]
        self.at += count
        if self.at == self.rows and (len(self.held) or any(map(len, self.pieces))):
            raise self._uneven("more")
        return taken

    def _next(self) -> Array:
        piece = next(self.pieces, None)
        if piece is None:
            raise self._uneven("fewer")
        return piece

    def _uneven(self, how: str) -> DataError:
        return DataError(
            f"{self.path} has {how} labels than the {self.rows} rows of X; give one"
            " label for each row"
        )

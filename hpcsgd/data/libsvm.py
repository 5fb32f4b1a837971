"""LIBSVM text as a source of sparse rows."""

from collections.abc import Callable, Iterator
from pathlib import Path

import scipy.sparse

from hpcsgd.data import parse_native
from hpcsgd.data.compressed import Stamp, stamp_of
from hpcsgd.data.faults import Fault
from hpcsgd.data.parse_python import Pairs
from hpcsgd.data.source import Outline, Rows
from hpcsgd.data.text import LARGEST_PIECE, located, pieces
from hpcsgd.errors import ConfigError, DataError

BYTES_HELD = 12  # at most, beside and in the arrays, for each byte of usual text


class LibsvmSource:
    """Rows of a LIBSVM file, plain or compressed; `X` is a csr_array of float64."""

    def __init__(self, path: str | Path, index_base: str | int = "auto") -> None:
        self.path = Path(path)
        self.stamp: Stamp | None = None  # of the file that `outline` saw
        if str(index_base) not in ("auto", "0", "1"):
            raise ConfigError(f"index_base {index_base!r}: known: auto, 0, 1")
        self.index_base = str(index_base)

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """Checks every line and counts; an index 0 anywhere means columns from 0."""
        rows = nnz = end = 0
        lowest, highest = 1, -1
        base = 1 if self.index_base == "1" else 0
        self.stamp = stamp_of(self.path)
        for position, text, end in pieces(self.path, LARGEST_PIECE // 8):
            found = self._parse(position, text, base, keep=False)
            rows, nnz = rows + found.rows, nnz + found.count
            highest = max(highest, found.highest)
            lowest = min(lowest, found.lowest) if found.count else lowest
            progress(end)
        if self.index_base == "auto":
            base = min(lowest, 1)
        if not rows or highest < base:
            what = "no rows" if not rows else "no features"
            raise DataError(f"{self.path} holds {what}; give a file of labelled rows")
        return Outline(rows, highest - base + 1, nnz, True, end, index_base=base)

    def blocks(
        self, outline: Outline, budget: int, start: int = 0, stop: int | None = None
    ) -> Iterator[Rows]:
        """Rows of the lines that begin in start..stop."""
        _refuse_changed(self.path, self.stamp)
        for position, text, end in pieces(self.path, budget // BYTES_HELD, start, stop):
            found = self._parse(position, text, outline.index_base, keep=True)
            if found.highest - outline.index_base >= outline.cols:
                raise DataError(f"{self.path} changed since it was counted; start anew")
            matrix = scipy.sparse.csr_array(
                (found.values, found.indices, found.starts),
                shape=(found.rows, outline.cols),
            )
            yield Rows(matrix, found.labels, end)

    def _parse(self, position: int, text: bytes, base: int, keep: bool) -> Pairs:
        try:
            return parse_native.parse_libsvm(text, base, keep)
        except Fault as fault:
            raise located(self.path, position, text, fault) from None


def _refuse_changed(path: Path, stamp: Stamp | None) -> None:
    if stamp is not None and stamp != stamp_of(path):
        raise DataError(f"{path} changed since it was counted; start anew")

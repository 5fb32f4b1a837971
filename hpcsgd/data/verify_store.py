"""Every byte of a store against its checksums."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcsgd.data.hdf5 import Hdf5Reader
from hpcsgd.data.layout import COLUMNS
from hpcsgd.errors import DataError


@dataclass(frozen=True)
class StoreCheck:
    """What was found; a file that could be read but has no checksums is not `checked`.

    Attributes
    ----------
    path : the file
    rows, cols : of X
    blocks : blocks of rows that were gone through
    checked : False where the file has no checksums and was only read
    faults : one sentence for each block that is damaged, naming its rows
    """

    path: Path
    rows: int
    cols: int
    blocks: int
    checked: bool
    faults: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """True where nothing is wrong; see also `checked`."""
        return not self.faults


def verify_store(
    path: str | Path, progress: Callable[[int, int], None] | None = None
) -> StoreCheck:
    """Read a file whole; `progress` hears (rows read, rows in all).

    What cannot be opened (truncated, unfinished, of a newer format) raises DataError.
    """
    reader = Hdf5Reader(path)
    faults: list[str] = []
    step = reader.block_rows if reader.checks else max(2**20 // reader.cols, 1)
    try:
        for start in range(0, reader.rows, step):
            rows = slice(start, min(start + step, reader.rows))
            faults += _faults(reader, rows)
            if progress is not None:
                progress(rows.stop, reader.rows)
        blocks = -(-reader.rows // step)
        size = (reader.rows, reader.cols)
        return StoreCheck(Path(path), *size, blocks, reader.checks, tuple(faults))
    finally:
        reader.close()


def _faults(reader: Hdf5Reader, rows: slice) -> list[str]:
    """The faults of one block of rows: tile by tile, then what belongs to its rows."""
    found: list[str] = []
    for cols in _tiles(reader):
        found += _fault(partial(_read, reader, rows, cols))
    readers = (reader.targets, reader.sample_weight, reader.offset, reader.queries)
    for name, read in zip(COLUMNS, readers, strict=True):
        if name in reader.file:
            found += _fault(partial(read, rows))
    return found


def _tiles(reader: Hdf5Reader) -> list[slice]:
    width = reader.cols
    if reader.checks and not reader.is_sparse and reader.layout is not None:
        width = reader.layout.tile_cols
    starts = range(0, reader.cols, width)
    return [slice(at, min(at + width, reader.cols)) for at in starts]


def _read(reader: Hdf5Reader, rows: slice, cols: slice) -> None:
    if reader.is_sparse:
        reader.read_csr(rows, cols)
    else:
        reader.read_stored(rows, cols)


def _fault(read: Callable[[], object]) -> list[str]:
    try:
        read()
    except DataError as error:
        return [str(error)]
    return []

"""Data that grow with the ranks: the first rows of a file, as a file."""

import logging
from pathlib import Path
from typing import Any

from hpcsgd.data.layout import COLUMNS
from hpcsgd.data.readers import (
    CHUNK_BYTES,
    RowReader,
    is_sparse,
    names_of,
    open_reader,
    preparation_of,
    row_words,
)
from hpcsgd.data.store_writer import StoreWriter
from hpcsgd.errors import DataError
from hpcsgd.files import check_entry, own_folder

log = logging.getLogger(__name__)


def rows_in(path: str) -> int:
    """How many rows a file has; refused in a sentence where it cannot be read."""
    reader = open_reader(Path(path))
    try:
        return reader.rows
    finally:
        reader.close()


def first_rows(source: Path, folder: Path, count: int) -> Path:
    """The file of the first `count` rows of `source`, made where it is missing."""
    path = folder / f"{source.stem}-{count}.h5"
    try:
        own_folder(folder.parent, folder.name, make=True)
        check_entry(path)
    except FileNotFoundError:
        log.info("writing the first %d rows of %s", count, source.name)
        reader = open_reader(source)
        try:
            _copy(reader, path, count)
        finally:
            reader.close()
    except OSError as error:
        raise DataError(
            f"{error.filename} cannot be used ({error.strerror}); remove that entry,"
            " then go on with --resume"
        ) from error
    return path


def _copy(reader: RowReader, path: Path, count: int) -> None:
    """Row by row as they are stored; the file appears whole or not at all."""
    read = reader.read_csr if is_sparse(reader) else reader.read
    nothing = slice(0, 1)
    given = {
        "y": reader.targets,
        "sample_weight": reader.sample_weight,
        "offset": reader.offset,
    }
    names = [n for n in COLUMNS if n in given and given[n](nothing) is not None]
    scales = preparation_of(reader).scales
    wide = read(nothing, slice(0, reader.cols)).dtype.itemsize > 4
    step = max(CHUNK_BYTES // (8 * row_words(reader)), 1)
    with StoreWriter(
        path,
        reader.cols,
        rows=count,
        element="fp64" if wide else "fp32",
        is_sparse=is_sparse(reader),
        columns=tuple(names),
        attributes={"unit_rows": preparation_of(reader).unit_rows},
        means=None if scales is None else scales.mean,
        scales=None if scales is None else scales.scale,
        names=names_of(reader),
    ) as writer:
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            columns: dict[str, Any] = {name: given[name](rows) for name in names}
            writer.append(read(rows, slice(0, reader.cols)), **columns)

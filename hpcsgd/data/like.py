"""A file that others are converted like: its columns, their scales, its layout."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.preparation import Preparation
from hpcsgd.data.prepared import differing, other_columns
from hpcsgd.data.source import Outline
from hpcsgd.errors import DataError

Array = NDArray[Any]
INDEX_BASE = "index_base"  # attribute of a store that was LIBSVM text


@dataclass(frozen=True)
class Like:
    """What a file says of its columns."""

    path: Path
    cols: int
    is_sparse: bool
    preparation: Preparation
    names: list[str] | None
    index_base: int | None  # what its LIBSVM text called the first column

    @property
    def is_centred(self) -> bool:
        """True where means were subtracted, which leaves no zeros."""
        scales = self.preparation.scales
        return scales is not None and scales.mean is not None

    def fingerprint(self) -> str:
        """Return what a conversion that is gone on with has to find again."""
        said = (self.cols, self.is_sparse, self.preparation.unit_rows, self.names)
        digest = hashlib.sha256(repr((*said, self.index_base)).encode())
        for array in self.preparation.arrays().values():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def order(self, outline: Outline, path: Path) -> Array | None:
        """Return the numbers of a source's columns in the order of this file.

        None where they are in this order already, or where one of the two has no names.
        """
        if self.names is not None and outline.names is not None:
            names = list(outline.names)
            lacking, unknown = differing(self.names, names)
            if lacking or unknown or len(names) != self.cols:
                raise other_columns(lacking, unknown, f"{path}, beside {self.path},")
            place = {name: number for number, name in enumerate(names)}
            order = np.array([place[name] for name in self.names], dtype=np.intp)
            return None if (order == np.arange(self.cols)).all() else order
        if outline.cols != self.cols:
            raise DataError(
                f"{path} has {outline.cols} columns and {self.path} has {self.cols};"
                " give a source with the same columns"
            )
        return None

    def widened(self, outline: Outline, path: Path) -> Outline:
        """Return the outline of a LIBSVM text whose last columns may be all zeros."""
        base = outline.index_base
        if self.index_base is not None and self.index_base != base:
            if base < self.index_base:
                raise DataError(
                    f"{path} has an index 0 and the text of {self.path} counts columns"
                    " from 1; make both count alike, or give --index-base 0 to both"
                )
            outline = replace(outline, index_base=0, cols=outline.cols + 1)
        cols = max(outline.cols, self.cols)
        return replace(outline, cols=cols)


def read_like(path: Path) -> Like:
    """Return what an HDF5 file of rows says of its columns."""
    from hpcsgd.data.hdf5 import Hdf5Reader

    reader = Hdf5Reader(path)
    try:
        base = reader.file.attrs.get(INDEX_BASE)
        return Like(
            path=path,
            cols=reader.cols,
            is_sparse=reader.is_sparse,
            preparation=reader.preparation,
            names=reader.column_names,
            index_base=None if base is None else int(base),
        )
    finally:
        reader.close()

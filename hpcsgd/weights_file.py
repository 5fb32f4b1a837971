"""Weights in a file of their own beside a result, and whether they are its own.

They may be larger than memory: a view of the file is all that anybody holds.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import DataError
from hpcsgd.files import check_entry

Array = NDArray[Any]
WORDS_AT_ONCE = 2**16  # of weights that may be a view of a file
HASH = "weights_sha256"  # of those, in the document of a result
ON_FILE = "weights_file"  # in its report: the name of the file


def fingerprint(weights: Array, intercept: Array | None) -> str:
    """The SHA-256 of a model's bits, some of them at a time."""
    digest = hashlib.sha256()
    each = max(WORDS_AT_ONCE // max(weights[:1].size, 1), 1)
    for first in range(0, len(weights), each):
        part = np.ascontiguousarray(weights[first : first + each])
        digest.update(part.reshape(-1).view(np.uint8).data)
    if intercept is not None:
        digest.update(np.ascontiguousarray(intercept).tobytes())
    return digest.hexdigest()


def put_beside(weights: Array, path: Path) -> None:
    """The file that these weights are a view of, once more at `path`."""
    own = Path(str(weights.filename))  # type: ignore[attr-defined]
    if path.exists() and path.samefile(own):
        return
    path.unlink(missing_ok=True)
    try:
        os.link(own, path)
    except OSError:  # another drive, or one without links
        shutil.copyfile(own, path)


def read_beside(path: Path, columns: int | None) -> Array:
    """A view of the weights of so many columns; None: of any."""
    try:
        check_entry(path)
        found: Array = np.load(path, mmap_mode="r")
        if columns is not None and len(found) != columns:
            raise ValueError(f"{len(found)} columns, not {columns}")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} holds no weights, and the result beside it needs them; bring the"
            " file back, or train again"
        ) from error
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def other_values(path: Path) -> DataError:
    """One sentence for a file that is not what the run has written."""
    return DataError(
        f"{path} holds other values than the run has written (their SHA-256 is not"
        " that of the result beside it); bring the file back, or train again"
    )

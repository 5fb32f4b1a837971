"""Sealed files: arrays and one JSON document, in an HDF5 file that knows it is whole.

The first 512 bytes (HDF5's user block, so every HDF5 tool opens the file) say what it
is, how long it is, and the SHA-256 of all that follows. Nothing of a file is believed
before that agrees, and then only flat arrays of plain numbers are: no groups, no links,
no filters, nothing stored elsewhere, and never a pickle.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import DataError, MissingPackage
from hpcsgd.files import open_entry, replace_file
from hpcsgd.json_text import parse_json

Array = NDArray[Any]
HEADER_BYTES = 512
MAGIC = b"hpcsgd "
# What every version begins with; the rest of the header is of this one.
FIRST_LINE = re.compile(MAGIC + rb"([a-z]{1,32}) (\d{1,4})\n")
HEADER = re.compile(
    FIRST_LINE.pattern + rb"bytes (\d{1,18})\nsha256 ([0-9a-f]{64})\n *"
)
DOCUMENT = "document"
KINDS = "fiu"  # elements that an array may have: real numbers
MOST_DIMENSIONS = 4


class Damaged(DataError):
    """It is proven that the bytes are not those that were written."""


class Unreadable(DataError):
    """The system, or this version, cannot read it: it may well be whole."""


def write_sealed(
    path: Path,
    kind: str,
    version: int,
    document: Mapping[str, Any],
    arrays: Mapping[str, Array],
) -> None:
    """Write the file whole or not at all; OSError where there is no room."""
    # The image is made in memory: HDF5 takes the interpreter down with it when a
    # disk fills under an open file.
    image = _image(document, arrays)
    digest = hashlib.sha256(image).hexdigest()
    said = f"hpcsgd {kind} {version}\nbytes {len(image)}\nsha256 {digest}\n"
    replace_file(path, said.encode().ljust(HEADER_BYTES), image)


def read_sealed(
    path: Path, kind: str, version: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    """(document, arrays) of a whole file of this kind; DataError for any other."""
    image = _checked(path, kind, version)
    h5py = _h5py()
    try:
        with h5py.File(h5py.h5f.open_file_image(image)) as file:
            arrays = {name: _array(path, file, name, len(image)) for name in file}
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise _refusal(path, "it is not well-formed HDF5") from error
    return _document(path, arrays.pop(DOCUMENT, None)), arrays


def is_sealed(path: Path, kind: str) -> bool:
    """True where the file says that it is of this kind; nothing more is checked."""
    try:
        with open(open_entry(path), "rb") as file:
            found = HEADER.match(file.read(HEADER_BYTES))
    except OSError:
        return False
    return found is not None and found[1].decode() == kind


def check_schema(
    path: Path, document: Mapping[str, Any], schema: Mapping[str, Any]
) -> None:
    """Refuse a document that lacks a key of `schema` or has something else there.

    A schema is a type; a tuple of schemas, one of which has to fit; [item] for a list;
    {key: schema} for a table with at least these keys; {...: schema} for any keys.
    """
    for key, wanted in schema.items():
        if not _matches(document.get(key, _MISSING), wanted):
            raise _refusal(path, f"its {key} is missing or not what it has to be")


_MISSING = object()


def _matches(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return any(_matches(value, one) for one in wanted)
    if isinstance(wanted, list):
        return type(value) is list and all(_matches(v, wanted[0]) for v in value)
    if isinstance(wanted, dict):
        if type(value) is not dict:
            return False
        if ... in wanted:
            return all(_matches(v, wanted[...]) for v in value.values())
        return all(_matches(value.get(k, _MISSING), w) for k, w in wanted.items())
    if wanted is None:
        return value is None
    # A number without a point may stand for a real one; a truth value for nothing.
    return type(value) is wanted or (wanted is float and type(value) is int)


def _image(document: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    h5py = _h5py()
    text = json.dumps(document).encode()
    # The name is never made on disk; it only tells open images of one process apart.
    name = f"sealed-{id(document)}"
    with h5py.File(name, "w", driver="core", backing_store=False) as file:
        file[DOCUMENT] = np.frombuffer(text, dtype=np.uint8)
        for key, array in arrays.items():
            file[key] = array
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def unreadable(path: Path, error: OSError) -> Unreadable:
    """What to raise where the system could not read."""
    return Unreadable(
        f"{path} cannot be read ({error.strerror or error}); make it readable, then"
        " try again"
    )


def _checked(path: Path, kind: str, version: int) -> bytes:
    """Everything after the header, once it is what the header says."""
    try:
        with open(open_entry(path), "rb") as file:
            header = file.read(HEADER_BYTES)
            _check_first_line(path, header, kind, version)
            found = HEADER.fullmatch(header)
            if found is None:
                raise _refusal(path, "its header is not what was written", Damaged)
            # Asked before it is read: a file may claim to be longer than memory.
            size = os.fstat(file.fileno()).st_size - HEADER_BYTES
            if size != int(found[3]):
                why = f"it has {size} of {int(found[3])} bytes"
                raise _refusal(path, why, Damaged)
            image = file.read(size)
    except OSError as error:
        raise unreadable(path, error) from error
    if hashlib.sha256(image).hexdigest() != found[4].decode():
        raise _refusal(path, "its bytes are not those that were written", Damaged)
    return image


def _check_first_line(path: Path, content: bytes, kind: str, version: int) -> None:
    """Refuse what was cut off in the header, other kinds, and other versions."""
    if len(content) < HEADER_BYTES and content.startswith(MAGIC[: len(content)]):
        why = f"it has {len(content)} bytes, less than its header"
        raise _refusal(path, why, Damaged)
    found = FIRST_LINE.match(content)
    if found is None or found[1].decode() != kind:
        raise DataError(
            f"{path} is not {_with_article(kind)} of this package; name one that it"
            " wrote"
        )
    if int(found[2]) != version:
        raise Unreadable(
            f"{path} is a {kind} of version {int(found[2])} and this package reads"
            f" version {version}; use the hpcsgd that wrote it"
        )


def _array(path: Path, file: Any, name: str, limit: int) -> Array:
    """One dataset of the root group, read only if it is what we would have written."""
    h5py = _h5py()
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise _refusal(path, f"/{name} is a link to elsewhere")
    node = file[name]
    if not isinstance(node, h5py.Dataset):
        raise _refusal(path, f"/{name} is no array")
    plain = (
        node.dtype.kind in KINDS
        and node.dtype.isnative
        and len(node.shape) <= (MOST_DIMENSIONS)
    )
    if not plain or node.id.get_create_plist().get_nfilters() or node.is_virtual:
        raise _refusal(path, f"/{name} is not stored as plain numbers")
    # A file may claim any shape; what it holds is bounded by its length.
    size = int(np.prod(node.shape, dtype=object)) * node.dtype.itemsize
    if size > limit or node.external or node.id.get_storage_size() != size:
        raise _refusal(path, f"/{name} claims {size} bytes that are not in the file")
    array: Array = node[()] if node.shape else np.asarray(node[()])
    return array


def _document(path: Path, text: Array | None) -> dict[str, Any]:
    try:
        document = parse_json(b"" if text is None else text.tobytes())
    except ValueError as error:
        raise _refusal(path, "its document is not JSON") from error
    if not isinstance(document, dict):
        raise _refusal(path, "its document is no table")
    return document


def _refusal(path: Path, why: str, kind: type[DataError] = DataError) -> DataError:
    return kind(
        f"{path} cannot be used: {why}; take a copy that is whole, or make it again"
    )


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as missing:
        raise MissingPackage(
            "models and checkpoints need h5py; install it with: pip install h5py"
        ) from missing
    return h5py


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"

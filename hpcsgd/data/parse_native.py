"""The compiled text parser through ctypes; its fallback where it is missing."""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.compiled import load
from hpcsgd.data import parse_python
from hpcsgd.data.faults import Fault
from hpcsgd.data.parse_python import Layout, Pairs

Array = NDArray[Any]
POWERS = range(-342, 309)  # of ten that can give a double from 19 digits
_pointer, _size, _text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
# function -> (result, arguments)
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "hpcsgd_parse_libsvm": (
        ctypes.c_int,
        [_text, _size, _size, *[_pointer] * 6, ctypes.c_int, _size, _size, _pointer],
    ),
    "hpcsgd_parse_csv": (
        ctypes.c_int,
        [_text, _size, ctypes.c_int, *[_size] * 3, _pointer, _pointer, ctypes.c_int]
        + [_pointer, _pointer, _size, _pointer],
    ),
    "hpcsgd_count_lines": (_size, [_text, _size, ctypes.c_int]),
}


@lru_cache(maxsize=1)
def _load() -> tuple[Any, str]:
    """(library or None, why)."""
    library, why = load(Path(__file__).parent, "_parse", "the Python parser")
    if library is not None:
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library, why


def available() -> bool:
    """True where the compiled parser is in use."""
    return _load()[0] is not None


def why() -> str:
    """What is in use, or why nothing is."""
    return _load()[1]


@lru_cache(maxsize=1)
def powers_of_five() -> Array:
    """The upper 128 bits of 5^q as (high, low), rounded up where q is below 0."""
    rows = [divmod(_upper_bits(q), 2**64) for q in POWERS]
    return np.array(rows, dtype=np.uint64)


def _upper_bits(q: int) -> int:
    if q >= 0:
        whole: int = 5**q
        spare = whole.bit_length() - 128
        return whole >> spare if spare > 0 else whole << -spare
    power: int = 5**-q
    bits = (power - 1).bit_length()
    value = (1 << (bits + 127 if q >= -27 else 2 * bits + 128)) // power + 1
    return int(value >> max(value.bit_length() - 128, 0))


def parse_libsvm(
    text: bytes, base: int, keep: bool = True, queried: bool | None = None
) -> Pairs:
    """Rows of a text that ends with a newline; `keep` off: goes through it alone.

    `queried`: whether every row must have a qid, or none; None: each as it likes.
    """
    if not available():
        return parse_python.parse_libsvm(text, base, keep, queried)
    room, pairs = (_count(text, b"\n"), _count(text, b":")) if keep else (0, 0)
    labels, values = np.empty(room), np.empty(pairs)
    starts = np.empty(room + 1, dtype=np.int32)
    queries = np.empty(0 if queried is False else room, dtype=np.int64)
    indices, found = np.empty(pairs, dtype=np.int32), np.zeros(5, dtype=np.int64)
    arrays = (labels, starts, indices, values)
    kind = _load()[0].hpcsgd_parse_libsvm(
        text,
        len(text),
        base,
        powers_of_five().ctypes.data,
        *(array.ctypes.data if keep else None for array in arrays),
        queries.ctypes.data if keep and queried is not False else None,
        -1 if queried is None else int(queried),
        room,
        pairs,
        found.ctypes.data,
    )
    rows, count, lowest, highest, position = found.tolist()
    if kind:
        raise Fault(kind, position)
    if not keep:
        starts[0] = 0
    return Pairs(
        rows=rows,
        count=count,
        lowest=lowest,
        highest=highest,
        labels=labels[:rows],
        starts=starts[: rows + 1],
        indices=indices[:count],
        values=values[:count],
        queries=queries[:rows],
    )


def parse_csv(text: bytes, layout: Layout) -> tuple[Array, Array]:
    """(X, the other columns) of a text that ends with a newline."""
    if not available():
        return parse_python.parse_csv(text, layout)
    room, places = _count(text, b"\n"), np.ascontiguousarray(layout.places, np.int32)
    X, other = np.empty((room, layout.features)), np.empty((room, layout.extras))
    found = np.zeros(2, dtype=np.int64)
    kind = _load()[0].hpcsgd_parse_csv(
        text,
        len(text),
        ord(layout.delimiter),
        len(places),
        layout.features,
        layout.extras,
        places.ctypes.data,
        powers_of_five().ctypes.data,
        layout.missing_allowed,
        X.ctypes.data,
        other.ctypes.data,
        room,
        found.ctypes.data,
    )
    rows, position = found.tolist()
    if kind:
        raise Fault(kind, position)
    return X[:rows], other[:rows]


def count_lines(text: bytes, delimiter: bytes) -> int:
    """Lines that are rows, in a text that ends with a newline."""
    if not available():
        return parse_python.count_lines(text, delimiter)
    lines: int = _load()[0].hpcsgd_count_lines(text, len(text), ord(delimiter))
    return lines


def _count(text: bytes, byte: bytes) -> int:
    """How often a byte occurs."""
    return int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == byte[0]))

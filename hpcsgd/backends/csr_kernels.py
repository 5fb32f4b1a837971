"""Compiled kernels on sampled CSR rows.

Rows are float32 or bf16 bits (uint16) under columns of int32 or int64; weights, scores
and residuals are contiguous float32. What is stored was checked when it was read.
"""

import ctypes
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import isa
from hpcsgd.backends.base import Plain
from hpcsgd.backends.call import Call, door_to
from hpcsgd.backends.plain import Walk
from hpcsgd.csr import Csr

Array = NDArray[Any]
VALUES = {"float32": "f32", "uint16": "bf16"}
COLUMNS = {"int32": "i32", "int64": "i64"}
ABREAST = 16  # as in kernels/cpu/csr.c


class _Rows(ctypes.Structure):
    """`csr_rows` of kernels/cpu/csr.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("indptr", "indices", "data"))


@lru_cache(maxsize=1)
def _functions(library: Any) -> dict[str, Call]:
    """The kernels of a library by name."""
    found = {"gram": door_to(library, "hpcsgd_csr_gram")}
    for value, column in product(VALUES.values(), COLUMNS.values()):
        kind = f"{value}_{column}"
        found[f"walk_{kind}"] = door_to(library, f"hpcsgd_walk_csr_{kind}")
        for name in ("margins", "update", "shared"):
            found[f"{name}_{kind}"] = door_to(library, f"hpcsgd_csr_{name}_{kind}")
    return found


def _function(name: str, csr: Csr) -> Call:
    kind = f"{VALUES[csr.dtype.name]}_{COLUMNS[csr.indices.dtype.name]}"
    return _functions(isa.best()[0])[f"{name}_{kind}"]


def _call(name: str, csr: Csr, rows: Array, *rest: Any) -> None:
    parts = (csr.indptr, csr.indices, csr.data, rows)
    _function(name, csr)(*parts, len(rows), *rest)


def margins(csr: Csr, rows: Array, weights: Array, out: Array) -> None:
    """out[i] ← row i of the sample times the weights, (width, K)."""
    _call("margins", csr, rows, weights.shape[1], weights, out)


def update(csr: Csr, rows: Array, residuals: Array, weights: Array) -> None:
    """weights += Yᵀ residuals, (m, K)."""
    K = weights.shape[1]
    _call("update", csr, rows, K, residuals, weights)


def walk(
    steps: Walk,
    csr: Csr,
    rows: Array,
    weights: Array,
    plain: Plain,
) -> Array:
    """The residuals of all steps; weights and intercept advance in place."""
    parts = (csr.indptr, csr.indices, csr.data)
    stored = _Rows(*(part.ctypes.data for part in parts))
    place = (ctypes.addressof(stored), 0, rows, csr.width)
    by = _function("walk", csr)
    return steps.all_at_once(by, place, weights, plain)


class GramRoom:
    """Scratch of `strict_gram`, zero between calls, which grows as it has to."""

    def __init__(self) -> None:
        self._place = np.zeros(0, dtype=np.int32)
        self._dense = np.zeros(0, dtype=np.float32)

    def place(self, width: int) -> Array:
        """One number for each column."""
        if len(self._place) < width:
            self._place = np.zeros(width, dtype=np.int32)
        return self._place

    def dense(self, columns: int) -> Array:
        """Rows abreast, and what they take to begin where a vector does."""
        words = (columns + 1) * ABREAST
        if len(self._dense) < words:
            self._dense = np.zeros(words, dtype=np.float32)
        return self._dense


def strict_gram(
    csr: Csr, rows: Array, starts: Array, out: Array, room: GramRoom
) -> None:
    """out ← the strictly-lower blocks of Y Yᵀ for the sampled rows Y, packed."""
    stored = int((csr.indptr[rows + 1] - csr.indptr[rows]).sum())
    edges = np.empty(len(rows) + 1, dtype=np.int64)
    columns = np.empty(stored, dtype=np.int32)
    values = np.empty(stored, dtype=np.float32)
    made, count = (edges, columns, values), np.empty(1, dtype=np.int64)
    _call("shared", csr, rows, room.place(csr.width), *made, count)
    gram = _functions(isa.best()[0])["gram"]
    gram(*made, starts, len(starts) - 1, out, room.dense(int(count[0])))

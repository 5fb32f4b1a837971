"""C kernels of several models with one Gram."""

import ctypes
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import StepBatch
from hpcsgd.backends.compiled_calls import MATRICES, REALS, Call, door_to
from hpcsgd.backends.numpy_rows import ManyPlan
from hpcsgd.formats import Array

# The compiled recurrence of several models: columns with coefficients of their own.

POINTER, INT = ctypes.c_void_p, ctypes.c_int64
VECTOR = 64  # bytes that rows of scratch are rounded up to


@dataclass(frozen=True)
class NativeManyPlan(ManyPlan):
    """A `ManyPlan`, and the same as the kernel takes it."""

    kept: dict[tuple[int, str], "ManyRecurrencePlan"] = field(default_factory=dict)

    def recurrence(
        self, family: int, setting: float, dtype: Any
    ) -> "ManyRecurrencePlan":
        """Made for the first exchange of this plan, used by all."""
        key = (family, dtype.char)
        found = self.kept.get(key)
        if found is None:
            found = self.kept[key] = ManyRecurrencePlan(self, family, setting, dtype)
        return found


class ManyRecurrencePlan:
    """The coefficients of an exchange as `hpcsgd_recur_many` wants them."""

    def __init__(
        self, plan: ManyPlan, family: int, setting: float, dtype: np.dtype[Any]
    ) -> None:
        unrolled, starts = plan.unrolled, np.array(plan.blocks.starts, dtype=np.int64)
        self.wide = unrolled.push.shape[2]
        real, exact = dtype, np.dtype(np.float64)
        given = (
            (unrolled.lead, real),
            (np.concatenate(plan.couple), real),
            (unrolled.free, exact),
            (unrolled.push, exact),
            (unrolled.probe, exact),
        )
        # What the addresses below point to.
        self.kept = [starts, *(np.ascontiguousarray(a, dtype=d) for a, d in given)]
        sizes = (len(starts) - 1, plan.states, family, self.wide)
        self.plan = _ModelsPlan(*sizes, setting, *(a.ctypes.data for a in self.kept))
        self.pointer = ctypes.addressof(self.plan)

    def __call__(
        self, margins: Array, gram: Array, batch: StepBatch, intercept: Array | None
    ) -> Array:
        """Residuals (m, K) of all steps; the intercept advances in place."""
        m, dtype = len(margins), margins.dtype
        residuals: Array = np.empty((m, self.wide), dtype=dtype)
        each = VECTOR // dtype.itemsize
        scratch = np.empty((m + 1) * -(-self.wide // each) * each, dtype=dtype)
        apart = int(batch.weights is not None and batch.weights.shape[1] > 1)
        _many_functions(compiled_calls.best()[0])[REALS[dtype.char]](
            *(self.pointer, apart, margins, gram),
            *(batch.targets, batch.weights, batch.offsets),
            *(intercept, residuals, scratch),
        )
        return residuals


class _ModelsPlan(ctypes.Structure):
    """`models` of kernels/cpu/many_body.h."""

    _fields_ = (
        *((name, INT) for name in ("batches", "states", "family", "wide")),
        ("setting", ctypes.c_double),
        *(
            (name, POINTER)
            for name in ("starts", "lead", "couple", "free", "push", "probe")
        ),
    )


@lru_cache(maxsize=1)
def _many_functions(library: Any) -> dict[str, Call]:
    """The kernels of a library by the kind of real."""
    return {
        kind: door_to(library, f"hpcsgd_recur_many{kind}") for kind in REALS.values()
    }


# Products of bf16 rows with many columns of fp32 weights, by AMX tiles.
#
# As in `cpu`: rows are int64 and contiguous, the matrix is bf16 bits whose rows are
# contiguous, everything else is contiguous float32.

TILE_INT = ctypes.c_int64
LEAST_ROWS = 16  # of a tile


def available() -> bool:
    """True where this processor has tiles and the system lets us use them."""
    return compiled_calls.best()[1] == compiled_calls.TILES


class TileProducts:
    """The two products, with the scratch that they share."""

    def __init__(self) -> None:
        self._room = np.empty(0, dtype=np.uint32)

    def margins(self, matrix: Array, rows: Array, weights: Array, out: Array) -> None:
        """out ← Y W for the sampled rows Y and weights (d, K)."""
        self._call("hpcsgd_margins_tiles", matrix, rows, weights, out)

    def update(
        self, matrix: Array, rows: Array, residuals: Array, weights: Array
    ) -> None:
        """weights += Yᵀ R for the sampled rows Y and residuals (m, K)."""
        self._call("hpcsgd_update_tiles", matrix, rows, residuals, weights)

    def _call(
        self, name: str, matrix: Array, rows: Array, given: Array, to: Array
    ) -> None:
        sizes = len(rows), matrix.shape[1], given.shape[1]
        library = compiled_calls.best()[0]
        words = library.hpcsgd_columns_room
        words.restype, words.argtypes = TILE_INT, (TILE_INT, TILE_INT, TILE_INT)
        if words(*sizes) > len(self._room):
            self._room = np.empty(words(*sizes), dtype=np.uint32)
        stride = matrix.strides[0] // matrix.itemsize
        _function(library, name)(matrix, stride, rows, *sizes, given, to, self._room)


@lru_cache(maxsize=4)
def _function(library: Any, name: str) -> Call:
    return door_to(library, name)


# Compiled products with several columns of weights.
#
# As in `cpu`: rows are int64 and contiguous, matrices float32 or bf16 bits whose rows
# are contiguous, everything else is contiguous float32.


@lru_cache(maxsize=1)
def _column_functions(library: Any) -> dict[str, Call]:
    """The kernels of a library by name."""
    return {
        name + kind: door_to(library, f"hpcsgd_{name}_columns{kind}")
        for name in ("margins", "update")
        for kind in MATRICES.values()
    }


def margins(matrix: Array, rows: Array, weights: Array, out: Array) -> None:
    """out ← Y W for the sampled rows Y and weights (d, K)."""
    _call("margins", matrix, rows, weights.shape[1], weights, out)


def update(matrix: Array, rows: Array, residuals: Array, weights: Array) -> None:
    """weights += Yᵀ R for the sampled rows Y and residuals (m, K)."""
    _call("update", matrix, rows, weights.shape[1], residuals, weights)


def _call(
    name: str, matrix: Array, rows: Array, wide: int, one: Array, other: Array
) -> None:
    scratch = np.empty(matrix.shape[1] * wide, dtype=np.float32)
    stride = matrix.strides[0] // matrix.itemsize
    _column_functions(compiled_calls.best()[0])[name + MATRICES[matrix.dtype.char]](
        *(matrix, stride, rows, len(rows), matrix.shape[1], wide),
        *(one, other, scratch),
    )

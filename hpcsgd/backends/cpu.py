"""Compiled CPU kernels through ctypes; NumPy does their work where they are missing.

Arguments are not checked again: dtypes, shapes and row numbers are for the caller to
know. `rows` are int64 and contiguous, matrices float32 or bf16 bits (uint16) with
contiguous rows, everything else is contiguous.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import isa
from hpcsgd.backends.base import Batch
from hpcsgd.backends.bf16_gram import bf16_gram
from hpcsgd.backends.call import Call, door_to
from hpcsgd.updates.unroll import Unrolled

Array = NDArray[Any]
POINTER, INT = ctypes.c_void_p, ctypes.c_int64
# What each kernel takes is said where it is defined, in kernels/cpu.
KERNELS = (
    "hpcsgd_widen_rows_bf16",
    "hpcsgd_exact_scores",
    "hpcsgd_find_bad",
    "hpcsgd_fingerprint",
    "hpcsgd_margins_f32",
    "hpcsgd_margins_bf16",
    "hpcsgd_update_f32",
    "hpcsgd_update_bf16",
    "hpcsgd_strict_gram_f32",
    "hpcsgd_strict_gram_bf16",
    "hpcsgd_recur_f32",
    "hpcsgd_recur_f64",
    "hpcsgd_round_bf16",
    "hpcsgd_stand",
    "hpcsgd_walk_f32",
    "hpcsgd_walk_bf16",
    "hpcsgd_between_f32",
    "hpcsgd_between_bf16",
    "hpcsgd_walk_softmax_f32",
    "hpcsgd_walk_softmax_bf16",
    "hpcsgd_between_softmax_f32",
    "hpcsgd_between_softmax_bf16",
)
# By the letter of the element type: asking for its name takes longer than a kernel.
MATRICES = {"f": "_f32", "H": "_bf16"}
REALS = {"f": "_f32", "d": "_f64"}


@lru_cache(maxsize=1)
def _functions() -> dict[str, Any]:
    """The kernels by name; none where nothing is compiled."""
    library = isa.best()[0]
    if library is None:
        return {}
    found: dict[str, Any] = {name: door_to(library, name) for name in KERNELS}
    found.update(bf16_gram(library))
    return found


def available() -> bool:
    """True where the compiled kernels are in use."""
    return bool(_functions())


def why() -> str:
    """What is in use, or why nothing is."""
    return isa.best()[2]


def instructions() -> str:
    """The set of instructions that the kernels in use are compiled for."""
    return isa.best()[1]


def settle(sets: Sequence[str]) -> None:
    """Use what all ranks have; `sets` is what each of them said of `instructions`.

    Ranks that compute the same thing would otherwise differ in its last bits.
    """
    if isa.settle(sets):
        _functions.cache_clear()


def widen_rows(matrix: Array, rows: Array, out: Array) -> None:
    """out[i] ← matrix[rows[i]], bf16 bits to float32."""
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    call = _functions()["hpcsgd_widen_rows_bf16"]
    call(matrix, stride_of(matrix), rows, len(rows), matrix.shape[1], out)


def margins(matrix: Array, rows: Array, weights: Array, out: Array) -> None:
    """out[i] ← matrix[rows[i]] · weights."""
    call = _functions()["hpcsgd_margins" + MATRICES[matrix.dtype.char]]
    call(matrix, stride_of(matrix), rows, len(rows), matrix.shape[1], weights, out)


def update(matrix: Array, rows: Array, residuals: Array, weights: Array) -> None:
    """weights += Σ_i residuals[i] matrix[rows[i]]."""
    call = _functions()["hpcsgd_update" + MATRICES[matrix.dtype.char]]
    call(
        matrix, stride_of(matrix), rows, len(rows), matrix.shape[1], residuals, weights
    )


def exact_scores(block: Array, weights: Array, out: Array) -> None:
    """out ← block · weights for float32 rows, in float64."""
    call = _functions()["hpcsgd_exact_scores"]
    call(block, stride_of(block), *block.shape, weights, out)


def has_bad(block: Array) -> bool:
    """Whether a float32 of the block is infinite or no number."""
    found = np.zeros(1, dtype=np.int64)
    _functions()["hpcsgd_find_bad"](block, stride_of(block), *block.shape, found)
    return bool(found[0])


def fingerprint(bits: Array, rows: Array, columns: Array) -> np.uint64:
    """Σ rows_i columns_j bits_ij mod 2⁶⁴."""
    total = np.zeros(1, dtype=np.uint64)
    call = _functions()["hpcsgd_fingerprint"]
    call(bits, stride_of(bits), *bits.shape, rows, columns, total)
    found: np.uint64 = total[0]
    return found


def kernel(name: str, matrix: Array) -> Call:
    """The kernel of this name for what `matrix` is stored as."""
    found: Call = _functions()[name + MATRICES[matrix.dtype.char]]
    return found


def stand(place: Array, *fields: Any) -> None:
    """Write what steps are taken on: `place` of kernels/cpu/steps.c."""
    _functions()["hpcsgd_stand"](place, *fields)


def round_bf16(values: Array) -> None:
    """Each float32 to the nearest that bf16 has, in place."""
    _functions()["hpcsgd_round_bf16"](values, values.size)


def stride_of(matrix: Array) -> int:
    """From row to row, in elements."""
    return matrix.strides[0] // matrix.itemsize


def has_pairs() -> bool:
    """True where bf16 is multiplied in pairs, at twice the speed of float32."""
    return "hpcsgd_strict_gram_pairs" in _functions()


class PairRoom:
    """Scratch of `strict_gram_pairs`, kept from call to call."""

    def __init__(self, rows: int, batches: int) -> None:
        words = _functions()["hpcsgd_gram_room"](rows)
        self.panels = np.empty(words, dtype=np.uint32)
        self.starts = np.empty(batches, dtype=np.uintp)


def strict_gram_pairs(
    matrix: Array, rows: Array, starts: Array, out: Array, room: PairRoom
) -> None:
    """The same for bf16 rows, on processors that multiply bf16 in pairs or tiles."""
    _functions()["hpcsgd_strict_gram_pairs"](
        *(matrix, stride_of(matrix), rows, matrix.shape[1]),
        *(starts, len(starts) - 1, out, room.panels, room.starts),
    )


def strict_gram(matrix: Array, rows: Array, starts: Array, out: Array) -> None:
    """out ← the strictly-lower blocks of Y Yᵀ for the sampled rows Y, packed."""
    _functions()["hpcsgd_strict_gram" + MATRICES[matrix.dtype.char]](
        *(matrix, stride_of(matrix), rows, matrix.shape[1]),
        *(starts, len(starts) - 1, out),
    )


class Recurrence:
    """The coefficients of an exchange as `hpcsgd_recur` wants them, made once."""

    def __init__(
        self, unrolled: Unrolled, starts: Array, family: int, setting: float
    ) -> None:
        couple = [np.asarray(c, dtype=np.float64) for c in unrolled.couple]
        self.kept = [  # what the addresses below point to
            starts,
            *(
                np.ascontiguousarray(values, dtype=np.float64)
                for values in (
                    unrolled.lead,
                    np.concatenate(couple),
                    unrolled.free,
                    unrolled.push,
                    unrolled.probe,
                )
            ),
        ]
        states = len(unrolled.probe)
        sizes = (len(starts) - 1, states, family)
        self.plan = _Plan(*sizes, setting, *(a.ctypes.data for a in self.kept))
        self.pointer = ctypes.addressof(self.plan)

    def __call__(
        self,
        margins: Array,
        gram: Array,
        batch: Batch,
        intercept: Array | None,
        residuals: Array,
        scratch: Array,
    ) -> None:
        """Residuals of all steps; the intercept advances in place."""
        _functions()["hpcsgd_recur" + REALS[residuals.dtype.char]](
            *(self.pointer, margins, gram),
            *(batch.targets, batch.weights, batch.offsets),
            *(intercept, residuals, scratch),
        )


class _Plan(ctypes.Structure):
    """`plan` of kernels/cpu/steps_body.h."""

    _fields_ = (
        *((name, INT) for name in ("batches", "states", "family")),
        ("setting", ctypes.c_double),
        *(
            (name, POINTER)
            for name in ("starts", "lead", "couple", "free", "push", "probe")
        ),
    )

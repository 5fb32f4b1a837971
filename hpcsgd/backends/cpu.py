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
from hpcsgd.updates.unroll import Unrolled

Array = NDArray[Any]
POINTER, INT = ctypes.c_void_p, ctypes.c_int64
SIGNATURES = {
    # matrix, row stride, rows, count, columns, ...
    "hpcsgd_widen_rows_bf16": (POINTER, INT, POINTER, INT, INT, POINTER),
    "hpcsgd_margins": (POINTER, INT, POINTER, INT, INT, POINTER, POINTER),
    "hpcsgd_update": (POINTER, INT, POINTER, INT, INT, POINTER, POINTER),
    "hpcsgd_strict_gram": (POINTER, INT, POINTER, INT, POINTER, INT, POINTER),
    "hpcsgd_recur": (POINTER,) * 9,
    "hpcsgd_walk": (POINTER, POINTER, INT, POINTER, INT) + (POINTER,) * 7,
}
KINDS = {
    "hpcsgd_widen_rows_bf16": ("",),
    "hpcsgd_recur": ("_f32", "_f64"),
}
MATRICES = {"float32": "_f32", "uint16": "_bf16"}
REALS = {"float32": "_f32", "float64": "_f64"}


@lru_cache(maxsize=1)
def _functions() -> dict[str, Any]:
    """The kernels by name; none where nothing is compiled."""
    library = isa.best()[0]
    found: dict[str, Any] = {}
    if library is None:
        return found
    for name, arguments in SIGNATURES.items():
        for kind in KINDS.get(name, ("_f32", "_bf16")):
            function = getattr(library, name + kind)
            function.restype, function.argtypes = None, arguments
            found[name + kind] = function
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


def address(array: Array) -> int:
    """Where the first element lies."""
    flags = array.flags
    if flags.writeable and flags.c_contiguous and array.size:  # four times as fast
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    return int(array.ctypes.data)


def widen_rows(matrix: Array, rows: Array, out: Array) -> None:
    """out[i] ← matrix[rows[i]], bf16 bits to float32."""
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    call = _functions()["hpcsgd_widen_rows_bf16"]
    call(*_sampled(matrix, rows), len(rows), matrix.shape[1], address(out))


def margins(matrix: Array, rows: Array, weights: Array, out: Array) -> None:
    """out[i] ← matrix[rows[i]] · weights."""
    _on_rows("hpcsgd_margins", matrix, rows, weights, out)


def update(matrix: Array, rows: Array, residuals: Array, weights: Array) -> None:
    """weights += Σ_i residuals[i] matrix[rows[i]]."""
    _on_rows("hpcsgd_update", matrix, rows, residuals, weights)


def _on_rows(name: str, matrix: Array, rows: Array, one: Array, other: Array) -> None:
    call = _functions()[name + MATRICES[matrix.dtype.name]]
    sizes = (len(rows), matrix.shape[1])
    call(*_sampled(matrix, rows), *sizes, address(one), address(other))


def _sampled(matrix: Array, rows: Array) -> tuple[int, int, int]:
    """Where the matrix lies, its row stride in elements, where the row numbers lie."""
    return address(matrix), matrix.strides[0] // matrix.itemsize, address(rows)


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
        *_sampled(matrix, rows),
        matrix.shape[1],
        address(starts),
        len(starts) - 1,
        address(out),
        address(room.panels),
        address(room.starts),
    )


def strict_gram(matrix: Array, rows: Array, starts: Array, out: Array) -> None:
    """out ← the strictly-lower blocks of Y Yᵀ for the sampled rows Y, packed."""
    _functions()["hpcsgd_strict_gram" + MATRICES[matrix.dtype.name]](
        *_sampled(matrix, rows),
        matrix.shape[1],
        address(starts),
        len(starts) - 1,
        address(out),
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
        _functions()["hpcsgd_recur" + REALS[residuals.dtype.name]](
            self.pointer,
            address(margins),
            address(gram),
            address(batch.targets),
            None if batch.weights is None else address(batch.weights),
            None if batch.offsets is None else address(batch.offsets),
            None if intercept is None else address(intercept),
            address(residuals),
            address(scratch),
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


class Walk:
    """The coefficients of plain steps as `hpcsgd_walk` wants them, made once."""

    def __init__(
        self,
        steps: Sequence[Unrolled],
        starts: Array,
        family: int,
        setting: float,
        rounds: bool,
    ) -> None:
        probe = steps[0].probe
        self.kept = [starts] + [
            np.ascontiguousarray(np.concatenate(parts), dtype=np.float64)
            for parts in (
                [one.carry.reshape(-1) for one in steps],
                [one.gain.reshape(-1) for one in steps],
                [one.free.reshape(-1) for one in steps],
                [one.push.reshape(-1) for one in steps],
                [probe],
            )
        ]
        sizes = (len(steps), len(probe), family, int(rounds))
        self.plan = _Walk(*sizes, setting, *(a.ctypes.data for a in self.kept))
        self.pointer = ctypes.addressof(self.plan)

    def __call__(
        self,
        matrix: Array,
        rows: Array,
        weights: Array,
        batch: Batch,
        intercept: Array | None,
    ) -> Array:
        """The residuals of all steps; weights and intercept advance in place."""
        function = _functions()["hpcsgd_walk" + MATRICES[matrix.dtype.name]]
        place = (*_sampled(matrix, rows), matrix.shape[1])
        return self.run(function, place, weights, batch, intercept)

    def run(
        self,
        function: Any,
        place: tuple[int, ...],
        weights: Array,
        batch: Batch,
        intercept: Array | None,
    ) -> Array:
        """By `function`; `place` is where the rows lie, and how many columns."""
        m, cols = len(batch.targets), len(weights)
        residuals = np.empty((m, 1), dtype=np.float32)
        scratch = np.empty(2 * cols + m, dtype=np.float32)
        function(
            self.pointer,
            *place,
            address(weights),
            address(batch.targets),
            None if batch.weights is None else address(batch.weights),
            None if batch.offsets is None else address(batch.offsets),
            None if intercept is None else address(intercept),
            address(residuals),
            address(scratch),
        )
        return residuals


class _Walk(ctypes.Structure):
    """`walk` of kernels/cpu/steps.c."""

    _fields_ = (
        *((name, INT) for name in ("steps", "states", "family", "rounds")),
        ("setting", ctypes.c_double),
        *(
            (name, POINTER)
            for name in ("starts", "carry", "gain", "free", "push", "probe")
        ),
    )

"""Plain steps by compiled kernels: all of a group in one call, or one at a time."""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import cpu
from hpcsgd.backends.base import Plain
from hpcsgd.backends.call import Call
from hpcsgd.schedule import Blocks
from hpcsgd.updates.unroll import PlainSteps

Array = NDArray[Any]
POINTER, INT = ctypes.c_void_p, ctypes.c_int64
PLACE = 11  # words of `place` in kernels/cpu/steps.c
# The end of step j (from -1) by its summed margins, and the margins of the next one.
Between = Callable[[int, Array | None, Array | None], None]


class Walk:
    """The coefficients of plain steps as the kernels want them."""

    def __init__(
        self,
        steps: PlainSteps,
        blocks: Blocks,
        family: int,
        setting: float,
        rounds: bool,
    ) -> None:
        starts = np.array(blocks.starts, dtype=np.int64)
        own = (steps.carry, steps.gain, steps.free, steps.gain, steps.probe)
        self.kept = [starts, *(np.ascontiguousarray(a, dtype=np.float64) for a in own)]
        sizes = (len(blocks.sizes), steps.states, family, int(rounds))
        self.plan = _Walk(*sizes, setting, *(a.ctypes.data for a in self.kept))
        self.pointer = ctypes.addressof(self.plan)

    def all_at_once(
        self,
        walk: Call,
        rows: tuple[Any, ...],
        weights: Array,
        plain: Plain,
    ) -> Array:
        """The residuals of all steps; weights and intercept advance in place.

        `rows` are what they lie in, its stride, their numbers, and how many columns.
        """
        stood = _Place(rows, weights, plain)
        walk(self.pointer, stood.place)
        return stood.residuals

    def one_at_a_time(
        self,
        between: Call,
        rows: tuple[Any, ...],
        weights: Array,
        plain: Plain,
    ) -> tuple[Between, Array]:
        """What to call between two messages, and the residuals that it fills."""
        stood = _Place(rows, weights, plain)
        call = _Held(partial(between, self.pointer, stood.place), (self, stood))
        return call, stood.residuals


class _Held:
    """A call, and what its pointers point to."""

    def __init__(self, call: Between, kept: Any) -> None:
        self.call = call
        self.kept = kept

    def __call__(self, step: int, summed: Array | None, out: Array | None) -> None:
        self.call(step, summed, out)


class _Place:
    """Where steps are taken, with the arrays that it points to."""

    def __init__(
        self,
        rows: tuple[Any, ...],
        weights: Array,
        plain: Plain,
    ) -> None:
        batch, m, cols = plain.batch, len(plain.batch.targets), len(weights)
        self.residuals = np.empty((m, 1), dtype=np.float32)
        scratch = np.empty(2 * cols + m, dtype=np.float32)
        fields = (
            *(*rows, weights, batch.targets, batch.weights, batch.offsets),
            *(plain.intercept, self.residuals, scratch),
        )
        self.kept = fields
        self.place = np.empty(PLACE, dtype=np.int64)
        cpu.stand(self.place, *fields)


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

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
from hpcsgd.families.base import exp_bound

Array = NDArray[Any]
POINTER, INT = ctypes.c_void_p, ctypes.c_int64
PLACE = 11  # words of `place` in kernels/cpu/steps.c
# Families in the order of the numbers that kernels/cpu/steps.c gives them.
FAMILIES = ("logistic", "gaussian", "poisson", "gamma", "squared-hinge", "huber")
SOFTMAX = "softmax"  # K scores a row have kernels of their own
# The end of step j (from -1) by its summed margins, and the margins of the next one.
Between = Callable[[int, Array | None, Array | None], None]


class Walk:
    """The coefficients of plain steps as the kernels want them."""

    def __init__(self, plain: Plain, width: int, rounds: bool) -> None:
        steps, name = plain.steps, plain.family.name
        starts = np.array(plain.blocks.starts, dtype=np.int64)
        own = (steps.carry, steps.gain, steps.free, steps.gain, steps.probe)
        self.kept = [starts, *(np.ascontiguousarray(a, dtype=np.float64) for a in own)]
        number = 0 if name == SOFTMAX else FAMILIES.index(name)
        setting = getattr(plain.family, "delta", exp_bound(np.float32))
        sizes = (len(starts) - 1, steps.states, number, int(rounds))
        self.plan = _Walk(*sizes, setting, *(a.ctypes.data for a in self.kept))
        self.columns = width // steps.states  # scores of a row
        self.is_turned = name == SOFTMAX
        pointer = ctypes.addressof(self.plan)
        # What each call begins with.
        self.words = (pointer, self.columns) if self.is_turned else (pointer,)

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
        stood = self._stand(rows, weights, plain)
        walk(*self.words, stood.place)
        return stood.residuals

    def one_at_a_time(
        self,
        between: Call,
        rows: tuple[Any, ...],
        weights: Array,
        plain: Plain,
    ) -> tuple[Between, Array]:
        """What to call between two messages, and the residuals that it fills."""
        stood = self._stand(rows, weights, plain)
        call = _Held(partial(between, *self.words, stood.place), (self, stood))
        return call, stood.residuals

    def _stand(self, rows: tuple[Any, ...], weights: Array, plain: Plain) -> "_Place":
        """With room for a point, a gradient, and scaled residuals.

        Softmax also has room for weights that are turned, and one state of it reads
        those as they are.
        """
        d, m = len(weights), len(plain.batch.targets)
        many = 0 if self.is_turned and plain.steps.states == 1 else 2
        words = (many * d + m) * self.columns + self.is_turned * weights.size
        return _Place(rows, weights, plain, (m, self.columns), words)


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
        shape: tuple[int, int],
        words: int,
    ) -> None:
        batch = plain.batch
        self.residuals = np.empty(shape, dtype=np.float32)
        scratch = np.empty(words, dtype=np.float32)
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


def for_family(name: str, plain: Plain) -> str:
    """The kernel of softmax has a name of its own."""
    return f"{name}_softmax" if plain.family.name == SOFTMAX else name

"""The compiled recurrence of several models: columns with coefficients of their own."""

import ctypes
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import isa
from hpcsgd.backends.base import Batch
from hpcsgd.backends.call import Call, door_to
from hpcsgd.backends.cpu import REALS
from hpcsgd.backends.many import ManyPlan

Array = NDArray[Any]
POINTER, INT = ctypes.c_void_p, ctypes.c_int64
VECTOR = 64  # bytes that rows of scratch are rounded up to


@dataclass(frozen=True)
class NativeManyPlan(ManyPlan):
    """A `ManyPlan`, and the same as the kernel takes it."""

    kept: dict[tuple[int, str], "Recurrence"] = field(default_factory=dict)

    def recurrence(self, family: int, setting: float, dtype: Any) -> "Recurrence":
        """Made for the first exchange of this plan, used by all."""
        key = (family, dtype.char)
        found = self.kept.get(key)
        if found is None:
            found = self.kept[key] = Recurrence(self, family, setting, dtype)
        return found


class Recurrence:
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
        self.plan = _Plan(*sizes, setting, *(a.ctypes.data for a in self.kept))
        self.pointer = ctypes.addressof(self.plan)

    def __call__(
        self, margins: Array, gram: Array, batch: Batch, intercept: Array | None
    ) -> Array:
        """Residuals (m, K) of all steps; the intercept advances in place."""
        m, dtype = len(margins), margins.dtype
        residuals: Array = np.empty((m, self.wide), dtype=dtype)
        each = VECTOR // dtype.itemsize
        scratch = np.empty((m + 1) * -(-self.wide // each) * each, dtype=dtype)
        apart = int(batch.weights is not None and batch.weights.shape[1] > 1)
        _functions(isa.best()[0])[REALS[dtype.char]](
            *(self.pointer, apart, margins, gram),
            *(batch.targets, batch.weights, batch.offsets),
            *(intercept, residuals, scratch),
        )
        return residuals


class _Plan(ctypes.Structure):
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
def _functions(library: Any) -> dict[str, Call]:
    """The kernels of a library by the kind of real."""
    return {
        kind: door_to(library, f"hpcsgd_recur_many{kind}") for kind in REALS.values()
    }

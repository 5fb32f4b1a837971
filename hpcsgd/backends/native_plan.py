"""The coefficients of an exchange as NumPy takes them, and as the kernels do."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import cpu
from hpcsgd.backends.host_plan import HostPlan
from hpcsgd.backends.plain import FAMILIES
from hpcsgd.families.base import Family, exp_bound

Array = NDArray[Any]


@dataclass(frozen=True)
class NativePlan(HostPlan):
    """Coefficients as NumPy takes them, and as the kernels do."""

    kept: dict[str, cpu.Recurrence] = field(default_factory=dict)

    @cached_property
    def starts(self) -> Array:
        """Where each batch begins, for the kernels."""
        return np.array(self.blocks.starts, dtype=np.int64)

    @cached_property
    def coefficients(self) -> cpu.Recurrence:
        """What no family changes."""
        return cpu.Recurrence(self.unrolled, self.starts, 0, 0.0)

    def recurrence(self, family: Family, dtype: Any) -> cpu.Recurrence:
        """Made for the first exchange of this plan, used by all."""
        found = self.kept.get(family.name)
        if found is None:
            own = numbered(family, dtype)
            found = cpu.Recurrence(self.unrolled, self.starts, *own)
            self.kept[family.name] = found
        return found


def numbered(family: Family, dtype: Any) -> tuple[int, float]:
    """The number of a family in the kernels, and the setting that it has."""
    setting = getattr(family, "delta", exp_bound(dtype))
    return FAMILIES.index(family.name), float(setting)

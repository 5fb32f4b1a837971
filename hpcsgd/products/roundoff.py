"""How far rounding alone may take the recurrence from fresh products.

A sum of n terms x, added one after the other with unit roundoff u, is off by about

    u √(n/6) ‖x‖   where signs vary,     u (√n/3) |Σx|   where they do not,

and by (1 + n u) times as much where u is so coarse that sums stop growing. These are
standard deviations of the usual model (each rounding is independent and uniform); what
is allowed is `SAFETY` of them. No other number enters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.formats import get_format
from hpcsgd.precision import FIELDS, Precision
from hpcsgd.schedule import Blocks

Array = NDArray[Any]
SAFETY = 10.0  # standard deviations: a run takes very many looks
UNIFORM = 1 / 3  # variance of what is uniform between -1 and 1


def unit(name: str) -> float:
    """The unit roundoff of a format."""
    return get_format(name).unit_roundoff


def grown(u: float, terms: float) -> float:
    """u (1 + n u): the roundoff of a sum, with the bias of one that stops growing."""
    return u * (1.0 + terms * u)


@dataclass(frozen=True)
class Model:
    """Variances of fresh products less the recurrence, in units of `unit`²."""

    precision: Precision
    blocks: Blocks
    terms: float  # of the sum that a member makes for a score
    members: int

    def _unit(self, *fields: str) -> float:
        return max(unit(getattr(self.precision, name)) for name in fields)

    @cached_property
    def unit(self) -> float:
        """The coarsest roundoff there is, which all members know."""
        used = [n for n in FIELDS if n not in ("matrix", "margin", "residual")]
        return self._unit(*used)

    @cached_property
    def of_weights(self) -> float:
        """Of ‖y∘w‖²: its sum, that over members, and w rounded in every step."""
        add = grown(self._unit("margin_sum"), self.terms)
        summed = add**2 * (self.terms / 6 + self.members)
        rounded = len(self.blocks.sizes) * self._unit("weights") ** 2
        return float((summed + rounded) / self.unit**2)

    @cached_property
    def of_steps(self) -> float:
        """Of ‖y∘Δw‖²: the Gram's sums, its message, gradients and their factors."""
        m, largest = self.blocks.rows, max(self.blocks.sizes)
        gram = grown(self._unit("gram_sum"), self.terms) ** 2 * self.terms / 6
        wire = self._unit("gram_wire") ** 2 * self.members
        step = grown(self._unit("gradient_sum"), largest) ** 2 * (1 + largest / 6)
        factors = self._unit("inner", "weights") ** 2
        # Errors of m rows meet with signs of their own; those of a step do not.
        return float((gram + wire + step * min(m, largest) + factors) / self.unit**2)

    def of_products(self, led: Array, correction: Array, total: Array) -> Array:
        """Variance of every row from the summed products themselves, absolute."""
        sums = grown(self._unit("margin_sum"), self.terms) ** 2
        gram = grown(self._unit("gram_sum"), self.terms) ** 2
        wire = self._unit("gram_wire") ** 2
        of_margins = sums * (self.terms / 9 + self.members) * (led**2 + total**2)
        of_gram = (gram * self.terms / 9 + wire * self.members) * correction**2
        whole: Array = of_margins + of_gram
        return whole

    def flushed(self, pushed: Array) -> Array:
        """What disappears below the smallest numbers of the formats, by row."""
        root = sqrt(self.terms)
        margin = _tiny(self.precision, ("margin_sum",)) * root
        gram = _tiny(self.precision, ("gram_sum", "gram_wire")) * root
        least: Array = margin + gram * np.abs(pushed)
        return least


def recurrence_error(
    precision: Precision, blocks: Blocks, parts: Iterable[Any], size: Array
) -> Array:
    """What `inner` may be off by at every score: `parts` are added, `size` corrects."""
    u = unit(precision.inner)
    before = np.repeat(blocks.starts[:-1], blocks.sizes)[:, None]
    spread = 1.0 + np.sqrt(before / 6) * (1.0 + before * u)
    added = sum(np.abs(part) for part in parts)
    tiny = _tiny(precision, ("inner",))
    allowed: Array = u * (added + spread * size) + tiny * np.sqrt(1.0 + before)
    return allowed


@lru_cache(maxsize=64)
def model_of(precision: Precision, blocks: Blocks, terms: float, members: int) -> Model:
    """The one `Model` of these: a run has two or three."""
    return Model(precision, blocks, terms, members)


def _tiny(precision: Precision, fields: Iterable[str]) -> float:
    return max(get_format(getattr(precision, name)).tiny for name in fields)

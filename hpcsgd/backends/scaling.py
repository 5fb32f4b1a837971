"""Powers of two that bring the columns of a matrix into the range of a narrow format.

fp16 and fp8 have so few exponents that data may lie beyond their largest number or
vanish below the smallest. Every column is stored times 2^e, its largest value as high
as the format goes; multiplying by 2^-e gives the rounded values back exactly.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.formats import Format
from hpcsgd.rounding import count_lost

Array = NDArray[Any]
MOST = 100  # 2^e and 2^-e are numbers of float32


@dataclass
class Scaling:
    """Exponents for all columns of the data, and what became of the values."""

    form: Format
    exponents: Array  # (columns of the data,)
    own: slice  # the columns of this rank
    saturated: int = 0  # values beyond the largest number: stored as that
    flushed: int = 0  # values that were not 0 and are stored as 0
    counts: bool = True

    def up(self, values: Array) -> Array:
        """Values as they are stored: scaled, and none beyond the largest number.

        A flat array is of sparse rows, whose columns share one exponent.
        """
        scaled: Array = np.ldexp(values, self._of(values))
        if self.counts:
            saturated, flushed = count_lost(scaled, self.form.name)
            self.saturated += saturated
            self.flushed += flushed
        return np.clip(scaled, -self.form.largest, self.form.largest)

    def down(self, values: Array) -> None:
        """Decoded values back to their size, in place."""
        np.ldexp(values, -self._of(values), out=values)

    def _of(self, values: Array) -> Any:
        """The exponents of this rank's columns, or of all of them."""
        if values.ndim == 1:
            return self.exponents[0]
        own = self.exponents[self.own]
        return own if values.shape[1] == len(own) else self.exponents


def make_scaling(form: Format, peaks: Array, own: slice, how: str) -> Scaling:
    """The largest exponents that leave no column's peak beyond the format.

    `how` is "column", "global" (all columns share the smallest) or "none".
    """
    _, above = np.frexp(peaks)  # peak = f · 2^above with f in [1/2, 1)
    room = int(np.frexp(form.largest)[1])
    exponents = np.where(peaks > 0, room - above, MOST)
    # A peak that is rounded up to the next power of two may be beyond the largest.
    exponents = np.where(np.ldexp(peaks, exponents) > form.largest, -1, 0) + exponents
    exponents = np.clip(exponents, -MOST, MOST).astype(np.int32)
    if how == "global" and len(exponents):
        exponents = np.full_like(exponents, exponents.min())
    if how == "none":
        exponents = np.zeros_like(exponents)
    return Scaling(form, exponents, own)

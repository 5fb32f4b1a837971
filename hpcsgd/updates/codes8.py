"""Eight bits for numbers of very different sizes: a table of 256 values in [−1, 1].

Values are spread over seven decades, with more of them in the upper ones: a decade 10⁻ᵉ
has 2^(6 − e) of them (arXiv 1511.04561, 2110.02861). Zero is a value, so that what is
zero stays zero: a column that no row has would else drift, divided by nothing.
Numbers are held in blocks, each divided by its largest, which is held beside it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BLOCK = 256  # columns that share a scale, score by score


def _decades(bits: int) -> Array:
    """The values above zero, ascending: `bits` for the fraction of the first decade."""
    found = [
        10.0**-e * (0.1 + 0.9 * np.arange(1, 2**f + 1) / 2**f)
        for e, f in enumerate(range(bits, -1, -1))
    ]
    return np.sort(np.concatenate(found))


def _table(signed: bool) -> Array:
    above = _decades(6 if signed else 7)
    if not signed:
        return np.concatenate([[0.0], above])
    return np.concatenate([-above[::-1], [0.0, 1e-8], above])


@dataclass(frozen=True)
class Code:
    """A table and the bounds between its values."""

    values: Array
    bounds: Array
    zero: int  # its place
    rooted: bool  # nothing becomes zero but zero: a step would be divided by nothing

    @classmethod
    def of(cls, signed: bool) -> "Code":
        """Ties go up."""
        values = _table(signed)
        bounds = (values[1:] + values[:-1]) / 2
        return cls(values, bounds, int(np.searchsorted(values, 0.0)), not signed)

    def nearest(self, numbers: Array) -> NDArray[np.uint8]:
        """The places of numbers in [−1, 1]."""
        places = np.searchsorted(self.bounds, numbers, side="right")
        if self.rooted:
            places += (places == self.zero) & (numbers > 0.0)
        return places.astype(np.uint8)


SIGNED, UNSIGNED = Code.of(signed=True), Code.of(signed=False)


@dataclass
class Eight:
    """A (columns, K) array in eight bits a word; slices of whole blocks are views.

    `rooted`: numbers are squares, and held as their roots, whose sizes lie closer.
    """

    codes: NDArray[np.uint8]  # (columns, K)
    scales: Array  # (blocks, K)
    rooted: bool

    @classmethod
    def zeros(cls, columns: int, width: int, dtype: Any, rooted: bool) -> "Eight":
        """All zero."""
        place = (UNSIGNED if rooted else SIGNED).zero
        codes = np.full((columns, width), place, dtype=np.uint8)
        return cls(codes, np.zeros((-(-columns // BLOCK), width), dtype), rooted)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers."""
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Of codes and scales."""
        return int(self.codes.nbytes + self.scales.nbytes)

    def __getitem__(self, columns: slice) -> "Eight":
        """Whole blocks, or up to the end."""
        first, last = columns.start // BLOCK, -(-columns.stop // BLOCK)
        return Eight(self.codes[columns], self.scales[first:last], self.rooted)

    def decoded(self) -> Array:
        """The numbers."""
        code = UNSIGNED if self.rooted else SIGNED
        found: Array = code.values.astype(self.scales.dtype)[self.codes]
        found *= np.repeat(self.scales, BLOCK, axis=0)[: len(found)]
        return np.square(found) if self.rooted else found

    def encode(self, numbers: Array) -> None:
        """Hold other numbers; what is no number is seen in its whole block."""
        code = UNSIGNED if self.rooted else SIGNED
        held = np.sqrt(numbers) if self.rooted else numbers
        starts = np.arange(0, len(held), BLOCK)
        self.scales[...] = np.maximum.reduceat(np.abs(held), starts, axis=0)
        below = np.where(self.scales > 0.0, self.scales, 1.0)
        self.codes[...] = code.nearest(
            held / np.repeat(below, BLOCK, axis=0)[: len(held)]
        )

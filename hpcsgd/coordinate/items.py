"""The items of a coordinate form, as far as one rank holds them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
AT_ONCE = 2**20  # values that are widened together


@dataclass(frozen=True)
class Sampled:
    """Some items: what products with them take."""

    rows: Any  # (m, width): an array or a SciPy CSR array
    wide: Any  # the same in float64: gradients decide where it all ends
    shift: Array | None  # (m,), how much of `along` is taken off each
    along: Array  # (width,)

    def gram(self) -> Array:
        """This rank's part of the inner products of all pairs, (m, m).

        In the dtype of the data: it says how far a step goes, not where it ends.
        """
        product = self.rows @ self.rows.T
        gram = np.asarray(product.toarray() if hasattr(product, "tocsr") else product)
        if self.shift is None:
            return gram
        crossed = np.multiply.outer(self.shift, self.wide @ self.along)
        square = np.multiply.outer(self.shift, self.shift) * (self.along @ self.along)
        gram -= (crossed + crossed.T - square).astype(gram.dtype)
        return gram

    def products(self, vector: Array) -> Array:
        """This rank's part of the inner products with `vector`, (m,)."""
        found: Array = self.wide @ vector
        if self.shift is not None:
            found = found - self.shift * (self.along @ vector)
        return found

    def combined(self, factors: Array) -> Array:
        """Σ_i factors_i item_i, (width,)."""
        found: Array = self.wide.T @ factors
        if self.shift is not None:
            found = found - self.along * (self.shift @ factors)
        return found


@dataclass(frozen=True)
class Items:
    """M: an array, or a SciPy CSR array, of which a shift and factors may be meant.

    Item i is `factors · (matrix[i] − shift[i])`, and nobody makes all of them: sparse
    items that are centred would be dense, and factors may change all the time.
    """

    matrix: Any
    shift: Array | None = None
    factors: Array | None = None  # (width,)

    @property
    def count(self) -> int:
        """N."""
        return int(self.matrix.shape[0])

    @property
    def width(self) -> int:
        """Of the part that this rank holds."""
        return int(self.matrix.shape[1])

    def take(self, numbers: Any) -> Sampled:
        """The items of these numbers, or of a slice."""
        rows = self.matrix[numbers]
        if self.factors is not None:
            rows = rows * self.factors.astype(rows.dtype)[None, :]
        if hasattr(rows, "tocsr"):
            rows = rows.tocsr()
        wide = rows.astype(np.float64, copy=False)
        shift = None if self.shift is None else self.shift[numbers]
        return Sampled(rows, wide, shift, self._along)

    def products(self, vector: Array) -> Array:
        """This rank's part of the inner products of all items with `vector`, (N,)."""
        if self.count == 0:
            return np.zeros((0, *vector.shape[1:]))
        return np.concatenate([self.take(p).products(vector) for p in self._parts()])

    def combined(self, factors: Array) -> Array:
        """Σ_i factors_i item_i over all items, (width,) or (width, K)."""
        total = np.zeros((self.width, *factors.shape[1:]))
        for part in self._parts():
            total += self.take(part).combined(factors[part])
        return total

    @property
    def _along(self) -> Array:
        """What a shift is taken off along."""
        return np.ones(self.width) if self.factors is None else self.factors

    def _parts(self) -> Iterator[slice]:
        step = max(AT_ONCE // max(self.width, 1), 1)
        for first in range(0, self.count, step):
            yield slice(first, min(first + step, self.count))

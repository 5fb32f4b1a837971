"""The items of a coordinate form, as far as one rank holds them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Sampled:
    """Some items: what products with them take."""

    rows: Any  # (m, width): an array or a SciPy CSR array
    wide: Any  # the same in float64: gradients decide where it all ends
    shift: Array | None  # (m,), how much of `along` is taken off each
    along: Array | None

    def gram(self) -> Array:
        """This rank's part of the inner products of all pairs, (m, m).

        In the dtype of the data: it says how far a step goes, not where it ends.
        """
        product = self.rows @ self.rows.T
        gram = np.asarray(product.toarray() if hasattr(product, "tocsr") else product)
        if self.shift is None or self.along is None:
            return gram
        crossed = np.multiply.outer(self.shift, self.wide @ self.along)
        square = np.multiply.outer(self.shift, self.shift) * (self.along @ self.along)
        gram -= (crossed + crossed.T - square).astype(gram.dtype)
        return gram

    def products(self, vector: Array) -> Array:
        """This rank's part of the inner products with `vector`, (m,)."""
        found: Array = self.wide @ vector
        if self.shift is not None and self.along is not None:
            found = found - self.shift * (self.along @ vector)
        return found

    def combined(self, factors: Array) -> Array:
        """Σ_i factors_i item_i, (width,)."""
        found: Array = self.wide.T @ factors
        if self.shift is not None and self.along is not None:
            found = found - self.along * (self.shift @ factors)
        return found


@dataclass(frozen=True)
class Items:
    """M: an array, or a SciPy CSR array whose items may lack a shift that is meant.

    Sparse items that are centred would be dense; so item i is
    `matrix[i] − shift[i] · along`, and nobody makes it.
    """

    matrix: Any
    shift: Array | None = None
    along: Array | None = None

    @property
    def count(self) -> int:
        """N."""
        return int(self.matrix.shape[0])

    @property
    def width(self) -> int:
        """Of the part that this rank holds."""
        return int(self.matrix.shape[1])

    def take(self, numbers: Array) -> Sampled:
        """The items of these numbers."""
        rows = self.matrix[numbers]
        wide = rows.astype(np.float64, copy=False)
        shift = None if self.shift is None else self.shift[numbers]
        return Sampled(rows, wide, shift, self.along)

    def all(self) -> Sampled:
        """All of them, as they are held."""
        return Sampled(self.matrix, self.matrix, self.shift, self.along)

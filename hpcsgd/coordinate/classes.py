"""Items of a model with K scores a row: weights (j, k), as vectors of n K numbers.

With the shares p_i of the classes and the weight c_i of row i, the curvature in its
scores is H_i = c_i (diag(p_i) − p_i p_iᵀ) = R_iᵀ R_i where

    R_i = √c_i diag(√p_i) (1 − 1 p_iᵀ)

so that item (j, k) has a_ij R_i e_k in the K places of row i, and inner products of
items are those of the quadratic model. The intercept takes K such vectors, R_i e_l.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.coordinate.items import Items, Sampled

Array = NDArray[Any]


@dataclass(frozen=True)
class SampledClasses(Sampled):
    """Some items, of which several vectors are taken off.

    `shift` is (m, K), and `along` is (n K, K).
    """

    def gram(self) -> Array:
        """Return this rank's part of the inner products of all pairs, (m, m)."""
        product = self.wide @ self.wide.T
        gram = np.asarray(product.toarray() if hasattr(product, "tocsr") else product)
        if self.shift is None:
            return gram
        crossed = self.shift @ (self.wide @ self.along).T
        square = self.shift @ (self.along.T @ self.along) @ self.shift.T
        return np.asarray(gram - (crossed + crossed.T - square))

    def products(self, vector: Array) -> Array:
        """Return this rank's part of the inner products with `vector`, (m,)."""
        found: Array = self.wide @ vector
        if self.shift is not None:
            found = found - self.shift @ (self.along.T @ vector)
        return found

    def combined(self, factors: Array) -> Array:
        """Return Σ_i factors_i item_i, (n K,)."""
        found: Array = self.wide.T @ factors
        if self.shift is not None:
            found = found - self.along @ (factors @ self.shift)
        return found


@dataclass(frozen=True, kw_only=True)
class ClassItems(Items):
    """Items (j, k) by their number j K + k; none is made before it is taken.

    Parameters
    ----------
    matrix : the columns of the data, (d, n)
    shift : ndarray, (m K, K), of the items of m columns, or None
    roots : ndarray, (n, K), √(c p)
    shares : ndarray, (n, K), p
    columns : ndarray, (m,), the columns that `shift` is of, ascending
    """

    roots: Array
    shares: Array
    columns: Array

    @property
    def count(self) -> int:
        """Return d K."""
        return int(self.matrix.shape[0]) * int(self.shares.shape[1])

    @property
    def width(self) -> int:
        """Return n K, for the rows of this rank."""
        return int(self.shares.size)

    def vectors(self) -> Array:
        """Return R_i e_l of all rows i, (n K, K)."""
        eye = np.eye(self.shares.shape[1])
        whole = self.roots[:, :, None] * (eye[None] - self.shares[:, None, :])
        return whole.reshape(self.width, -1)

    def take(self, numbers: Any) -> SampledClasses:
        """Return the items of these numbers."""
        classes = self.shares.shape[1]
        columns, k = np.divmod(np.asarray(numbers), classes)
        rows = self.matrix[columns]
        wide = self._lifted(rows, k)
        if self.shift is None:
            return SampledClasses(wide, wide, None, np.empty(0))
        places = np.searchsorted(self.columns, columns) * classes + k
        return SampledClasses(wide, wide, self.shift[places], self.vectors())

    def _lifted(self, rows: Any, k: Array) -> Any:
        """Return a_ij R_i e_k, (m, n K), from a_ij, (m, n)."""
        classes = self.shares.shape[1]
        eye = np.eye(classes)
        if not hasattr(rows, "tocsr"):
            turned = self.shares.T[k][:, :, None]  # p_ik of every item, (m, n, 1)
            lift = self.roots[None] * (eye[k][:, None, :] - turned)
            return (np.asarray(rows, np.float64)[:, :, None] * lift).reshape(len(k), -1)
        from scipy.sparse import csr_array

        rows = rows.tocsr()
        item = np.repeat(np.arange(len(k)), np.diff(rows.indptr))
        i = rows.indices
        lift = self.roots[i] * (eye[k[item]] - self.shares[i, k[item]][:, None])
        data = (rows.data.astype(np.float64)[:, None] * lift).reshape(-1)
        places = i.astype(np.int64)[:, None] * classes + np.arange(classes)
        edges = rows.indptr.astype(np.int64) * classes
        return csr_array((data, places.reshape(-1), edges), (len(k), self.width))

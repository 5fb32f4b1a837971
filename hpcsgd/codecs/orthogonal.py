"""Gram-Schmidt that gives the same bits to the same columns, on every machine alike.

Products and sums of NumPy, no BLAS: what a library adds in which order depends on
where an array lies and on the processor, and replicas must not differ by a bit.
"""

import numpy as np

from hpcsgd.codecs.base import Array


def orthogonal(columns: Array) -> Array:
    """Orthonormal columns that span the same, float64; zero where nothing is left.

    Each is scaled by its greatest word first: no square overflows or vanishes. Twice:
    once leaves columns that are nearly parallel far from orthogonal.
    """
    out = np.array(columns, dtype=np.float64, order="F")
    for k in range(out.shape[1]):
        column = out[:, k]
        size = np.abs(column).max(initial=0.0)
        if size == 0.0:
            continue
        column /= size
        for _ in range(2):
            for former in range(k):
                column -= np.sum(out[:, former] * column) * out[:, former]
            length = np.sqrt(np.sum(column * column))
            if length == 0.0:
                break
            column /= length
    return out


def outer(left: Array, right: Array) -> Array:
    """left · rightᵀ, column by column."""
    out = np.zeros((len(left), len(right)), dtype=right.dtype)
    for one, other in zip(left.T, right.T, strict=True):
        out += np.multiply.outer(one, other)
    return out

"""Multinomial logistic regression: ℓ = logsumexp(t) − t_y, W is d × K."""

import numpy as np

from hpcsgd.families.base import Array, no_clips


class Softmax:
    """K classes; targets are labels 0..K−1 as a column."""

    name = "softmax"
    targets = "classes"
    curvature = 0.5
    clipped = no_clips

    def loss(self, t: Array, y: Array) -> Array:
        """logsumexp(t) − t_y, with the largest score taken out."""
        top = _largest(t)
        total = np.log(np.exp(t - top).sum(axis=1, keepdims=True))
        labels = y.astype(np.intp, copy=False)
        # The right score meets the largest first: small losses keep their digits.
        losses: Array = total + (top - np.take_along_axis(t, labels, axis=1))
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """softmax(t) − onehot(y)."""
        mean = self._mean(t, out)
        np.subtract(mean, y == np.arange(t.shape[1], dtype=y.dtype), out=mean)
        return mean

    def mean(self, t: Array) -> Array:
        """softmax(t)."""
        return self._mean(t, None)

    def _mean(self, t: Array, out: Array | None) -> Array:
        mean = np.subtract(t, _largest(t), out=out)
        np.exp(mean, out=mean)
        np.divide(mean, np.add.reduce(mean, axis=1, keepdims=True), out=mean)
        return mean


def _largest(t: Array) -> Array:
    # The ufunc's own reduce: t.max costs a Python call more on each step.
    top: Array = np.maximum.reduce(t, axis=1, keepdims=True)
    return top

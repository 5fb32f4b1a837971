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
        top = t.max(axis=1, keepdims=True)
        total = np.log(np.exp(t - top).sum(axis=1, keepdims=True))
        return top + total - np.take_along_axis(t, _labels(y), axis=1)

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """softmax(t) − onehot(y)."""
        mean = self._mean(t, out)
        mean[np.arange(len(mean)), _labels(y)[:, 0]] -= 1
        return mean

    def mean(self, t: Array) -> Array:
        """softmax(t)."""
        return self._mean(t, None)

    def _mean(self, t: Array, out: Array | None) -> Array:
        mean = np.subtract(t, t.max(axis=1, keepdims=True), out=out)
        np.exp(mean, out=mean)
        mean /= mean.sum(axis=1, keepdims=True)
        return mean


def _labels(y: Array) -> Array:
    return y.astype(np.intp, copy=False).reshape(-1, 1)

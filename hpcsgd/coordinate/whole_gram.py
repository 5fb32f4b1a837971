"""Sweeps over a few items whose whole Gram every rank has: one message for all."""

from dataclasses import dataclass

import numpy as np

from hpcsgd.comm.base import Communicator
from hpcsgd.coordinate.items import Array, Sampled
from hpcsgd.coordinate.separable import ElasticNet

MOST_SWEEPS = 500  # where a sweep sends nothing
STILL = 1e-2  # of the first sweep's moves: another sweep adds little


@dataclass(frozen=True)
class WholeGram:
    """The quadratic model of some items, on every rank.

    Parameters
    ----------
    order : ndarray of int64, (m,), the items
    gram : ndarray, (m, m), their inner products over all ranks
    slopes : ndarray, (m,), those of the model where none has moved
    """

    order: Array
    gram: Array
    slopes: Array

    def sweep(self, x: Array, separable: ElasticNet, scale: float) -> int:
        """Change x of the items, sweep after sweep; return the number of steps."""
        slopes, first, sweeps = self.slopes.copy(), 0.0, 0
        curvatures = scale * np.diag(self.gram)
        for _ in range(MOST_SWEEPS):
            sweeps += 1
            farthest = 0.0
            for place, item in enumerate(self.order.tolist()):
                before, curvature = float(x[item]), float(curvatures[place])
                slope = float(slopes[place])
                move = separable.step_one(item, before, slope, curvature) - before
                if move:
                    x[item] = before + move
                    slopes += (scale * move) * self.gram[place]
                    farthest = max(farthest, curvature * abs(move))
            first = max(first, farthest)
            if farthest <= STILL * first:
                break
        return sweeps * len(self.order)


def sum_gram(
    members: Communicator, sampled: Sampled, order: Array, v: Array
) -> WholeGram:
    """Return the Gram of these items and their slopes. Collective; one message.

    The lower triangle travels: m (m + 1)/2 + m words for m items.
    """
    m = len(order)
    triangle = np.tril_indices(m)
    words = np.concatenate([sampled.products(v), sampled.gram()[triangle]])
    members.sum(words, "products")
    gram = np.empty((m, m))
    gram[triangle] = words[m:]
    gram.T[triangle] = words[m:]
    return WholeGram(order, gram, words[:m].copy())

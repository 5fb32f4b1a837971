"""A mixture of truncated normals: the law that adaptive levels take ratios to have.

Of chunk n with norm N_n the signed ratios v / N_n in [−1, 1] are taken for a normal
law of their mean and deviation, cut to that interval, as Faghri et al. (2020, section
3) and their program do. What rounding costs grows with N_n², so |v| / N of a word that
matters has the law

    F(r) = Σ_n γ_n (F_n(r) − F_n(−r)),   γ_n = m_n N_n² / Σ m N²,   0 ≤ r ≤ 1

where m_n is the number of words. F is tabulated: between neighbours of `EDGES`, which
grow by 0.45 %, mass is spread evenly. So F⁻¹ is always a number in [0, 1], however
narrow a law is and however far its tail.
"""

import numpy as np
from scipy.special import ndtr

from hpcsgd.codecs.base import Array

EDGES = np.concatenate([[0.0], np.geomspace(1e-8, 1.0, 4096)])
MOST_LAWS = 256  # of a mixture; those of like deviations are merged to be so many
BLOCK = 32  # laws that are tabulated at a time
LEAST_DEVIATION = 1e-12  # of ratios that are all the same


class Mixture:
    """The law of |v| / N, from `sums` of the chunks.

    Parameters
    ----------
    sums : array of shape (chunks, 3), with Σ N², Σ N² v/N and Σ N² (v/N)² of each
    """

    def __init__(self, sums: Array) -> None:
        weights, means, deviations = _merged(sums)
        signed = np.concatenate([-EDGES[:0:-1], EDGES])
        masses = np.zeros(len(signed) - 1)
        for start in range(0, len(weights), BLOCK):
            part = slice(start, start + BLOCK)
            below = ndtr((signed - means[part, None]) / deviations[part, None])
            found = np.diff(below, axis=1)
            found *= weights[part, None] / found.sum(axis=1, keepdims=True)
            # Not by BLAS, whose bits differ from machine to machine.
            masses += found.sum(axis=0)
        middle = len(EDGES) - 1
        folded = masses[middle:] + masses[:middle][::-1]
        folded /= folded.sum()
        self._density = folded / np.diff(EDGES)
        self._mass = _running(folded)
        self._first = _running(self._density * np.diff(EDGES**2) / 2.0)
        self._second = _running(self._density * np.diff(EDGES**3) / 3.0)

    def cdf(self, x: Array) -> Array:
        """Return F(x), which is 0 at 0 and 1 at 1."""
        cell = self._cell(x)
        found: Array = self._mass[cell] + self._density[cell] * (x - EDGES[cell])
        return found

    def first(self, x: Array) -> Array:
        """Return ∫ r dF from 0 to x."""
        cell = self._cell(x)
        more = self._density[cell] * (x**2 - EDGES[cell] ** 2) / 2.0
        found: Array = self._first[cell] + more
        return found

    def second(self, x: Array) -> Array:
        """Return ∫ r² dF from 0 to x."""
        cell = self._cell(x)
        more = self._density[cell] * (x**3 - EDGES[cell] ** 3) / 3.0
        found: Array = self._second[cell] + more
        return found

    def inverse(self, q: Array) -> Array:
        """Return F⁻¹(q) in [0, 1], for q in [0, 1]."""
        found: Array = np.interp(q, self._mass, EDGES)
        return found

    def companded(self, count: int) -> Array:
        """Return `count` levels from 0 to 1, as dense as the cube root of the density.

        Of many levels these are the ones that cost least (Panter and Dite, 1951).
        """
        share = _running(np.cbrt(self._density) * np.diff(EDGES))
        found: Array = np.interp(np.linspace(0.0, share[-1], count), share, EDGES)
        found[0] = 0.0
        return found

    def variance(self, levels: Array) -> float:
        """Return Ψ, what rounding to ± `levels` costs.

        Σ ∫ (u − r)(r − l) dF between neighbours l < u, and ∫ (l₀² − r²) dF below the
        least level l₀, where a word becomes l₀ or −l₀.
        """
        mass, first, second = self.cdf(levels), self.first(levels), self.second(levels)
        low, high = levels[:-1], levels[1:]
        between = (low + high) * np.diff(first) - low * high * np.diff(mass)
        below = levels[0] ** 2 * mass[0] - second[-1]
        return float(between.sum() + below)

    def _cell(self, x: Array) -> Array:
        """Return the cell that each x lies in; 1 lies in the last one."""
        above = np.searchsorted(EDGES, x, side="right")
        found: Array = np.minimum(above, len(EDGES) - 1) - 1
        return found


def _merged(sums: Array) -> tuple[Array, Array, Array]:
    """Return weight, mean and deviation of at most `MOST_LAWS` laws."""
    weights, means, deviations = _laws(sums)
    if len(weights) > MOST_LAWS:
        order = np.argsort(deviations, kind="stable")
        starts = np.arange(MOST_LAWS) * len(order) // MOST_LAWS
        weights, means, deviations = _laws(np.add.reduceat(sums[order], starts))
    return weights / weights.sum(), means, deviations


def _laws(sums: Array) -> tuple[Array, Array, Array]:
    weights = sums[:, 0]
    means = sums[:, 1] / weights
    variances = np.maximum(sums[:, 2] / weights - means**2, 0.0)
    return weights, means, np.maximum(np.sqrt(variances), LEAST_DEVIATION)


def _running(amounts: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(amounts)])

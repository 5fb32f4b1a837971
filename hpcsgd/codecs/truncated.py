"""A normal law cut to [0, 1]: what adaptive levels take ratios for."""

from statistics import NormalDist

from hpcsgd.codecs.base import Array

NARROW = 0.01  # below, tails between two levels would be rounding alone


class Truncated:
    """Of this mean and deviation before it was cut."""

    def __init__(self, mean: float, deviation: float) -> None:
        self.mean, self.deviation = mean, max(deviation, NARROW)
        self.whole = NormalDist(self.mean, self.deviation)
        self.below = self.whole.cdf(0.0)
        self.share = self.whole.cdf(1.0) - self.below

    def cdf(self, x: float) -> float:
        """F, 0 at 0 and 1 at 1."""
        return (self.whole.cdf(x) - self.below) / self.share

    def inverse(self, q: float) -> float:
        """F⁻¹, for q in (0, 1)."""
        return self.whole.inv_cdf(self.below + q * self.share)

    def first(self, a: float, c: float) -> float:
        """∫ r dF from a to c."""
        mass, height = self.cdf(c) - self.cdf(a), self.whole.pdf(c) - self.whole.pdf(a)
        return self.mean * mass - self.deviation**2 * height / self.share

    def second(self, a: float, c: float) -> float:
        """∫ r² dF from a to c."""
        mass, pdf = self.cdf(c) - self.cdf(a), self.whole.pdf
        edge = (c + self.mean) * pdf(c) - (a + self.mean) * pdf(a)
        square = self.deviation**2
        return (self.mean**2 + square) * mass - square * edge / self.share

    def variance(self, levels: Array) -> float:
        """Ψ: Σ ∫ (u − r)(r − l) dF, what rounding to `levels` costs."""
        total = 0.0
        for low, high in zip(levels[:-1], levels[1:], strict=True):
            a, c = float(low), float(high)
            mass = self.cdf(c) - self.cdf(a)
            total += (a + c) * self.first(a, c) - self.second(a, c) - a * c * mass
        return total

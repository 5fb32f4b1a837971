"""Rows drawn around planted weights, in blocks that any rank can make alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError

Array = NDArray[Any]
BLOCK = 2048  # rows drawn by one generator: the first rows of any two sizes agree


@dataclass(frozen=True)
class Shape:
    """What a shape is like."""

    rows: int
    cols: int
    task: str
    unit_rows: bool  # ‖a_i‖ = 1, as epsilon is distributed
    signal: float  # spread of the scores: larger = classes further apart


@dataclass(frozen=True)
class Knobs:
    """What may be harder than the shape; the defaults change no bit of it."""

    condition: float = 1.0  # of the columns' variances: larger = slower to learn
    correlation: float = 0.0  # of neighbouring columns, fading with their distance
    density: float = 1.0  # share of the values that are not 0
    noise: float = 0.0  # share of labels flipped; spread added to log rates of counts
    balance: float | None = None  # share of the label 1; None: as the scores fall

    def check(self, task: str) -> None:
        """Refuse what no data set can have."""
        sound = {
            "condition": 1 <= self.condition < float("inf"),
            "correlation": -1 < self.correlation < 1,
            "density": 0 < self.density <= 1,
            "noise": 0 <= self.noise < (0.5 if task == "binary" else float("inf")),
            "balance": self.balance is None or 0 < self.balance < 1,
        }
        ranges = {
            "condition": "at least 1",
            "correlation": "between -1 and 1",
            "density": "above 0 and at most 1",
            "noise": "at least 0, and below 0.5 for labels",
            "balance": "between 0 and 1",
        }
        for name, holds in sound.items():
            if not holds:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} must be {ranges[name]}"
                )
        if self.balance is not None and task != "binary":
            raise ConfigError("balance is of two labels; leave it out for counts")
        if self.density < 1 and self.correlation:
            raise ConfigError("correlation needs density 1; leave one of them out")


class Planted:
    """One synthetic data set: its true weights, and any of its blocks of rows."""

    def __init__(self, kind: Shape, cols: int, seed: int, knobs: Knobs) -> None:
        knobs.check(kind.task)
        self.kind, self.cols, self.seed, self.knobs = kind, cols, seed, knobs
        self.scales = _column_scales(cols, knobs.condition)
        drawn = np.random.default_rng((seed, 0)).normal(size=cols)
        self.weights = drawn * (kind.signal / self._spread(drawn))
        self.intercept = 0.0
        if knobs.balance is not None:
            self.intercept = _shift(kind.signal, knobs.balance)

    def block(self, number: int) -> tuple[Any, Array]:
        """Rows number·BLOCK and on: X float32, an array or CSR if density < 1, and y.

        The whole block is drawn whoever asks: it does not depend on where a file ends.
        """
        rng = np.random.default_rng((self.seed, 1, number))
        X = self._sparse(rng) if self.knobs.density < 1 else self._dense(rng)
        scores = X @ self.weights.astype(np.float32)
        if self.kind.unit_rows:
            X = _unit(X)
        return X, self._targets(rng, scores)

    def _dense(self, rng: np.random.Generator) -> Array:
        X = rng.standard_normal((BLOCK, self.cols), dtype=np.float32)
        rho = self.knobs.correlation
        if rho:  # x_j = ρ x_{j−1} + √(1 − ρ²) z_j
            X[:, 1:] *= np.float32(np.sqrt(1 - rho**2))
            X = carry_over(rho, X).astype(np.float32)
        if self.knobs.condition > 1:
            X *= self.scales.astype(np.float32)
        return X

    def _sparse(self, rng: np.random.Generator) -> Any:
        """Columns are drawn with replacement and kept once: no dense block is made."""
        draws = _draws(self.cols, self.knobs.density)
        counts = rng.poisson(draws, size=BLOCK)
        rows = np.repeat(np.arange(BLOCK, dtype=np.int64), counts)
        drawn = rng.integers(0, self.cols, size=len(rows))
        places = np.unique(rows * self.cols + drawn)
        rows, columns = np.divmod(places, self.cols)
        values = rng.standard_normal(len(places), dtype=np.float32)
        values *= self.scales[columns].astype(np.float32)
        starts = np.searchsorted(rows, np.arange(BLOCK + 1))
        from scipy.sparse import csr_array

        return csr_array((values, columns, starts), shape=(BLOCK, self.cols))

    def _targets(self, rng: np.random.Generator, scores: Array) -> Array:
        noise = self.knobs.noise
        if self.kind.task == "counts":
            if noise:
                scores = scores + noise * rng.standard_normal(BLOCK)
            return rng.poisson(np.exp(scores)).astype(np.float64)
        from scipy.special import expit

        probability = expit(scores.astype(np.float64) + self.intercept)
        y: Array = (rng.uniform(size=BLOCK) < probability).astype(np.float64)
        if noise:
            y = np.abs(y - (rng.uniform(size=BLOCK) < noise))
        return y

    def _spread(self, w: Array) -> float:
        """√(wᵀ Cov w): the spread of scores before their scale is set."""
        knobs = self.knobs
        if knobs == Knobs(noise=knobs.noise, balance=knobs.balance):
            return float(np.linalg.norm(w))
        scaled = w * self.scales
        # Σ_ij ρ^|i−j| u_i u_j by one recursion over the columns.
        carried = carry_over(knobs.correlation, scaled)
        return float(np.sqrt(knobs.density * scaled @ (2 * carried - scaled)))


def _column_scales(cols: int, condition: float) -> Array:
    """From 1 down to 1/√condition: variances span `condition`."""
    return np.geomspace(1.0, condition**-0.5, cols)


def _draws(cols: int, density: float) -> float:
    """Mean of a Poisson number of draws that hit a share `density` of the columns.

    A column is then missed with probability exp(−draws / cols).
    """
    return float(-cols * np.log1p(-density))


def _shift(signal: float, balance: float) -> float:
    """b with E sigmoid(s + b) = balance for normal scores s of this spread."""
    from scipy.optimize import brentq  # half a second, for those who need it
    from scipy.special import expit

    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()

    def excess(b: float) -> float:
        return float(weights @ expit(signal * nodes + b)) - balance

    return float(brentq(excess, -1e4, 1e4))


def carry_over(share: float, values: Any) -> Any:
    """Every value along the last axis, plus a share of the sum so far before it."""
    from scipy.signal import lfilter  # half a second, for those who need it

    return lfilter([1.0], [1.0, -share], values)


def _unit(X: Any) -> Any:
    if isinstance(X, np.ndarray):
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        return X
    from hpcsgd.data.transform import unit_rows

    return unit_rows(X).astype(np.float32)

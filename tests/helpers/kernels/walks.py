"""Plain steps in float64, and problems that kernels take them on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from tests.helpers.kernels.emulator import empty, on_device
from tests.helpers.kernels.problems import numbers, stored

FAMILIES = (
    *("logistic", "gaussian", "poisson", "gamma", "squared-hinge", "huber"),
    *("probit", "tweedie", "negative-binomial"),
)
# A family for each format, and what is left.
PAIRS = [
    *(("bf16", "logistic"), ("fp16", "gaussian"), ("fp32", "poisson")),
    *(("fp8-e4m3", "gamma"), ("fp8-e5m2", "huber"), ("bf16", "squared-hinge")),
    *(("fp16", "tweedie"), ("fp32", "negative-binomial")),
]
# Bounds near enough to matter, δ, a power and a dispersion.
SETTINGS = {
    **{"poisson": 1.5, "gamma": 1.5, "huber": 0.5},
    **{"tweedie": 1.3, "negative-binomial": 0.5},
}
MOST = 80.0  # exponents elsewhere


def residuals_of(family: str, t: Any, y: Any) -> Any:
    """dl/dt by the formulas of the families."""
    setting = SETTINGS.get(family, MOST)
    return {
        "logistic": lambda: 1 / (1 + np.exp(-t)) - y,
        "gaussian": lambda: t - y,
        "poisson": lambda: np.exp(np.minimum(t, setting)) - y,
        "gamma": lambda: 1 - np.exp(np.minimum(-t, setting)) * y,
        "squared-hinge": lambda: np.minimum(t * y - 1, 0) * y,
        "huber": lambda: np.clip(t - y, -setting, setting),
        "tweedie": lambda: (np.exp(t) - y) / np.exp(t) ** (setting - 1),
        "negative-binomial": lambda: (np.exp(t) - y) / (1 + setting * np.exp(t)),
        "probit": lambda: (1 - 2 * y) * np.exp(-(t**2) / 2) / tail(t * (2 * y - 1)),
    }[family]()


def tail(t: Any) -> Any:
    """The normal distribution below t, times the root of 2 pi."""
    return np.sqrt(2 * np.pi) * ndtr(t)


@dataclass
class Walk:
    """Steps to take, and what they are to lead to."""

    family: str
    matrix: np.ndarray
    stride: int
    rows: np.ndarray
    starts: np.ndarray
    coefficients: tuple  # carry, gain, push, free
    extras: tuple  # targets, sample weights, offsets
    before: np.ndarray
    intercept: float | None
    exact: np.ndarray  # the sampled rows

    @property
    def tall(self) -> int:
        """Rows of the largest batch."""
        return int(np.diff(self.starts).max())

    @property
    def given(self) -> tuple:
        """What both kernels take in one order, from the row numbers on."""
        setting = float(SETTINGS.get(self.family, MOST))
        steps, cols = len(self.starts) - 1, len(self.before)
        head = (self.starts, steps, cols, *self.extras)
        return (*head, setting, 0, *self.coefficients)

    def state(self) -> tuple:
        """(intercept, weights, residuals) that a launch may write to."""
        beta = None if self.intercept is None else on_device([self.intercept], "f8")
        return beta, on_device(self.before), empty(len(self.rows))

    def wanted(self) -> tuple:
        """The same three in float64."""
        y, v, o = (self._all(*two) for two in zip(self.extras, (0, 1, 0), strict=True))
        w, beta = self.before.astype(np.float64), self.intercept or 0.0
        found = np.empty(len(self.rows))
        for j, first in enumerate(self.starts[:-1]):
            at = slice(first, self.starts[j + 1])
            here = (float(values[j]) for values in self.coefficients)
            carry, gain, push, free = here
            t = self.exact[at] @ w + o[at] + beta
            found[at] = residuals_of(self.family, t, y[at]) * v[at]
            w = carry * w + gain * self.exact[at].T @ found[at]
            if self.intercept is not None:
                beta = free * beta + push * found[at].sum()
        return beta, w, found

    def _all(self, values: Any, value: float) -> Any:
        return np.full(len(self.rows), value) if values is None else values.astype("f8")


def walk_of(n, d, counts, name="bf16", family="logistic", bare=False):
    """Batches of these sizes; `bare`: no sample weights, offsets, intercept."""
    rng = np.random.default_rng(n + d + sum(counts))
    matrix, stride, exact = stored(rng, n, d, name, spare=3)
    starts, m = on_device(np.cumsum([0, *counts]), np.int32), sum(counts)
    rows = numbers(rng, n, m)
    steps, size = len(counts), 0.5 / (np.mean(counts) + d)
    carry = on_device(rng.uniform(0.9, 1.0, steps), np.float32)
    gain = on_device(-size * rng.uniform(1, 2, steps), np.float32)
    push = on_device(3 * gain, np.float32)
    free = on_device(rng.uniform(0.8, 1.0, steps), np.float32)
    real = family in ("gaussian", "huber")
    labels = rng.normal(size=m) if real else rng.integers(0, 2, m).astype("f8")
    y = 2 * labels - 1 if family == "squared-hinge" else labels
    v = None if bare else on_device(rng.uniform(0, 2, m), np.float32)
    o = None if bare else on_device(rng.normal(size=m), np.float32)
    before = (rng.normal(size=d) / np.sqrt(d)).astype(np.float32)
    extras = (on_device(y, np.float32), v, o)
    place = (family, matrix, stride, rows, starts, (carry, gain, push, free), extras)
    return Walk(*place, before, None if bare else 0.3, exact[rows])


def agree(found, walk):
    """Each launch's (intercept, weights, residuals) with float64 and with the first."""
    beta, w, r = walk.wanted()
    for launched in found:
        assert np.abs(launched[1] - w).max() <= 2e-6 * np.abs(w).max()
        assert np.abs(launched[2] - r).max() <= 6e-6 * max(1.0, np.abs(r).max())
        if launched[0] is not None:
            size = max(1.0, abs(beta), np.abs(r).max())  # it is a sum of residuals
            assert abs(launched[0][0] - beta) <= 2e-6 * size
        for one, first in zip(launched, found[0], strict=True):
            np.testing.assert_array_equal(one, first)

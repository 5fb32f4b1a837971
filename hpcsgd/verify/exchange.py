"""One exchange of a run, and one step of SGD from the textbook, in longdouble.

Neither the updates nor the products of the package are used here, so that an error
there cannot hide itself.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.families.base import Array, Family, exp_bound
from hpcsgd.precision import Precision

L = np.longdouble
PARTS = ("w", "v", "b", "bv")
Point = dict[str, NDArray[Any]]  # w and v (d, K), b and bv (K,)


@dataclass(frozen=True)
class Exchange:
    """What one exchange worked on, as the run stored it, and in which arithmetic."""

    family: Family
    rows: Array  # (m, d), longdouble as the three that follow
    targets: Array  # (m, 1)
    weights: Array  # (m, 1), mean 1 over the whole data
    offsets: Array  # (m, 1)
    sizes: tuple[int, ...]
    rates: Array
    l2: float
    update: str
    momentum: float
    intercept: bool
    clip: float  # scores beyond it are clipped by families with an exponential
    precision: Precision
    in_steps: bool  # scores are summed in every step, and there is no Gram
    members: int  # whose parts of a score are summed
    replicas: int  # whose gradients are summed


def look(exchange: Exchange, at: Array, speed: Array) -> Array:
    """Return where the gradient is taken."""
    ahead = exchange.update == "nesterov-classic"
    return at + L(exchange.momentum) * speed if ahead else at


def update(
    exchange: Exchange, w: Array, v: Array, g: Array, rate: Any
) -> tuple[Array, Array]:
    """Return weights and momentum after one step: the textbook, one line each."""
    mu = L(exchange.momentum)
    if exchange.update == "sgd":
        return w - rate * g, v
    if exchange.update == "nesterov-classic":
        v = mu * v - rate * g
        return w + v, v
    v = mu * v + g
    return w - rate * (v if exchange.update == "momentum" else g + mu * v), v


def step(exchange: Exchange, at: Point, g: Array, pull: Array, rate: Any) -> Point:
    """Return the point after one update of weights and of a learnt intercept."""
    w, v = update(exchange, at["w"], at["v"], g, rate)
    b, bv = at["b"], at["bv"]
    if exchange.intercept:
        b, bv = update(exchange, b, bv, pull, rate)
    return {"w": w, "v": v, "b": b, "bv": bv}


def target_size(family: Family, y: Array) -> Array:
    """Return about the size of the two numbers that a residual is the difference of."""
    real = family.targets in ("real", "counts", "positive")
    return np.maximum(np.abs(y), 1) if real else np.ones_like(y)


def residual(family: Family, t: Array, y: Array, clip: float) -> Array:
    """Return ∂ℓ/∂t in longdouble, or in float64 where the family has nothing wider."""
    if not np.isfinite(family.curvature):
        t = np.clip(t, -clip, clip)
    try:
        return np.asarray(family.residual(t.copy(), y), dtype=L)
    except TypeError:  # a special function without a longdouble form
        narrow = family.residual(t.astype(np.float64), y.astype(np.float64))
        return narrow.astype(L)


def clip_of(dtype: Any) -> float:
    """Return the score at which a run in `dtype` clips its exponentials."""
    return exp_bound(np.dtype(dtype))

"""Plain mini-batch SGD in longdouble, step by step: what an exchange must equal.

Written from the textbook. Neither the updates nor the products of the package are used
here, so that an error there cannot hide itself.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.families.base import Array, Family, exp_bound
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision

L = np.longdouble
DRAWS = 8  # replays with errors, of which the largest deviation counts
SAFETY = 64  # times that deviation is allowed: sums round in every term
STORED = 4  # and of margins stored low, which round once and by no more than u |z|
PARTS = ("w", "v", "b", "bv")
Point = dict[str, NDArray[Any]]  # w and v (d, K), b and bv (K,)


@dataclass(frozen=True)
class Exchange:
    """What one exchange worked on, in longdouble, as the run stored it."""

    family: Family
    rows: Array  # (m, d)
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


class Errors:
    """Random signs times the roundoff of each place where a run rounds."""

    def __init__(self, precision: Precision, seed: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(seed)
        places = ("margin_sum", "gram_sum", "gram_wire", "inner")
        self.margin = max(_unit(getattr(precision, name)) for name in places)
        self.stored = 0.0
        self.residual = _unit(precision.residual)
        self.gradient = _unit(precision.gradient_sum)
        self.weights = _unit(precision.weights)

    def of(self, size: Array) -> Array:
        """`size` with random signs."""
        return np.where(self.rng.integers(0, 2, size=size.shape), size, -size)


class StoredErrors(Errors):
    """The margins alone are rounded, once, as they are stored."""

    def __init__(self, precision: Precision, seed: tuple[int, ...]) -> None:
        super().__init__(precision, seed)
        self.stored = _unit(precision.margin)
        self.margin = self.residual = self.gradient = self.weights = 0.0


def _unit(name: str) -> float:
    return get_format(name).unit_roundoff


def replay(exchange: Exchange, start: Point, errors: Errors | None = None) -> Point:
    """The point after all steps; with `errors`, as a run that rounds would have it."""
    point = {name: value.astype(L) for name, value in start.items()}
    reach, stored = _first_reach(exchange, point), _stored_margins(exchange, point)
    first = 0
    for size, rate in zip(exchange.sizes, exchange.rates, strict=True):
        batch = slice(first, first + size)
        gradient, pull = _gradient(exchange, point, batch, reach, stored[batch], errors)
        before = point["w"]
        point = _step(exchange, point, gradient, pull, L(rate))
        if errors is not None:
            _round(point, errors)
        reach = reach + np.abs(point["w"] - before)
        first += size
    return point


def _first_reach(exchange: Exchange, point: Point) -> Array:
    """|w| + μ|v|: what every score of the exchange is a sum of, steps to come aside."""
    reach: Array = np.abs(point["w"]) + L(exchange.momentum) * np.abs(point["v"])
    return reach


def _stored_margins(exchange: Exchange, start: Point) -> Array:
    """|Yw| + κ|Yv| at the start: z of both states, and the largest factor of Yv."""
    mu, steps = exchange.momentum, len(exchange.sizes)
    most = min(steps, 1 / (1 - mu))
    most *= 1 if exchange.update == "nesterov-classic" else float(exchange.rates.max())
    z: Array = np.abs(exchange.rows @ start["w"])
    return z + L(most) * np.abs(exchange.rows @ start["v"]) if mu else z


def _look(exchange: Exchange, at: Array, speed: Array) -> Array:
    """Where the gradient is taken."""
    ahead = exchange.update == "nesterov-classic"
    return at + L(exchange.momentum) * speed if ahead else at


def _gradient(
    exchange: Exchange,
    point: Point,
    batch: slice,
    reach: Array,
    stored: Array,
    errors: Errors | None,
) -> tuple[Array, Array]:
    """The gradients of this batch by w (ridge included) and by the intercept."""
    Y, c, y = exchange.rows[batch], exchange.weights[batch], exchange.targets[batch]
    at = _look(exchange, point["w"], point["v"])
    shift = _look(exchange, point["b"], point["bv"]) + exchange.offsets[batch]
    t = Y @ at + shift
    if errors is not None:
        size = errors.margin * (np.abs(Y) @ reach + np.abs(shift))
        size = size + errors.stored * (stored + np.abs(t - shift))
        t = t + errors.of(size + errors.residual * np.abs(t))
    r = residual(exchange.family, t, y, exchange.clip) * c
    if errors is not None:
        r = r + errors.of(
            errors.residual * (np.abs(r) + c * target_size(exchange.family, y))
        )
    count = len(Y)
    g, pull = Y.T @ r / count, r.sum(axis=0) / count
    if errors is not None:
        g = g + errors.of(errors.gradient * (np.abs(Y).T @ np.abs(r)) / count)
    return g + L(exchange.l2) * at, pull


def target_size(family: Family, y: Array) -> Array:
    """A residual is the difference of two numbers of about this size."""
    real = family.targets in ("real", "counts", "positive")
    return np.maximum(np.abs(y), 1) if real else np.ones_like(y)


def residual(family: Family, t: Array, y: Array, clip: float) -> Array:
    """∂ℓ/∂t in longdouble, or in float64 where the family has nothing wider."""
    if not np.isfinite(family.curvature):
        t = np.clip(t, -clip, clip)
    try:
        return np.asarray(family.residual(t.copy(), y), dtype=L)
    except TypeError:  # a special function without a longdouble form
        narrow = family.residual(t.astype(np.float64), y.astype(np.float64))
        return narrow.astype(L)


def _step(exchange: Exchange, at: Point, g: Array, pull: Array, rate: Any) -> Point:
    """One update of weights and, where it is learnt, of the intercept."""
    w, v = _update(exchange, at["w"], at["v"], g, rate)
    b, bv = at["b"], at["bv"]
    if exchange.intercept:
        b, bv = _update(exchange, b, bv, pull, rate)
    return {"w": w, "v": v, "b": b, "bv": bv}


def _update(
    exchange: Exchange, w: Array, v: Array, g: Array, rate: Any
) -> tuple[Array, Array]:
    """The textbook, one line each."""
    mu = L(exchange.momentum)
    if exchange.update == "sgd":
        return w - rate * g, v
    if exchange.update == "nesterov-classic":
        v = mu * v - rate * g
        return w + v, v
    v = mu * v + g
    return w - rate * (v if exchange.update == "momentum" else g + mu * v), v


def _round(point: Point, errors: Errors) -> None:
    for name in ("w", "v"):
        point[name] = point[name] + errors.of(errors.weights * np.abs(point[name]))


@dataclass(frozen=True)
class Comparison:
    """Both relative to the step taken, of the part where they are closest."""

    part: str
    deviation: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Within; a number that is none is not."""
        return self.deviation <= self.tolerance


def compare(
    exchange: Exchange,
    start: Point,
    end: Point,
    precision: Precision,
    seed: int,
    parts: tuple[str, ...] = PARTS,
) -> Comparison:
    """What the run had at the end of the exchange, against the replay."""
    exact = replay(exchange, start)
    bent = {
        factor: [replay(exchange, start, kind(precision, (seed, d))) for d in range(n)]
        for factor, kind, n in (
            (SAFETY, Errors, DRAWS),
            (STORED, StoredErrors, DRAWS if _stores_low(precision) else 0),
        )
    }
    found = [
        _compare(part, start, end, exact, bent)
        for part in parts
        if exact[part].size and (exact[part].any() or end[part].any())
    ]
    return max(found, key=_closeness, default=Comparison("w", 0.0, 0.0))


def _stores_low(precision: Precision) -> bool:
    return _unit(precision.margin) > _unit(precision.margin_sum)


def _compare(
    part: str, start: Point, end: Point, exact: Point, bent: dict[int, list[Point]]
) -> Comparison:
    step = _norm(exact[part] - start[part]) or 1.0
    allowed = sum(
        factor * max((_norm(one[part] - exact[part]) for one in points), default=0.0)
        for factor, points in bent.items()
    )
    deviation = _norm(end[part].astype(L) - exact[part])
    return Comparison(part, deviation / step, allowed / step)


def _closeness(found: Comparison) -> float:
    if not np.isfinite(found.deviation):
        return np.inf
    return found.deviation / max(found.tolerance, np.finfo(float).tiny)


def _norm(values: Array) -> float:
    return float(np.sqrt(np.sum(np.square(values))))


def clip_of(dtype: Any) -> float:
    """The score at which a run in `dtype` clips its exponentials."""
    return exp_bound(np.dtype(dtype))

"""Plain mini-batch SGD in longdouble, step by step: what an exchange must equal.

Rows are those that the run stored. Margins are rounded where the run stored them low
(recipe `c`): the run computed a z within ε of the exact one, and stored fl(z). Where
fl(z − ε) = fl(z + ε) that is known, in whatever order the run summed, and the replay
goes on with it; elsewhere it goes on with z, and the distance to the farther of the two
is allowed. What else is allowed is counted in `hpcsgd.verify.allowance`. Where a few
such margins leave an exchange undecided, it is replayed with one of the two and with
the other: whatever a right run stored is among them.

An exchange is decided where no more than `DECISIVE` of a step is allowed: a result that
is wrong by more than that cannot pass.
"""

from dataclasses import dataclass, replace
from math import hypot

import numpy as np

from hpcsgd.families.base import Array
from hpcsgd.formats import get_format
from hpcsgd.precision import FIELDS, RECIPES, Precision
from hpcsgd.verify.allowance import Allowance
from hpcsgd.verify.exchange import PARTS, Exchange, L, Point, look, residual, step

DECISIVE = 1 / 50  # of a step: what may be allowed where an exchange is decided
CHOSEN = 5  # doubtful margins of which both numbers are tried
GROUPS = {"w": ("w", "b"), "b": ("w", "b"), "v": ("v", "bv"), "bv": ("v", "bv")}


@dataclass(frozen=True)
class Replay:
    """Where an exchange ends, and what of it the formats leave open."""

    end: Point
    allowed: dict[str, float]  # how far a run may be from each part of `end`
    doubtful: int  # margins that may have been stored as either of two numbers


def replay(exchange: Exchange, start: Point, choices: tuple[bool, ...] = ()) -> Replay:
    """Return the replay of all steps.

    Parameters
    ----------
    exchange, start : what the run worked on
    choices : of the first doubtful margins, whether the larger number is taken
    """
    with np.errstate(all="ignore"):
        allowance = Allowance(exchange, start, choices)
        point = {name: value.astype(L) for name, value in start.items()}
        for j, batch in enumerate(allowance.batches):
            at = look(exchange, point["w"], point["v"])
            shift = look(exchange, point["b"], point["bv"]) + exchange.offsets[batch]
            z, off = allowance.margins(j, at)
            t = z + shift
            y, c = exchange.targets[batch], exchange.weights[batch]
            r = residual(exchange.family, t, y, exchange.clip) * c
            count = len(r)
            g = exchange.rows[batch].T @ r / count + L(exchange.l2) * at
            before = point
            point = step(
                exchange, point, g, r.sum(axis=0) / count, L(exchange.rates[j])
            )
            allowance.take(j, before, point, (t, shift + 0 * t), off, r)
        return Replay(point, allowance.bounds(point), allowance.doubtful)


@dataclass(frozen=True)
class Comparison:
    """Both relative to the step taken, of the part where they are closest."""

    part: str
    deviation: float
    tolerance: float

    @property
    def is_within(self) -> bool:
        """Whether the formats explain the deviation; one that is no number is not."""
        return self.deviation <= self.tolerance

    @property
    def is_decided(self) -> bool:
        """Whether a result that is wrong would have been seen."""
        return not self.is_within or self.tolerance <= DECISIVE


def compare(
    exchange: Exchange, start: Point, end: Point, parts: tuple[str, ...] = PARTS
) -> Comparison:
    """Return the distance of what the run had at the end from the replay.

    Of several parts the one that is wrong; where none is, one that is not decided; else
    the one that is off by most of what is allowed.
    """
    first = _compare(start, end, replay(exchange, start), parts)
    if first.is_decided:
        return first
    return _search(exchange, start, end, parts) or first


def _search(
    exchange: Exchange, start: Point, end: Point, parts: tuple[str, ...]
) -> Comparison | None:
    """The replay that meets the run, where margins were stored one way or the other.

    Every choice is one that the format leaves to the run. None of them explains a run
    that is wrong: then the closest one is returned. None where there are too many.
    """
    waiting: list[tuple[bool, ...]] = [()]
    failed: list[Comparison] = []
    while waiting:
        choices = waiting.pop()
        one = replay(exchange, start, choices)
        met = _compare(start, end, one, parts)
        if not met.is_within:
            failed.append(met)
        elif met.is_decided:
            return met
        elif len(choices) < min(one.doubtful, CHOSEN):
            waiting += [(*choices, False), (*choices, True)]
        else:
            return None
    return min(failed, key=lambda one: one.deviation)


def _compare(
    start: Point, end: Point, one: Replay, parts: tuple[str, ...]
) -> Comparison:
    exact, allowed = one.end, one.allowed
    there = [name for name in parts if exact[name].any() or end[name].any()]
    found = []
    for name in there:
        group = [n for n in GROUPS[name] if n in there]
        taken = hypot(*(_norm(exact[n] - start[n]) for n in group)) or 1.0
        deviation = _norm(end[name].astype(L) - exact[name])
        found.append(Comparison(name, deviation / taken, allowed[name] / taken))
    return max(found, key=_order, default=Comparison("w", 0.0, 0.0))


def _order(found: Comparison) -> tuple[bool, bool, float]:
    """What is wrong comes first, then what is not decided, then what is close."""
    if not np.isfinite(found.deviation):
        return True, True, np.inf
    share = found.deviation / max(found.tolerance, np.finfo(float).tiny)
    return not found.is_within, not found.is_decided, share


def _norm(values: Array) -> float:
    return float(np.sqrt(np.sum(np.square(values))))


def deciding(exchange: Exchange, start: Point, parts: tuple[str, ...]) -> str:
    """Return the setting with which an exchange like this one would be decided.

    One field in float32 where that is enough, else a whole recipe; nothing where
    float64 is not enough.
    """
    now = exchange.precision
    candidates: dict[str, Precision] = {}
    for name in FIELDS[1:]:  # the matrix is replayed as it was stored
        wider = replace(now, **{name: "fp32"})
        if _unit(now, name) > _unit(wider, name):
            candidates[f"--set precision.{name}=fp32"] = wider
    for recipe in ("fp32", "fp64"):
        wider = RECIPES[recipe]
        if any(_unit(now, name) > _unit(wider, name) for name in FIELDS[1:]):
            candidates[f"--precision {recipe}"] = wider
    for words, precision in candidates.items():
        one = replay(replace(exchange, precision=precision), start)
        if _compare(start, one.end, one, parts).is_decided:
            return words
    return ""


def _unit(precision: Precision, field: str) -> float:
    return get_format(getattr(precision, field)).unit_roundoff

"""One exchange in any formats, all members in lock step in one process, and its error.

The calls are those of the products, one member after the other; what members say to
one another is rounded as it is on the wire.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import make_backend
from hpcsgd.backends.base import Backend, Batch
from hpcsgd.backends.loss_scale import LossScale
from hpcsgd.backends.rounded import RoundedBackend
from hpcsgd.backends.scaling import Scaling
from hpcsgd.bound import Exchange
from hpcsgd.comm.lockstep import sum_parts
from hpcsgd.formats import get_format
from hpcsgd.precision import RECIPES, Precision
from hpcsgd.rounding import round_through

Array = NDArray[Any]
EXACT = RECIPES["fp64"]


@dataclass(frozen=True)
class Outcome:
    """What an exchange made of the weights."""

    after: Array  # w⁺, (d, K), float64
    residuals: Array  # r, (m, K), float64


@dataclass
class Member:
    """One rank: its backend, its columns, its slice of the weights."""

    backend: Backend
    rows: Any
    weights: Array


def perform(exchange: Exchange, precision: Precision) -> Outcome:
    """The exchange as all members together would make it."""
    crew = [_member(exchange, precision, part) for part in exchange.parts]
    gram, margins = _products(exchange, precision, crew)
    for member in crew:
        plan = member.backend.prepare(exchange.unrolled, exchange.blocks)
        beta = exchange.intercept
        residuals = member.backend.corrected_residuals(
            *(margins.copy(), gram.copy(), plan, exchange.family),
            *(_batch(exchange, precision), beta if beta is None else beta[None].copy()),
        )
        member.backend.descend(member.weights, member.rows, residuals, plan)
    whole = np.concatenate([member.weights for member in crew])
    return Outcome(whole.astype(np.float64), residuals.astype(np.float64))


def as_one_field(field: str, name: str) -> Precision:
    """Format `name` in one field, fp64 in the eight others."""
    return replace(EXACT, **{field: name})


def held(exchange: Exchange, name: str) -> Exchange:
    """The exchange with weights that format `name` has, as a run would hold them."""
    before = exchange.before.astype(np.float64)
    round_through(before, name)
    return replace(exchange, before=before)


def relative_error(exchange: Exchange, precision: Precision) -> float:
    """‖w⁺ − exact w⁺‖ / ‖Δw‖, Δw the update of the exact exchange."""
    exact = exchange.path.after
    off = np.linalg.norm(perform(exchange, precision).after - exact)
    return float(off / exchange.path.update(exchange.before))


def _member(exchange: Exchange, precision: Precision, part: slice) -> Member:
    backend = make_backend(precision)
    form = get_format(precision.matrix)
    if form.wants_scale and exchange.exponents is not None:
        backend.scaling = Scaling(form, exchange.exponents, part)
    if isinstance(backend, RoundedBackend) and backend.loss_scale is not None:
        backend.loss_scale = LossScale(exchange.loss_scale, is_fixed=True)
    matrix = backend.store(np.ascontiguousarray(exchange.rows[:, part]))
    count = np.arange(len(exchange.rows))
    rows = backend.gather(matrix, count, np.empty(matrix.shape, precision.working))
    weights = backend.zeros((part.stop - part.start, exchange.before.shape[1]))
    weights[...] = exchange.before[part]
    return Member(backend, rows, weights)


def _batch(exchange: Exchange, precision: Precision) -> Batch:
    """What belongs to the rows, as a run holds it."""
    kind, c, offsets = precision.working, exchange.weights, exchange.offsets
    return Batch(
        exchange.targets.astype(kind),
        None if c is None else c.astype(kind),
        None if offsets is None else offsets.astype(kind),
    )


def _products(
    exchange: Exchange, precision: Precision, crew: list[Member]
) -> tuple[Array, Array]:
    """Packed G and z, summed over members and stored."""
    sums = [
        sum_parts(parts, name) for parts, name in _messages(exchange, precision, crew)
    ]
    if precision.one_message:
        sums = np.split(sums[0], [exchange.blocks.gram_words])
    gram, margins = sums
    margins = margins.reshape(len(exchange.rows), -1)
    summed = get_format(precision.margin_sum).unit_roundoff
    if get_format(precision.margin).unit_roundoff > summed:
        crew[0].backend.round(margins, precision.margin)
    return gram, margins


def _messages(
    exchange: Exchange, precision: Precision, crew: list[Member]
) -> list[tuple[list[Array], str]]:
    """What every member sends, and in which format: in one message or in two."""
    summed, wire = precision.margin_sum, precision.gram_wire
    shape = (len(exchange.rows), exchange.before.shape[1])
    grams, margins = [], []
    for member in crew:
        gram = np.empty(exchange.blocks.gram_words, dtype=get_format(wire).carrier)
        grams.append(member.backend.strict_gram(member.rows, exchange.blocks, gram))
        z = np.empty(shape, dtype=get_format(summed).carrier)
        margins.append(member.backend.scores(member.rows, member.weights, z).ravel())
    if precision.one_message:
        both = [np.concatenate(two) for two in zip(grams, margins, strict=True)]
        return [(both, wire)]
    return [(grams, wire), (margins, summed)]

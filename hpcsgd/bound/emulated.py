"""The terms for arithmetic as it is emulated here, where they can be sharper.

An accumulator adds the sum of `TOGETHER` products at a time, computed wide, and is
rounded after each addition, in a known order: what counts is the size of the partial
sums that are rounded, not that of the products. Of a wire of few bits members round
their parts once and their total once, and sum in float32 between.
"""

from collections.abc import Callable

import numpy as np

from hpcsgd.backends.rounded import TOGETHER
from hpcsgd.bound import general
from hpcsgd.bound.accumulate import chunks, gamma, partial_sums, rounded, sent
from hpcsgd.bound.case import Array, Case
from hpcsgd.formats import get_format

CARRIED = get_format("fp32").unit_roundoff  # of sums between roundings to few bits


def margin_sum(case: Case) -> float:
    """T3: u Σ_k |s_k| over the partial sums s_k of every member, then the reduction."""
    of = case.exchange
    error = _summed(case, of.rows, of.before)
    parts = [of.rows[:, part] @ of.before[part] for part in of.parts]
    if len(parts) > 1:
        error = error + reduction(case, parts, error)
    return case.from_scores(of.lead * error)


def reduction(case: Case, parts: list[Array], error: Array) -> Array:
    """Of a sum over members; their parts are numbers of the format already.

    They are rounded nevertheless where the message is divided, as G is too large.
    """
    size = np.sum(np.abs(parts), axis=0) + error
    if case.form.is_wide:
        return np.asarray(gamma(case.depth, case.unit) * size)
    again = [sent(part, case.form, case.loudest) - np.abs(part) for part in parts]
    first = case.unit * np.sum(again, axis=0) + gamma(len(parts), CARRIED) * size
    total = sent(np.sum(parts, axis=0), case.form, case.loudest) + error + first
    return np.asarray(first + case.unit * total)


def gram_sum(case: Case) -> float:
    """T4: as T3 for every entry of G, the reduction left to `gram_wire`."""
    of = case.exchange
    return case.from_scores(general.correction(case, _summed(case, of.rows, of.rows.T)))


def _summed(case: Case, left: Array, right: Array) -> Array:
    """The error of left · right where every member accumulates its own columns."""
    errors = []
    for part in case.exchange.parts:
        pieces = list(chunks(part, TOGETHER))
        sums = (left[:, piece] @ right[piece] for piece in pieces)
        spread = _spread(case, np.abs(left[:, part]), np.abs(right[part]))
        errors.append(partial_sums(sums, case.form) + spread)
    total: Array = np.sum(errors, axis=0)
    return total


def _spread(case: Case, left: Array, right: Array) -> Array:
    """What the wide sums are off by themselves, as it grows with each rounding."""
    count = -(-left.shape[1] // TOGETHER)
    wide = gamma(TOGETHER + 1, case.hidden) * (1 + case.unit) ** count
    return np.asarray(wide * (left @ right))


def gram_wire(case: Case) -> float:
    """T5: u ( Σ_c |G^c| + |G| ): every part is rounded, and their total."""
    of = case.exchange
    parts = general.member_grams(case)
    if len(of.parts) == 1:
        rounding = CARRIED * parts if case.comes_wider else 0.0 * parts
    else:
        first = (case.unit + 2 * gamma(len(of.parts), CARRIED)) * parts
        rounding = first + case.unit * (sent(of.gram, case.form, case.loudest) + first)
    return case.from_scores(general.correction(case, rounding))


def inner(case: Case) -> float:
    """T6: u of G, of h r, of every partial sum of G h r, and of the score.

    Batch j sums its start_j products from the first on; later ones are none of its.
    """
    of, path, u = case.exchange, case.exchange.path, case.unit
    products, G = of.coupling * of.gram, rounded(of.gram, case.form)
    size, floor = np.abs(of.coupling) * G, 2.0**case.form.least * G * (of.coupling != 0)
    total = error = np.zeros_like(path.scores)
    for piece in chunks(slice(0, len(of.rows)), TOGETHER):
        r = path.residuals[piece]
        part = products[:, piece] @ r
        total = total + part
        off = size[:, piece] @ np.abs(r)
        lost = floor[:, piece].sum(axis=1, keepdims=True)
        off = (2 * u + u * u + gamma(TOGETHER + 1, case.hidden)) * off + 2 * u * lost
        last = u * (rounded(total, case.form) + error + off)
        moved = error + off + np.minimum(last, np.abs(part) + off)
        error = np.where(of.begins > piece.start, moved, error)
    return case.from_scores(error + u * (rounded(path.scores, case.form) + error))


def residual(case: Case) -> float:
    """T7: u |t| in the scores; u |r| in the residuals, twice with sample weights.

    Between the two roundings the residual is computed wide.
    """
    of, path, u = case.exchange, case.exchange.path, case.unit
    if case.form.is_wide:
        return general.residual(case)
    scores = u * rounded(path.scores, case.form) + 2 * CARRIED * np.abs(path.scores)
    c = 1.0 if of.weights is None else np.abs(of.weights)
    scale = of.loss_scale if case.form.wants_scale else 1.0
    size = u * rounded(path.bare * scale, case.form) / scale
    wide = general.LIBRARY * general.mean_size(case) + np.abs(path.bare)
    size = size + 2 * CARRIED * (wide + np.abs(of.targets))
    if of.weights is not None:
        last = rounded(path.residuals * scale, case.form) / scale
        size = c * size + u * (last + c * size)
    return case.from_scores(scores) + case.from_residuals(size)


def gradient_sum(case: Case) -> float:
    """T8: u Σ_k |s_k| over the partial sums of Yᵀ (h r), `TOGETHER` rows at a time."""
    of = case.exchange
    scaled = of.gain * of.path.residuals
    pieces = chunks(slice(0, len(of.rows)), TOGETHER)
    sums = (of.rows[piece].T @ scaled[piece] for piece in pieces)
    spread = _spread(case, np.abs(of.rows.T), np.abs(scaled))
    return float(np.linalg.norm(partial_sums(sums, case.form) + spread))


def weights(case: Case) -> float:
    """T9: u |w⁺|: the update is computed wide and rounded once."""
    after = rounded(case.exchange.path.after, case.form)
    return case.unit * float(np.linalg.norm(after))


TERMS: dict[str, Callable[[Case], float]] = {
    **general.TERMS,
    "margin_sum": margin_sum,
    "gram_sum": gram_sum,
    "gram_wire": gram_wire,
    "inner": inner,
    "residual": residual,
    "gradient_sum": gradient_sum,
    "weights": weights,
}

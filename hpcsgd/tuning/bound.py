"""Bounds of the error of every number format in an exchange."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hpcsgd.backends.emulated import TOGETHER
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, Format, get_format, round_through, wider
from hpcsgd.precision import FIELDS, Precision
from hpcsgd.tuning.exact_exchange import ROOM, ExactExchange

# One of the nine parts of the error bound.


@dataclass(frozen=True)
class Term:
    """The bound of the error of w after an exchange, for one field of the precision."""

    field: str
    format: str
    unit_roundoff: float
    absolute: float  # ‖δw‖ at most this; inf: no bound
    relative: float  # to ‖Δw‖, the update of the exact exchange
    model: str  # emulated: the order of sums of this program; any: every order
    norms: str  # exact, or upper bound: of ‖Y_j‖₂, if the batches are large
    condition: str = ""  # the assumptions of the bound

    @property
    def is_bounded(self) -> bool:
        """Return whether the bound is finite.

        It is not if the format is too short for sums of this length.
        """
        return self.absolute < float("inf")


# The common part of all terms: how errors in one place change the weights.
#
# Let ŵ_j be the iterates that the computed residuals r̂ would give in exact arithmetic.
# Then t̂_j = Y_j ŵ_j + e_j, r̂_j = residual(t̂_j) + σ_j, and δ_j = ŵ_j − w_j obeys
#
#     δ_{j+1} = (ρ_j − h_j Y_jᵀ D_j Y_j) δ_j − h_j Y_jᵀ (D_j e_j + σ_j),  0 ≤ D_j ≤ l,
#
# so that  ‖δ_s‖ ≤ Σ_j growth_j h_j ‖Y_j‖ (‖l e_j‖ + ‖σ_j‖),
#
# l a column of bounds on ∂r/∂t, one for each row. If only scores have errors, σ = 0,
# the squares can be added instead. With x = Y_j δ_j + e_j and r̂ − r = D x,
#
#     ‖δ_{j+1}‖² = ρ² ‖δ_j‖² − 2ρh ⟨x − e, D x⟩ + h² ‖YᵀD x‖²
#                ≤ ‖δ_j‖² − 2ρh (1 − θ) ‖√D x‖² + 2ρh ⟨e, D x⟩,  θ = h l_j ‖Y_j‖² / 2ρ,
#                ≤ ‖δ_j‖² + ρh ‖√l e‖² / (2 (1 − θ)),
#
# which grows like √s, the sum of norms like s.


@dataclass(frozen=True)
class Case:
    """One field of one exchange, and its number format."""

    exchange: ExactExchange
    form: Format  # of the field
    working: Format  # of values between the roundings
    depth: int  # κ, additions of the reduction over members
    comes_wider: bool  # sums have more digits than the buffer in which they are sent

    @property
    def unit(self) -> float:
        """Return the unit roundoff u of the field's format."""
        return self.form.unit_roundoff

    @property
    def width(self) -> int:
        """Return d/C, the largest number of columns of a member."""
        return int(max(part.stop - part.start for part in self.exchange.parts))

    @property
    def loudest(self) -> float:
        """Return a bound of all |G_ij| and |z_i|, also of the parts of members.

        G is the Gram and z are the margins before the exchange.
        """
        of = self.exchange
        squares = np.square(of.rows).sum(axis=1).max(initial=0.0)
        reach = np.abs(of.rows) @ np.abs(of.before)
        return float(max(squares, reach.max(initial=0.0)))

    @property
    def hidden(self) -> float:
        """Return the unit roundoff of the wide format that is used before rounding."""
        return self.working.unit_roundoff

    def from_scores(self, errors: Array) -> float:
        """Return a bound of ‖δw‖ for errors of the scores, (m, K).

        It is the smaller of two bounds: a sum of norms, and `_by_energy`.
        """
        straight = self.from_residuals(self.exchange.slopes * errors)
        return min(straight, self._by_energy(errors))

    def _by_energy(self, errors: Array) -> float:
        """Return √ Σ_j ρ h ‖√l e_j‖² / (2 (1 − θ_j)), where θ = h l ‖Y‖² / 2ρ.

        It bounds ‖δw‖ for errors e_j of the scores of step j; h is the rate over the
        batch size, l bounds ∂r/∂t, and ρ = 1 − rate · λ. It is inf if some θ_j ≥ 1 or
        ρ ≤ 0, or if λ > 0 and there is an intercept.
        """
        of = self.exchange
        steps = of.steps
        rho = 1.0 - np.array(steps.rates) * steps.l2
        if rho.min() <= 0 or (steps.l2 > 0 and of.intercept is not None):
            return float("inf")
        share = steps.per_row * of.steepest * of.norms.values**2 / (2.0 * rho)
        if share.max() >= 1:
            return float("inf")
        squares = self._norms(np.sqrt(of.slopes) * errors) ** 2
        return float(np.sqrt(np.sum(rho * steps.per_row * squares / (2 * (1 - share)))))

    def from_residuals(self, errors: Array) -> float:
        """Return a bound of ‖δw‖ for errors of the residuals, (m, K)."""
        return float(self._reach() @ self._norms(errors))

    def from_steps(self, errors: list[Array]) -> float:
        """Return a bound of ‖δw‖ if step j has the error h_j errors[j].

        h_j is the rate of step j over its batch size.
        """
        size = np.array([np.linalg.norm(error) for error in errors])
        return float((self.exchange.growth * self.exchange.steps.per_row) @ size)

    def _reach(self) -> Array:
        of = self.exchange
        reach: Array = of.growth * of.steps.per_row * of.norms.values
        return reach

    def _norms(self, errors: Array) -> Array:
        slices = self.exchange.steps.slices
        return np.array([np.linalg.norm(errors[part]) for part in slices])


# Bounds of the errors of sums: the constants of rounding error analysis.
#
# `partial_sums` is for accumulators whose order is known, as the emulated ones are;
# `gamma` holds for every order.


def gamma(count: float, unit: float) -> float:
    """Return γ_k(u) = k u / (1 − k u) for k = `count`, u = `unit`; inf if k u ≥ 1."""
    return count * unit / (1.0 - count * unit) if count * unit < 1.0 else math.inf


def rounded(values: Array, form: Format) -> Array:
    """Return sizes a with |fl(v) − v| ≤ u a for values v that are rounded to `form`.

    a is |v|, at least the least normal number; it is 0 for v = 0.
    """
    size = np.abs(values)
    return np.where(size > 0, np.maximum(size, 2.0**form.least), 0.0)


def sent(values: Array, form: Format, loudest: float) -> Array:
    """Return sizes a with |fl(v) − v| ≤ u a, for values v of a scaled message.

    a is |v|, at least the least normal number times the scale; it is 0 for v = 0. The
    scale, of formats that need one, takes `loudest` into the upper half of the range.
    """
    factor = 2.0 * loudest / form.largest if form.wants_scale else 1.0
    size = np.abs(values)
    return np.where(size > 0, np.maximum(size, factor * 2.0**form.least), 0.0)


def binade(values: Array, form: Format) -> Array:
    """Return sizes a with |fl(v) − v| ≤ u a for values v that are known exactly.

    a is the power of two at or below |v|, at least the least normal number; it is 0 for
    v = 0.
    """
    _, exponent = np.frexp(values)
    size = np.ldexp(1.0, np.maximum(exponent - 1, form.least))
    return np.where(values != 0, size, 0.0)


def partial_sums(parts: Iterable[Array], form: Format) -> Array:
    """Return a bound of the error of Σ parts, if every addition is rounded to `form`.

    With s_k the exact sum of the first k parts, and ŝ_k = fl(ŝ_{k−1} + p_k),

        |ŝ_k − s_k| ≤ |ŝ_{k−1} − s_{k−1}| + min(u |ŝ_{k−1} + p_k|, |p_k|):

    the number nearest to ŝ_{k−1} + p_k is no further from it than ŝ_{k−1}, which is a
    number of the format, too.
    """
    unit = form.unit_roundoff
    total = error = np.zeros(1)
    for part in parts:
        total = total + part
        last = unit * (rounded(total, form) + error)
        error = error + np.minimum(last, np.abs(part))
    return error


def chunks(columns: slice, width: int) -> Iterator[slice]:
    """Yield the chunks of `columns`, `width` columns each; the last may be shorter."""
    for first in range(columns.start, columns.stop, width):
        yield slice(first, min(first + width, columns.stop))


# The nine terms for any machine, in the usual form: sums in any order.
#
# |·| is componentwise, C_ji = |h_i P_{i+1..j}|, γ_k(u) = k u / (1 − k u).

LIBRARY = 6  # roundoffs of a library's exponential and a quotient
CANONICAL = ("gaussian", "logistic", "binomial", "poisson", "softmax")  # r = μ − y


def matrix(case: Case) -> float:
    """Return T1, the bound of ‖δw‖ by the format of the matrix.

    The errors are u |Y_j| |w_j| in the scores and u |Y_j|ᵀ |r_j| in the steps, with
    rows Y_j, weights w_j and residuals r_j of step j. The values of Y are known and
    rounded once, so that |Y| is taken from their binades.
    """
    of = case.exchange
    path = case.exchange.path
    size = _stored_size(case)
    parts = list(zip(of.steps.slices, path.iterates, strict=True))
    scores = np.concatenate([size[part] @ np.abs(w) for part, w in parts])
    steps = [size[part].T @ np.abs(path.residuals[part]) for part in of.steps.slices]
    return case.unit * (case.from_scores(scores) + case.from_steps(steps))


def _stored_size(case: Case) -> Array:
    """Return 2^⌊log₂|y|⌋ for each value y of the rows, as it is scaled by columns.

    The error of a stored y is at most u times this size.
    """
    rows = case.exchange.rows
    exponents = case.exchange.exponents
    if exponents is None or not case.form.wants_scale:
        return binade(rows, case.form)
    return np.ldexp(binade(np.ldexp(rows, exponents), case.form), -exponents)


def margin(case: Case) -> float:
    """Return T2, the bound of ‖δw‖ by the format of the margins z.

    The errors of the margins are u |z|.
    """
    z = rounded(case.exchange.path.margins, case.form)
    return case.unit * case.from_scores(case.exchange.steps.lead * z)


def margin_sum(case: Case) -> float:
    """Return T3, the bound of ‖δw‖ by the format of the sums of margins.

    The errors of the margins are [γ_{d/C} + κ u] |Y| |w|, with d/C columns of a member
    and κ additions over members.
    """
    of = case.exchange
    factor = gamma(case.width, case.unit) + case.depth * case.unit
    reach = np.abs(of.rows) @ np.abs(of.before)
    return factor * case.from_scores(of.steps.lead * reach)


def gram_sum(case: Case) -> float:
    """Return T4, the bound of ‖δw‖ by the format of the sums of the Gram.

    The errors of the scores are γ_{d/C} Σ_{i<j} C_ji |Y_j| |Y_i|ᵀ |r_i|, with d/C
    columns of a member and the coupling C_ji of step j with step i.
    """
    of = case.exchange
    size = np.abs(of.rows)
    sums = (np.abs(of.steps.coupling) * (size @ size.T)) @ np.abs(of.path.residuals)
    return gamma(case.width, case.unit) * case.from_scores(sums)


def gram_wire(case: Case) -> float:
    """Return T5, the bound of ‖δw‖ by the format of the message with the Gram.

    The errors of the scores are (κ + 1) u Σ_{i<j} C_ji Σ_c |G^c_ji| |r_i|, with the
    part G^c of member c, the coupling C_ji of step j with step i, and κ additions over
    members. For one member κ = 0, and the bound is 0 unless sums have more digits than
    the buffer of the Gram.
    """
    if case.depth == 0 and not case.comes_wider:
        return 0.0
    sums = correction(case, member_grams(case))
    return (case.depth + 1) * case.unit * case.from_scores(sums)


def member_grams(case: Case) -> Array:
    """Return Σ_c |Y^c (Y^c)ᵀ| over members c, whose columns of the rows are Y^c.

    Parts of members may cancel in the sum; their rounding errors do not.
    """
    rows = case.exchange.rows
    shares = (rows[:, part] for part in case.exchange.parts)
    loudest = case.loudest
    sizes = [sent(share @ share.T, case.form, loudest) for share in shares]
    return np.asarray(np.sum(sizes, axis=0))


def correction(case: Case, gram: Array) -> Array:
    """Return Σ_{i<j} C_ji |G_ji| |r_i| for |G| = `gram`, with residuals r_i of step i.

    C_ji is the coupling of step j with step i.
    """
    of = case.exchange
    sums: Array = (np.abs(of.steps.coupling) * gram) @ np.abs(of.path.residuals)
    return sums


def inner(case: Case) -> float:
    """Return T6, the bound of ‖δw‖ by the format of the recurrence.

    The errors of the scores t are (start_j + 2) u Σ_{i<j} C_ji |G_ji| |r_i| + u |t_j|,
    where start_j rows precede batch j. λ > 0 adds a rounding, and u |P z|; an offset
    and an intercept add an addition each.
    """
    of = case.exchange
    path = case.exchange.path
    steps = case.exchange.steps
    summed = correction(case, np.abs(of.gram))
    led = steps.lead * np.abs(path.margins)
    size = (steps.begins + 2 + (steps.l2 > 0)) * summed + np.abs(path.scores)
    size = size + (led if steps.l2 > 0 else 0.0)
    added = (of.batch.offsets, None if of.intercept is None else path.intercepts)
    more = [np.abs(term) for term in added if term is not None]
    if more:
        size = size + len(more) * (led + summed + np.sum(np.broadcast_arrays(*more), 0))
    return case.unit * case.from_scores(size)


def residual(case: Case) -> float:
    """Return T7, the bound of ‖δw‖ by the format of the residuals.

    The errors are u c (6 |μ| + |r|) in the residuals c r, with means μ and sample
    weights c (1 without weights), and u |t| in the scores t. Sample weights add
    u c |r|, and targets y that are not numbers of the format add u c |y|. Where
    r ≠ μ − y, `mean_size` replaces |μ|.
    """
    of = case.exchange
    path = case.exchange.path
    batch = case.exchange.batch
    c = np.ones((len(of.rows), 1)) if batch.weights is None else batch.weights
    size = c * (LIBRARY * mean_size(case) + np.abs(path.bare))
    size = size + (0.0 if batch.weights is None else np.abs(path.residuals))
    rounded_targets = batch.targets.astype(np.float64)
    round_through(rounded_targets, case.form.name)
    if (rounded_targets != batch.targets).any():
        size = size + c * np.abs(batch.targets)
    scores = case.from_scores(np.abs(path.scores))
    return case.unit * (scores + case.from_residuals(size))


def mean_size(case: Case) -> Array:
    """Return the size of the terms whose difference is the residual: |μ|, the mean.

    Families whose residual is not μ − y have |r| + max(|y|, 1) in place of |μ|.
    """
    of = case.exchange
    family = case.exchange.family
    if family.name in CANONICAL:
        return np.asarray(np.abs(family.mean(of.path.scores.copy())))
    return np.abs(of.path.bare) + np.maximum(np.abs(of.batch.targets), 1.0)


def gradient_sum(case: Case) -> float:
    """Return T8, the bound of ‖δw‖ by the format of the sums of the gradient.

    It is the norm of γ_{m+1} Σ_i |h_i P_{i+1..s}| |Y_i|ᵀ |r_i|, for m additions and the
    factor h_i P_{i+1..s} of step i, with m rows of the exchange.
    """
    of = case.exchange
    sums = np.abs(of.rows).T @ np.abs(of.steps.gain * of.path.residuals)
    return gamma(len(of.rows) + 1, case.unit) * float(np.linalg.norm(sums))


def weights(case: Case) -> float:
    """Return T9, the bound of ‖δw‖ by the format of the weights.

    It is u (|w⁺| + |Δ|), with the weights w⁺ after the exchange and their update
    Δ = Σ_i h_i P_{i+1..s} Y_iᵀ r_i; λ > 0 adds u |P w|, w the weights before.
    """
    of = case.exchange
    carried = float(of.steps.unrolled.carry[0, 0]) * of.before
    size = np.linalg.norm(rounded(of.path.after, case.form))
    size += np.linalg.norm(of.path.after - carried)
    size += np.linalg.norm(carried) if of.steps.l2 > 0 else 0.0
    return case.unit * float(size)


TERMS: dict[str, Callable[[Case], float]] = {
    "matrix": matrix,
    "margin": margin,
    "margin_sum": margin_sum,
    "gram_sum": gram_sum,
    "gram_wire": gram_wire,
    "inner": inner,
    "residual": residual,
    "gradient_sum": gradient_sum,
    "weights": weights,
}


# The terms for the emulated arithmetic of this program, which can be sharper.
#
# An accumulator adds the sum of `TOGETHER` products at a time, computed wide, and is
# rounded after each addition, in a known order: the bound depends on the size of the
# partial sums that are rounded, not on that of the products. If messages have few bits,
# members round their parts once and the total once, and sum in float32 between.

CARRIED = get_format("fp32").unit_roundoff  # of sums between these roundings


def emulated_margin_sum(case: Case) -> float:
    """Return T3, the bound of ‖δw‖ by the emulated format of the sums of margins.

    The errors are u Σ_k |s_k| over the partial sums s_k of every member, and those of
    the reduction over members.
    """
    of = case.exchange
    error = _summed(case, of.rows, of.before)
    parts = [of.rows[:, part] @ of.before[part] for part in of.parts]
    if len(parts) > 1:
        error = error + reduction(case, parts, error)
    return case.from_scores(of.steps.lead * error)


def reduction(case: Case, parts: list[Array], error: Array) -> Array:
    """Return a bound of the error that a sum over members adds to `error`.

    The `parts` of members are numbers of the format already. They are rounded again if
    the message is divided by a scale, because G is too large for the format.
    """
    size = np.sum(np.abs(parts), axis=0) + error
    if case.form.is_wide:
        return np.asarray(gamma(case.depth, case.unit) * size)
    again = [sent(part, case.form, case.loudest) - np.abs(part) for part in parts]
    first = case.unit * np.sum(again, axis=0) + gamma(len(parts), CARRIED) * size
    total = sent(np.sum(parts, axis=0), case.form, case.loudest) + error + first
    return np.asarray(first + case.unit * total)


def emulated_gram_sum(case: Case) -> float:
    """Return T4, the bound of ‖δw‖ by the emulated format of the sums of the Gram G.

    The errors of each entry are those of a member's sum in `emulated_margin_sum`; those
    of the reduction over members belong to `gram_wire`.
    """
    of = case.exchange
    return case.from_scores(correction(case, _summed(case, of.rows, of.rows.T)))


def _summed(case: Case, left: Array, right: Array) -> Array:
    """Return a bound of the error of left · right, summed by members over columns."""
    errors = []
    for part in case.exchange.parts:
        pieces = list(chunks(part, TOGETHER))
        sums = (left[:, piece] @ right[piece] for piece in pieces)
        spread = _spread(case, np.abs(left[:, part]), np.abs(right[part]))
        errors.append(partial_sums(sums, case.form) + spread)
    total: Array = np.sum(errors, axis=0)
    return total


def _spread(case: Case, left: Array, right: Array) -> Array:
    """Return a bound of the errors of the wide sums, which grow with each rounding."""
    count = -(-left.shape[1] // TOGETHER)
    wide = gamma(TOGETHER + 1, case.hidden) * (1 + case.unit) ** count
    return np.asarray(wide * (left @ right))


def emulated_gram_wire(case: Case) -> float:
    """Return T5, the bound of ‖δw‖ by the emulated format of the message with the Gram.

    The errors of the Gram are u (Σ_c |G^c| + |G|): the part G^c of every member c is
    rounded, and the total G. One member sends nothing: it may only round sums to the
    float32 of the buffer.
    """
    of = case.exchange
    parts = member_grams(case)
    if len(of.parts) == 1:
        rounding = CARRIED * parts if case.comes_wider else 0.0 * parts
    else:
        first = (case.unit + 2 * gamma(len(of.parts), CARRIED)) * parts
        rounding = first + case.unit * (sent(of.gram, case.form, case.loudest) + first)
    return case.from_scores(correction(case, rounding))


def emulated_inner(case: Case) -> float:
    """Return T6, the bound of ‖δw‖ by the emulated format of the recurrence.

    G, the scaled residuals h r, every partial sum of G h r, and the score are rounded.
    Batch j sums products of the start_j rows before it, and none of later rows.
    """
    of = case.exchange
    path = case.exchange.path
    u = case.unit
    products = of.steps.coupling * of.gram
    G = rounded(of.gram, case.form)
    size = np.abs(of.steps.coupling) * G
    floor = 2.0**case.form.least * G * (of.steps.coupling != 0)
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
        error = np.where(of.steps.begins > piece.start, moved, error)
    return case.from_scores(error + u * (rounded(path.scores, case.form) + error))


def emulated_residual(case: Case) -> float:
    """Return T7, the bound of ‖δw‖ by the emulated format of the residuals.

    The errors are u |t| in the scores t and u |r| in the residuals r, twice with sample
    weights. Between the two roundings the residual is computed in a wide format. If the
    format of the residuals is wide, the function `residual` computes the bound.
    """
    of = case.exchange
    path = case.exchange.path
    batch = case.exchange.batch
    u = case.unit
    if case.form.is_wide:
        return residual(case)
    scores = u * rounded(path.scores, case.form) + 2 * CARRIED * np.abs(path.scores)
    c = 1.0 if batch.weights is None else np.abs(batch.weights)
    scale = of.loss_scale if case.form.wants_scale else 1.0
    size = u * rounded(path.bare * scale, case.form) / scale
    wide = LIBRARY * mean_size(case) + np.abs(path.bare)
    size = size + 2 * CARRIED * (wide + np.abs(batch.targets))
    if batch.weights is not None:
        last = rounded(path.residuals * scale, case.form) / scale
        size = c * size + u * (last + c * size)
    return case.from_scores(scores) + case.from_residuals(size)


def emulated_gradient_sum(case: Case) -> float:
    """Return T8, the bound of ‖δw‖ by the emulated format of the sums of the gradient.

    The errors are u Σ_k |s_k| over the partial sums s_k of Yᵀ (h r), which add
    `TOGETHER` rows at a time.
    """
    of = case.exchange
    scaled = of.steps.gain * of.path.residuals
    pieces = chunks(slice(0, len(of.rows)), TOGETHER)
    sums = (of.rows[piece].T @ scaled[piece] for piece in pieces)
    spread = _spread(case, np.abs(of.rows.T), np.abs(scaled))
    return float(np.linalg.norm(partial_sums(sums, case.form) + spread))


def emulated_weights(case: Case) -> float:
    """Return T9, the bound of ‖δw‖ by the emulated format of the weights.

    It is u |w⁺|, with the weights w⁺ after the exchange: the update is computed in a
    wide format and rounded once.
    """
    after = rounded(case.exchange.path.after, case.form)
    return case.unit * float(np.linalg.norm(after))


EMULATED_TERMS: dict[str, Callable[[Case], float]] = {
    **TERMS,
    "margin_sum": emulated_margin_sum,
    "gram_sum": emulated_gram_sum,
    "gram_wire": emulated_gram_wire,
    "inner": emulated_inner,
    "residual": emulated_residual,
    "gradient_sum": emulated_gradient_sum,
    "weights": emulated_weights,
}


# The bound of the error of the weights after one exchange, from its number formats.

MODELS = ("emulated", "any")
ACCUMULATING = (
    *("margin_sum", "gram_sum", "inner", "residual", "gradient_sum", "weights"),
)


def bound(
    exchange: ExactExchange, precision: Precision, model: str = "emulated"
) -> dict[str, Term]:
    """Return bounds of the error ‖δw‖ after one exchange, one for each field.

    They hold to first order in the unit roundoffs.

    Parameters
    ----------
    exchange : ExactExchange
        The exchange in exact arithmetic: its rows, steps and weights.
    precision : Precision
        The nine number formats.
    model : {"emulated", "any"}, default="emulated"
        "emulated" is the arithmetic of this program. "any" holds for machines that sum
        in another order or round in other places.

    Returns
    -------
    dict of Term
        Field -> bound. The sum of their `absolute` bounds the error of all nine formats
        together.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> from hpcsgd.backends.base import StepBatch
    >>> from hpcsgd.glm import get_family
    >>> from hpcsgd.tuning.bound import bound
    >>> from hpcsgd.tuning.exact_exchange import ExactExchange, SgdSteps
    >>> rng = np.random.default_rng(0)
    >>> exchange = ExactExchange(
    ...     rows=rng.normal(size=(8, 3)),
    ...     batch=StepBatch((rng.random((8, 1)) > 0.5).astype(float), None, None),
    ...     steps=SgdSteps(sizes=(4, 4), rates=(0.1, 0.1), l2=1e-4),
    ...     before=np.zeros((3, 1)),
    ...     family=get_family("logistic"),
    ... )
    >>> terms = bound(exchange, hpcsgd.RECIPES["c"])
    >>> max(terms.values(), key=lambda term: term.relative).field
    'matrix'
    """
    if model not in MODELS:
        raise ConfigError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    return {field: term(exchange, precision, field, model) for field in FIELDS}


def term(
    exchange: ExactExchange, precision: Precision, field: str, model: str = "emulated"
) -> Term:
    """Return the bound of the error ‖δw‖ for one field of `precision`."""
    form = get_format(getattr(precision, field))
    sharp = model == "emulated" and _is_emulated(precision, field)
    terms = EMULATED_TERMS if sharp else TERMS
    size = 0.0
    if not _is_idle(precision, field):
        size = terms[field](_case(exchange, precision, field, model))
    update = exchange.path.update(exchange.before)
    return Term(
        field=field,
        format=form.name,
        unit_roundoff=form.unit_roundoff,
        absolute=size,
        relative=size / update if update else (float("inf") if size else 0.0),
        model="emulated" if sharp else "any",
        norms="exact" if exchange.norms.exact else "upper bound",
        condition=_condition(exchange),
    )


def _case(
    exchange: ExactExchange, precision: Precision, field: str, model: str
) -> Case:
    form = get_format(getattr(precision, field))
    narrow = model == "emulated" and not form.is_wide
    members = len(exchange.parts)
    summed = get_format(precision.gram_sum)
    carried = np.finfo(form.carrier)
    return Case(
        exchange=exchange,
        form=form,
        working=get_format("fp64" if precision.working == "float64" else "fp32"),
        depth=min(members - 1, 1) if narrow else members - 1,
        comes_wider=model == "emulated" and 2 * summed.unit_roundoff < carried.eps,
    )


def _is_emulated(precision: Precision, field: str) -> bool:
    """Return True if sums or messages in the format of `field` are emulated.

    The order of their roundings is known then. `matrix` and `margin`, in which nothing
    is summed, return False.
    """
    form = get_format(getattr(precision, field))
    if field == "gram_wire":
        return not form.is_wide
    if field not in ACCUMULATING or precision.is_uniform:
        return False
    return form.name != ("fp64" if precision.working == "float64" else "fp32")


def _is_idle(precision: Precision, field: str) -> bool:
    """Return True for margins in a format at least as wide as that of their sum.

    They need no rounding.
    """
    return field == "margin" and precision.margin == wider(
        precision.margin, precision.margin_sum
    )


def _condition(exchange: ExactExchange) -> str:
    first = "to first order in the unit roundoff; nothing overflows"
    if exchange.family.curvature < float("inf"):
        return first
    return f"{first}; no score is off by more than {ROOM:g} or clipped"

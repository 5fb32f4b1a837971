"""The nine terms for any machine: sums in whatever order, as they are usually stated.

|·| is componentwise, C_ji = |h_i P_{i+1..j}|, γ_k(u) = k u / (1 − k u).
"""

from collections.abc import Callable

import numpy as np

from hpcsgd.bound.accumulate import binade, gamma, rounded, sent
from hpcsgd.bound.case import Array, Case
from hpcsgd.rounding import round_through

LIBRARY = 6  # roundoffs that the exponential of a library and a quotient may cost
CANONICAL = ("gaussian", "logistic", "poisson", "softmax")  # r = μ − y


def matrix(case: Case) -> float:
    """T1: u ( |Y_j| |w_j| in the scores and |Y_j|ᵀ |r_j| in the steps ).

    Its values are given and rounded once: their powers of two stand for |Y|.
    """
    of, path = case.exchange, case.exchange.path
    size = _stored_size(case)
    parts = list(zip(of.slices, path.iterates, strict=True))
    scores = np.concatenate([size[part] @ np.abs(w) for part, w in parts])
    steps = [size[part].T @ np.abs(path.residuals[part]) for part in of.slices]
    return case.unit * (case.from_scores(scores) + case.from_steps(steps))


def _stored_size(case: Case) -> Array:
    """2^⌊log₂|y|⌋ as columns are scaled: given values are off by u times that."""
    rows, exponents = case.exchange.rows, case.exchange.exponents
    if exponents is None or not case.form.wants_scale:
        return binade(rows, case.form)
    return np.ldexp(binade(np.ldexp(rows, exponents), case.form), -exponents)


def margin(case: Case) -> float:
    """T2: u |z|."""
    z = rounded(case.exchange.path.margins, case.form)
    return case.unit * case.from_scores(case.exchange.lead * z)


def margin_sum(case: Case) -> float:
    """T3: [γ_{d/C} + κ u] |Y| |w|."""
    of = case.exchange
    factor = gamma(case.width, case.unit) + case.depth * case.unit
    reach = np.abs(of.rows) @ np.abs(of.before)
    return factor * case.from_scores(of.lead * reach)


def gram_sum(case: Case) -> float:
    """T4: γ_{d/C} Σ_{i<j} C_ji |Y_j| |Y_i|ᵀ |r_i|."""
    of = case.exchange
    size = np.abs(of.rows)
    sums = (np.abs(of.coupling) * (size @ size.T)) @ np.abs(of.path.residuals)
    return gamma(case.width, case.unit) * case.from_scores(sums)


def gram_wire(case: Case) -> float:
    """T5: (κ + 1) u Σ_{i<j} C_ji Σ_c |G^c_ji| |r_i|; κ = 0 for one member."""
    if case.depth == 0 and not case.comes_wider:
        return 0.0
    sums = correction(case, member_grams(case))
    return (case.depth + 1) * case.unit * case.from_scores(sums)


def member_grams(case: Case) -> Array:
    """Σ_c |Y^c (Y^c)ᵀ|: parts may cancel in the sum, their roundings do not."""
    rows = case.exchange.rows
    shares = (rows[:, part] for part in case.exchange.parts)
    loudest = case.loudest
    sizes = [sent(share @ share.T, case.form, loudest) for share in shares]
    return np.asarray(np.sum(sizes, axis=0))


def correction(case: Case, gram: Array) -> Array:
    """Σ_{i<j} C_ji |G_ji| |r_i| for some |G|."""
    of = case.exchange
    found: Array = (np.abs(of.coupling) * gram) @ np.abs(of.path.residuals)
    return found


def inner(case: Case) -> float:
    """T6: (start_j + 2) u Σ_{i<j} C_ji |G_ji| |r_i| + u |t_j|.

    With λ one rounding more and P z; with an offset or intercept an addition more.
    """
    of, path = case.exchange, case.exchange.path
    summed = correction(case, np.abs(of.gram))
    led = of.lead * np.abs(path.margins)
    size = (of.begins + 2 + (of.l2 > 0)) * summed + np.abs(path.scores)
    size = size + (led if of.l2 > 0 else 0.0)
    added = (of.offsets, None if of.intercept is None else path.intercepts)
    more = [np.abs(term) for term in added if term is not None]
    if more:
        size = size + len(more) * (led + summed + np.sum(np.broadcast_arrays(*more), 0))
    return case.unit * case.from_scores(size)


def residual(case: Case) -> float:
    """T7: u ( 6 |μ| + |r| in the residuals and |t| in the scores ).

    With sample weights c |r| more; |y| more where it is not a number of the format.
    """
    of, path = case.exchange, case.exchange.path
    c = np.ones((len(of.rows), 1)) if of.weights is None else of.weights
    size = c * (LIBRARY * mean_size(case) + np.abs(path.bare))
    size = size + (0.0 if of.weights is None else np.abs(path.residuals))
    held = of.targets.astype(np.float64)
    round_through(held, case.form.name)
    if (held != of.targets).any():
        size = size + c * np.abs(of.targets)
    scores = case.from_scores(np.abs(path.scores))
    return case.unit * (scores + case.from_residuals(size))


def mean_size(case: Case) -> Array:
    """|μ|, or what a residual is the difference of."""
    of, family = case.exchange, case.exchange.family
    if family.name in CANONICAL:
        return np.asarray(np.abs(family.mean(of.path.scores.copy())))
    return np.abs(of.path.bare) + np.maximum(np.abs(of.targets), 1.0)


def gradient_sum(case: Case) -> float:
    """T8: γ_{m+1} Σ_i |h_i P_{i+1..s}| |Y_i|ᵀ |r_i|: m additions and the factor."""
    of = case.exchange
    sums = np.abs(of.rows).T @ np.abs(of.gain * of.path.residuals)
    return gamma(len(of.rows) + 1, case.unit) * float(np.linalg.norm(sums))


def weights(case: Case) -> float:
    """T9: u ( |w⁺| + |Δ| ), Δ = Σ_i h_i P_{i+1..s} Y_iᵀ r_i, and |P w| with λ."""
    of = case.exchange
    carried = float(of.unrolled.carry[0, 0]) * of.before
    size = np.linalg.norm(rounded(of.path.after, case.form))
    size += np.linalg.norm(of.path.after - carried)
    size += np.linalg.norm(carried) if of.l2 > 0 else 0.0
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

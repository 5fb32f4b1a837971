"""The recurrence once more, in float64, from the products that the run had."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.families.base import Family, exp_bound
from hpcsgd.schedule import Blocks
from hpcsgd.updates.unroll import Unrolled

Array = NDArray[Any]


@dataclass(frozen=True)
class Corrections:
    """Σ_{i<j} g_ji G_ji r_i of every row, and how large its terms are."""

    total: Array  # (m, K)
    size: Array  # (m, K), the root of the sum of squares of the terms
    pushed: Array  # (m, 1), the same of the factors g_ji r_i alone


def lead(unrolled: Unrolled, blocks: Blocks, margins: Array) -> Array:
    """Σ_k lead_k z_k for all rows."""
    return _led(unrolled.lead, blocks, margins)


def lead_size(unrolled: Unrolled, blocks: Blocks, margins: Array) -> Array:
    """Σ_k |lead_k z_k|: what that is a sum of."""
    return _led(np.abs(unrolled.lead), blocks, np.abs(margins))


def _led(factors: Array, blocks: Blocks, margins: Array) -> Array:
    states = factors.shape[1]
    spread = np.repeat(factors, blocks.sizes, axis=0)
    parts = margins.astype(np.float64).reshape(len(margins), states, -1)
    columns = "k" * (spread.ndim - 2)  # several models have factors of their own
    total: Array = np.einsum(f"ms{columns},msk->mk", spread, parts)
    return total


def corrections(
    unrolled: Unrolled, blocks: Blocks, gram: Array, residuals: Array
) -> Corrections:
    """From G as it was summed and the residuals as they were used."""
    exact = residuals.astype(np.float64)
    total, size = np.zeros_like(exact), np.zeros_like(exact)
    pushed = np.zeros((len(exact), 1))
    for j, (first, last) in enumerate(pairwise(blocks.starts)):
        if not j:
            continue
        words = gram[blocks.gram_starts[j] : blocks.gram_starts[j + 1]]
        panel = words.astype(np.float64).reshape(last - first, first)
        couple = np.repeat(unrolled.couple[j], blocks.sizes[:j], axis=0)
        couple = couple.reshape(first, -1)
        scaled = exact[:first] * couple
        total[first:last] = panel @ scaled
        size[first:last] = np.sqrt(np.square(panel) @ np.square(scaled))
        pushed[first:last] = np.sqrt(np.sum(np.square(scaled)))
    return Corrections(total, size, pushed)


def intercepts(
    unrolled: Unrolled, blocks: Blocks, start: Array | None, residuals: Array
) -> Array | float:
    """q·β at the step of every row, from where the exchange began."""
    if start is None:
        return 0.0
    exact, at = residuals.astype(np.float64), start.astype(np.float64)
    out = np.empty_like(exact)
    for j, (first, last) in enumerate(pairwise(blocks.starts)):
        out[first:last] = unrolled.probe @ at
        pull = exact[first:last].sum(axis=0)
        free = unrolled.free[j]
        if free.ndim > 2:  # of several models
            at = np.einsum("pqk,qk->pk", free, at) + unrolled.push[j] * pull
        else:
            at = free @ at + np.multiply.outer(unrolled.push[j], pull)
    return out


def residuals_at(
    family: Family, scores: Array, targets: Array, weights: Array | None, dtype: Any
) -> Array:
    """∂ℓ/∂t · c in float64, with exponentials clipped where a run in `dtype` clips."""
    at = scores
    if not np.isfinite(family.curvature):
        bound = exp_bound(np.dtype(dtype))
        at = np.clip(scores, -bound, bound)
    found = family.residual(at.copy(), targets.astype(np.float64))
    exact: Array = np.asarray(found, dtype=np.float64)
    return exact if weights is None else exact * weights

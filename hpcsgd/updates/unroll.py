"""The s steps of one exchange, unrolled: every coefficient known before the loop.

With Φ_{j,i} = M_{j−1} ··· M_i and Φ_{i,i} = I:

    t_j    = Σ_k lead[j, k] (Y_j x_k) + Σ_{i<j} couple[j][i] G_ji r_i
    lead_j = qᵀ Φ_{j,0}        couple_ji = qᵀ Φ_{j,i+1} u_i
    x      ← Φ_{s,0} x + Σ_i Φ_{s,i+1} u_i Y_iᵀ r_i
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.updates.linear import LinearUpdate

Array = NDArray[Any]


@dataclass(frozen=True)
class Unrolled:
    """Coefficients of s steps, in float64."""

    lead: Array  # (s, states)
    couple: tuple[Array, ...]  # couple[j] has j entries
    carry: Array  # Φ_{s,0}, (states, states)
    gain: Array  # Φ_{s,i+1} u_i, (s, states)
    free: Array  # M_k at λ = 0 for the intercept, (s, states, states)
    push: Array  # u_k, (s, states)
    probe: Array  # q, (states,)


def unroll(
    update: LinearUpdate, rates: Sequence[float], counts: Sequence[int], l2: float
) -> Unrolled:
    """Unroll steps of `rates` on batches of `counts` rows."""
    probe = update.probe()
    carry = np.eye(update.states)
    reach = np.empty((update.states, len(counts)))  # column i holds Φ_{j,i+1} u_i
    lead, couple = [], []
    for j, (rate, count) in enumerate(zip(rates, counts, strict=True)):
        lead.append(probe @ carry)
        couple.append(probe @ reach[:, :j])
        step = update.transition(rate, l2)
        reach[:, :j] = step @ reach[:, :j]
        reach[:, j] = update.gain(rate, count)
        carry = step @ carry
    return Unrolled(
        lead=np.array(lead),
        couple=tuple(couple),
        carry=carry,
        gain=reach.T.copy(),
        free=np.array([update.transition(rate, 0.0) for rate in rates]),
        push=np.array([update.gain(r, c) for r, c in zip(rates, counts, strict=True)]),
        probe=probe,
    )


@dataclass(frozen=True)
class PlainSteps:
    """Coefficients of s steps that are taken one after the other, in float64."""

    carry: Array  # M_k, (s, states, states)
    gain: Array  # u_k, (s, states)
    free: Array  # M_k at λ = 0 for the intercept, (s, states, states)
    probe: Array  # q, (states,)

    @property
    def states(self) -> int:
        """Of the weights."""
        return len(self.probe)


def plain_steps(
    update: LinearUpdate, rates: Sequence[float], counts: Sequence[int], l2: float
) -> PlainSteps:
    """Steps of `rates` on batches of `counts` rows, all of them at once.

    M_k and u_k are affine in the rate, whatever the update: their values at two rates
    say all others.
    """
    each = np.asarray(rates, dtype=np.float64)
    inverse = 1.0 / np.asarray(counts, dtype=np.float64)
    gain = _affine(lambda rate: update.gain(rate, 1), each)
    return PlainSteps(
        carry=_affine(lambda rate: update.transition(rate, l2), each),
        gain=gain * inverse[:, None],
        free=_affine(lambda rate: update.transition(rate, 0.0), each),
        probe=update.probe(),
    )


def _affine(function: Callable[[float], Array], rates: Array) -> Array:
    """The function at every rate, along a first axis."""
    start = function(0.0)
    slope = function(1.0) - start
    values: Array = start + np.multiply.outer(rates, slope)
    return values

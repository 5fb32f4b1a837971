"""The same unrolling for several models at once: rates and penalties of their own.

Every coefficient of `hpcsgd.updates.unroll` has one axis more, the last: one entry for
each column of weights.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.updates.linear import LinearUpdate
from hpcsgd.updates.unroll import Unrolled

Array = NDArray[Any]


@dataclass(frozen=True)
class ManyUnrolled(Unrolled):
    """`Unrolled` with a last axis for the columns of weights; `probe` has none."""

    @property
    def reads(self) -> int:
        """States that scores are read of; 1 where they come as they are read."""
        return int(self.lead.shape[1])

    def of(self, columns: Array) -> "ManyUnrolled":
        """With these entries of the last axis, which may occur several times."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        parts["couple"] = tuple(c[..., columns] for c in self.couple)
        for name in ("lead", "carry", "gain", "free", "push"):
            parts[name] = parts[name][..., columns]
        return ManyUnrolled(**parts)


def unroll_many(
    update: LinearUpdate, rates: Array, counts: tuple[int, ...], l2: Array
) -> ManyUnrolled:
    """Unroll steps of `rates` (s, settings), each setting with its own λ."""
    states, settings = update.states, len(l2)
    steps = _transitions(update, rates, l2)
    push = _gains(update, rates, np.array(counts, dtype=np.float64))
    probe = update.probe()
    carry = np.repeat(np.eye(states)[:, :, None], settings, axis=2)
    reach = np.empty((states, len(counts), settings))  # (·, i) holds Φ_{j,i+1} u_i
    lead, couple = [], []
    for j, step in enumerate(steps):
        lead.append(np.tensordot(probe, carry, axes=1))
        couple.append(np.tensordot(probe, reach[:, :j], axes=1))
        reach[:, :j] = _times(step, reach[:, :j])
        reach[:, j] = push[j]
        carry = _times(step, carry)
    return ManyUnrolled(
        lead=np.array(lead),
        couple=tuple(couple),
        carry=carry,
        gain=reach.swapaxes(0, 1).copy(),
        free=_transitions(update, rates, np.zeros(settings)),
        push=push,
        probe=probe,
    )


def one_step_many(
    update: LinearUpdate, rates: Array, count: int, l2: Array
) -> ManyUnrolled:
    """One step of `rates` (settings,), whose scores arrive already read at q."""
    one = unroll_many(update, rates[None], (count,), l2)
    parts = {f.name: getattr(one, f.name) for f in fields(one)}
    return ManyUnrolled(**parts | {"lead": np.ones((1, 1, len(l2)))})


def _times(step: Array, states: Array) -> Array:
    """M x for every column: (a, b, k) and (b, i, k) to (a, i, k)."""
    if len(step) == 1:
        one: Array = step * states
        return one
    many: Array = np.einsum("abk,bik->aik", step, states)
    return many


def _transitions(update: LinearUpdate, rates: Array, l2: Array) -> Array:
    """M of every step, (s, states, states, settings).

    M is affine in the rate and in λ, whatever the update: four values say all others.
    """
    none, rate = update.transition(0.0, 0.0), update.transition(1.0, 0.0)
    ridge, both = update.transition(0.0, 1.0), update.transition(1.0, 1.0)
    eta, lam = rates[:, None, None, :], np.broadcast_to(l2, rates.shape)[:, None, None]
    found: Array = (
        none[..., None]
        + eta * (rate - none)[..., None]
        + lam * (ridge - none)[..., None]
        + eta * lam * (both - rate - ridge + none)[..., None]
    )
    return found


def _gains(update: LinearUpdate, rates: Array, counts: Array) -> Array:
    """u of every step, (s, states, settings)."""
    start = update.gain(0.0, 1)
    slope = update.gain(1.0, 1) - start
    found: Array = start[:, None] + rates[:, None, :] * slope[:, None]
    return found / counts[:, None, None]

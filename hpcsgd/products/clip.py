"""Gradients that are too large, made smaller: value by value, or in norm.

What is clipped is the gradient of the data, g = Yᵀr/b: neither the penalty nor the
intercept. One step at a time this is what it says. Where s steps are taken together no
step's own gradient is known before the next; clipping `over` the exchange is another
method, by that name: the sum of the s steps is clipped as one step of all their rates,
that is, the mean of their gradients, weighted by rate.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError

if TYPE_CHECKING:
    from hpcsgd.products.base import Rows, State, Task

Array = NDArray[Any]
WAYS = ("none", "value", "norm", "percentile")  # the last where gradients are shared
OVERS = ("step", "exchange")
TOGETHER = ("gram", "cached")  # products that take s steps at once


@dataclass
class Clip:
    """Applied by every member to its own columns, alike on all of them."""

    how: str
    at: float
    clipped: int = 0  # updates that were made smaller
    _word: Array = field(default_factory=lambda: np.zeros(1))

    def descend(
        self, task: "Task", state: "State", rows: "Rows", residuals: Array, plan: Any
    ) -> None:
        """weights ← Φ weights + clipped Σ_i gain_i Y_iᵀ r_i."""
        moved = np.zeros_like(state.weights)
        task.backend.descend(moved, rows, residuals, plan)
        parts = moved.reshape(len(moved), task.states, -1)
        sizes = np.array(plan.blocks.sizes, dtype=np.float64)
        limits = self.at * (np.abs(plan.unrolled.gain) * sizes[:, None]).sum(axis=0)
        if self.how == "value":
            self._by_value(parts, limits)
        else:
            self._by_norm(task, parts, float(limits[0]))
        carried = np.einsum(
            "pq,dqk->dpk",
            plan.unrolled.carry.astype(state.weights.dtype),
            state.weights.reshape(parts.shape),
        )
        state.weights[...] = (carried + parts).reshape(moved.shape)

    def _by_value(self, parts: Array, limits: Array) -> None:
        bound = limits.astype(parts.dtype)[:, None]
        self.clipped += int((np.abs(parts) > bound).any())
        np.clip(parts, -bound, bound, out=parts)

    def _by_norm(self, task: "Task", parts: Array, limit: float) -> None:
        """Every state is the same gradient times its own gain: one factor for all."""
        word = self._word
        word[0] = np.square(parts[:, 0], dtype=np.float64).sum()
        if len(parts) != task.shard.total_columns:
            task.members.sum(word, "products")
        size = float(np.sqrt(word[0]))
        if size > limit:
            parts *= parts.dtype.type(limit / size)
            self.clipped += 1


def make_clip(how: str, at: float, over: str) -> Clip | None:
    """What a configuration asks for; None where nothing is clipped."""
    for key, value, known in (("clip", how, WAYS), ("clip_over", over, OVERS)):
        if value not in known:
            raise ConfigError(
                f"[update] unknown {key}: {value!r}; known: {list(known)}"
            )
    if how == "none":
        return None
    if not 0 < at < float("inf"):
        raise ConfigError(f"[update] clip_at = {at:g} must be above 0, as 1.0")
    return Clip(how, at)


def may_clip(product: str, steps: int, over: str) -> bool:
    """Whether this product has what is to be clipped before it goes on."""
    return over == "exchange" or product not in TOGETHER or steps == 1


def refuse(product: str, how: str) -> ConfigError:
    """Why it has not."""
    return ConfigError(
        f"[update] clip = {how!r} needs the gradient of every step, and {product} knows"
        " that of s steps together; use --products direct or gather, or --steps 1, or"
        " set update.clip_over = 'exchange', which clips their mean instead"
    )

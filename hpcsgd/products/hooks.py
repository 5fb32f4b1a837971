"""Observers of steps, and the proximal step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcsgd.backends.task import Group, State
from hpcsgd.formats import Array
from hpcsgd.glm.penalties import Penalty

# What may touch the state between exchanges: proximal steps, averages, snapshots.


class Hook:
    """Base with nothing to do; called alike on all ranks, in the order of a list.

    What has to outlive a checkpoint is kept in `state.memory` or in the state itself.
    """

    def prepare(self, state: State) -> None:
        """Once, before the state is used or a checkpoint is put back into it."""

    def start(self, state: State) -> None:
        """Once, when the state that the run goes on from is in place."""

    def before_epoch(self, state: State, epoch: int) -> None:
        """Before the first exchange of `epoch` (from 0 on)."""

    def after_steps(self, state: State, group: Group | None) -> None:
        """After the steps of `group`, before replicas agree; None: it had no rows."""

    def after_exchange(self, state: State, exchanges: int) -> None:
        """After replicas agreed, or not, in the exchange of that number."""

    def after_evaluation(self, state: State, view: Any) -> None:
        """After a full loss, which is the last of `view.history`."""

    def settle(self, state: State, exchanges: int) -> None:
        """Once, when training is over, before the last loss is taken."""

    def facts(self) -> dict[str, Any]:
        """What the result's report has to say of it."""
        return {}


class HookList(Hook):
    """All of them, as one."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self.hooks = tuple(hooks)

    def prepare(self, state: State) -> None:
        for hook in self.hooks:
            hook.prepare(state)

    def start(self, state: State) -> None:
        for hook in self.hooks:
            hook.start(state)

    def before_epoch(self, state: State, epoch: int) -> None:
        for hook in self.hooks:
            hook.before_epoch(state, epoch)

    def after_steps(self, state: State, group: Group | None) -> None:
        for hook in self.hooks:
            hook.after_steps(state, group)

    def after_exchange(self, state: State, exchanges: int) -> None:
        for hook in self.hooks:
            hook.after_exchange(state, exchanges)

    def after_evaluation(self, state: State, view: Any) -> None:
        for hook in self.hooks:
            hook.after_evaluation(state, view)

    def settle(self, state: State, exchanges: int) -> None:
        for hook in self.hooks:
            hook.settle(state, exchanges)

    def facts(self) -> dict[str, Any]:
        return {
            name: said for hook in self.hooks for name, said in hook.facts().items()
        }


NO_HOOKS = HookList()


# The proximal map of l1 and bounds, behind the steps of every exchange.
#
# The map adds to a step the gradient ξ that l1 and the bounds have at its end: a step
# takes the state x = (w, v) to M x + u (g + ξ), with the ridge in M. So w moves by
# T = −u_w towards zero, and a velocity by its own share of ξ:
#
#     w ← prox_T(w),    v ← v + (u_v / u_w) · what w moved by
#
# Without the share of v, momentum would amplify g and not ξ, and end at a point whose
# l1 is (1 − μ) times too small. With one step an exchange this is proximal SGD (T = η,
# for the Nesterov of deep-learning frameworks (1 + μ) η). With more it is the
# approximation of that name, l1_at = "exchange": one ξ, held for all s steps, so that T
# is the sum of their rates, each shrunk by the ridge, or grown by the momentum, of the
# steps behind it.


class Proximal(Hook):
    """For the columns that this member holds; each replica's before they average."""

    def __init__(
        self, penalty: Penalty, classes: int, store: Callable[[Array], object]
    ) -> None:
        self.penalty = penalty  # of the columns held
        self.classes = classes  # K
        self.store = store  # rounds weights to the format that they have

    def prepare(self, state: State) -> None:
        """Begin within the bounds."""
        self._map(state, np.zeros(1))

    def after_steps(self, state: State, group: Group | None) -> None:
        """One map for all steps of the group."""
        if group is not None:
            self._map(state, reach(group.coefficients))

    def _map(self, state: State, reached: Array) -> None:
        weights, K = state.weights, self.classes
        position = weights[:, :K]
        before = position.copy() if len(reached) > 1 else None
        self.penalty.prox(position, float(reached[0]))
        if before is not None:
            moved = position - before
            for k, own in enumerate(reached[1:], start=1):
                share = weights.dtype.type(own / reached[0] if reached[0] else 0.0)
                weights[:, k * K : (k + 1) * K] += share * moved
        self.store(weights)


def reach(coefficients: Any) -> Array:
    """−Σ_i b_i Φ_{s,i+1} u_i: how far one unit of ξ in every step moves each state."""
    sizes = np.asarray(coefficients.blocks.sizes, dtype=np.float64)
    form = coefficients.plain if len(sizes) == 1 else coefficients.whole
    far: Array = -(sizes @ form.gain)
    return far

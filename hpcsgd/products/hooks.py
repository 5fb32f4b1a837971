"""What may touch the state between exchanges: proximal steps, averages, snapshots."""

from collections.abc import Sequence
from typing import Any

from hpcsgd.products.base import Group, State


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


class Hooks(Hook):
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


NO_HOOKS = Hooks()

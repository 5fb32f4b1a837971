"""The scale of narrow residuals goes on where it was, where it is a replica's own."""

from dataclasses import dataclass

from hpcsgd.backends.loss_scale import LossScale
from hpcsgd.products.base import Group, State
from hpcsgd.products.hooks import Hook

NAME = "loss_scale"


@dataclass
class ScaleKept(Hook):
    """Where replicas do not decide about it together, and say so themselves."""

    scale: LossScale

    def prepare(self, state: State) -> None:
        """Room beside the state, which is saved with it."""
        state.kept[NAME] = self.scale.kept()

    def start(self, state: State) -> None:
        """As it was saved."""
        self.scale.put_back(state.kept[NAME])

    def after_steps(self, state: State, group: Group | None) -> None:
        """As the steps have left it."""
        state.kept[NAME][...] = self.scale.kept()

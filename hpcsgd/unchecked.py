"""Who asks whether the recipe is still good enough: nobody, where it was given."""

from hpcsgd.callbacks.base import View
from hpcsgd.fall_back import Outgrown
from hpcsgd.products.base import State


class Unchecked:
    """The protocol, and the answer of a run whose recipe was not chosen by pilots."""

    def is_due(self, epoch: int) -> bool:
        """Whether to look after so many epochs."""
        return False

    def look(self, state: State, view: View) -> Outgrown | None:
        """Called by all ranks after the same exchange; None: it is good enough."""
        return None


UNCHECKED = Unchecked()

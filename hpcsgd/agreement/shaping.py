"""What may become of the mean gradient before the step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcsgd.codecs import Moment
from hpcsgd.products.base import Array, State


@dataclass(frozen=True)
class Whole:
    """What a part of the gradient has to know of the others."""

    columns: slice  # of all columns, those held here
    total: Callable[[Array], Array]  # sums a few words over all who hold other parts


class Shaper:
    """Changes the mean gradient, without penalty and intercept, in place."""

    def prepare(self, state: State) -> None:
        """Room in the state for what outlives a checkpoint."""

    def shape(self, gradient: Array, whole: Whole, moment: Moment) -> None:
        """The gradient of the columns held here, (columns, K).

        Called once an exchange on all ranks alike, with all that each of them holds.
        """
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        return {}

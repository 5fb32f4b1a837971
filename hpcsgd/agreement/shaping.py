"""What may become of the mean gradient before the step."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.codecs import Moment
from hpcsgd.products.base import Array, State


@dataclass(frozen=True)
class Whole:
    """What a part of the gradient has to know of the others."""

    columns: slice | Array  # of all columns, those held here; or their numbers
    total: Callable[[Array], Array]  # sums a few words over all who hold other parts

    def runs(self) -> list[tuple[int, slice]]:
        """Columns that lie together: where the first is here, and which they are."""
        if isinstance(self.columns, slice):
            return [(0, self.columns)]
        breaks = np.flatnonzero(np.diff(self.columns) != 1) + 1
        parts = [part for part in np.split(self.columns, breaks) if part.size]
        places = np.cumsum([0, *(part.size for part in parts)])
        return [
            (int(place), slice(int(part[0]), int(part[-1]) + 1))
            for place, part in zip(places, parts, strict=False)
        ]


class Shaper(ABC):
    """Changes the mean gradient, without penalty and intercept, in place."""

    def prepare(self, state: State) -> None:  # noqa: B027
        """Room in the state for what outlives a checkpoint."""

    @abstractmethod
    def shape(self, gradient: Array, whole: Whole, moment: Moment) -> None:
        """The gradient of the columns held here, (columns, K).

        Called once an exchange on all ranks alike, with all that each of them holds.
        """

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        return {}

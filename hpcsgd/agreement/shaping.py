"""What may become of the mean gradient before the step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hpcsgd.codecs import Moment
from hpcsgd.products.base import Array


@dataclass(frozen=True)
class Whole:
    """What a part of the gradient has to know of the others."""

    columns: slice | Array  # of all columns, those held here; or their numbers
    total: Callable[[Array], Array]  # sums a few words over all who hold other parts


class Shaper(Protocol):
    """Changes the mean gradient before the step: clips it, centres it, adds to it."""

    def shape(self, gradient: Array, whole: Whole, moment: Moment) -> None:
        """In place: the mean gradient, without penalty, of the columns held here.

        Called once an exchange on all ranks alike, with all that each of them holds.
        """

"""What both coordinate forms give to the descent: items, ψ, and how good a point is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.comm.base import Communicator
from hpcsgd.coordinate.exchange import Point
from hpcsgd.coordinate.items import Array, Items
from hpcsgd.objective import Objective
from hpcsgd.penalties import Penalty


@dataclass(frozen=True)
class Look:
    """A model, and what is known of it, alike on all ranks."""

    loss: float  # F on the exact values of the data
    gradient: float  # norm of F's smallest subgradient
    gap: float | None  # no less than F − F*; None: no bound is known


class Form(ABC):
    """One of the two, on the data that this rank holds."""

    name: str
    items: Items
    members: Communicator  # the ranks that share the items
    scale: float  # σ
    separable: Any  # ψ
    objective: Objective
    worst: float  # F of the null model, less the least F of all: a gap's yardstick
    steep: float = 0.0  # the gradient there; 0: that of the first look is taken
    sweeps: int = 1  # over the items in an epoch
    renews: bool = False  # items are others in every epoch

    @abstractmethod
    def begin(self, weights: Array | None = None) -> Point:
        """The null model, or the point that stands for this rank's w, (d_c, K)."""

    @abstractmethod
    def become(self, penalty: Penalty, point: Point) -> None:
        """Go on with another penalty; the point stays the same, as far as it can."""

    @abstractmethod
    def model(self, point: Point) -> tuple[Array, Array | None]:
        """This rank's columns of w, (d_c, 1), and the intercept, (1,)."""

    def steepest(self) -> float:
        """The largest slope of a column at the null model: an l1 that large holds all.

        One pass over the rows, in float64, on exact values.
        """
        slope = self.objective.slope(*self.model(self.begin()))
        own = float(np.abs(slope.weights).max(initial=0.0))
        return float(max(self.objective.grid.world.exchange_objects(own)))

    @property
    def count(self) -> int:
        """Return the number of items, N."""
        return self.items.count

    @property
    def is_alone(self) -> bool:
        """Return whether whole sweeps of this epoch need no exchange each."""
        return False

    def prepare(self, point: Point, order: Array) -> Array:
        """Begin an epoch; return those items of `order` that its sweeps are over."""
        return order

    def sweep(self, point: Point) -> tuple[int, bool]:
        """Take a whole sweep over the items of the epoch, or more, where `is_alone`.

        Return its steps, and whether another one would still move the items.
        """
        raise NotImplementedError

    def settle(self, point: Point) -> None:  # noqa: B027
        """After them."""

    @abstractmethod
    def look(self, point: Point) -> Look:
        """Its loss, subgradient and gap."""

"""Mirror descent: a step is taken where the geometry is, and mapped back.

    y = argmin_x η ⟨g, x⟩ + D_ψ(x, x_now)

Every one of the K columns of the weights (one a class) is a point of its own. A map
that needs sums over all d rows of a column asks for what other members have: `gather`
gives the words of all of them, in rank order, so that all add them up alike.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Point:
    """Views of one replica's weights on one member, that a map writes to."""

    weights: Array  # (columns held, K): what predicts
    kept: Mapping[str, Array]  # (columns held, K) each, by the names in `Mirror.kept`
    shared: Mapping[str, Array]  # (1, K) each, the same on every member


class Mirror(ABC):
    """The protocol of a map."""

    kept: ClassVar[tuple[str, ...]] = ()  # K words a column, beside the weights
    shared: ClassVar[tuple[str, ...]] = ()  # K words in all
    logarithms: ClassVar[bool] = False  # whether what travels are logarithms
    totals: int = 0  # gathers over members in a step

    def __init__(self, columns: int, gather: Callable[[Array], Array]) -> None:
        self.columns = columns  # d, of all members
        self.gather = gather  # (words,) -> (members, words)

    def begin(self, point: Point) -> None:  # noqa: B027
        """Put the first point, where it is not zero."""

    @abstractmethod
    def step(self, point: Point, gradient: Array, rate: float) -> None:
        """From x to y along `gradient` (destroyed), which has the penalty in it."""

    def travels(self, point: Point) -> list[Array]:
        """What replicas mix, as views."""
        return [point.weights]

    def arrive(self, point: Point) -> None:  # noqa: B027
        """Make the weights of what was mixed."""

    def repair(self, point: Point) -> None:
        """A point again, of the mean of what other replicas had kept."""
        self.arrive(point)

    def total(self, own: Array) -> Array:
        """Σ over members of `own` (K,), in float64 and in rank order."""
        found: Array = self.gather(own.astype(np.float64)).sum(axis=0)
        return found


def log_sum(parts: Array) -> Array:
    """log Σ exp over the first axis, where some or all may be −∞."""
    top = parts.max(axis=0)
    top = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        found: Array = top + np.log(np.exp(parts - top).sum(axis=0))
    return found

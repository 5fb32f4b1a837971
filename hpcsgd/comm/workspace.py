"""A message that is summed again and again: written, summed, read, written again."""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.comm.pending import Pending

if TYPE_CHECKING:
    from hpcsgd.comm.base import Communicator

Array = NDArray[Any]


class Message(Protocol):
    """What a product writes into and sums, in whatever format it travels."""

    @property
    def array(self) -> Array:
        """Where this rank's part of the next sum goes, as float32 or float64."""

    def sum(self, purpose: str) -> Array:
        """Σ over ranks of what was written, good until the next sum."""

    def start(self, purpose: str) -> Pending:
        """Begin the sum; `array` belongs to it until `wait`, which gives the total."""


class Workspace:
    """Write all of `array`, then `sum`; what that returns is good until the next one.

    `array` may be another one after each sum, and the total may be an array that
    several ranks read in place: it is then read-only.
    """

    def __init__(self, group: "Communicator", words: int, dtype: Any) -> None:
        self.group = group
        self._array: Array = np.empty(words, dtype=dtype)

    @property
    def array(self) -> Array:
        """Where this rank's part of the next sum goes."""
        return self._array

    def sum(self, purpose: str) -> Array:
        """Σ over ranks of what was written."""
        return self.group.sum_workspace(self, purpose)

    def start(self, purpose: str) -> Pending:
        """Begin the sum, in place."""
        return self.group.start_sum(self.array, purpose)

    def add(self) -> Array:
        """Σ over ranks, not booked: the part that transports replace."""
        self.group._sum(self._array)
        return self._array

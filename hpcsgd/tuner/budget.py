"""Seconds to spend: every part of the plan asks what is left, and ends in time."""

from collections.abc import Callable
from time import perf_counter

from hpcsgd.comm.base import Communicator


class Budget:
    """A clock that all ranks read alike: rank 0's."""

    def __init__(
        self,
        world: Communicator,
        seconds: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.world = world
        self.seconds: float = world.exchange_objects(seconds)[0]
        self.clock = clock
        self.began = clock()

    @property
    def spent(self) -> float:
        """Seconds since the beginning; asked by all ranks together."""
        own = self.clock() - self.began
        said: float = self.world.exchange_objects(own)[0]
        return said

    @property
    def left(self) -> float:
        """Seconds until the end, or 0."""
        return max(self.seconds - self.spent, 0.0)

    def until(self, share: float) -> float:
        """Seconds until so much of the whole is spent, or 0."""
        return max(share * self.seconds - self.spent, 0.0)

"""Where a rank's main thread is: in which collective, or since when in none."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class Spot:
    """One collective of one group, as a rank sees it."""

    what: str  # "sum for products"
    number: int  # of the collective in its group; 0 where it has none
    size: int  # of the group

    def __str__(self) -> str:
        return f"the {self.what} (collective {self.number})"


class Place:
    """Written by the main thread alone, read by whoever watches it.

    What belongs together is stored as one tuple: a reader sees all of it or nothing.
    """

    __slots__ = ("last", "now", "since", "task")

    def __init__(self) -> None:
        self.now: tuple[str, str, int, int, float] | None = None
        self.last: tuple[str, str, int, int, float] | None = None
        self.since = perf_counter()  # when the last collective ended
        self.task: str | None = None  # what it does that looks idle and is not

    def enter(self, what: str, purpose: str, number: int, size: int) -> "Place":
        """A collective begins; `with` ends it, however it ends."""
        self.now = (what, purpose, number, size, perf_counter())
        return self

    def __enter__(self) -> None:
        """Nothing is left to do: `enter` has done it."""

    def __exit__(self, *error: object) -> None:
        self.last, self.now, self.since = self.now, None, perf_counter()

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """The main thread waits for a disk, not for ranks: it is busy with `what`."""
        self.task = what
        try:
            yield
        finally:
            self.task = None

    def spot(self) -> tuple[Spot | None, float]:
        """(the collective that the main thread is in, or None; since when)."""
        now = self.now
        if now is None:
            return None, self.since
        return _spot(now), now[4]

    def before(self) -> Spot | None:
        """The collective that ended last."""
        last = self.last
        return None if last is None else _spot(last)


def _spot(entry: tuple[str, str, int, int, float]) -> Spot:
    what, purpose, number, size, _ = entry
    return Spot(f"{what} for {purpose}", number, size)

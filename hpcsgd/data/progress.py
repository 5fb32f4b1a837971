"""Who hears how far a pass over a file has come."""

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """Shown on a terminal, written as lines, or dropped."""

    def begin(self, what: str, size: int) -> None:
        """A pass over `size` of what `Rows.end` counts."""

    def at(self, position: int) -> None:
        """Its position now."""


class Beating:
    """As another one, and something else hears of every step."""

    def __init__(self, inner: Progress, beat: Callable[[], None]) -> None:
        self.inner, self.beat = inner, beat

    def begin(self, what: str, size: int) -> None:
        """A pass over `size`."""
        self.inner.begin(what, size)

    def at(self, position: int) -> None:
        """Its position now."""
        self.inner.at(position)
        self.beat()

"""Who hears how far a pass over a file has come."""

from typing import Protocol


class Progress(Protocol):
    """Shown on a terminal, written as lines, or dropped."""

    def begin(self, what: str, size: int) -> None:
        """A pass over `size` of what `Rows.end` counts."""

    def at(self, position: int) -> None:
        """Its position now."""

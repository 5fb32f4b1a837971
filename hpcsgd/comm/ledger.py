"""Everything that crosses ranks, counted by purpose."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcsgd.comm.place import Place

PURPOSES = ("products", "agreement", "evaluate", "control")
TRAINING = ("products", "agreement")  # looks at the loss and control are not


@dataclass
class Entry:
    """What was said for one purpose, by this rank."""

    calls: int = 0
    words: int = 0  # elements of the send buffers
    bytes: int = 0  # of the send buffers, exact
    wire_bytes: float = 0.0  # what a ring would move, a model
    seconds: float = 0.0  # spent in the calls


class Ledger:
    """One entry for each purpose; groups split from one world share it."""

    def __init__(self) -> None:
        self.entries = {purpose: Entry() for purpose in PURPOSES}
        self.place = Place()  # what is under way now, for the watchdog
        # Called before a gradient that travels is waited for: others may compute.
        self.gives_way: Callable[[], None] | None = None

    def record(
        self, purpose: str, words: int, size: int, wire_bytes: float, seconds: float
    ) -> None:
        """Book one collective of `words` words in `size` bytes."""
        entry = self.entries[purpose]
        entry.calls += 1
        entry.words += words
        entry.bytes += size
        entry.wire_bytes += wire_bytes
        entry.seconds += seconds

    def wait(self, purpose: str, seconds: float) -> None:
        """Book time spent waiting for a collective that was recorded when posted."""
        self.entries[purpose].seconds += seconds

    def calls(self, purpose: str) -> int:
        """Collectives so far."""
        return self.entries[purpose].calls

    def words(self, purpose: str) -> int:
        """Words so far."""
        return self.entries[purpose].words

    def sent(self) -> dict[str, int]:
        """Messages, words and bytes that training has sent so far."""
        entries = [self.entries[purpose] for purpose in TRAINING]
        return {
            "messages": sum(entry.calls for entry in entries),
            "words": sum(entry.words for entry in entries),
            "bytes": sum(entry.bytes for entry in entries),
        }

    def add(self, earlier: Mapping[str, Mapping[str, Any]]) -> None:
        """Count on from what `as_dict` said before: a run that was interrupted."""
        for purpose, entry in self.entries.items():
            for name, value in earlier.get(purpose, {}).items():
                if hasattr(entry, name):
                    setattr(entry, name, getattr(entry, name) + value)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """purpose -> calls, words, bytes, wire_bytes, seconds."""
        return {purpose: dict(vars(entry)) for purpose, entry in self.entries.items()}

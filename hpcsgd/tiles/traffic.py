"""Bytes to and from the drive, as they were moved and as they should be.

For states of s words a column in all, of which the forward pass needs k:

read  (s + k) · words · itemsize / R,  written  s · words · itemsize / R

With Adam in float32 (s = 3, k = 1) that is 12D/P + 4D/P, and 12D/P.
"""

from dataclasses import dataclass, field
from threading import Lock


@dataclass
class Traffic:
    """What a rank read and wrote: words of states, and what padding came along."""

    read: int = 0
    written: int = 0
    padding: int = 0
    seconds_read: float = 0.0  # of the threads that read and write
    seconds_written: float = 0.0
    seconds_summed: float = 0.0  # of checksums, by a thread of their own
    seconds_flushed: float = 0.0  # until the drive had a step
    stood: float = 0.0  # seconds that the step waited for them
    _lock: Lock = field(default_factory=Lock, repr=False)

    def has_read(self, size: int, moved: int, seconds: float) -> None:
        """`size` bytes of states, in `moved` bytes with padding."""
        with self._lock:
            self.read += size
            self.padding += moved - size
            self.seconds_read += seconds

    def has_written(self, size: int, moved: int, seconds: float) -> None:
        """The same the other way."""
        with self._lock:
            self.written += size
            self.padding += moved - size
            self.seconds_written += seconds

    def has_summed(self, seconds: float) -> None:
        """The checksum of what was written."""
        with self._lock:
            self.seconds_summed += seconds


def step_bytes(
    columns: int, words: int, itemsize: int, forward: int
) -> tuple[int, int]:
    """(read, written) of one step: `words` of all states a column, `forward` of w."""
    each = columns * itemsize
    return each * (words + forward), each * words

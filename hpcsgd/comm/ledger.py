"""The ledger: traffic by purpose, the location of a thread, and clocks of phases."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

# Where a rank's main thread is: in which collective, or since when in none.


@dataclass(frozen=True)
class Spot:
    """One collective of one group, as a rank sees it."""

    what: str  # "sum for products"
    number: int  # of the collective in its group; 0 where it has none
    size: int  # of the group

    def __str__(self) -> str:
        return f"the {self.what} (collective {self.number})"


class ThreadLocation:
    """The collective that the main thread is in, for the watchdog to read.

    The main thread alone writes it. Values that belong together are stored as one
    tuple: a reader sees all of them or none.
    """

    __slots__ = ("last", "now", "since", "task")

    def __init__(self) -> None:
        self.now: tuple[str, str, int, int, float] | None = None
        self.last: tuple[str, str, int, int, float] | None = None
        self.since = perf_counter()  # when the last collective ended
        self.task: str | None = None  # its work, where that looks idle

    def enter(
        self, what: str, purpose: str, number: int, size: int
    ) -> "ThreadLocation":
        """Enter a collective; `with` leaves it, also after an exception."""
        self.now = (what, purpose, number, size, perf_counter())
        return self

    def __enter__(self) -> None:
        """Do nothing: `enter` has stored the location."""

    def __exit__(self, *error: object) -> None:
        self.last = self.now
        self.now = None
        self.since = perf_counter()

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Return a context in which the main thread counts as busy with `what`.

        It then waits for a disk, for example, and not for ranks.
        """
        self.task = what
        try:
            yield
        finally:
            self.task = None

    def spot(self) -> tuple[Spot | None, float]:
        """Return (the main thread's collective or None, since when).

        The time is that of `perf_counter` at which the thread entered the collective,
        or left the last one.
        """
        now = self.now
        if now is None:
            return None, self.since
        return _spot(now), now[4]

    def before(self) -> Spot | None:
        """Return the collective that ended last, or None."""
        last = self.last
        return None if last is None else _spot(last)


def _spot(entry: tuple[str, str, int, int, float]) -> Spot:
    what, purpose, number, size, _ = entry
    return Spot(f"{what} for {purpose}", number, size)


PURPOSES = ("products", "agreement", "evaluate", "control")
TRAINING = ("products", "agreement")  # evaluations and control are not


@dataclass
class Entry:
    """Traffic of this rank for one purpose."""

    calls: int = 0
    words: int = 0  # elements of the send buffers
    bytes: int = 0  # of the send buffers, exact
    wire_bytes: float = 0.0  # what a ring would move, a model
    seconds: float = 0.0  # spent in the calls


UNUSED = Entry()


@dataclass(frozen=True)
class SentWords:
    """The words and bytes that a ledger counts for one rank in one collective.

    Formulas compute them from sizes alone. `words` is None where a formula gives bytes,
    but not the number of collectives.
    """

    words: int | None
    bytes: int


Sent = Sequence[SentWords]  # one after the other


def totals(sent: Iterable[SentWords]) -> dict[str, int]:
    """Return the totals of calls, words and bytes.

    If the words of any entry are not known, return the total of bytes alone.
    """
    calls = size = 0
    words: int | None = 0
    for each in sent:
        calls = calls + 1
        size = size + each.bytes
        words = None if words is None or each.words is None else words + each.words
    if words is None:
        return {"bytes": size}
    return {"calls": calls, "words": words, "bytes": size}


class Ledger:
    """The account of one rank's collectives, by purpose.

    All groups that are split from one world share it.
    """

    def __init__(self) -> None:
        self.clear()
        self.place = ThreadLocation()  # what is under way now, for the watchdog
        # Called before this thread waits for a gradient, for other threads to compute.
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
        """Return the number of collectives for `purpose` so far."""
        return self.entries[purpose].calls

    def words(self, purpose: str) -> int:
        """Return the number of words sent for `purpose` so far."""
        return self.entries[purpose].words

    def sent(self) -> dict[str, int]:
        """Return this rank's messages, words and bytes for training so far.

        Messages are collectives. Training has the purposes products and agreement.
        """
        entries = [self.entries[purpose] for purpose in TRAINING]
        return {
            "messages": sum(entry.calls for entry in entries),
            "words": sum(entry.words for entry in entries),
            "bytes": sum(entry.bytes for entry in entries),
        }

    def clear(self) -> None:
        """Set all counts to zero."""
        self.entries = {purpose: Entry() for purpose in PURPOSES}

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Return a context that begins without counts; the earlier ones are added then.

        In the context the ledger counts what is sent there alone.
        """
        earlier = self.entries
        self.clear()
        try:
            yield
        finally:
            for purpose, entry in earlier.items():
                if entry != UNUSED:
                    self.add({purpose: vars(entry)})

    def add(self, earlier: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the entries that `as_dict` returned in a run that was interrupted."""
        for purpose, entry in self.entries.items():
            for name, value in earlier.get(purpose, {}).items():
                if hasattr(entry, name):
                    setattr(entry, name, getattr(entry, name) + value)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return a dict: purpose -> calls, words, bytes, wire_bytes, seconds."""
        return {purpose: dict(vars(entry)) for purpose, entry in self.entries.items()}


# Where the time went, by named phase.


class Clock:
    """A lap clock: `lap(name)` books the time since the last lap under `name`.

    Laps, not nested contexts: one exchange has to afford it dozens of times.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.began = self._last = perf_counter()

    def start(self) -> None:
        """Forget the time since the last lap; it belongs to no phase."""
        self._last = perf_counter()

    def lap(self, phase: str) -> float:
        """Book the time since the last lap (or start) under `phase`, and return it."""
        now = perf_counter()
        elapsed = now - self._last
        self.seconds[phase] = self.seconds.get(phase, 0.0) + elapsed
        self._last = now
        return elapsed

    def __str__(self) -> str:
        entries = (f"{name} {seconds:.3f} s" for name, seconds in self.seconds.items())
        return ", ".join(entries)

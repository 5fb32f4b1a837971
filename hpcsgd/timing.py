"""Where the time went, by named phase."""

from time import perf_counter


class Clock:
    """A lap clock: `lap(name)` books the time since the last lap under `name`.

    Laps, not nested contexts: one exchange has to afford it dozens of times.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()

    def start(self) -> None:
        """Forget the time since the last lap; it belongs to no phase."""
        self._last = perf_counter()

    def lap(self, phase: str) -> float:
        """Book the time since the last lap (or start) under `phase`."""
        now = perf_counter()
        elapsed = now - self._last
        self.seconds[phase] = self.seconds.get(phase, 0.0) + elapsed
        self._last = now
        return elapsed

    def __str__(self) -> str:
        said = (f"{name} {seconds:.3f} s" for name, seconds in self.seconds.items())
        return ", ".join(said)

"""How far a pass over a file has come: a bar on a terminal, plain lines elsewhere."""

import os
import sys
import time
from typing import Any

MEGABYTE = 1e6


class Meter:
    """Hears positions, tells nobody; the others inherit its clock."""

    def __init__(self) -> None:
        self.what, self.size, self.started = "", 0, time.monotonic()
        self.first: int | None = None
        self.now = 0
        self.file_bytes = 0  # of a source whose positions are rows, or 0

    def begin(self, what: str, size: int) -> None:
        """A pass over `size`; 0 where nobody knows."""
        self.what, self.size, self.started = what, size, time.monotonic()
        self.first, self.now = None, 0

    def at(self, position: int) -> None:
        """Where it is."""
        # What a resumed pass skips was not done at this speed.
        self.first = position if self.first is None else self.first
        self.now = position

    def figures(self) -> str:
        """Speed and time left."""
        done = self.now - (self.first or 0)
        elapsed = time.monotonic() - self.started
        if done <= 0 or elapsed <= 0:
            return ""
        speed = done / elapsed
        left = max(self.size - self.now, 0) / speed
        each = self.file_bytes / self.size if self.file_bytes and self.size else 1.0
        return f"{speed * each / MEGABYTE:.1f} MB/s, {left:.0f} s left"

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Nothing more comes."""


class Lines(Meter):
    """One plain line every so often."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.last = seconds, time.monotonic()

    def at(self, position: int) -> None:
        """Say it when it is time."""
        super().at(position)
        now = time.monotonic()
        if now - self.last >= self.seconds:
            self.last = now
            share = f"{100 * position / self.size:.0f} %  " if self.size else ""
            sys.stderr.write(f"hpcsgd: {self.what}  {share}{self.figures()}\n")
            sys.stderr.flush()


class Bar(Meter):
    """A bar that is gone when the work is done."""

    def __init__(self, columns: int | None) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(
            stderr=True, width=columns, force_terminal=True if columns else None
        )
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%  {task.fields[said]}"),
            console=console,
            transient=True,
        )
        self.job: Any = None
        self.bar.start()

    def begin(self, what: str, size: int) -> None:
        """Draw the next one in the place of the last."""
        super().begin(what, size)
        if self.job is not None:
            self.bar.remove_task(self.job)
        self.job = self.bar.add_task(what, total=size or None, said="")

    def at(self, position: int) -> None:
        """Move it."""
        super().at(position)
        self.bar.update(self.job, completed=position, said=self.figures())

    def stop(self) -> None:
        """Take it away."""
        self.bar.stop()


def make_meter(quiet: bool, seconds: float = 10.0) -> Meter:
    """What suits the place that standard error leads to."""
    from hpcsgd.callbacks.progress import TERMINAL

    behind = os.environ.get(TERMINAL, "")
    if quiet:
        return Meter()
    if sys.stderr.isatty() or behind.isdigit():
        return Bar(int(behind) if behind.isdigit() else None)
    return Lines(seconds) if seconds > 0 else Meter()

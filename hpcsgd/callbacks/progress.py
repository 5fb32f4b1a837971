"""What a person sees while it runs: a bar on a terminal, plain lines elsewhere."""

import math
import os
import sys
import time
from typing import Any

from hpcsgd.callbacks.base import Callback, View
from hpcsgd.callbacks.forecast import Forecast, Split

TERMINAL = "HPCSGD_TERMINAL"  # columns of the terminal at the other end of mpiexec


def make_progress(seconds: float) -> list[Callback]:
    """A bar when standard error is a terminal, else a line every `seconds`.

    mpiexec puts a pipe between the ranks and the terminal; whoever started it says
    what is at the other end.
    """
    behind = os.environ.get(TERMINAL, "")
    if sys.stderr.isatty() or behind.isdigit():
        return [ProgressBar(int(behind) if behind.isdigit() else None)]
    return [ProgressLines(seconds)] if seconds > 0 else []


class Progress(Callback):
    """Looks at the run now and then, and shows what it sees."""

    every = 0.0  # seconds between looks
    wide = True  # room for everything

    def __init__(self) -> None:
        self.split, self.forecast = Split(), Forecast()
        self.last = time.monotonic()

    def on_start(self, view: View) -> None:
        """The clock starts with the run."""
        self.split, self.forecast = Split(), Forecast()
        self.last = time.monotonic()

    def on_evaluate(self, view: View) -> None:
        """One full loss fewer to come."""
        self.forecast.evaluated()

    def on_exchange(self, view: View) -> None:
        """Look, when it is time."""
        now = time.monotonic()
        if now - self.last >= self.every:
            self.last = now
            self.forecast.update(view)
            parts = [*figures(view, self.wide), self.split.since_last(view)]
            self.show(view, "  ".join(filter(None, parts)))

    def show(self, view: View, said: str) -> None:
        """Put `said` before the user."""


class ProgressLines(Progress):
    """One plain line every so often, so that a log file stays readable."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.every = seconds

    def show(self, view: View, said: str) -> None:
        """Say where the run stands, and how long it will still take."""
        share = 100 * view.exchanges / max(view.exchanges_planned, 1)
        line = f"hpcsgd: {share:.0f} %  {said}  {self.forecast.left(view)}\n"
        sys.stderr.write(line)
        sys.stderr.flush()


class ProgressBar(Progress):
    """A bar with loss, rows a second, words a step, split of the time and time left."""

    every = 0.1  # seconds between redraws: more would cost the run, not help the eye
    ROOM = 120  # columns from which everything fits beside a bar

    def __init__(self, columns: int | None = None) -> None:
        super().__init__()
        self.columns = columns  # of a terminal that is not ours to ask
        self.bar: Any = None
        self.job: Any = None

    def on_start(self, view: View) -> None:
        """Draw it."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        super().on_start(view)
        console = Console(
            stderr=True,
            width=self.columns,
            force_terminal=True if self.columns else None,
        )
        self.wide = console.width >= self.ROOM
        bar = (BarColumn(bar_width=10),) if self.wide else ()
        self.bar = Bar(
            TextColumn("{task.fields[said]}"),
            *bar,
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
        )
        planned = view.exchanges_planned
        self.job = self.bar.add_task("", total=planned, said="", left="")
        self.bar.start()
        self.last = -math.inf  # the first exchange is shown at once

    def show(self, view: View, said: str) -> None:
        """Move it."""
        left = self.forecast.left(view)
        self.bar.update(self.job, completed=view.exchanges, said=said, left=left)

    def on_end(self, view: View) -> None:
        """Take it away."""
        self.bar.stop()


def figures(view: View, wide: bool = True) -> list[str]:
    """Loss, rate of rows, and words a step where there is room."""
    rate = view.rows / view.seconds if view.seconds > 0 else 0.0
    words = view.words() / view.steps if view.steps else 0.0
    said = [f"loss {view.loss:.6g}", f"{rate:.3g} rows/s", f"{words:.0f} words/step"]
    return said if wide else said[:2]

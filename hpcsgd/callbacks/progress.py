"""What a person sees while it runs: a bar on a terminal, plain lines elsewhere."""

import os
import sys
import time
from typing import Any

from hpcsgd.callbacks.base import Callback, View

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


class ProgressLines(Callback):
    """One plain line every so often, so that a log file stays readable."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began = self.last = time.monotonic()

    def on_start(self, view: View) -> None:
        """The clock starts with the run."""
        self.began = self.last = time.monotonic()

    def on_exchange(self, view: View) -> None:
        """Say where the run stands, when it is time."""
        now = time.monotonic()
        if now - self.last >= self.seconds:
            self.last = now
            print(f"hpcsgd: {status_line(view, now - self.began)}", file=sys.stderr)


class ProgressBar(Callback):
    """A bar with loss, rows a second, words a step and time left."""

    EVERY = 0.1  # seconds between redraws: more would cost the run, not help the eye

    def __init__(self, columns: int | None = None) -> None:
        self.columns = columns  # of a terminal that is not ours to ask
        self.bar: Any = None
        self.job: Any = None
        self.last = 0.0

    def on_start(self, view: View) -> None:
        """Draw it."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.fields[said]}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            console=Console(
                stderr=True,
                width=self.columns,
                force_terminal=True if self.columns else None,
            ),
            transient=True,
        )
        self.job = self.bar.add_task("", total=view.exchanges_planned, said="")
        self.bar.start()

    def on_exchange(self, view: View) -> None:
        """Move it, not too often."""
        now = time.monotonic()
        if now - self.last >= self.EVERY:
            self.last = now
            self.bar.update(self.job, completed=view.exchanges, said=describe(view))

    def on_end(self, view: View) -> None:
        """Take it away."""
        self.bar.stop()


def describe(view: View) -> str:
    """Loss, rate of rows, words a step."""
    rate = view.rows / view.seconds if view.seconds > 0 else 0.0
    words = view.words() / view.steps if view.steps else 0.0
    return f"loss {view.loss:.6g}  {rate:.3g} rows/s  {words:.0f} words/step"


def status_line(view: View, elapsed: float) -> str:
    """The same as words, with the share that is done and the time left."""
    share = view.exchanges / max(view.exchanges_planned, 1)
    left = elapsed * (1.0 - share) / share if share > 0 else float("nan")
    return f"{100 * share:.0f} %  {describe(view)}  {left:.0f} s left"

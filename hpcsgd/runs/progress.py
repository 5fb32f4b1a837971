"""Progress and history of a run, and a forecast of its end."""

import json
import logging
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from hpcsgd.files import finite, open_entry
from hpcsgd.solvers.callbacks import Callback, View

# The loss curve as JSON lines in the run folder.

log = logging.getLogger(__name__)


class History(Callback):
    """Callback that writes a record of each evaluation and event to a file.

    Training continues if a record cannot be written (a full disk, a quota): a warning
    is logged once, and the record is written as soon as possible.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.lines = 0  # records that are in the file
        self.end = 0  # bytes of these; a line behind them is incomplete
        self.failed = False

    def on_start(self, view: View) -> None:
        """Start the file, with the records that a checkpoint restored, if any."""
        self.lines = self.end = 0
        self._catch_up(view)

    def on_evaluate(self, view: View) -> None:
        """Write the records that are not in the file yet."""
        self._catch_up(view)

    def on_end(self, view: View) -> None:
        """Write the records that could not be written before, and the last events."""
        if self.lines < len(view.history) + len(view.events):
            self._catch_up(view)

    def _catch_up(self, view: View) -> None:
        """Write all records that are not in the file yet."""
        if self.path is None:
            return
        try:
            self._write(self.path, in_order(view.history, view.events))
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, self.end)
            self._warn(error)

    def _write(self, path: Path, records: Sequence[dict[str, Any]]) -> None:
        number = open_entry(path, os.O_RDWR | os.O_CREAT)
        with open(number, "r+b") as file:
            if file.seek(0, os.SEEK_END) < self.end:  # somebody has emptied it
                self.lines = self.end = 0
            file.truncate(self.end)
            file.seek(self.end)
            file.write(format_records(records[self.lines :]).encode())
            file.flush()
            end = file.tell()
        # Some file systems notice only when it is closed that there is no room.
        self.lines = len(records)
        self.end = end

    def _warn(self, error: OSError) -> None:
        if self.failed:
            return
        self.failed = True
        log.warning(
            "%s cannot be written (%s); training goes on, and the missing records are"
            " written when there is room",
            self.path,
            error.strerror or error,
        )


def in_order(
    history: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return all records, with each event after the evaluations that came before it."""
    records: list[dict[str, Any]] = []
    waiting = list(events)
    for number, record in enumerate(history):
        while waiting and waiting[0]["evaluations"] <= number:
            records.append(waiting.pop(0))
        records.append(record)
    return records + waiting


def format_records(records: Sequence[dict[str, Any]]) -> str:
    """Return the records as lines of JSON."""
    return "".join(json.dumps(finite(record)) + "\n" for record in records)


# How the time was split since the last report, and how long a run will still take.

COMMUNICATE = ("communicate", "agreement")
WORK = ("gather", "gram", "scores", "inner", "update", "steps")


class TimeShares:
    """The shares of work, network and other in the time since the last call."""

    def __init__(self) -> None:
        self.seen = (0.0, 0.0, 0.0)

    def since_last(self, view: View) -> str:
        """Return a text with the shares since the last call, in per cent.

        "" if no time has been measured since then.
        """
        phases = view.phases()
        work = sum(phases.get(name, 0.0) for name in WORK)
        net = sum(phases.get(name, 0.0) for name in COMMUNICATE)
        now = (work, net, max(view.seconds - work - net, 0.0))
        spent = [max(n - s, 0.0) for n, s in zip(now, self.seen, strict=True)]
        total = sum(spent)
        self.seen = now
        if total <= 0.0:
            return ""
        work_share, net_share = (round(100 * part / total) for part in spent[:2])
        other = max(100 - work_share - net_share, 0)
        return f"work {work_share} net {net_share} other {other} %"


class Forecast:
    """A forecast of the time that a run still takes.

    The rate is a ratio of two sums, of exchanges and of seconds, in which older terms
    decay with the time spent. So one slow exchange among many changes the rate little.
    """

    MEMORY = 20.0  # seconds of training after which a third of a measurement is left

    def __init__(self) -> None:
        self.exchanges, self.seconds = 0, 0.0  # at the last update
        self.done, self.spent = 0.0, 0.0  # decayed sums
        self.evaluations = 0  # in this start
        self.earlier_evaluations = 0  # in the starts before a resume
        self.earlier_evaluating = 0.0  # seconds of those

    def begin(self, view: View) -> None:
        """Start to count; exchanges restored from a checkpoint are not measured."""
        self.exchanges = view.exchanges
        self.seconds = view.seconds
        self.earlier_evaluations = len(view.history)
        self.earlier_evaluating = view.phases().get("evaluate", 0.0)

    def evaluated(self) -> None:
        """Count one evaluation of the full loss."""
        self.evaluations += 1

    def update(self, view: View) -> None:
        """Add the exchanges and the seconds since the last update to the sums."""
        done = view.exchanges - self.exchanges
        spent = view.seconds - self.seconds
        if done <= 0 or spent <= 0.0:
            return
        keep = math.exp(-spent / self.MEMORY)
        self.done, self.spent = keep * self.done + done, keep * self.spent + spent
        self.exchanges = view.exchanges
        self.seconds = view.seconds

    def seconds_left(self, view: View) -> float:
        """Return the seconds of the exchanges and evaluations to come.

        nan if no exchange has been timed.
        """
        if self.done <= 0.0:
            return math.nan
        exchanges = max(view.exchanges_planned - view.exchanges, 0)
        evaluations = self.earlier_evaluations + self.evaluations
        to_come = max(view.evaluations_planned - evaluations, 0)
        return exchanges * self.spent / self.done + to_come * self._evaluation(view)

    def _evaluation(self, view: View) -> float:
        """Return the mean seconds of one evaluation.

        It is over the evaluations since this start, or else over those of earlier
        starts; 0 without any.
        """
        if self.evaluations:
            seconds = view.phases().get("evaluate", 0.0) - self.earlier_evaluating
            return seconds / self.evaluations
        if self.earlier_evaluations:
            return self.earlier_evaluating / self.earlier_evaluations
        return 0.0

    def left(self, view: View) -> str:
        """Return the time left as a text, such as "45 s left"."""
        return format_time_left(self.seconds_left(view))


def format_time_left(seconds: float) -> str:
    """Format the seconds left, no finer than the forecast is accurate.

    For example: "45 s left", "2 min 10 s left", "about 3 h left"; "" if it is unknown.
    """
    if not math.isfinite(seconds):
        return ""
    if seconds < 57.5:
        return _seconds(seconds)
    if seconds < 595:
        minutes, rest = divmod(10 * round(seconds / 10), 60)
        return f"{minutes} min {rest} s left" if rest else f"{minutes} min left"
    if seconds < 3570:
        return f"{round(seconds / 60)} min left"
    if seconds < 2 * 3600 - 300:
        minutes = 10 * round(seconds / 600) - 60
        return f"about 1 h {minutes} min left" if minutes else "about 1 h left"
    if seconds < 47.5 * 3600:
        return f"about {round(seconds / 3600)} h left"
    return f"about {round(seconds / 86400)} days left"


def _seconds(seconds: float) -> str:
    """Format the seconds left: single seconds up to 10, multiples of 5 above."""
    if seconds < 1:
        return "almost done"
    whole = round(seconds)
    return f"{whole if whole <= 10 else 5 * round(seconds / 5)} s left"


# What a person sees while it runs: a bar on a terminal, plain lines elsewhere.

TERMINAL = "HPCSGD_TERMINAL"  # columns of the terminal at the other end of mpiexec


def terminal_columns() -> int | None:
    """Return the width of the terminal behind standard error; None if there is none.

    0 if standard error is the terminal itself, whose width may change. mpiexec puts a
    pipe between the ranks and the terminal, so the process that starts mpiexec passes
    the width in an environment variable.
    """
    behind = os.environ.get(TERMINAL, "")
    if behind.isdigit():
        return int(behind)
    return 0 if sys.stderr.isatty() else None


def write_line(text: str) -> None:
    """Write one plain line to standard error, so that a log file stays readable."""
    sys.stderr.write(f"hpcsgd: {text}\n")
    sys.stderr.flush()


class TerminalBar:
    """A line of a terminal with a text, a bar, a percentage and a second text.

    Parameters
    ----------
    columns : width of the terminal; 0 asks the terminal
    width : columns of the bar itself
    room : columns of a terminal below which the bar itself is left out
    """

    def __init__(self, columns: int, width: int, room: int = 0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(
            stderr=True,
            width=columns or None,
            force_terminal=True if columns else None,
        )
        self.is_wide = console.width >= room
        self.progress = Progress(
            TextColumn("{task.description}"),
            *((BarColumn(bar_width=width),) if self.is_wide else ()),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[after]}"),
            console=console,
            transient=True,
        )
        self.task: Any = None
        self.progress.start()

    def begin(self, total: float | None, text: str = "") -> None:
        """Draw an empty bar in the place of the last one.

        `total` is the value of a full bar; None: the length is unknown.
        """
        if self.task is not None:
            self.progress.remove_task(self.task)
        self.task = self.progress.add_task(text, total=total, after="")

    def move(self, completed: float, after: str, text: str | None = None) -> None:
        """Fill the bar up to `completed` of the total.

        Write `text` before the bar and `after` behind it; None keeps the text before.
        """
        self.progress.update(
            self.task, completed=completed, description=text, after=after
        )

    def stop(self) -> None:
        """Remove the line from the terminal."""
        self.progress.stop()


def make_progress(seconds: float) -> list[Callback]:
    """Return a list with the callback that shows the progress of a run.

    It is a bar in a notebook, or on a terminal behind standard error. Otherwise it
    writes a line every `seconds` seconds; if they are 0, the list is empty.
    """
    if in_notebook():
        return [NotebookProgress()]
    columns = terminal_columns()
    if columns is not None:
        return [ProgressBar(columns)]
    return [ProgressLines(seconds)] if seconds > 0 else []


class ProgressDisplay(Callback):
    """Callback that shows the progress of a run at intervals."""

    every = 0.0  # seconds between updates
    wide = True  # room for everything

    def __init__(self) -> None:
        self.split = TimeShares()
        self.forecast = Forecast()
        self.last = time.monotonic()

    def on_start(self, view: View) -> None:
        """Reset clock, shares and forecast when a run starts or resumes."""
        self.split = TimeShares()
        self.forecast = Forecast()
        self.split.since_last(view)
        self.forecast.begin(view)
        self.last = time.monotonic()

    def on_evaluate(self, view: View) -> None:
        """Count one evaluation as done."""
        self.forecast.evaluated()

    def on_exchange(self, view: View) -> None:
        """Show the progress if `every` seconds have passed."""
        now = time.monotonic()
        if now - self.last >= self.every:
            self.last = now
            self.forecast.update(view)
            parts = [*figures(view, self.wide), self.split.since_last(view)]
            self.show(view, "  ".join(filter(None, parts)))

    def show(self, view: View, said: str) -> None:
        """Show the text `said` to the user; subclasses define how."""


class ProgressLines(ProgressDisplay):
    """Callback that writes one plain line about the progress at intervals."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.every = seconds

    def show(self, view: View, said: str) -> None:
        """Write a line with the share that is done, `said`, and the time left."""
        share = 100 * view.exchanges / max(view.exchanges_planned, 1)
        write_line(f"{share:.0f} %  {said}  {self.forecast.left(view)}")


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    return get_ipython() is not None


class NotebookLine:
    """One line in the output of a notebook, with a bar and a text.

    Each update replaces the line.
    """

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, share: float, text: str) -> None:
        """Show `text` after a bar that is full up to `share`, from 0 to 1."""
        from IPython import display

        show: Any = display.display
        share = min(max(share, 0.0), 1.0)
        bar = f'<progress value="{share:.3f}" max="1"></progress>'
        line = f"{100 * share:.0f} %  {text}"
        data = {"text/plain": line, "text/html": f"{bar} {escape(line)}"}
        if self.handle is None:
            self.handle = show(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)


class NotebookProgress(ProgressDisplay):
    """Callback that shows a bar in the output of a cell of a notebook."""

    every = 0.2  # seconds between updates, each of them a message to the browser
    wide = False

    def on_start(self, view: View) -> None:
        """Start a new line in the output of the cell."""
        super().on_start(view)
        self.line = NotebookLine()

    def show(self, view: View, said: str) -> None:
        """Replace the line by the bar, the text `said` and the time left."""
        share = view.exchanges / max(view.exchanges_planned, 1)
        self.line.show(share, f"{said}  {self.forecast.left(view)}".rstrip())

    def on_end(self, view: View) -> None:
        """Replace the line by a full bar and the last loss."""
        self.line.show(1.0, "  ".join(figures(view, wide=False)))


class ProgressBar(ProgressDisplay):
    """Callback that shows a bar on a terminal.

    It shows loss, rows a second, words a step (on a wide terminal alone), shares of the
    time, and the time left.
    """

    every = 0.1  # seconds between redraws: more would cost the run, not help the eye
    ROOM = 120  # columns from which everything fits beside a bar

    def __init__(self, columns: int = 0) -> None:
        super().__init__()
        self.columns = columns  # of a terminal that cannot be queried, or 0
        self.bar: Any = None

    def on_start(self, view: View) -> None:
        """Draw an empty bar."""
        super().on_start(view)
        self.bar = TerminalBar(self.columns, 10, self.ROOM)
        self.wide = self.bar.is_wide
        self.bar.begin(view.exchanges_planned)
        self.last = -math.inf  # the first exchange is shown at once

    def show(self, view: View, said: str) -> None:
        """Move the bar to the present exchange, with the text `said`."""
        self.bar.move(view.exchanges, self.forecast.left(view), said)

    def on_end(self, view: View) -> None:
        """Remove the bar."""
        self.bar.stop()


def figures(view: View, wide: bool = True) -> list[str]:
    """Return texts with the loss, the rows a second, and the words a step.

    The rows are those of all replicas, the words those that this rank sends for
    products. The words are left out unless `wide`.
    """
    rate = view.rows / view.seconds if view.seconds > 0 else 0.0
    words = view.words() / view.steps if view.steps else 0.0
    texts = [f"loss {view.loss:.6g}", f"{rate:.3g} rows/s", f"{words:.0f} words/step"]
    return texts if wide else texts[:2]


# Whether a run takes what it was expected to take: said once, nothing is changed.

PATIENCE = 1.0  # seconds of training after which a step's time is known well enough
SETTLED = 4  # epochs after which the first one, in which all is kept, counts little
MUCH = 1.25  # times what the rival was expected to take


class SlowerThanExpected(Callback):
    """Callback that logs once if steps are slower than expected of two products.

    These are the product that runs and its fastest rival: a step takes more than `MUCH`
    times what was expected of each. The run keeps its product and s, since others
    give other bits, and a resumed run could not be repeated. `keeps`: the product keeps
    batches of the first epoch, so that steps are judged some epochs later.
    """

    def __init__(self, chosen: Any, keeps: bool) -> None:
        self.chosen = chosen
        self.epochs = SETTLED if keeps else 0
        self.is_open = True

    def on_exchange(self, view: View) -> None:
        """Compare the mean time of a step with the expected ones, once.

        It is compared as soon as it is known well enough.
        """
        if not self.is_open or view.seconds < PATIENCE or view.epoch < self.epochs:
            return
        self.is_open = False
        each = view.seconds / max(view.steps, 1)
        rival = self.chosen.rival
        if each > MUCH * rival.seconds and each > MUCH * self.chosen.seconds:
            log.info(
                "a step with --products %s --steps %d takes %.1f µs and was expected to"
                " take %.1f; --products %s --steps %d may be faster (%.1f expected),"
                " but this run keeps its settings, on which its bits depend",
                self.chosen.product,
                self.chosen.steps,
                1e6 * each,
                1e6 * self.chosen.seconds,
                rival.product,
                rival.steps,
                1e6 * rival.seconds,
            )

"""The account of a study: medians, speed-ups and efficiencies of its settings."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hpcsgd.comm.ledger import TRAINING
from hpcsgd.files import finite
from hpcsgd.runs.figures import COLOURS, html, new_axes, to_frame
from hpcsgd.studies.folder import DONE, SAVED, Line
from hpcsgd.studies.plan import StudyPlan, StudyPoint


@dataclass(frozen=True)
class AccountRow:
    """Medians over the repeats and seeds of one setting on one number of ranks.

    A speed-up is the time of a baseline divided by that of this row. The baseline of
    `speed_up` is the same method with the same steps and recipe on its fewest ranks,
    that of `speed_up_sgd` is sgd on the fewest ranks of the study, that of `gain` is
    sgd on as many ranks (both with the first recipe of the plan), and that of
    `speed_up_one_rank` is the fastest setting of any method on one rank. A baseline has
    the same batch (if the batch grows with the ranks: the same batch for each rank),
    and ran on the same processors. Runs with more ranks than cores are baselines only
    for such runs. In a weak study the work grows with the ranks, so that the ratio of
    the times is multiplied by the ratio of the ranks.
    """

    setting: str  # the key of its points without seed and repeat
    method: str
    ranks: int
    emulated: int
    grid: str
    batch: int
    steps: int | str
    recipe: str
    runs: int  # runs with a result
    planned: int  # runs of the plan
    seconds: float | None  # median time of training
    spread: tuple[float, float] | None  # shortest and longest time
    speed_up: float | None
    efficiency: float | None
    speed_up_sgd: float | None
    gain: float | None
    speed_up_one_rank: float | None
    efficiency_one_rank: float | None
    calls: int | None  # collective calls of rank 0 for products and agreements
    words: int | None  # words that rank 0 sent in these calls
    expected: bool | None  # whether calls and words are those of the formula
    loss: float | None  # median
    oversubscribed: bool  # whether a run had more ranks than cores


@dataclass(frozen=True)
class Account:
    """Results of a study, as far as it has run.

    Attributes
    ----------
    kind : str
        "strong", "weak" or "sweep".
    folder : str
        The folder of the study.
    fewest : int
        The smallest number of ranks in the plan.
    rows : tuple of AccountRow
        One row for each setting on each number of ranks.
    failures : tuple of dict
        Key, status and error of each run that failed or diverged.
    preempted : tuple of dict
        Key and status of each run that was preempted or interrupted.
    missing : int
        Runs of the plan that have not run yet.
    processors : tuple of str
        Names of the processors of the successful runs.
    """

    kind: str
    folder: str
    fewest: int
    rows: tuple[AccountRow, ...]
    failures: tuple[dict[str, Any], ...]
    preempted: tuple[dict[str, Any], ...]
    missing: int
    processors: tuple[str, ...]

    @property
    def runs(self) -> int:
        """Number of runs that reached their end without divergence."""
        return sum(row.runs for row in self.rows) - self._diverged

    @property
    def _diverged(self) -> int:
        return sum(bad["status"] == "diverged" for bad in self.failures)

    @property
    def best(self) -> AccountRow | None:
        """The row of the fastest setting, or None before the first result.

        Emulated ranks do not count. In a weak study, the fastest setting has the most
        rows per second.
        """
        timed = [r for r in self.rows if r.seconds is not None and not r.emulated]
        return min(timed, key=self._seconds_of_work, default=None)

    def _seconds_of_work(self, row: AccountRow) -> float:
        work = row.ranks if self.kind == "weak" else 1
        return (row.seconds or 0.0) / work

    def as_dict(self) -> dict[str, Any]:
        """Return all results as a dict that JSON can represent."""
        return {
            "study": self.kind,
            "folder": self.folder,
            "runs": self.runs,
            "missing": self.missing,
            "processors": list(self.processors),
            "fewest_ranks": self.fewest,
            "best": asdict(self.best) if self.best else None,
            "rows": [asdict(row) for row in self.rows],
            "failures": list(self.failures),
            "preempted": list(self.preempted),
        }

    def json(self) -> str:
        """Return all results as JSON text; numbers that are not finite become null."""
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False)

    def to_frame(self) -> Any:
        """Return the rows as a pandas.DataFrame, one for each setting."""
        return to_frame([asdict(row) for row in self.rows], index="setting")

    def plot(self, ax: Any = None) -> Any:
        """Draw the seconds of every setting with matplotlib.

        The horizontal axis has the ranks, the steps or the batch, whichever has the
        most different values. A hollow mark is a run of more ranks than cores, or of
        emulated ranks.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw. Without it there is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        MissingPackage
            If matplotlib is not installed.
        """
        ax = new_axes(ax)
        timed = [row for row in self.rows if row.seconds is not None]
        over = self._varied(timed)
        lines: dict[str, list[AccountRow]] = {}
        for row in timed:
            lines.setdefault(_label(row, over, timed), []).append(row)
        for number, (name, rows) in enumerate(lines.items()):
            rows = sorted(rows, key=lambda row: float(getattr(row, over)))
            colour = COLOURS[number % len(COLOURS)]
            mark = "os^Dvph"[number % 7]
            x = [float(getattr(row, over)) for row in rows]
            ax.plot(x, [row.seconds for row in rows], color=colour, label=name)
            for place, row in zip(x, rows, strict=True):
                is_true = not (row.emulated or row.oversubscribed)
                fill = colour if is_true else "none"
                ax.plot(place, row.seconds, mark, color=colour, markerfacecolor=fill)
                if row.spread is not None:
                    ax.plot([place] * 2, row.spread, color=colour, linewidth=0.8)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ticks = sorted({float(getattr(row, over)) for row in timed})
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        ax.set_xlabel({"steps": "steps for each all-reduce, s"}.get(over, over))
        ax.set_ylabel("seconds of training")
        if lines:
            ax.legend(fontsize="small")
        return ax

    def _repr_html_(self) -> str:
        """Return the table and a picture of the account as HTML, for a notebook."""
        names = (
            *("method", "ranks", "grid", "steps", "seconds"),
            *("speed_up", "gain", "calls", "words", "loss"),
        )
        rows = [{name: getattr(row, name) for name in names} for row in self.rows]
        title = f"Study: {self.kind}, {self.runs} runs"
        notes = [f"{self.missing} runs are missing"] if self.missing else []
        notes += [
            f"{bad['key']} {bad['status']}: {bad['error']}" for bad in self.failures
        ]
        return html(title, rows, lambda ax: self.plot(ax=ax), "; ".join(notes))

    @staticmethod
    def _varied(rows: list[AccountRow]) -> str:
        """Return which of ranks, steps and batch has the most different numbers."""

        def count(name: str) -> int:
            values = {getattr(row, name) for row in rows}
            return len(values) if all(isinstance(v, int) for v in values) else 0

        return max(("ranks", "steps", "batch"), key=count)


def _label(row: AccountRow, over: str, rows: list[AccountRow]) -> str:
    """Return the name of the curve of `row` in a plot over the quantity `over`.

    It has the method, and the settings in which the `rows` of this method at the same
    place of the axis differ.
    """
    words = [row.method]
    x = getattr(row, over)
    same_x = [o for o in rows if o.method == row.method and getattr(o, over) == x]
    for name in ("ranks", "grid", "steps", "batch", "recipe"):
        if name != over and len({getattr(other, name) for other in same_x}) > 1:
            words.append(f"{name} {getattr(row, name)}")
    return ", ".join(words)


class _Times:
    """The median seconds of every setting of a study, from which baselines follow."""

    def __init__(self, plan: StudyPlan, lines: Mapping[str, Line]) -> None:
        self.plan = plan
        self.of: dict[str, list[float]] = {}
        self.crowded: set[str] = set()  # settings with more ranks than cores
        self.processors: dict[str, set[str]] = {}  # processors of each setting
        self.points: dict[str, StudyPoint] = {}
        for point in plan.runs():
            self.points.setdefault(point.setting, point)
            line = lines.get(point.key)
            if line and line.get("oversubscribed"):
                self.crowded.add(point.setting)
            if line and line["status"] == "finished" and line["seconds"]:
                self.of.setdefault(point.setting, []).append(line["seconds"])
                processors = self.processors.setdefault(point.setting, set())
                processors.add(str(line.get("processor") or ""))

    def median(self, setting: str) -> float | None:
        """Return the median seconds of a setting; None without a finished run."""
        seconds = self.of.get(setting)
        return median(seconds) if seconds else None

    def fewest_ranks(self, point: StudyPoint) -> tuple[int, float] | None:
        """Return (ranks, seconds) of the same method, s and recipe on fewest ranks.

        Of several grids on these ranks, the fastest counts. Return None without a
        finished run.
        """
        return self._fewest(
            p
            for p in self._comparable(point)
            if (p.method, p.steps, p.recipe)
            == (point.method, point.steps, point.recipe)
        )

    def sgd(self, point: StudyPoint, ranks: int) -> float | None:
        """Return the median seconds of sgd on `ranks` ranks.

        The recipe is the first of the plan. Return None without a finished run.
        """
        first = self.plan.axes.precision[0]
        fewest = self._fewest(
            p
            for p in self._comparable(point)
            if (p.method, p.recipe, p.ranks) == ("sgd", first, ranks)
        )
        return fewest[1] if fewest else None

    def one_rank(self, point: StudyPoint) -> float | None:
        """Return the median seconds of the fastest setting on one rank, of any method.

        Return None without a finished run.
        """
        medians = [
            self.median(p.setting)
            for p in self._comparable(point)
            if p.ranks == 1 and not p.emulated
        ]
        return min((seconds for seconds in medians if seconds), default=None)

    def _comparable(self, point: StudyPoint) -> Iterable[StudyPoint]:
        """Yield the points that can be baselines of `point`.

        They ran on the same processors with as many rows in a step, or as many rows for
        each rank if the batch grows with the ranks. Points with more ranks than cores
        are left out unless `point` is one of them.
        """
        for other in self.points.values():
            # The time of a run with too few cores is no baseline for one with enough.
            if other.setting in self.crowded and point.setting not in self.crowded:
                continue
            processors = self.processors.get(point.setting)
            if self.processors.get(other.setting) != processors:
                continue
            grown = other.batch * point.ranks == point.batch * other.ranks
            if grown if self.plan.batch_grows else other.batch == point.batch:
                yield other

    def _fewest(self, points: Iterable[StudyPoint]) -> tuple[int, float] | None:
        medians = [(p.ranks, self.median(p.setting)) for p in points]
        timed = [(ranks, seconds) for ranks, seconds in medians if seconds]
        return min(timed, default=None)


def account(plan: StudyPlan, lines: Mapping[str, Line], folder: str) -> Account:
    """Return the account of a study's plan, from the result lines of its runs."""
    times = _Times(plan, lines)
    by_setting: dict[str, list[StudyPoint]] = {}
    for point in plan.runs():
        by_setting.setdefault(point.setting, []).append(point)
    keys = [point.key for point in plan.runs()]
    failures = [
        {name: lines[key][name] for name in ("key", "status", "error")}
        for key in keys
        if key in lines and lines[key]["status"] not in ("finished", *SAVED)
    ]
    preempted = [
        {name: lines[key][name] for name in ("key", "status")}
        for key in keys
        if key in lines and lines[key]["status"] in SAVED
    ]
    return Account(
        kind=plan.kind,
        folder=folder,
        fewest=min(plan.all_ranks),
        rows=tuple(_row(points, times, lines) for points in by_setting.values()),
        failures=tuple(failures),
        preempted=tuple(preempted),
        missing=sum(key not in lines for key in keys),
        processors=tuple(sorted(set().union(*times.processors.values()) - {""})),
    )


def _row(
    points: list[StudyPoint], times: _Times, lines: Mapping[str, Line]
) -> AccountRow:
    first = points[0]
    plan = times.plan
    planned = [lines[p.key] for p in points if p.key in lines]
    done = [line for line in planned if line["status"] in DONE]
    ranks = first.ranks
    seconds = times.median(first.setting)
    spread = times.of.get(first.setting)
    # Speed-ups: the seconds and the ranks of each baseline.
    grows = plan.kind == "weak"
    base_ranks, base_seconds = times.fewest_ranks(first) or (1, None)
    speed_up = _speed_up(base_seconds, seconds, ranks / base_ranks if grows else 1.0)
    fewest = min(plan.all_ranks)
    sgd_on_fewest = times.sgd(first, fewest)
    one_rank = _speed_up(times.one_rank(first), seconds, ranks if grows else 1.0)
    return AccountRow(
        setting=first.setting,
        method=first.method,
        ranks=first.ranks,
        emulated=first.emulated,
        grid=f"{first.grid[0]}x{first.grid[1]}",
        batch=first.batch,
        steps=next((s["steps"] for s in done if s["steps"] is not None), first.steps),
        recipe=first.recipe,
        runs=len(done),
        planned=len(points),
        seconds=seconds,
        spread=(min(spread), max(spread)) if spread else None,
        speed_up=speed_up,
        efficiency=speed_up * base_ranks / ranks if speed_up else None,
        speed_up_sgd=_speed_up(
            sgd_on_fewest, seconds, ranks / fewest if grows else 1.0
        ),
        gain=_speed_up(times.sgd(first, ranks), seconds),
        speed_up_one_rank=one_rank,
        efficiency_one_rank=one_rank / ranks if one_rank else None,
        calls=traffic(done, "calls"),
        words=traffic(done, "words"),
        expected=is_expected(done),
        loss=_median(line["loss"] for line in done),
        oversubscribed=any(line.get("oversubscribed") for line in done),
    )


def _speed_up(
    before: float | None, now: float | None, work: float = 1.0
) -> float | None:
    """Return `before` / `now` times `work`, or None if a time is missing.

    `work` is the work of the run that took `now` over that of the baseline.
    """
    if not before or not now:
        return None
    return before / now * work


def traffic(lines: Iterable[Line], figure: str) -> int | None:
    """Return the calls or words of rank 0 for products and agreements.

    `figure` is "calls" or "words". The first line with a ledger counts; return None if
    there is none.
    """
    for line in lines:
        if line["ledger"]:
            return sum(int(line["ledger"][purpose][figure]) for purpose in TRAINING)
    return None


def is_expected(lines: Iterable[Line]) -> bool | None:
    """Return whether every ledger has the calls and words that formulas predict.

    The result is None if no line has a formula.
    """
    checks = [
        traffic([line], figure) == line["expected"][figure]
        for line in lines
        if line["expected"]
        for figure in ("calls", "words")
    ]
    return all(checks) if checks else None


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return median(numbers) if numbers else None

"""What a study found: medians, speed-ups and efficiencies, from its lines."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hpcsgd.comm.ledger import TRAINING
from hpcsgd.runs.figures import COLOURS, html, new_axes, to_frame
from hpcsgd.runs.result import finite
from hpcsgd.studies.folder import DONE, SAVED, Line
from hpcsgd.studies.plan import StudyPlan, StudyPoint


@dataclass(frozen=True)
class AccountRow:
    """All repeats and seeds of one setting on so many ranks.

    `speed_up` is against the method's own fewest ranks, `speed_up_sgd` against sgd on
    the study's fewest, `gain` against sgd on as many ranks, `speed_up_one_rank` against
    the fastest setting of one rank, of any method. Settings are held to those that ran
    on the same processors; a run of more ranks than cores is held to by its like alone.
    In a weak study the work grows with the ranks, and with it what a speed-up is
    multiplied by.
    """

    setting: str  # its key without seed and repeat
    method: str
    ranks: int
    emulated: int
    grid: str
    batch: int
    steps: int | str
    recipe: str
    runs: int  # that are over, of those that were planned
    planned: int
    seconds: float | None
    spread: tuple[float, float] | None  # the least and the most
    speed_up: float | None
    efficiency: float | None
    speed_up_sgd: float | None
    gain: float | None
    speed_up_one_rank: float | None
    efficiency_one_rank: float | None
    calls: int | None
    words: int | None
    expected: bool | None  # whether calls and words are those of the formula
    loss: float | None
    oversubscribed: bool


@dataclass(frozen=True)
class Account:
    """A study as it stands."""

    kind: str
    folder: str
    fewest: int  # ranks, of all methods
    rows: tuple[AccountRow, ...]
    failures: tuple[dict[str, Any], ...]  # key, status and error of bad runs
    preempted: tuple[dict[str, Any], ...]  # key and status of runs that --resume runs
    missing: int  # runs of the plan that have no line
    processors: tuple[str, ...]  # that good runs have named

    @property
    def runs(self) -> int:
        """Those that are over and good."""
        return sum(row.runs for row in self.rows) - self._diverged

    @property
    def _diverged(self) -> int:
        return sum(bad["status"] == "diverged" for bad in self.failures)

    @property
    def best(self) -> AccountRow | None:
        """The fastest setting that no machine had to pretend.

        In a weak study the one that did most work in its time.
        """
        known = [r for r in self.rows if r.seconds is not None and not r.emulated]
        return min(known, key=self._seconds_of_work, default=None)

    def _seconds_of_work(self, row: AccountRow) -> float:
        work = row.ranks if self.kind == "weak" else 1
        return (row.seconds or 0.0) / work

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
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
        """One document; a number that is not finite is written as null."""
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False)

    def to_frame(self) -> Any:
        """Return the table as a pandas.DataFrame, one row for each setting."""
        return to_frame([asdict(row) for row in self.rows], index="setting")

    def plot(self, ax: Any = None) -> Any:
        """Draw the seconds of every setting with matplotlib.

        The horizontal axis is what the study varies: the ranks, or else the steps or
        the batch. A hollow mark is a run of more ranks than cores, or emulated ranks.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw. Without it there is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.
        """
        ax, timed = new_axes(ax), [row for row in self.rows if row.seconds is not None]
        over = self._varied(timed)
        lines: dict[str, list[AccountRow]] = {}
        for row in timed:
            lines.setdefault(_label(row, over, timed), []).append(row)
        for number, (name, rows) in enumerate(lines.items()):
            rows = sorted(rows, key=lambda row: float(getattr(row, over)))
            colour, mark = COLOURS[number % len(COLOURS)], "os^Dvph"[number % 7]
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
        """Return the table and a picture for a notebook."""
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
        """Return the column with the most values that are numbers."""

        def count(name: str) -> int:
            values = {getattr(row, name) for row in rows}
            return len(values) if all(isinstance(v, int) for v in values) else 0

        return max(("ranks", "steps", "batch"), key=count)


def _label(row: AccountRow, over: str, rows: list[AccountRow]) -> str:
    """Return the method, and whatever else tells its line from the others."""
    words = [row.method]
    for name in ("ranks", "grid", "steps", "batch", "recipe"):
        others = [other for other in rows if other.method == row.method]
        at = {
            getattr(o, name) for o in others if getattr(o, over) == getattr(row, over)
        }
        if name != over and len(at) > 1:
            words.append(f"{name} {getattr(row, name)}")
    return ", ".join(words)


class _Times:
    """Median seconds of every setting, by what baselines are looked up with."""

    def __init__(self, plan: StudyPlan, lines: Mapping[str, Line]) -> None:
        self.plan = plan
        self.of: dict[str, list[float]] = {}
        self.crowded: set[str] = set()  # settings that had too few cores
        self.processors: dict[str, set[str]] = {}  # that a setting ran on
        self.points: dict[str, StudyPoint] = {}
        for point in plan.runs():
            self.points.setdefault(point.setting, point)
            line = lines.get(point.key)
            if line and line.get("oversubscribed"):
                self.crowded.add(point.setting)
            if line and line["status"] == "finished" and line["seconds"]:
                self.of.setdefault(point.setting, []).append(line["seconds"])
                found = self.processors.setdefault(point.setting, set())
                found.add(str(line.get("processor") or ""))

    def median(self, setting: str) -> float | None:
        """Of one setting; None where no run of it was good."""
        found = self.of.get(setting)
        return median(found) if found else None

    def own(self, point: StudyPoint) -> tuple[int, float] | None:
        """(ranks, seconds) of the same setting on its fewest ranks; the best grid."""
        return self._fewest(
            p
            for p in self._batches_of(point)
            if (p.method, p.steps, p.recipe)
            == (point.method, point.steps, point.recipe)
        )

    def sgd(self, point: StudyPoint, ranks: int) -> float | None:
        """Seconds of sgd in the first recipe of the plan."""
        first = self.plan.precision[0]
        found = self._fewest(
            p
            for p in self._batches_of(point)
            if (p.method, p.recipe, p.ranks) == ("sgd", first, ranks)
        )
        return found[1] if found else None

    def one_rank(self, point: StudyPoint) -> float | None:
        """Seconds of the fastest setting of one rank, of any method and recipe."""
        found = [
            self.median(p.setting)
            for p in self._batches_of(point)
            if p.ranks == 1 and not p.emulated
        ]
        return min((seconds for seconds in found if seconds), default=None)

    def _batches_of(self, point: StudyPoint) -> Iterable[StudyPoint]:
        """Points that see as many rows a step, or as many a rank."""
        for other in self.points.values():
            # What had too few cores says nothing of what had them.
            if other.setting in self.crowded and point.setting not in self.crowded:
                continue
            if not self._on_one_machine(other.setting, point.setting):
                continue
            grown = other.batch * point.ranks == point.batch * other.ranks
            if grown if self.plan.batch_grows else other.batch == point.batch:
                yield other

    def _on_one_machine(self, one: str, other: str) -> bool:
        """Whether two settings ran on the same processors, as far as lines know."""
        return self.processors.get(one) == self.processors.get(other)

    def _fewest(self, points: Iterable[StudyPoint]) -> tuple[int, float] | None:
        found = [(p.ranks, self.median(p.setting)) for p in points]
        timed = [(ranks, seconds) for ranks, seconds in found if seconds]
        return min(timed, default=None)


def account(plan: StudyPlan, lines: Mapping[str, Line], folder: str) -> Account:
    """The lines of a plan, put together."""
    times, by_setting = _Times(plan, lines), dict[str, list[StudyPoint]]()
    for point in plan.runs():
        by_setting.setdefault(point.setting, []).append(point)
    asked = [point.key for point in plan.runs()]
    failures = [
        {name: lines[key][name] for name in ("key", "status", "error")}
        for key in asked
        if key in lines and lines[key]["status"] not in ("finished", *SAVED)
    ]
    preempted = [
        {name: lines[key][name] for name in ("key", "status")}
        for key in asked
        if key in lines and lines[key]["status"] in SAVED
    ]
    return Account(
        kind=plan.kind,
        folder=folder,
        fewest=min(plan.all_ranks),
        rows=tuple(_row(points, times, lines) for points in by_setting.values()),
        failures=tuple(failures),
        preempted=tuple(preempted),
        missing=sum(key not in lines for key in asked),
        processors=tuple(sorted(set().union(*times.processors.values()) - {""})),
    )


def _row(
    points: list[StudyPoint], times: _Times, lines: Mapping[str, Line]
) -> AccountRow:
    first, plan = points[0], times.plan
    over = [lines[p.key] for p in points if p.key in lines]
    over = [line for line in over if line["status"] in DONE]
    seconds = times.median(first.setting)
    own, fewest = times.own(first), min(plan.all_ranks)
    grows = plan.kind == "weak"
    spread = times.of.get(first.setting)
    up = _ratio(own[1] if own else None, seconds, first.ranks, own, grows)
    by_sgd = times.sgd(first, fewest)
    base = (fewest, 0.0)
    by_one = _ratio(times.one_rank(first), seconds, first.ranks, (1, 0.0), grows)
    return AccountRow(
        setting=first.setting,
        method=first.method,
        ranks=first.ranks,
        emulated=first.emulated,
        grid=f"{first.grid[0]}x{first.grid[1]}",
        batch=first.batch,
        steps=_same(over, "steps") or first.steps,
        recipe=first.recipe,
        runs=len(over),
        planned=len(points),
        seconds=seconds,
        spread=(min(spread), max(spread)) if spread else None,
        speed_up=up,
        efficiency=up * own[0] / first.ranks if up and own else None,
        speed_up_sgd=_ratio(by_sgd, seconds, first.ranks, base, grows),
        gain=_ratio(times.sgd(first, first.ranks), seconds, 1, (1, 0.0), False),
        speed_up_one_rank=by_one,
        efficiency_one_rank=by_one / first.ranks if by_one else None,
        calls=traffic(over, "calls"),
        words=traffic(over, "words"),
        expected=is_expected(over),
        loss=_median(line["loss"] for line in over),
        oversubscribed=any(line.get("oversubscribed") for line in over),
    )


def _ratio(
    before: float | None,
    now: float | None,
    ranks: int,
    base: tuple[int, float] | None,
    grows: bool,
) -> float | None:
    """How many times faster; work that grows with the ranks counts as often."""
    if not before or not now or base is None:
        return None
    return before / now * (ranks / base[0] if grows else 1.0)


def traffic(lines: Iterable[Line], figure: str) -> int | None:
    """Calls or words of rank 0 for products and agreements, those of the first line."""
    for line in lines:
        if line["ledger"]:
            return sum(int(line["ledger"][purpose][figure]) for purpose in TRAINING)
    return None


def is_expected(lines: Iterable[Line]) -> bool | None:
    """Whether every ledger says what the formulas say; None where none can."""
    found = [
        traffic([line], figure) == line["expected"][figure]
        for line in lines
        if line["expected"]
        for figure in ("calls", "words")
    ]
    return all(found) if found else None


def _same(lines: Iterable[Line], name: str) -> Any:
    return next((line[name] for line in lines if line[name] is not None), None)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None

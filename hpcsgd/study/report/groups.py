"""Points gathered: repeats into settings, settings into problems."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcsgd.charts.model import CROWDED, EMULATED, MEASURED
from hpcsgd.study.report.point import Point

BUSY = 0.5  # load for each core, before the run began, from which others worked too


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of the repeats."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.median(known), min(known), max(known))


@dataclass(frozen=True)
class Setting:
    """One way to train, and all good runs of it."""

    points: tuple[Point, ...]

    @property
    def first(self) -> Point:
        """What all of them share."""
        return self.points[0]

    @property
    def label(self) -> str:
        """The method's name."""
        return self.first.label

    @property
    def width(self) -> int:
        """Ranks that it stands for."""
        return self.first.width

    @property
    def mark(self) -> str:
        """Whether it was measured as it would run."""
        if self.first.emulated:
            return EMULATED
        return CROWDED if any(p.is_crowded for p in self.points) else MEASURED

    @property
    def was_busy(self) -> bool:
        """Whether others used the machine when a run of it began."""
        return any(
            p.load is not None and p.cores and p.load / p.cores > BUSY
            for p in self.points
        )

    def over(self, figure: Callable[[Point], float | None]) -> Spread | None:
        """Median and ends of any figure of its runs."""
        return spread(figure(point) for point in self.points)

    @property
    def per_epoch(self) -> Spread:
        """Seconds of one pass over the rows."""
        found = self.over(lambda p: (p.seconds or 0.0) / p.epochs)
        assert found is not None
        return found

    @property
    def per_step(self) -> Spread | None:
        """Seconds of one step."""
        return self.over(
            lambda p: (p.seconds or 0.0) / p.iterations if p.iterations else None
        )

    @property
    def middle(self) -> Point:
        """The run of median time."""
        times = [p.seconds or 0.0 for p in self.points]
        return self.points[times.index(statistics.median_low(times))]

    def named(self, others: Sequence["Setting"]) -> str:
        """The name that tells it from the others: as short as it can be."""
        return _shortest(self.first, [other.first for other in others])


@dataclass(frozen=True)
class Problem:
    """The settings that solve the same task, and what failed of it."""

    data: str
    rows: int  # 0 where they grow with the ranks
    columns: int
    settings: tuple[Setting, ...]
    failed: tuple[Point, ...]

    @property
    def labels(self) -> list[str]:
        """The methods, in the order in which they came."""
        return list(dict.fromkeys(setting.label for setting in self.settings))

    @property
    def is_weak(self) -> bool:
        """Whether the rows grow with the ranks."""
        return any(p.study == "weak" for s in self.settings for p in s.points)

    @property
    def title(self) -> str:
        """What it is called."""
        if self.is_weak:
            return f"weak scaling, {self.columns} columns"
        size = f"{self.rows} × {self.columns}" if self.rows and self.columns else ""
        return ", ".join(part for part in (self.data, size) if part) or "runs"


def problems_of(points: Sequence[Point]) -> list[Problem]:
    """Points apart by what they solve."""
    found: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        found.setdefault(_task(point), []).append(point)
    _take_in_failed(found)
    return [_problem(group) for group in found.values()]


def _take_in_failed(found: dict[tuple[object, ...], list[Point]]) -> None:
    """A run that failed before it saw its data belongs to those of its folder."""
    for key in [key for key, group in found.items() if not _any_good(group)]:
        where = {point.where for point in found[key]}
        for other, group in found.items():
            if other != key and where & {point.where for point in group}:
                group += found.pop(key)
                break


def _any_good(points: Sequence[Point]) -> bool:
    return any(point.is_good for point in points)


def _task(point: Point) -> tuple[object, ...]:
    if point.study == "weak":
        return ("weak", point.columns, point.network)
    return (Path(point.data).name, point.rows, point.columns)


def _problem(points: Sequence[Point]) -> Problem:
    settings: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        if point.is_good:
            settings.setdefault(_identity(point), []).append(point)
    known = next((p for p in points if p.is_good), points[0])
    return Problem(
        data=Path(known.data).name,
        rows=0 if known.study == "weak" else known.rows,
        columns=known.columns,
        settings=tuple(Setting(tuple(group)) for group in settings.values()),
        failed=tuple(point for point in points if not point.is_good),
    )


def _identity(p: Point) -> tuple[object, ...]:
    return (
        *(p.label, p.ranks, p.emulated, p.replicas, p.members, p.batch, p.steps),
        *(p.product, p.recipe, p.network, p.epochs),
    )


PARTS: tuple[Callable[[Point], str], ...] = (
    lambda p: f"{p.width} rank{'' if p.width == 1 else 's'}",
    lambda p: f"{p.replicas}×{p.members}",
    lambda p: f"s={p.steps}",
    lambda p: f"b={p.batch}",
    lambda p: p.product,
    lambda p: p.recipe,
    lambda p: p.network,
    lambda p: f"{p.epochs:g} epoch{'' if p.epochs == 1 else 's'}",
    lambda p: "emulated" if p.emulated else "",
)


def _shortest(point: Point, others: Sequence[Point]) -> str:
    """The label, and of the parts only those in which settings of that label differ."""
    same = [other for other in others if other.label == point.label]
    parts = [said(point) for said in PARTS if len({said(other) for other in same}) > 1]
    if len({other.width for other in others}) > 1 and PARTS[0](point) not in parts:
        parts.insert(0, PARTS[0](point))
    if f"{point.replicas}×{point.members}" in parts:
        widths: dict[int, set[tuple[int, int]]] = {}
        for other in same:
            shape = (other.replicas, other.members)
            widths.setdefault(other.width, set()).add(shape)
        if all(len(shapes) == 1 for shapes in widths.values()):
            parts.remove(f"{point.replicas}×{point.members}")  # ranks say it
    return ", ".join([point.label, *(part for part in parts if part)])

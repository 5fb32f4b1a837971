"""What a report holds: of each problem a verdict, charts and tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hpcsgd
from hpcsgd.charts.model import Chart
from hpcsgd.result import finite
from hpcsgd.study.report.bars import energy_chart, split_chart
from hpcsgd.study.report.curves import loss_curves
from hpcsgd.study.report.groups import Problem, Setting, problems_of
from hpcsgd.study.report.maps import heat_maps
from hpcsgd.study.report.point import Point
from hpcsgd.study.report.reading import read_folders
from hpcsgd.study.report.scaling import scaling_charts
from hpcsgd.study.report.tables import (
    Table,
    failed_table,
    machine_table,
    settings_table,
    traffic_table,
)
from hpcsgd.study.report.verdict import verdict


@dataclass(frozen=True)
class Part:
    """All about one problem."""

    problem: Problem
    verdict: str
    charts: tuple[Chart, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Report:
    """Everything that the page says."""

    title: str
    lead: str
    parts: tuple[Part, ...]
    machine: Table
    foot: str

    @property
    def charts(self) -> list[Chart]:
        """Of all parts."""
        return [chart for part in self.parts for chart in part.charts]

    def as_dict(self) -> dict[str, Any]:
        """What a program wants of it."""
        said: Any = finite({"parts": [_said(part) for part in self.parts]})
        return dict(said)


def make_report(folders: Sequence[str | Path]) -> Report:
    """The report on all runs in these folders.

    Parameters
    ----------
    folders : of studies, of runs, of comparisons
    """
    points = read_folders([Path(folder) for folder in folders])
    problems = problems_of(points)
    names = ", ".join(Path(folder).resolve().name for folder in folders)
    good = sum(point.is_good for point in points)
    failed = len(points) - good
    lead = f"{good} run{'s' if good != 1 else ''} in {names}"
    return Report(
        title=f"hpcsgd: {names}",
        lead=f"{lead}; {failed} failed" if failed else lead,
        parts=tuple(_part(p, n, len(problems)) for n, p in enumerate(problems, 1)),
        machine=machine_table(points),
        foot=f"Made by hpcsgd {hpcsgd.__version__}.",
    )


def _part(problem: Problem, number: int, count: int) -> Part:
    charts = [
        *loss_curves(problem),
        *scaling_charts(problem),
        *split_chart(problem),
        *energy_chart(problem),
        *heat_maps(problem),
    ]
    if count > 1:  # files of one folder and marks of one page have names of their own
        charts = [replace(c, name=f"{c.name}-of-{number}") for c in charts]
    tables = [settings_table(problem), traffic_table(problem), failed_table(problem)]
    return Part(
        problem,
        verdict(problem),
        tuple(charts),
        tuple(table for table in tables if table is not None),
    )


def _said(part: Part) -> dict[str, Any]:
    return {
        "problem": part.problem.title,
        "verdict": part.verdict,
        "figures": [chart.name for chart in part.charts],
        "settings": [_figures(s, part.problem.settings) for s in part.problem.settings],
        "failed": [
            {"key": p.key, "status": p.status, "error": p.error}
            for p in part.problem.failed
        ],
    }


def _figures(setting: Setting, others: Sequence[Setting]) -> dict[str, Any]:
    first, time, run = setting.first, setting.per_epoch, setting.middle
    energy = setting.over(_joules)
    return {
        "name": setting.named(others),
        "method": setting.label,
        "ranks": setting.width,
        "mark": setting.mark,
        "grid": [first.replicas, first.members],
        "batch": first.batch,
        "steps": first.steps,
        "product": first.product,
        "recipe": first.recipe,
        "runs": len(setting.points),
        "seconds_per_epoch": [time.low, time.median, time.high],
        "seconds_per_step": setting.per_step.median if setting.per_step else None,
        "loss": run.loss,
        "calls": run.traffic("calls"),
        "words": run.traffic("words"),
        "expected": dict(run.expected) if run.expected else None,
        "joules": energy.median if energy else None,
    }


def _joules(point: Point) -> float | None:
    return point.joules

"""Heat maps: over s and b, and over grids R x C."""

from collections.abc import Callable, Sequence

from hpcsgd.charts.model import Chart, Heat
from hpcsgd.study.report.groups import Problem, Setting

Pair = Callable[[Setting], tuple[int, int]]  # (row, column)
FEWEST = 3  # cells from which a map says more than a table


def heat_maps(problem: Problem) -> list[Chart]:
    """Time of a step and loss, for each method where two things were varied."""
    if problem.is_weak:
        return []
    by_ranks: dict[tuple[str, int], list[Setting]] = {}
    by_label: dict[str, list[Setting]] = {}
    for setting in problem.settings:
        key = setting.label, setting.width
        by_ranks.setdefault(key, []).append(setting)
        by_label.setdefault(setting.label, []).append(setting)
    charts: list[Chart] = []
    for (label, width), group in by_ranks.items():
        ranks = "1 rank" if width == 1 else f"{width} ranks"
        charts += _maps(group, f"{label}, {ranks}", len(charts), "s-b")
    for label, group in by_label.items():
        charts += _maps(group, label, len(charts), "grid")
    return charts


def _maps(group: Sequence[Setting], name: str, number: int, kind: str) -> list[Chart]:
    over = _steps if kind == "s-b" else _grids
    pairs = {over(setting) for setting in group}
    rows, columns = {r for r, _ in pairs}, {c for _, c in pairs}
    if len(pairs) < FEWEST or min(len(rows), len(columns)) < 2:
        return []
    return [
        chart
        for chart in (
            _time_map(group, name, number, kind),
            _loss_map(group, name, number, kind),
        )
        if chart is not None
    ]


def _steps(setting: Setting) -> tuple[int, int]:
    return setting.first.steps, setting.first.batch


def _grids(setting: Setting) -> tuple[int, int]:
    return setting.first.replicas, setting.first.members


def _time_map(
    group: Sequence[Setting], name: str, number: int, kind: str
) -> Heat | None:
    return _map(
        group,
        lambda s: s.per_step.median if s.per_step else None,
        kind,
        name=f"time-{kind}-{number}",
        title=f"Time of a step: {name}",
        caption="Median seconds of one step of a replica; of several settings of one"
        " cell the fastest. A larger batch does more in a step.",
        unit="s",
    )


def _loss_map(
    group: Sequence[Setting], name: str, number: int, kind: str
) -> Heat | None:
    return _map(
        group,
        lambda s: s.middle.loss,
        kind,
        name=f"loss-{kind}-{number}",
        title=f"Final loss: {name}",
        caption="Loss on all rows at the end of the run of median time, after as many"
        " epochs for all; of several settings of one cell the lowest.",
        unit="",
    )


def _map(
    group: Sequence[Setting],
    figure: Callable[[Setting], float | None],
    kind: str,
    name: str,
    title: str,
    caption: str,
    unit: str,
) -> Heat | None:
    over: Pair = _steps if kind == "s-b" else _grids
    cells: dict[tuple[int, int], float] = {}
    for setting in group:
        value = figure(setting)
        if value is not None:
            cells[over(setting)] = min(value, cells.get(over(setting), value))
    if len(cells) < FEWEST:
        return None
    rows, columns = sorted({r for r, _ in cells}), sorted({c for _, c in cells})
    x, y = ("batch b", "steps s") if kind == "s-b" else ("members C", "replicas R")
    return Heat(
        *(name, title, caption, x, y),
        columns=tuple(str(c) for c in columns),
        rows=tuple(str(r) for r in rows),
        cells=tuple(tuple(cells.get((r, c)) for c in columns) for r in rows),
        unit=unit,
    )

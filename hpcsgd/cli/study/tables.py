"""A study in words: its plan before it runs, and what it found."""

import io
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from hpcsgd.study.account import Account, Row
    from hpcsgd.study.plan import Plan

WIDTH = 150  # where standard output is no terminal
PLANNED = ("method", "ranks", "grid", "s", "global batch", "precision", "rows", "seed")
FOUND = (
    *("method", "ranks", "grid", "s", "batch", "precision", "runs", "seconds"),
    *("speed-up", "efficiency", "vs sgd", "gain", "calls", "words", "loss"),
)


def plan_line(plan: "Plan") -> str:
    """How much a plan is."""
    settings = len(plan.settings())
    said = f"{plan.kind}: {settings} points x {plan.repeats} repeats"
    left = "".join(f"; {text}" for text in plan.left_out())
    return f"{said} = {settings * plan.repeats} runs{left}"


def plan_text(plan: "Plan") -> str:
    """Every point in a line, and how many runs they are."""
    drawn = _table(PLANNED, plan_line(plan))
    for point in plan.settings():
        emulated = " emulated" if point.emulated else ""
        drawn.add_row(
            point.method,
            f"{point.ranks}{emulated}",
            f"{point.grid[0]}x{point.grid[1]}",
            str(point.steps),
            str(point.batch),
            point.recipe,
            str(point.rows or plan.rows),
            str(point.seed),
        )
    return _drawn(drawn)


def plan_json(plan: "Plan") -> str:
    """One document."""
    document: dict[str, Any] = {
        **plan.as_dict(),
        "points": [point.key for point in plan.runs()],
        "runs": len(plan.settings()) * plan.repeats,
        "left_out": plan.left_out(),
    }
    return json.dumps(document, indent=2)


def account_text(found: "Account") -> str:
    """A row for each setting, and below it what its columns are held to."""
    drawn = _table(FOUND, _title(found))
    for row in found.rows:
        drawn.add_row(*_cells(row))
    return _drawn(drawn) + _notes(found)


def _title(found: "Account") -> str:
    missing = f", {found.missing} not run yet" if found.missing else ""
    return f"{found.kind}: {found.runs} good runs{missing}, in {found.folder}"


def _cells(row: "Row") -> tuple[str, ...]:
    mark = " emulated" if row.emulated else " *" if row.oversubscribed else ""
    wrong = "" if row.expected in (True, None) else " !"
    return (
        row.method,
        f"{row.ranks}{mark}",
        row.grid,
        _steps(row),
        str(row.batch),
        row.recipe,
        f"{row.runs}/{row.planned}",
        _number(row.seconds, ".3f"),
        _number(row.speed_up, ".2f", "x"),
        _number(row.efficiency and 100 * row.efficiency, ".0f", " %"),
        _number(row.speed_up_sgd, ".2f", "x"),
        _number(row.gain, ".2f", "x"),
        f"{_number(row.calls, 'd')}{wrong}",
        f"{_number(row.words, 'd')}{wrong}",
        _number(row.loss, ".6f"),
    )


def _steps(row: "Row") -> str:
    """How many, and whether the run chose them."""
    chosen = "/sauto/" in row.setting and row.steps != "auto"
    return f"{row.steps} auto" if chosen else str(row.steps)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _notes(found: "Account") -> str:
    """What is not said by the columns' names."""
    lines = [
        "seconds: median; speed-up, efficiency: against the method's own fewest ranks;"
        f" vs sgd: against sgd on {found.fewest}; gain: against sgd on as many ranks"
    ]
    if found.kind == "weak":
        lines.append("the work grows with the ranks, and speed-ups count it")
    if any(row.emulated for row in found.rows):
        lines.append(
            "emulated: one rank, alone on its node, that waits as --network says; what"
            " the others would do to its memory and its network is not in these times"
        )
    if any(row.oversubscribed for row in found.rows):
        lines.append("* more ranks than cores: its times mean little")
    if any(row.expected is False for row in found.rows):
        lines.append("! not the calls and words of the formula")
    if found.best is not None:
        best = found.best
        word = "most rows a second" if found.kind == "weak" else "fastest"
        lines.append(f"{word}: {best.setting}, {best.seconds:.3f} s")
    return "\n".join(lines)


def _table(columns: tuple[str, ...], title: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        drawn.add_column(column, justify="left" if number == 0 else "right")
    return drawn


def _drawn(table: "Table") -> str:
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH
    text = io.StringIO()
    Console(file=text, highlight=False, width=width).print(table)
    return text.getvalue()

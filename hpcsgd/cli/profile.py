"""The profile as a table, on standard error."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 100  # where standard error is no terminal
COLUMNS = ("seconds", "share", "µs/exchange", "slowest", "on rank")


def show_profile(report: Mapping[str, Any]) -> None:
    """One table, a block for each section."""
    from rich.console import Console

    width = None if sys.stderr.isatty() else WIDTH
    console = Console(stderr=True, highlight=False, width=width)
    console.print(profile_table(report))


def profile_table(report: Mapping[str, Any]) -> "Table":
    """Mean seconds over ranks and their share; the slowest rank and its seconds."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    ranks = report["ranks"]
    said = f"mean of {ranks} ranks, and the slowest" if ranks > 1 else "one rank"
    table = Table(title=f"profile: {said}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for section, rows in report["profile"].items():
        for name, row in rows.items():
            table.add_row(f"{section} / {name}", *cells(row))
        table.add_section()
    return table


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The figures of one row, in the order of COLUMNS."""
    return (
        f"{row['seconds']:.4f}",
        f"{100 * row['share']:.1f} %",
        f"{row['us_per_exchange']:.1f}",
        f"{row['slowest_seconds']:.4f}",
        str(row["slowest_rank"]),
    )

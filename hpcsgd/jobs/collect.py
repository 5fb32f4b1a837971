"""The results of jobs in one table: a row for each run."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcsgd.jobs.records import records
from hpcsgd.jobs.runs import read_result
from hpcsgd.jobs.status import State, states

COLUMNS = (
    "job",
    "state",
    "run",
    "status",
    "loss",
    "iterations",
    "seconds_total",
    "ranks",
)


def collect(folder: Path) -> list[dict[str, Any]]:
    """A row for each run of the newest job that used it, what is varied beside it."""
    rows: dict[str, dict[str, Any]] = {}
    varied = _varied(folder)
    for state in states(folder):
        for run in state.runs:
            row = _row(state, Path(run))
            rows[run] = row | {key: row["settings"].get(key) for key in varied}
    for row in rows.values():
        del row["settings"]
    return list(rows.values())


def _row(state: State, run: Path) -> dict[str, Any]:
    """What a table shows of one run."""
    result = read_result(run)
    found = {name: result.get(name) for name in COLUMNS[3:]}
    own = {"job": state.job, "state": state.state, "run": str(run)}
    sections = result.get("config", {})
    settings = {
        f"{s}.{k}": v for s, table in sections.items() for k, v in table.items()
    }
    return {**own, **found, "settings": settings}


def _varied(folder: Path) -> list[str]:
    """The settings that a sweep has varied, in the order in which it named them."""
    sent = [r for r in records(folder) if r.get("event") == "submitted"]
    found = {key: None for r in sent for key in r.get("varied", [])}
    return list(found)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table that spreadsheets read."""
    names = list(dict.fromkeys(key for row in rows for key in row)) or list(COLUMNS)
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()

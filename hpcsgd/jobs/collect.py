"""The results of jobs in one table: a row for each run."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcsgd.jobs.records import submitted
from hpcsgd.jobs.runs import read_result
from hpcsgd.jobs.status import State, states
from hpcsgd.toml_text import toml_value

OF_RESULT = ("status", "loss", "iterations", "seconds_total", "ranks")
COLUMNS = ("job", "state", "run", *OF_RESULT)


def collect(folder: Path) -> list[dict[str, Any]]:
    """A row for each run, by the newest job that used it; what differs is beside it."""
    settings = _settings(folder)
    differing = _differing(list(settings.values()))
    rows: dict[str, dict[str, Any]] = {}
    for state in states(folder):
        for run in state.runs:
            asked = settings.get(run, {})
            varied = {key: asked.get(key) for key in differing}
            rows[run] = {**_row(state, run), **varied}
    return list(rows.values())


def _row(state: State, run: str) -> dict[str, Any]:
    """What a table shows of one run."""
    result = read_result(Path(run))
    found = {name: result.get(name) for name in OF_RESULT}
    return {"job": state.job, "state": state.state, "run": run, **found}


def _settings(folder: Path) -> dict[str, dict[str, Any]]:
    """Run folder -> what --set said in the command that made it."""
    found = {}
    for record in submitted(folder):
        place = Path(record.get("workplace", "."))
        for step in record.get("steps", []):
            found[str(place / step["run"])] = _sets(step["command"])
    return found


def _sets(command: Sequence[str]) -> dict[str, Any]:
    """Section.key -> value of every --set."""
    pairs = zip(command, command[1:], strict=False)
    said = [word.partition("=") for flag, word in pairs if flag == "--set"]
    return {key: toml_value(value) for key, _, value in said}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that do not have one value everywhere, in their order."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [k for k in keys if len({repr(one.get(k)) for one in settings}) > 1]


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table that spreadsheets read."""
    names = list(dict.fromkeys(key for row in rows for key in row)) or list(COLUMNS)
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()

"""A study on disk: its plan, one line for each run, and the folders of the runs."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import open_entry, own_folder, read_entry_text, reason, write_text
from hpcsgd.folder_lock import FolderLock
from hpcsgd.json_text import parse_json
from hpcsgd.result import finite
from hpcsgd.study.plan import Plan, difference
from hpcsgd.study.points import Point
from hpcsgd.toml_text import parse_toml, toml_literal

PLAN, POINTS = "study.toml", "points.jsonl"
# What is asked again makes no other figures: such runs are over.
DONE = ("finished", "diverged")
Line = dict[str, Any]


class StudyFolder:
    """study.toml, points.jsonl, points/NAME.toml, logs/NAME.log and runs/NAME."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lock = FolderLock(self.path)

    def open(self, plan: Plan, resume: bool) -> None:
        """Take the folder for this study; what is in it must be of the same plan."""
        document = document_of(plan)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.take()
            if (self.path / PLAN).exists():
                self._go_on(document, resume)
            else:
                write_text(self.path / PLAN, plan_toml(document))
            for name in ("points", "logs", "runs"):
                own_folder(self.path, name, make=True)
        except OSError as error:
            self.lock.release()
            raise ConfigError(
                f"cannot write into --out {self.path}: {reason(error)};"
                " choose a folder that can be written"
            ) from error
        except ConfigError:
            self.lock.release()
            raise

    def close(self) -> None:
        """Let the next study in."""
        self.lock.release()

    def lines(self) -> dict[str, Line]:
        """Key -> its newest line."""
        try:
            text = read_entry_text(self.path / POINTS)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DataError(
                f"{self.path / POINTS} cannot be read ({error.strerror}); remove that"
                " entry, or choose another --out"
            ) from error
        found = [self._line(n, one) for n, one in enumerate(text.splitlines(), 1)]
        return {line["key"]: line for line in found}

    def append(self, line: Mapping[str, Any]) -> None:
        """One whole line, on disk before this returns."""
        text = json.dumps(finite(line), allow_nan=False) + "\n"
        try:
            number = open_entry(
                self.path / POINTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND
            )
            with open(number, "ab") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DataError(
                f"{self.path / POINTS} cannot be written ({error.strerror});"
                " make room, then go on with --resume"
            ) from error

    def configure(self, point: Point, data: str) -> Path:
        """Write what `train` shall do for this point."""
        out = str(self.run_of(point).absolute())
        text = tables_toml(point.tables(data, out))
        path = self.path / "points" / f"{point.name}.toml"
        try:
            own_folder(self.path, "points")
            own_folder(self.path, "runs", point.name)
            own_folder(self.path, "logs")
            write_text(path, text)
        except OSError as error:
            raise DataError(
                f"the run {point.name} of {self.path} cannot begin ({reason(error)});"
                " remove that entry, then go on with --resume"
            ) from error
        return path

    def run_of(self, point: Point) -> Path:
        """Its run folder."""
        return self.path / "runs" / point.name

    def log_of(self, point: Point) -> Path:
        """What its ranks say on standard error."""
        return self.path / "logs" / f"{point.name}.log"

    def _go_on(self, document: Mapping[str, Any], resume: bool) -> None:
        """Refuse another plan; drop what a killed study had half written."""
        if not resume:
            raise ConfigError(
                f"--out {self.path} holds a study; add --resume to go on with it, or"
                " choose another folder"
            )
        changed = difference(read_plan(self.path), document)
        if changed:
            raise ConfigError(
                f"--resume goes on with the plan in {self.path / PLAN}: {changed};"
                " ask for the same, or choose another --out"
            )
        cut_half_line(self.path / POINTS)

    def _line(self, number: int, text: str) -> Line:
        try:
            line: Line = parse_json(text)
            if not isinstance(line["key"], str):
                raise TypeError("key")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.path / POINTS}: line {number} is of no point; remove that line"
            ) from error
        return line


def cut_half_line(path: Path) -> None:
    """End the file behind its last whole line."""
    try:
        number = open_entry(path, os.O_RDWR)
    except FileNotFoundError:
        return
    with open(number, "r+b") as file:
        text = file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            file.truncate(whole)


def document_of(plan: Plan) -> dict[str, Any]:
    """The plan with the tables that its points share."""
    base = {section: dict(table) for section, table in plan.base.items() if table}
    return {"study": plan.as_dict(), **base}


def plan_toml(document: Mapping[str, Any]) -> str:
    """As a file that `hpcsgd study` takes again."""
    head = "# The plan of a study; the tables below [study] are those of hpcsgd train."
    return f"{head}\n\n{tables_toml(document)}"


def tables_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """[section] and its keys, one after the other."""
    parts = []
    for section, table in tables.items():
        lines = [f"{k} = {_literal(v)}" for k, v in table.items() if v is not None]
        parts.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(parts) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return toml_literal(value)


def read_plan(folder: Path) -> dict[str, Any]:
    """The document of the study in `folder`."""
    path = folder / PLAN
    try:
        return parse_toml(read_entry_text(path))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} holds no {PLAN}; name the --out of a study"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); take a whole copy, or begin another"
            " study"
        ) from error

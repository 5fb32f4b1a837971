"""The folder of a study: its plan, a line for each run, data, expected traffic."""

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from uuid import uuid4

from hpcsgd.agreements.base import (
    AgreementSettings,
    DataSize,
    GridSize,
    RunShape,
    Tiling,
)
from hpcsgd.comm.communicator import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.data.hdf5 import COLUMNS, StoreLayout
from hpcsgd.data.readers import (
    CHUNK_BYTES,
    RowReader,
    categories_of,
    is_sparse,
    names_of,
    open_reader,
    preparation_of,
    row_words,
)
from hpcsgd.data.store import ColumnFacts, StoreWriter
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import (
    FolderLock,
    append_line,
    check_entry,
    finite,
    open_entry,
    own_folder,
    parse_json,
    parse_toml,
    read_entry_text,
    reason,
    toml_literal,
    write_text,
)
from hpcsgd.glm import ADAPTIVE
from hpcsgd.precision import Precision
from hpcsgd.products.base import product_facts
from hpcsgd.runs.report import processor
from hpcsgd.runs.traffic import expected, why_uncounted
from hpcsgd.settings import without_retired
from hpcsgd.studies.plan import StudyPlan, StudyPoint, difference

# A study on disk has its plan, one line for each run, and a folder for each run.

PLAN = "study.toml"
POINTS = "points.jsonl"
# Runs that --resume does not repeat, because a repeat would have the same result.
DONE = ("finished", "diverged")
SAVED = ("preempted", "interrupted")  # runs that --resume runs again
Line = dict[str, Any]


class StudyFolder:
    """The folder of a study, which one process at a time may open.

    It contains study.toml (the plan), points.jsonl (a line for each run), and for each
    point points/NAME.toml, logs/NAME.log and the run folder runs/NAME.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lock = FolderLock(self.path)

    def open(self, plan: StudyPlan, resume: bool) -> None:
        """Lock the folder and write the plan.

        If the folder has a plan, it must equal `plan`, and `resume` must be set.
        """
        document = document_of(plan)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.take()
            if (self.path / PLAN).exists():
                self._continue(document, resume)
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
        """Unlock the folder."""
        self.lock.release()

    def lines(self) -> dict[str, Line]:
        """Return the newest line of each run, by the key of its point."""
        try:
            text = read_entry_text(self.path / POINTS)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DataError(
                f"{self.path / POINTS} cannot be read ({error.strerror}); make it a"
                " readable regular file, or choose another --out"
            ) from error
        lines = [self._parse(n, line) for n, line in enumerate(text.splitlines(), 1)]
        return {line["key"]: line for line in lines}

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line to points.jsonl; it is on disk when this method returns."""
        try:
            append_line(self.path / POINTS, json.dumps(finite(line), allow_nan=False))
        except OSError as error:
            raise DataError(
                f"{self.path / POINTS} cannot be written ({error.strerror});"
                " make room, then go on with --resume"
            ) from error

    def configure(self, point: StudyPoint, data: str) -> Path:
        """Write the configuration of a point, and return the path of the file."""
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
                " remove the file or link that is in the way, then go on with --resume"
            ) from error
        return path

    def run_of(self, point: StudyPoint) -> Path:
        """Return the run folder of a point."""
        return self.path / "runs" / point.name

    def log_of(self, point: StudyPoint) -> Path:
        """Return the file with the standard error of a point's ranks."""
        return self.path / "logs" / f"{point.name}.log"

    def _continue(self, document: Mapping[str, Any], resume: bool) -> None:
        """Refuse another plan than that on disk, and any plan without `resume`.

        Remove from points.jsonl a line that a killed study has not completed.
        """
        if not resume:
            raise ConfigError(
                f"--out {self.path} holds a study; add --resume to go on with it, or"
                " choose another folder"
            )
        changed = difference(read_plan(self.path), document)
        if changed:
            raise ConfigError(
                f"--resume needs the settings of the plan in {self.path / PLAN}:"
                f" {changed}; give the earlier value, or choose another --out"
            )
        truncate_partial_line(self.path / POINTS)

    def _parse(self, number: int, text: str) -> Line:
        try:
            line: Line = parse_json(text)
            if not isinstance(line["key"], str):
                raise TypeError("key")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.path / POINTS}: line {number} is not the record of a run of"
                " this study; remove that line"
            ) from error
        return line


def truncate_partial_line(path: Path) -> None:
    """Truncate the file, if it exists, behind its last complete line."""
    try:
        number = open_entry(path, os.O_RDWR)
    except FileNotFoundError:
        return
    with open(number, "r+b") as file:
        text = file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            file.truncate(whole)


def document_of(plan: StudyPlan) -> dict[str, Any]:
    """Return the content of study.toml: the plan, and the settings all points share."""
    base = {section: dict(table) for section, table in plan.base.items() if table}
    return {"study": plan.as_dict(), **base}


def plan_toml(document: Mapping[str, Any]) -> str:
    """Return the document of a plan as a TOML file that `hpcsgd study` can read."""
    head = "# The plan of a study; the tables below [study] are those of hpcsgd train."
    return f"{head}\n\n{tables_toml(document)}"


def tables_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables as TOML, each as [section] with its keys."""
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
    """Return the tables of study.toml of the study in `folder`."""
    path = folder / PLAN
    try:
        return parse_toml(read_entry_text(path))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} holds no {PLAN}; name the --out folder of a study"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); restore the file from an intact copy, or"
            " begin another study"
        ) from error


# The traffic that a run must have had, by formula, from its report.

Report = Mapping[str, Any]


def expected_traffic(report: Report) -> dict[str, int] | None:
    """Return calls, words and bytes of rank 0 for products and agreements together.

    `report` is the JSON document of a run. The result is None where no formula holds:
    for a run that stopped early, was resumed or fell back, whose members have different
    numbers of stored values, or in which the data or the time decide what is sent.
    """
    is_whole = report["status"] in ("completed", "worse")
    if not is_whole or report["resumes"] or report["events"]:
        return None
    shape = _shape(report)
    leg = _leg(report, shape)
    if why_uncounted(shape, leg, report["config"]["update"]):
        return None
    by_purpose = expected(shape, [leg])
    figures = "calls", "words", "bytes"
    if "calls" not in by_purpose.get("agreement", {}):
        return None
    return {f: sum(count[f] for count in by_purpose.values()) for f in figures}


def _shape(report: Report) -> RunShape:
    tables = without_retired(report["config"])
    agreement = report["agreement"]
    named = {**tables.get("agreement", {}), "method": ""}  # it has set what it sets
    ran = {key: report["schedule"][key] for key in ("batch", "steps", "period")}
    schedule = {**tables.get("schedule", {}), **ran}
    config = RunConfig.parse({**tables, "agreement": named, "schedule": schedule})
    return RunShape(
        config=config,
        precision=Precision(**report["precision"]),
        data=DataSize(
            rows=report["rows"],
            columns=report["columns"],
            sparse=report["sparse"],
        ),
        grid=GridSize(report["grid"]["replicas"]),
        classes=report["classes"],
        states=1
        + (config.update.kind not in ("sgd", *ADAPTIVE))
        + (config.agreement.proximal > 0.0),
        tiling=Tiling(
            count=agreement.get("buckets", 0) if "stage" in agreement else 0,
            columns=agreement.get("tile_columns", 1),
        ),
    )


def _leg(report: Report, shape: RunShape) -> dict[str, Any]:
    """Return the exchanges of a whole run, as the formulas of traffic take them."""
    run = report["config"]["run"]
    total = shape.each() * report["schedule"]["epochs"]
    has_monitor = (
        product_facts(report["products"]).is_monitored and not run["emulate_members"]
    )
    return {
        "first": 0,
        "last": total,
        "planned": total,
        "members": report["grid"]["members"],
        "product": report["products"],
        "look_ahead": report["look_ahead"],
        "reproducible": run["reproducible"],
        "gap_every": run["gap_every"] if has_monitor else 0,
        # Sizes of the nested groups of rank 0, if the agreement has such groups.
        "circles": report["agreement"].get("circles", []),
    }


# A run that has ended becomes a line in points.jsonl.

SCHEMA = 1
# The status of a run -> the status of its line.
STATUS = {
    "completed": "finished",
    "converged": "finished",
    "stopped": "finished",
    "worse": "finished",
    "diverged": "diverged",
    "preempted": "preempted",
    "interrupted": "interrupted",
}
FIGURES = (
    *("epochs", "iterations", "exchanges", "loss", "seconds", "seconds_setup"),
    *("seconds_evaluate", "seconds_wall", "seconds_by_phase", "peak_rss_bytes"),
    *("ledger", "expected", "history", "energy", "versions", "transport"),
    *("weights_sha256", "product", "columns", "fell_back"),
)


def line(
    point: StudyPoint,
    data: str,
    report: Report | None,
    *,
    error: str = "",
    status: str = "failed",
    machine: Mapping[str, Any] | None = None,
    cpu_seconds: float | None = None,
) -> dict[str, Any]:
    """Return the line of a run for points.jsonl.

    `status` is that of a run without a report; a report has its own status.
    """
    figures = _figures(report) if report else dict.fromkeys(FIGURES)
    advice = str(report.get("advice") or "") if report else ""
    return {
        "schema": SCHEMA,
        "key": point.key,
        "study": point.plan.kind,
        "method": point.method,
        "ranks": point.ranks,
        "emulated": point.emulated,
        "repeat": point.repeat,
        "seed": point.seed,
        "status": _status(report) if report else status,
        "error": error or advice or None,
        "data": Path(data).name,
        "rows": report["rows"] if report else point.rows or None,
        "grid": {"replicas": point.grid[0], "members": point.grid[1]},
        "batch": point.batch,
        "batch_per_replica": point.batch_per_replica,
        "steps": _steps(point, report),
        "recipe": point.recipe,
        "network": _run_table(point, report).get("network"),
        **figures,
        "oversubscribed": _is_oversubscribed(point, report, machine),
        **(machine or {}),
        "cpu_seconds": cpu_seconds,
        "run": f"runs/{point.name}",
    }


def _status(report: Report) -> str:
    return STATUS.get(report["status"], "failed")


def _steps(point: StudyPoint, report: Report | None) -> int | None:
    """Return s; with --steps auto, the s that the run has chosen.

    The latter is None without a report.
    """
    if point.steps != "auto":
        return int(point.steps)
    return int(report["schedule"]["steps"]) if report else None


def _run_table(point: StudyPoint, report: Report | None) -> Mapping[str, Any]:
    """Return the settings of [run]: of the report, or else of the study."""
    tables: Mapping[str, Any] = report["config"] if report else point.plan.base
    settings: Mapping[str, Any] = tables.get("run", {})
    return settings


def _is_oversubscribed(
    point: StudyPoint, report: Report | None, machine: Mapping[str, Any] | None
) -> bool | None:
    """Return whether ranks have more threads than cores; None if these are unknown."""
    if not machine or "cores" not in machine:
        return None
    threads = _run_table(point, report).get("threads", 1)
    return bool(point.launched * threads > machine["cores"])


def _figures(report: Report) -> dict[str, Any]:
    """Return the measurements of a run, under the names of `FIGURES`."""
    same = {name: report.get(name) for name in FIGURES}
    return same | {
        "epochs": report["schedule"]["epochs"],
        "seconds": report["seconds_total"],
        "product": report["products"],
        "expected": expected_traffic(report),
        "fell_back": any(e.get("event") == "fall-back" for e in report["events"]),
    }


# The line of a run has the machine, its load and the time when the run began.


def facts() -> dict[str, Any]:
    """Return host, processor, cores, load and time, under their names in a line."""
    return {
        "host": socket.gethostname(),
        "processor": processor(),
        "cores": cores(),
        "load": [round(value, 2) for value in _load()],
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(own_cores())


def own_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return list(range(os.cpu_count() or 1))


def _load() -> tuple[float, ...]:
    try:
        return os.getloadavg()
    except OSError:  # a container that hides it
        return ()


# In a weak study, a run on few ranks has a file with the first rows of the data.

log = logging.getLogger(__name__)


def rows_in(path: str) -> int:
    """Return the number of rows of a file."""
    reader = open_reader(Path(path))
    try:
        return reader.rows
    finally:
        reader.close()


def first_rows(source: Path, folder: Path, count: int) -> Path:
    """Return the file with the first `count` rows of `source`; write it if missing."""
    path = folder / f"{source.stem}-{count}.h5"
    try:
        own_folder(folder.parent, folder.name, make=True)
        check_entry(path)
    except FileNotFoundError:
        log.info("writing the first %d rows of %s", count, source.name)
        reader = open_reader(source)
        try:
            _copy(reader, path, count)
        finally:
            reader.close()
    except OSError as error:
        raise DataError(
            f"{error.filename} cannot be used ({error.strerror}); remove it, then go on"
            " with --resume"
        ) from error
    return path


def _copy(reader: RowReader, path: Path, count: int) -> None:
    """Write the first `count` rows into a file, as they are stored.

    The file exists only when it is complete.
    """
    read = reader.read_csr if is_sparse(reader) else reader.read
    readers = {
        "y": reader.targets,
        "sample_weight": reader.sample_weight,
        "offset": reader.offset,
    }
    row_0 = slice(0, 1)
    names = [n for n in COLUMNS if n in readers and readers[n](row_0) is not None]
    preparation = preparation_of(reader)
    wide = read(row_0, slice(0, reader.cols)).dtype.itemsize > 4
    step = max(CHUNK_BYTES // (8 * row_words(reader)), 1)
    with StoreWriter(
        path,
        StoreLayout(
            reader.cols, "fp64" if wide else "fp32", is_sparse=is_sparse(reader)
        ),
        rows=count,
        columns=tuple(names),
        attributes={"unit_rows": preparation.unit_rows},
        column_facts=ColumnFacts(
            preparation.scales, names_of(reader), categories_of(reader)
        ),
    ) as writer:
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            columns: dict[str, Any] = {name: readers[name](rows) for name in names}
            writer.append(read(rows, slice(0, reader.cols)), **columns)


# A run of a comparison may have states on disk and no folder for them.


@contextmanager
def open_temporary_store(
    agreement: AgreementSettings, folder: str | None, world: Communicator
) -> Iterator[dict[str, str]]:
    """Yield section.key -> value of a temporary folder for states on disk. Collective.

    The folder has the same name on all nodes, and every rank removes it at the end.
    An empty dict is yielded for an agreement that needs no such folder or names one,
    and for a run that has the run folder `folder`.
    """
    if not agreement.on_disk or agreement.states_folder or folder:
        yield {}
        return
    name = world.share_object(f"hpcsgd-{uuid4().hex}")
    store = Path(gettempdir()) / name
    try:
        yield {"agreement.store": str(store)}
        world.max_flag(0)  # all ranks have opened the files that they read
    finally:
        shutil.rmtree(store, ignore_errors=True)

"""Folders of studies: records, expectations, machines."""

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from uuid import uuid4

from hpcsgd.agreements.codecs import CodecConfig
from hpcsgd.comm.communicator import Communicator
from hpcsgd.config import RunConfig, agreement_in
from hpcsgd.data.hdf5 import COLUMNS
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
from hpcsgd.data.store import StoreWriter
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import (
    FolderLock,
    append_line,
    check_entry,
    open_entry,
    own_folder,
    parse_json,
    parse_toml,
    read_entry_text,
    reason,
    toml_literal,
    write_text,
)
from hpcsgd.glm.unrolling import Schedule
from hpcsgd.glm.updates import BLOCK
from hpcsgd.precision import Precision
from hpcsgd.products.base import product_facts
from hpcsgd.runs.report import processor
from hpcsgd.runs.result import finite
from hpcsgd.studies.plan import StudyPlan, StudyPoint, difference
from hpcsgd.studies.verify.traffic import TrafficShape, expected

# A study on disk: its plan, one line for each run, and the folders of the runs.

PLAN, POINTS = "study.toml", "points.jsonl"
# What is asked again makes no other figures: such runs are over.
DONE = ("finished", "diverged")
SAVED = ("preempted", "interrupted")  # before their end; --resume runs them again
Line = dict[str, Any]


class StudyFolder:
    """study.toml, points.jsonl, points/NAME.toml, logs/NAME.log and runs/NAME."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lock = FolderLock(self.path)

    def open(self, plan: StudyPlan, resume: bool) -> None:
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
        try:
            append_line(self.path / POINTS, json.dumps(finite(line), allow_nan=False))
        except OSError as error:
            raise DataError(
                f"{self.path / POINTS} cannot be written ({error.strerror});"
                " make room, then go on with --resume"
            ) from error

    def configure(self, point: StudyPoint, data: str) -> Path:
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

    def run_of(self, point: StudyPoint) -> Path:
        """Its run folder."""
        return self.path / "runs" / point.name

    def log_of(self, point: StudyPoint) -> Path:
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
        truncate_partial_line(self.path / POINTS)

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


def truncate_partial_line(path: Path) -> None:
    """Truncate the file behind its last complete line."""
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


# What a run must have said on the wire, by formula, from what ran.

Report = Mapping[str, Any]


def expected_traffic(report: Report) -> dict[str, int] | None:
    """Calls, words and bytes of rank 0 for products and agreement.

    `report` is a run's JSON document. None where no formula holds: a run that did not
    get to its end, was resumed or fell back, whose members hold unlike numbers of
    stored values, or in which the data or the time decide what is sent.
    """
    is_whole = report["status"] in ("completed", "worse")
    if not is_whole or report["resumes"] or report["events"]:
        return None
    if report["sparse"] and not _is_even(report) or _asks_members(report):
        return None
    shape = _shape(report)
    by_purpose = expected(shape, [_leg(report, shape)])
    figures = "calls", "words", "bytes"
    if "calls" not in by_purpose.get("agreement", {}):
        return None
    return {f: sum(count[f] for count in by_purpose.values()) for f in figures}


def _asks_members(report: Report) -> bool:
    """Whether gradients are shaped by sums of their own, or a clock deals the rows."""
    config, members = report["config"], report["grid"]["members"]
    update, kind = config["update"], agreement_in(config)
    is_alone = members == 1 and not kind.slices
    sums = (update["clip"] in ("norm", "percentile"), update["normalise"])
    has_sums = any(sums) or update["centre"] == "columns"
    is_of_all = has_sums and not is_alone
    return is_of_all or update["kind"] == "svrg" or kind.takes_rounds and members > 1


def _is_even(report: Report) -> bool:
    """Whether the words of sparse rows depend on sizes alone."""
    if report["grid"]["members"] == 1:
        return True
    gathers = product_facts(report["products"]).holds_all_columns
    return not gathers and report["grid"]["replicas"] == 1


def _circles(report: Report) -> list[int]:
    """Sizes of the nested groups that rank 0 was in, where there were some."""
    sizes: list[int] = report["agreement"].get("circles", [])
    return sizes


def _shape(report: Report) -> TrafficShape:
    config, schedule, told = report["config"], report["schedule"], report["agreement"]
    return TrafficShape(
        schedule=Schedule(*(schedule[k] for k in ("batch", "steps", "period"))),
        precision=Precision(**report["precision"]),
        rows=report["rows"],
        columns=report["columns"],
        classes=report["classes"],
        states=1 if config["update"]["kind"] == "sgd" else 2,
        intercept=config["problem"]["intercept"],
        replicas=report["grid"]["replicas"],
        settings=agreement_in(config),
        codec=CodecConfig(**config["codec"]),
        mirror=config["mirror"]["kind"],
        seed=config["sampling"]["seed"],
        sparse=report["sparse"],
        unit=BLOCK if config["update"]["bits"] == 8 else 1,
        tiles=told.get("buckets", 0) if "stage" in told else 0,
        tile_columns=told.get("tile_columns", 1),
    )


def _leg(report: Report, shape: TrafficShape) -> dict[str, Any]:
    """The whole run, from its start to the end of its last epoch."""
    run = report["config"]["run"]
    total = shape.each() * report["schedule"]["epochs"]
    is_monitored = product_facts(report["products"]).is_monitored
    is_watched = is_monitored and not run["emulate_members"]
    return {
        "first": 0,
        "last": total,
        "planned": total,
        "members": report["grid"]["members"],
        "product": report["products"],
        "look_ahead": report["look_ahead"],
        "reproducible": run["reproducible"],
        "gap_every": run["gap_every"] if is_watched else 0,
        "circles": _circles(report),
    }


# From the end of a run to its line in points.jsonl.

SCHEMA = 1
# What a run calls its end, and what a study makes of it.
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
    """Everything of one run; `status` is that of one that left no report."""
    figures = _figures(report) if report else dict.fromkeys(FIGURES)
    advice = str(report.get("advice") or "") if report else ""
    return {
        "schema": SCHEMA,
        "key": point.key,
        "study": point.study,
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
        "network": _network(point, report),
        **figures,
        "oversubscribed": _is_oversubscribed(point, report, machine),
        **(machine or {}),
        "cpu_seconds": cpu_seconds,
        "run": f"runs/{point.name}",
    }


def _status(report: Report) -> str:
    return STATUS.get(report["status"], "failed")


def _steps(point: StudyPoint, report: Report | None) -> int | None:
    """s as it ran, where it was left open."""
    if point.steps != "auto":
        return int(point.steps)
    return int(report["schedule"]["steps"]) if report else None


def _network(point: StudyPoint, report: Report | None) -> str | None:
    tables = report["config"] if report else point.base
    return tables.get("run", {}).get("network")


def _is_oversubscribed(
    point: StudyPoint, report: Report | None, machine: Mapping[str, Any] | None
) -> bool | None:
    """More threads of ranks than cores; None where nobody knows the cores."""
    if not machine or "cores" not in machine:
        return None
    tables = report["config"] if report else point.base
    threads = tables.get("run", {}).get("threads", 1)
    return bool(point.launched * threads > machine["cores"])


def _figures(report: Report) -> dict[str, Any]:
    """What the run measured, under the names of FIGURES."""
    same = {name: report.get(name) for name in FIGURES}
    return same | {
        "epochs": report["schedule"]["epochs"],
        "seconds": report["seconds_total"],
        "product": report["products"],
        "expected": expected_traffic(report),
        "fell_back": any(e.get("event") == "fall-back" for e in report["events"]),
    }


# The machine that a run met, and how busy it was.


def facts() -> dict[str, Any]:
    """What a line of a study says of its machine, now."""
    return {
        "host": socket.gethostname(),
        "processor": processor(),
        "cores": cores(),
        "load": [round(value, 2) for value in _load()],
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def cores() -> int:
    """How many this process may use."""
    return len(own_cores())


def own_cores() -> list[int]:
    """Those that this process may use, by their numbers."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return list(range(os.cpu_count() or 1))


def _load() -> tuple[float, ...]:
    try:
        return os.getloadavg()
    except OSError:  # a container that hides it
        return ()


# Data that grow with the ranks: the first rows of a file, as a file.

log = logging.getLogger(__name__)


def rows_in(path: str) -> int:
    """How many rows a file has; refused in a sentence where it cannot be read."""
    reader = open_reader(Path(path))
    try:
        return reader.rows
    finally:
        reader.close()


def first_rows(source: Path, folder: Path, count: int) -> Path:
    """The file of the first `count` rows of `source`, made where it is missing."""
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
            f"{error.filename} cannot be used ({error.strerror}); remove that entry,"
            " then go on with --resume"
        ) from error
    return path


def _copy(reader: RowReader, path: Path, count: int) -> None:
    """Row by row as they are stored; the file appears whole or not at all."""
    read = reader.read_csr if is_sparse(reader) else reader.read
    nothing = slice(0, 1)
    given = {
        "y": reader.targets,
        "sample_weight": reader.sample_weight,
        "offset": reader.offset,
    }
    names = [n for n in COLUMNS if n in given and given[n](nothing) is not None]
    scales = preparation_of(reader).scales
    wide = read(nothing, slice(0, reader.cols)).dtype.itemsize > 4
    step = max(CHUNK_BYTES // (8 * row_words(reader)), 1)
    with StoreWriter(
        path,
        reader.cols,
        rows=count,
        element="fp64" if wide else "fp32",
        is_sparse=is_sparse(reader),
        columns=tuple(names),
        attributes={"unit_rows": preparation_of(reader).unit_rows},
        means=None if scales is None else scales.mean,
        scales=None if scales is None else scales.scale,
        names=names_of(reader),
        categories=categories_of(reader),
    ) as writer:
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            columns: dict[str, Any] = {name: given[name](rows) for name in names}
            writer.append(read(rows, slice(0, reader.cols)), **columns)


# A folder for the time of a run whose states are on disk, where none was named.


@contextmanager
def open_temporary_store(config: RunConfig, world: Communicator) -> Iterator[RunConfig]:
    """Yield `config` with a temporary store of one name on all nodes, which every rank
    removes.
    """
    asked: Any = config.agreement
    if not asked.on_disk or asked.states_folder or config.run.out:
        yield config
        return
    name = world.exchange_objects(f"hpcsgd-{uuid4().hex}")[0]
    store = Path(gettempdir()) / name
    try:
        yield replace(config, agreement=replace(asked, store=str(store)))
        world.max_flag(0)  # all have opened what the run has left there
    finally:
        shutil.rmtree(store, ignore_errors=True)

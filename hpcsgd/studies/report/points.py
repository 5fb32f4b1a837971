"""Runs of a report: read from files, grouped into settings and problems."""

import logging
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from hpcsgd.comm.ledger import TRAINING
from hpcsgd.errors import DataError, HpcsgdError
from hpcsgd.files import own_folder, parse_json, parse_object, read_entry_text
from hpcsgd.runs.result import WORSE
from hpcsgd.studies.folder import SAVED, expected_traffic
from hpcsgd.studies.plan import folder_name
from hpcsgd.studies.plots.charts import CROWDED, EMULATED, MEASURED

# A point of a report is one run, of a study, of a comparison or of `train`.

GOOD = ("finished", "completed", "converged", "stopped", WORSE)
METHODS = {
    "sgd": "SGD",
    "casgd": "CA-SGD",
    "local": "local SGD",
    "hybrid": "hybrid",
}
NETWORK = ("communicate", "copy")
INPUT = ("gather", "read")
PYTHON = ("sample",)


@dataclass(frozen=True)
class PointSource:
    """The place of a run: its folders and its key.

    The key is that in points.jsonl; for a run outside a study, it is the path of the
    run folder in its settings, or "".
    """

    folder: str  # the folder from which the run was read
    key: str
    model: str = ""  # the run folder with the weights, or ""


@dataclass(frozen=True)
class PointTask:
    """Data of a run, and the kind of its study."""

    study: str
    data: str
    rows: int
    columns: int


@dataclass(frozen=True)
class PointConfig:
    """Settings that a run has in common with its repeats."""

    ranks: int
    emulated: int  # ranks that the one started rank stands for, or 0
    replicas: int
    members: int
    batch: int  # rows of a step, over all replicas
    steps: int  # SGD steps of an exchange, s; 1 if every step has a sum
    product: str
    recipe: str
    epochs: float

    @property
    def width(self) -> int:
        """Number of ranks, including emulated ones."""
        return self.emulated or self.ranks


@dataclass(frozen=True)
class PointMachine:
    """Machine and software of a run; None or empty for what its file lacks."""

    host: str
    processor: str
    network: str  # an emulated network, or ""
    transport: str
    cores: int
    oversubscribed: bool
    load: float | None
    versions: Mapping[str, str]


@dataclass(frozen=True)
class PointOutcome:
    """The status at the end of a run, and its losses."""

    status: str
    error: str
    iterations: int
    loss: float | None
    history: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class PointCosts:
    """Seconds, messages and energy of a run; None or empty for what its file lacks."""

    seconds: float | None
    wall: float | None
    cpu: float | None
    phases: Mapping[str, float]
    ledger: Mapping[str, Mapping[str, float]]
    expected: Mapping[str, float]  # calls and words by formula, as far as it is known
    joules: float | None
    energy_source: str

    def traffic(self, figure: str) -> int | None:
        """Return the calls or words of rank 0 for products and agreements together.

        `figure` is "calls" or "words". None without a ledger.
        """
        if not self.ledger:
            return None
        return int(sum(self.ledger.get(p, {}).get(figure, 0) for p in TRAINING))

    def split(self) -> tuple[float, float, float, float]:
        """Return the seconds of arithmetic, network, input, and Python (the rest)."""
        total = self.seconds or 0.0
        agreement = float(self.ledger.get("agreement", {}).get("seconds", 0.0))
        network = _sum(self.phases, NETWORK) + agreement
        reading = _sum(self.phases, INPUT)
        named = (*NETWORK, *INPUT, *PYTHON)
        compute = sum(v for k, v in self.phases.items() if k not in named)
        return compute, network, reading, max(total - compute - network - reading, 0.0)


@dataclass(frozen=True)
class ReportPoint:
    """Settings and measurements of one run."""

    label: str  # name of the method, or of the setting
    algorithm: str  # name of the method, whatever the label is, as "casgd"
    seed: int
    source: PointSource
    task: PointTask
    config: PointConfig
    machine: PointMachine
    outcome: PointOutcome
    costs: PointCosts

    @property
    def is_good(self) -> bool:
        """Return whether the run has reached its end, and its time is known."""
        seconds = self.costs.seconds
        return self.outcome.status in GOOD and seconds is not None and seconds > 0

    @property
    def is_saved(self) -> bool:
        """Return whether the run was preempted or interrupted."""
        return self.outcome.status in SAVED

    @property
    def is_crowded(self) -> bool:
        """Return whether there were more ranks than cores, so that ranks waited."""
        cores = self.machine.cores
        return self.machine.oversubscribed or 0 < cores < self.config.ranks


def _sum(phases: Mapping[str, float], names: tuple[str, ...]) -> float:
    return sum(float(phases.get(name, 0.0)) for name in names)


def read_point(
    line: Mapping[str, Any], folder: str, label: str = "", model: str = ""
) -> ReportPoint:
    """Return the point of one line of points.jsonl.

    A `label` replaces the name of the method; `model` is the run folder with the
    weights, or "". Values of a wrong type count as missing.
    """
    grid = _table(line, "grid")
    energy = _table(line, "energy")
    ranks = max(_count(line, "ranks"), 1)
    method = _word(line, "method")
    return ReportPoint(
        label=plain(label) or METHODS.get(method, method) or "run",
        algorithm=_word(line, "algorithm") or method,
        seed=_count(line, "seed"),
        source=PointSource(folder, _word(line, "key"), model),
        task=PointTask(
            study=_word(line, "study"),
            data=_word(line, "data"),
            rows=_count(line, "rows"),
            columns=_count(line, "columns"),
        ),
        config=PointConfig(
            ranks=ranks,
            emulated=_count(line, "emulated"),
            replicas=_count(grid, "replicas") or 1,
            members=_count(grid, "members") or ranks,
            batch=_count(line, "batch"),
            steps=_count(line, "steps"),
            product=_word(line, "product"),
            recipe=_word(line, "recipe"),
            epochs=_number(line, "epochs") or 1.0,
        ),
        machine=PointMachine(
            host=_word(line, "host"),
            processor=_word(line, "processor"),
            network=_word(line, "network"),
            transport=_word(line, "transport"),
            cores=_count(line, "cores"),
            oversubscribed=line.get("oversubscribed") is True,
            load=_load(line),
            versions={
                plain(str(k)): plain(str(v))
                for k, v in _table(line, "versions").items()
            },
        ),
        outcome=PointOutcome(
            status=_word(line, "status"),
            error=_word(line, "error"),
            iterations=_count(line, "iterations"),
            loss=_number(line, "loss"),
            history=_history(line),
        ),
        costs=PointCosts(
            seconds=_number(line, "seconds"),
            wall=_number(line, "seconds_wall"),
            cpu=_number(line, "cpu_seconds"),
            phases=_numbers(_table(line, "seconds_by_phase")),
            ledger={
                purpose: _numbers(entry)
                for purpose, entry in _table(line, "ledger").items()
                if isinstance(entry, Mapping)
            },
            expected=_numbers(_table(line, "expected")),
            joules=_number(energy, "joules"),
            energy_source=_word(energy, "source"),
        ),
    )


def _history(line: Mapping[str, Any]) -> tuple[Mapping[str, float], ...]:
    history = line.get("history")
    records = history if isinstance(history, list) else []
    return tuple(_numbers(record) for record in records if isinstance(record, Mapping))


def _load(line: Mapping[str, Any]) -> float | None:
    """Return the load of the machine in the last minute before the run."""
    load = line.get("load")
    return _finite(load[0] if isinstance(load, list) and load else load)


def _table(line: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = line.get(key)
    return table if isinstance(table, Mapping) else {}


def _numbers(table: Mapping[str, Any]) -> dict[str, float]:
    numbers = {str(key): _finite(value) for key, value in table.items()}
    return {key: value for key, value in numbers.items() if value is not None}


def _number(line: Mapping[str, Any], key: str) -> float | None:
    return _finite(line.get(key))


def _finite(value: Any) -> float | None:
    """Return a finite number, or None for any other value: NaN, text, true."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 and isfinite(value) else None


def _count(line: Mapping[str, Any], key: str) -> int:
    return int(_number(line, key) or 0)


def _word(line: Mapping[str, Any], key: str) -> str:
    word = line.get(key)
    return plain(word) if isinstance(word, str) else ""


def plain(text: str) -> str:
    """Return a text without characters that control a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


# Repeats form a setting, and settings on the same data form a problem.

BUSY = 0.5  # load of each core before the run, above which the machine was busy


@dataclass(frozen=True)
class Spread:
    """The median, the smallest and the largest of several values."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return median and range of the values that are not None; None without any."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return Spread(statistics.median(numbers), min(numbers), max(numbers))


@dataclass(frozen=True)
class RunSetting:
    """All successful runs with the same settings; only their seeds may differ."""

    points: tuple[ReportPoint, ...]

    @property
    def first(self) -> ReportPoint:
        """The first run, whose settings are those of all runs."""
        return self.points[0]

    @property
    def label(self) -> str:
        """Name of the method or of the setting."""
        return self.first.label

    @property
    def config(self) -> PointConfig:
        """Settings that all runs have in common."""
        return self.first.config

    @property
    def width(self) -> int:
        """Number of ranks, including emulated ones."""
        return self.config.width

    @property
    def mark(self) -> str:
        """How the setting was measured: `EMULATED`, `CROWDED` or `MEASURED`.

        It is emulated if one rank stood for many, and crowded if ranks waited for
        cores.
        """
        if self.config.emulated:
            return EMULATED
        return CROWDED if any(p.is_crowded for p in self.points) else MEASURED

    @property
    def was_busy(self) -> bool:
        """Return whether other processes used the machine as one of the runs began."""
        return any(
            m.load is not None and m.cores and m.load / m.cores > BUSY
            for m in (point.machine for point in self.points)
        )

    def over(self, figure: Callable[[ReportPoint], float | None]) -> Spread | None:
        """Return median and range of `figure` over the runs; None if no run has it."""
        return spread(figure(point) for point in self.points)

    @property
    def per_epoch(self) -> Spread:
        """Seconds of one pass over the rows: median and range over the runs."""
        seconds = self.over(lambda p: (p.costs.seconds or 0.0) / p.config.epochs)
        assert seconds is not None
        return seconds

    @property
    def per_step(self) -> Spread | None:
        """Seconds of one step: median and range over the runs; None if not known."""
        return self.over(
            lambda p: (
                p.costs.seconds / p.outcome.iterations
                if p.costs.seconds and p.outcome.iterations
                else None
            )
        )

    @property
    def middle(self) -> ReportPoint:
        """The run of median time; of two in the middle, the faster one."""
        times = [p.costs.seconds or 0.0 for p in self.points]
        return self.points[times.index(statistics.median_low(times))]

    @property
    def is_one_rank(self) -> bool:
        """Return whether one rank did all the work, without emulated ranks."""
        return self.width == 1 and not self.config.emulated

    def named(self, others: Sequence["RunSetting"]) -> str:
        """Return the shortest name that distinguishes this setting from `others`."""
        return _shortest(self, others)


@dataclass(frozen=True)
class Problem:
    """The runs of one task on one machine and network.

    `settings` contains the successful runs, `failed` and `saved` the others.
    """

    data: str
    rows: int  # 0 if the rows grow with the ranks
    columns: int
    settings: tuple[RunSetting, ...]
    failed: tuple[ReportPoint, ...]
    saved: tuple[ReportPoint, ...] = ()  # preempted or interrupted runs
    network: str = ""
    machine: str = ""  # empty if all runs of the report are from one machine

    @property
    def labels(self) -> list[str]:
        """Names of the methods, in the order of the runs."""
        return list(dict.fromkeys(setting.label for setting in self.settings))

    @property
    def is_weak(self) -> bool:
        """Return whether the rows grow with the ranks (weak scaling)."""
        return any(p.task.study == "weak" for s in self.settings for p in s.points)

    @property
    def title(self) -> str:
        """Title of the problem: data, size, network, machine."""
        if self.is_weak:
            parts = ["weak scaling", self.data, f"{self.columns} columns"]
        else:
            size = f"{self.rows} × {self.columns}" if self.rows and self.columns else ""
            parts = [self.data, size]
        parts += [f"network {self.network}" if self.network else "", self.machine]
        return ", ".join(part for part in parts if part) or "runs"

    def one_rank(self, setting: RunSetting) -> RunSetting | None:
        """Return the fastest setting on one rank with the batch of `setting`, or None.

        In weak scaling, its batch may also be that of `setting` divided by the ranks.
        """
        batches = {setting.config.batch}
        if self.is_weak and setting.config.batch % setting.width == 0:
            batches.add(setting.config.batch // setting.width)
        bases = [
            s for s in self.settings if s.is_one_rank and s.config.batch in batches
        ]
        return min(bases, key=lambda s: s.per_epoch.median, default=None)

    def speed_up(self, setting: RunSetting) -> Spread | None:
        """Return the speed-up of an epoch over the best epoch on one rank.

        In weak scaling, it is multiplied by the ranks, as the rows are. The result is
        None without a run on one rank.
        """
        base = self.one_rank(setting)
        if base is None:
            return None
        seconds = base.per_epoch.median
        time = setting.per_epoch
        work = setting.width if self.is_weak else 1
        return Spread(*(work * seconds / t for t in (time.median, time.high, time.low)))

    def efficiency(self, setting: RunSetting) -> float | None:
        """Return the median speed-up over one rank, divided by the ranks.

        It is None without a run on one rank.
        """
        speed_up = self.speed_up(setting)
        return None if speed_up is None else speed_up.median / setting.width


def problems_of(points: Sequence[ReportPoint]) -> list[Problem]:
    """Return the problems of runs: one for each task, network and machine."""
    machines = _machines(points)
    groups: dict[tuple[object, ...], list[ReportPoint]] = {}
    for point in points:
        machine = point.machine
        name = machines[machine.host, machine.processor]
        task = (*_task(point.task), machine.network, name)
        groups.setdefault(task, []).append(point)
    _merge_failed(groups)
    several = len({task[-1] for task in groups}) > 1
    return [
        _problem(group, str(task[-1]) if several else "")
        for task, group in groups.items()
    ]


def _machines(points: Sequence[ReportPoint]) -> dict[tuple[str, str], str]:
    """Return the name of the machine of each pair (host, processor).

    The name is the processor, also if only another run on the same host has recorded
    it. Without a processor, the name is the common part of the names of the hosts.
    """
    machines = [point.machine for point in points]
    processors = {m.host: m.processor for m in machines if m.host and m.processor}
    return {
        (m.host, m.processor): m.processor or processors.get(m.host) or nodes_of(m.host)
        for m in machines
    }


def nodes_of(host: str) -> str:
    """Return the common name of the nodes of a machine: "nidN" for "nid001234"."""
    return re.sub(r"\d+", "N", host)


def _merge_failed(groups: dict[tuple[object, ...], list[ReportPoint]]) -> None:
    """Move each group without a successful run into another group of its folder.

    A run that failed before it read its data has a task of its own.
    """
    for key in [key for key, group in groups.items() if not _any_good(group)]:
        where = {point.source.folder for point in groups[key]}
        for other, group in groups.items():
            if other != key and where & {point.source.folder for point in group}:
                group += groups.pop(key)
                break


def _any_good(points: Sequence[ReportPoint]) -> bool:
    return any(point.is_good for point in points)


def _task(task: PointTask) -> tuple[object, ...]:
    data = Path(task.data).name
    if task.study == "weak":
        return ("weak", data, task.columns)
    return (data, task.rows, task.columns)


def _problem(points: Sequence[ReportPoint], machine: str) -> Problem:
    settings: dict[tuple[object, ...], list[ReportPoint]] = {}
    for point in points:
        if point.is_good:
            settings.setdefault((point.label, point.config), []).append(point)
    first = next((p for p in points if p.is_good), points[0])
    return Problem(
        data=Path(first.task.data).name,
        rows=0 if first.task.study == "weak" else first.task.rows,
        columns=first.task.columns,
        settings=tuple(RunSetting(tuple(group)) for group in settings.values()),
        failed=tuple(p for p in points if not p.is_good and not p.is_saved),
        saved=tuple(point for point in points if point.is_saved),
        network=first.machine.network,
        machine=machine,
    )


PARTS: tuple[Callable[[PointConfig], str], ...] = (
    lambda c: f"{c.width} rank{'' if c.width == 1 else 's'}",
    lambda c: f"{c.replicas}×{c.members}",
    lambda c: f"s={c.steps}",
    lambda c: f"b={c.batch}",
    lambda c: c.product,
    lambda c: c.recipe,
    lambda c: f"{c.epochs:g} epoch{'' if c.epochs == 1 else 's'}",
    lambda c: "emulated" if c.emulated else "",
)


def _shortest(setting: RunSetting, others: Sequence[RunSetting]) -> str:
    """Return the label, and the parts of the configuration in which settings differ.

    Only settings with the same label are compared; but the ranks are named if they
    differ among all `others`.
    """
    config = setting.config
    same = [other.config for other in others if other.label == setting.label]
    parts = [part(config) for part in PARTS if len({part(other) for other in same}) > 1]
    if len({other.width for other in others}) > 1 and PARTS[0](config) not in parts:
        parts.insert(0, PARTS[0](config))
    grid = PARTS[1](config)
    if grid in parts:
        widths: dict[int, set[str]] = {}
        for other in same:
            widths.setdefault(other.width, set()).add(PARTS[1](other))
        if all(len(grids) == 1 for grids in widths.values()):
            # Every number of ranks has one grid, so that the ranks name it.
            parts.remove(grid)
    return ", ".join([setting.label, *(part for part in parts if part)])


# Points are read from the folders of studies, of comparisons and of runs.

POINTS = "points.jsonl"
RESULT = "result.json"
COMPARE = "compare.json"
log = logging.getLogger(__name__)


def read_folders(folders: Sequence[Path]) -> list[ReportPoint]:
    """Return the points of all folders, in the order of the folders."""
    points = [point for folder in folders for point in read_folder(folder)]
    if not points:
        names = ", ".join(str(folder) for folder in folders)
        raise DataError(
            f"no run has ended yet in {names}; start one there, or wait for its end"
        )
    return points


def read_folder(folder: Path) -> list[ReportPoint]:
    """Return the points of a study, a comparison, a run, or a folder of run folders."""
    if not folder.is_dir():
        raise DataError(
            f"{folder} is no folder; name the folder of a study, a comparison or a run"
        )
    if (folder / POINTS).exists():
        return list(_of_study(folder))
    if (folder / COMPARE).exists():
        return list(_of_comparison(folder))
    if (folder / RESULT).exists():
        return [_of_run(folder)]
    below = sorted(path.parent for path in folder.glob(f"*/{RESULT}"))
    if not below:
        raise DataError(
            f"{folder} holds no {POINTS}, {COMPARE} or {RESULT}; name the folder of a"
            " study (hpcsgd study --out), of a comparison or of a run (--out)"
        )
    return [_of_run(path) for path in below if not path.name.startswith("earlier-")]


def _of_study(folder: Path) -> Iterator[ReportPoint]:
    """Yield a point for the newest line of every key in points.jsonl.

    The order is that of the first line of each key.
    """
    newest: dict[str, Mapping[str, Any]] = {}
    for number, text in enumerate(_lines(folder / POINTS), 1):
        line = parse_object(text)
        if line is None:
            log.warning(
                "%s: line %d is not the record of a run; the report leaves it out",
                folder / POINTS,
                number,
            )
        else:
            newest[str(line.get("key", number))] = line
    for newest_line in newest.values():
        yield read_point(newest_line, str(folder))


def _of_comparison(folder: Path) -> Iterator[ReportPoint]:
    """Yield a point for every repeat of every setting, from its run folder if possible.

    Without its run folder, a repeat has the figures of compare.json.
    """
    document = _document(folder / COMPARE)
    for row in document.get("settings", []):
        if not isinstance(row, dict):
            continue
        name = str(row.get("name", ""))
        times = row.get("seconds_of_repeats") or []
        for number, seconds in enumerate(times, 1):
            run_folder = folder / f"{folder_name(name)}-{number}"
            line = _line_of_repeat(run_folder, seconds)
            model = "" if line is None else str(run_folder)
            if line is None:
                line = _as_line(row) | {"ranks": document.get("ranks")}
                line |= {"seconds": seconds}
            yield read_point(line | {"study": "compare"}, str(folder), name, model)


def _line_of_repeat(folder: Path, seconds: Any) -> dict[str, Any] | None:
    """Return the result in a run folder, as the line of a study.

    Return None if there is no result, or if it is that of a later run, whose time
    differs from the `seconds` of the comparison.
    """
    try:
        own_folder(folder.parent, folder.name)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be used as a run folder ({error.strerror}); remove that"
            " file or link"
        ) from error
    if not (folder / RESULT).exists():
        return None
    document = _document(folder / RESULT)
    return _as_line(document) if document.get("seconds_total") == seconds else None


def _of_run(folder: Path) -> ReportPoint:
    line = _as_line(_document(folder / RESULT)) | {"study": "runs"}
    return read_point(line, str(folder), folder.name, model=str(folder))


def _as_line(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return result.json, or a row of compare.json, as the line of a study."""
    config = _table(document, "config")
    schedule = _table(config, "schedule")
    grid = _table(config, "grid")
    run = _table(config, "run")
    source = _table(document, "source")
    seconds = document.get("seconds_total", document.get("seconds"))
    ahead = " look-ahead" if document.get("look_ahead") is True else ""
    return {
        "grid": document.get("grid", grid),
        "ranks": document.get("ranks"),
        "emulated": document.get("emulated_members"),
        "algorithm": _algorithm(document, config),
        "key": str(run.get("out") or ""),
        "status": document.get("status"),
        "error": document.get("advice"),
        "data": Path(str(_table(config, "data").get("path") or "")).name,
        "rows": document.get("rows", source.get("rows")),
        "columns": document.get("columns"),
        "batch": _batch(document, schedule, grid),
        "steps": _steps(document, grid),
        "product": f"{document.get('products', '')}{ahead}",
        "recipe": _table(config, "precision").get("recipe"),
        "network": run.get("network"),
        "expected": _expected(document),
        "seed": _table(config, "sampling").get("seed"),
        "epochs": schedule.get("epochs"),
        "seconds": seconds,
        **{name: document.get(name) for name in SAME},
    }


SAME = (  # keys that results and points share
    *("iterations", "loss", "seconds_wall", "seconds_by_phase", "ledger", "history"),
    *("energy", "versions", "transport", "host", "processor", "cores"),
)


def _algorithm(document: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the method of a run and its update rule, from its configuration.

    Every product but `direct` computes the steps of CA-SGD.
    """
    grid = _table(document, "grid") or _table(config, "grid")
    agreement = _table(config, "agreement")
    rule = _table(config, "update")
    if agreement.get("method"):
        name = str(agreement["method"])
    elif grid.get("replicas", 1) != 1:
        name = "local" if grid.get("members") == 1 else "hybrid"
        name = " ".join((name, *(str(agreement.get(k, "")) for k in AGREEMENT)))
    else:
        name = "sgd" if document.get("products") == "direct" else "casgd"
    kind = str(rule.get("kind") or "sgd")
    return name if kind == "sgd" else f"{name} by {kind}"


AGREEMENT = ("kind", "codec")


def _batch(
    document: Mapping[str, Any], schedule: Mapping[str, Any], grid: Mapping[str, Any]
) -> Any:
    """Return the rows of a step over all replicas.

    A configuration has the batch of one replica, which is multiplied by the replicas.
    """
    for table in (document, _table(document, "schedule")):
        if "global_batch" in table:
            return table["global_batch"]
    batch = schedule.get("batch")
    replicas = grid.get("replicas")
    if isinstance(batch, int) and isinstance(replicas, int):
        return batch * replicas
    return batch


def _steps(document: Mapping[str, Any], grid: Mapping[str, Any]) -> Any:
    """Return the SGD steps of an exchange, s.

    It is 1 for one replica with the product `direct`, which sums in every step.
    """
    replicas = _table(document, "grid").get("replicas", grid.get("replicas"))
    if document.get("products") == "direct" and replicas == 1:
        return 1
    return _table(document, "schedule").get("steps", document.get("steps"))


def _expected(document: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the expected traffic; None if the document lacks what it depends on."""
    try:
        return expected_traffic(document)
    except (AttributeError, KeyError, TypeError, ValueError, HpcsgdError):
        return None


def _document(path: Path) -> dict[str, Any]:
    try:
        document = parse_json("\n".join(_lines(path)))
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON ({error}); repeat the command that wrote it"
        ) from error
    if not isinstance(document, dict):
        raise DataError(
            f"{path} is not the JSON object of a run or a comparison; repeat the"
            " command that wrote it"
        )
    return document


def _lines(path: Path) -> list[str]:
    try:
        return read_entry_text(path, "replace").splitlines()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); make it readable"
        ) from error

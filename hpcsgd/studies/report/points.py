"""Points of a report: read from documents, grouped by setting."""

import logging
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from hpcsgd.comm.ledger import TRAINING
from hpcsgd.errors import DataError, HpcsgdError
from hpcsgd.files import own_folder, parse_json, read_entry_text
from hpcsgd.runs.result import WORSE
from hpcsgd.studies.folder import SAVED, expected_traffic
from hpcsgd.studies.plan import folder_name
from hpcsgd.studies.plots.charts import CROWDED, EMULATED, MEASURED

# One run of a study, as the report sees it, whatever file it came from.

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
class ReportPoint:
    """What was measured once; None where nobody knows."""

    label: str  # of the method, or the setting's own name
    algorithm: str  # what it is whatever its label, as "casgd"
    study: str
    key: str
    where: str  # the folder it was read from
    ranks: int
    emulated: int
    replicas: int
    members: int
    batch: int  # of all replicas together
    steps: int
    product: str
    recipe: str
    data: str
    rows: int
    columns: int
    network: str
    status: str
    error: str
    seed: int
    epochs: float
    iterations: int
    loss: float | None
    seconds: float | None
    wall: float | None
    cpu: float | None
    phases: Mapping[str, float] = field(default_factory=dict)
    ledger: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    expected: Mapping[str, float] | None = None
    history: tuple[Mapping[str, float], ...] = ()
    joules: float | None = None
    power_seconds: float | None = None
    energy_source: str = ""
    host: str = ""
    processor: str = ""
    transport: str = ""
    cores: int = 0
    oversubscribed: bool = False
    load: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    model: str = ""  # the folder that holds its weights

    @property
    def is_good(self) -> bool:
        """Whether its figures are those of a whole run."""
        return self.status in GOOD and self.seconds is not None and self.seconds > 0

    @property
    def is_saved(self) -> bool:
        """Whether it was preempted or interrupted, and is to be resumed."""
        return self.status in SAVED

    @property
    def width(self) -> int:
        """Ranks that it stands for."""
        return self.emulated or self.ranks

    @property
    def is_crowded(self) -> bool:
        """More ranks than cores: they waited for each other, not for a network."""
        return self.oversubscribed or bool(self.cores) and self.ranks > self.cores

    def traffic(self, figure: str) -> int | None:
        """Calls or words of rank 0, for products and agreements."""
        if not self.ledger:
            return None
        said = [self.ledger.get(purpose, {}).get(figure, 0) for purpose in TRAINING]
        return int(sum(said))

    def split(self) -> tuple[float, float, float, float]:
        """Seconds of compute, network, input and output, and what is left: Python."""
        total = self.seconds or 0.0
        agreement = float(self.ledger.get("agreement", {}).get("seconds", 0.0))
        network = _sum(self.phases, NETWORK) + agreement
        reading = _sum(self.phases, INPUT)
        named = (*NETWORK, *INPUT, *PYTHON)
        compute = sum(v for k, v in self.phases.items() if k not in named)
        return compute, network, reading, max(total - compute - network - reading, 0.0)


def _sum(phases: Mapping[str, float], names: tuple[str, ...]) -> float:
    return sum(float(phases.get(name, 0.0)) for name in names)


def read_point(line: Mapping[str, Any], where: str, label: str = "") -> ReportPoint:
    """The point of one line of points.jsonl; what has another type is not known."""
    grid, energy = _table(line, "grid"), _table(line, "energy")
    ranks = max(_count(line, "ranks"), 1)
    method = _word(line, "method")
    return ReportPoint(
        label=plain(label) or METHODS.get(method, method) or "run",
        algorithm=_word(line, "algorithm") or method,
        study=_word(line, "study"),
        key=_word(line, "key"),
        where=where,
        ranks=ranks,
        emulated=_count(line, "emulated"),
        replicas=_count(grid, "replicas") or 1,
        members=_count(grid, "members") or ranks,
        batch=_count(line, "batch"),
        steps=_count(line, "steps"),
        product=_word(line, "product"),
        recipe=_word(line, "recipe"),
        data=_word(line, "data"),
        rows=_count(line, "rows"),
        columns=_count(line, "columns"),
        network=_word(line, "network"),
        status=_word(line, "status"),
        error=_word(line, "error"),
        seed=_count(line, "seed"),
        epochs=_number(line, "epochs") or 1.0,
        iterations=_count(line, "iterations"),
        loss=_number(line, "loss"),
        seconds=_number(line, "seconds"),
        wall=_number(line, "seconds_wall"),
        cpu=_number(line, "cpu_seconds"),
        phases=_numbers(_table(line, "seconds_by_phase")),
        ledger={k: _numbers(v) for k, v in _table(line, "ledger").items() if _is(v)},
        expected=_numbers(_table(line, "expected")) or None,
        history=_history(line),
        joules=_number(energy, "joules"),
        power_seconds=_number(energy, "seconds"),
        energy_source=_word(energy, "source"),
        host=_word(line, "host"),
        processor=_word(line, "processor"),
        transport=_word(line, "transport"),
        cores=_count(line, "cores"),
        oversubscribed=line.get("oversubscribed") is True,
        load=_load(line),
        versions={
            plain(str(k)): plain(str(v)) for k, v in _table(line, "versions").items()
        },
    )


def _history(line: Mapping[str, Any]) -> tuple[Mapping[str, float], ...]:
    found = line.get("history")
    records = found if isinstance(found, list) else []
    return tuple(_numbers(record) for record in records if _is(record))


def _load(line: Mapping[str, Any]) -> float | None:
    """Of the last minute before it began."""
    found = line.get("load")
    if isinstance(found, list) and found:
        return _finite(found[0])
    return _finite(found)


def _is(value: Any) -> bool:
    return isinstance(value, Mapping)


def _table(line: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = line.get(key)
    return found if isinstance(found, Mapping) else {}


def _numbers(table: Mapping[str, Any]) -> dict[str, float]:
    found = {str(key): _finite(value) for key, value in table.items()}
    return {key: value for key, value in found.items() if value is not None}


def _number(line: Mapping[str, Any], key: str) -> float | None:
    return _finite(line.get(key))


def _finite(value: Any) -> float | None:
    """A number, or None for anything else: NaN, text, true."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 and isfinite(value) else None


def _count(line: Mapping[str, Any], key: str) -> int:
    return int(_number(line, key) or 0)


def _word(line: Mapping[str, Any], key: str) -> str:
    found = line.get(key)
    return plain(found) if isinstance(found, str) else ""


def plain(said: str) -> str:
    """Without what moves a terminal's cursor or turns its text around."""
    return "".join(c if c.isprintable() else " " for c in said)


# Points gathered: repeats into settings, settings into problems.

BUSY = 0.5  # load for each core, before the run began, from which others worked too


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of the repeats."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.median(known), min(known), max(known))


@dataclass(frozen=True)
class RunSetting:
    """One way to train, and all good runs of it."""

    points: tuple[ReportPoint, ...]

    @property
    def first(self) -> ReportPoint:
        """What all of them share."""
        return self.points[0]

    @property
    def label(self) -> str:
        """The method's name."""
        return self.first.label

    @property
    def width(self) -> int:
        """Ranks that it stands for."""
        return self.first.width

    @property
    def mark(self) -> str:
        """Whether it was measured as it would run."""
        if self.first.emulated:
            return EMULATED
        return CROWDED if any(p.is_crowded for p in self.points) else MEASURED

    @property
    def was_busy(self) -> bool:
        """Whether others used the machine when a run of it began."""
        return any(
            p.load is not None and p.cores and p.load / p.cores > BUSY
            for p in self.points
        )

    def over(self, figure: Callable[[ReportPoint], float | None]) -> Spread | None:
        """Median and ends of any figure of its runs."""
        return spread(figure(point) for point in self.points)

    @property
    def per_epoch(self) -> Spread:
        """Seconds of one pass over the rows."""
        found = self.over(lambda p: (p.seconds or 0.0) / p.epochs)
        assert found is not None
        return found

    @property
    def per_step(self) -> Spread | None:
        """Seconds of one step."""
        return self.over(
            lambda p: (p.seconds or 0.0) / p.iterations if p.iterations else None
        )

    @property
    def middle(self) -> ReportPoint:
        """The run of median time."""
        times = [p.seconds or 0.0 for p in self.points]
        return self.points[times.index(statistics.median_low(times))]

    @property
    def is_one_rank(self) -> bool:
        """Whether one rank did all the work, and none was emulated."""
        return self.width == 1 and not self.first.emulated

    def named(self, others: Sequence["RunSetting"]) -> str:
        """The name that tells it from the others: as short as it can be."""
        return _shortest(self.first, [other.first for other in others])


@dataclass(frozen=True)
class Problem:
    """The settings of one task on one machine and network, and what failed of it."""

    data: str
    rows: int  # 0 where they grow with the ranks
    columns: int
    settings: tuple[RunSetting, ...]
    failed: tuple[ReportPoint, ...]
    saved: tuple[ReportPoint, ...] = ()  # preempted or interrupted, to be resumed
    network: str = ""
    machine: str = ""  # named where the report has several

    @property
    def labels(self) -> list[str]:
        """The methods, in the order in which they came."""
        return list(dict.fromkeys(setting.label for setting in self.settings))

    @property
    def is_weak(self) -> bool:
        """Whether the rows grow with the ranks."""
        return any(p.study == "weak" for s in self.settings for p in s.points)

    @property
    def title(self) -> str:
        """What it is called."""
        if self.is_weak:
            parts = ["weak scaling", self.data, f"{self.columns} columns"]
        else:
            size = f"{self.rows} × {self.columns}" if self.rows and self.columns else ""
            parts = [self.data, size]
        parts += [f"network {self.network}" if self.network else "", self.machine]
        return ", ".join(part for part in parts if part) or "runs"

    def one_rank(self, setting: RunSetting) -> RunSetting | None:
        """Return the fastest setting of one rank that has the batch of `setting`.

        Where the batch grows with the rows and the ranks, the batch of each rank.
        """
        batches = {setting.first.batch}
        if self.is_weak and setting.first.batch % setting.width == 0:
            batches.add(setting.first.batch // setting.width)
        found = [s for s in self.settings if s.is_one_rank and s.first.batch in batches]
        return min(found, key=lambda s: s.per_epoch.median, default=None)

    def speed_up(self, setting: RunSetting) -> Spread | None:
        """Return how many times faster an epoch is than the best one of one rank.

        Rows that grow with the ranks count as often; None without a run on one rank.
        """
        base = self.one_rank(setting)
        if base is None:
            return None
        seconds, time = base.per_epoch.median, setting.per_epoch
        work = setting.width if self.is_weak else 1
        return Spread(*(work * seconds / t for t in (time.median, time.high, time.low)))

    def efficiency(self, setting: RunSetting) -> float | None:
        """Return the speed-up against one rank, over the ranks."""
        found = self.speed_up(setting)
        return None if found is None else found.median / setting.width


def problems_of(points: Sequence[ReportPoint]) -> list[Problem]:
    """Points apart by what they solve, and by the network and machine they ran on."""
    machines = _machines(points)
    found: dict[tuple[object, ...], list[ReportPoint]] = {}
    for point in points:
        task = (*_task(point), point.network, machines[point.host, point.processor])
        found.setdefault(task, []).append(point)
    _take_in_failed(found)
    several = len({task[-1] for task in found}) > 1
    return [
        _problem(group, str(task[-1]) if several else "")
        for task, group in found.items()
    ]


def _machines(points: Sequence[ReportPoint]) -> dict[tuple[str, str], str]:
    """Return the machine of each (host, processor): its processor, or its hosts.

    A host whose processor one run names has it in all runs. Of other hosts those whose
    names differ in digits alone are nodes of one machine.
    """
    processors = {p.host: p.processor for p in points if p.host and p.processor}
    return {
        (p.host, p.processor): p.processor or processors.get(p.host) or nodes_of(p.host)
        for p in points
    }


def nodes_of(host: str) -> str:
    """Return what the nodes of one machine are called: "nidN" for "nid001234"."""
    return re.sub(r"\d+", "N", host)


def _take_in_failed(found: dict[tuple[object, ...], list[ReportPoint]]) -> None:
    """A run that failed before it saw its data belongs to those of its folder."""
    for key in [key for key, group in found.items() if not _any_good(group)]:
        where = {point.where for point in found[key]}
        for other, group in found.items():
            if other != key and where & {point.where for point in group}:
                group += found.pop(key)
                break


def _any_good(points: Sequence[ReportPoint]) -> bool:
    return any(point.is_good for point in points)


def _task(point: ReportPoint) -> tuple[object, ...]:
    data = Path(point.data).name
    if point.study == "weak":
        return ("weak", data, point.columns)
    return (data, point.rows, point.columns)


def _problem(points: Sequence[ReportPoint], machine: str) -> Problem:
    settings: dict[tuple[object, ...], list[ReportPoint]] = {}
    for point in points:
        if point.is_good:
            settings.setdefault(_identity(point), []).append(point)
    known = next((p for p in points if p.is_good), points[0])
    return Problem(
        data=Path(known.data).name,
        rows=0 if known.study == "weak" else known.rows,
        columns=known.columns,
        settings=tuple(RunSetting(tuple(group)) for group in settings.values()),
        failed=tuple(p for p in points if not p.is_good and not p.is_saved),
        saved=tuple(point for point in points if point.is_saved),
        network=known.network,
        machine=machine,
    )


def _identity(p: ReportPoint) -> tuple[object, ...]:
    return (
        *(p.label, p.ranks, p.emulated, p.replicas, p.members, p.batch, p.steps),
        *(p.product, p.recipe, p.network, p.epochs),
    )


PARTS: tuple[Callable[[ReportPoint], str], ...] = (
    lambda p: f"{p.width} rank{'' if p.width == 1 else 's'}",
    lambda p: f"{p.replicas}×{p.members}",
    lambda p: f"s={p.steps}",
    lambda p: f"b={p.batch}",
    lambda p: p.product,
    lambda p: p.recipe,
    lambda p: p.network,
    lambda p: f"{p.epochs:g} epoch{'' if p.epochs == 1 else 's'}",
    lambda p: "emulated" if p.emulated else "",
)


def _shortest(point: ReportPoint, others: Sequence[ReportPoint]) -> str:
    """The label, and of the parts only those in which settings of that label differ."""
    same = [other for other in others if other.label == point.label]
    parts = [said(point) for said in PARTS if len({said(other) for other in same}) > 1]
    if len({other.width for other in others}) > 1 and PARTS[0](point) not in parts:
        parts.insert(0, PARTS[0](point))
    if f"{point.replicas}×{point.members}" in parts:
        widths: dict[int, set[tuple[int, int]]] = {}
        for other in same:
            shape = (other.replicas, other.members)
            widths.setdefault(other.width, set()).add(shape)
        if all(len(shapes) == 1 for shapes in widths.values()):
            parts.remove(f"{point.replicas}×{point.members}")  # ranks say it
    return ", ".join([point.label, *(part for part in parts if part)])


# The points of studies, of plain run folders and of comparisons.

POINTS, RESULT, COMPARE = "points.jsonl", "result.json", "compare.json"
log = logging.getLogger(__name__)


def read_folders(folders: Sequence[Path]) -> list[ReportPoint]:
    """All points of all folders, in the order of the folders."""
    points = [point for folder in folders for point in read_folder(folder)]
    if not points:
        raise DataError(f"{_all(folders)} holds no run yet that ended; start one there")
    return points


def read_folder(folder: Path) -> list[ReportPoint]:
    """The points of a study, of a comparison, of a run, or of runs below it."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; name those of studies or runs")
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
    """The newest line of every key, in the order in which keys came first."""
    newest: dict[str, Mapping[str, Any]] = {}
    for number, text in enumerate(_lines(folder / POINTS), 1):
        line = _parsed(text)
        if line is None:
            log.warning("%s, line %d is no point; left out", folder / POINTS, number)
        else:
            newest[str(line.get("key", number))] = line
    for line in newest.values():
        yield read_point(line, str(folder))


def _parsed(text: str) -> Mapping[str, Any] | None:
    """The object of one line; None for half a line, or anything else."""
    try:
        found = parse_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _of_comparison(folder: Path) -> Iterator[ReportPoint]:
    """A point for every repeat of every setting; its run folder says more."""
    document = _document(folder / COMPARE)
    for row in document.get("settings", []):
        if not isinstance(row, dict):
            continue
        name, times = str(row.get("name", "")), row.get("seconds_of_repeats") or []
        for number, seconds in enumerate(times, 1):
            own = folder / f"{folder_name(name)}-{number}"
            line = _run_of_repeat(own, seconds)
            model = "" if line is None else str(own)
            if line is None:
                line = _as_line(row) | {"ranks": document.get("ranks")}
                line |= {"seconds": seconds}
            point = read_point(line | {"study": "compare"}, str(folder), name)
            yield replace(point, model=model)


def _run_of_repeat(folder: Path, seconds: Any) -> dict[str, Any] | None:
    """The run's own account, where it is still that of this comparison."""
    try:
        own_folder(folder.parent, folder.name)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be read ({error.strerror}); remove that entry"
        ) from error
    if not (folder / RESULT).exists():
        return None
    document = _document(folder / RESULT)
    return _as_line(document) if document.get("seconds_total") == seconds else None


def _of_run(folder: Path) -> ReportPoint:
    line = _as_line(_document(folder / RESULT)) | {"study": "runs"}
    return replace(read_point(line, str(folder), folder.name), model=str(folder))


def _as_line(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of result.json or a row of compare.json as a line of a study."""
    config = _table_text(document, "config")
    schedule, grid = _table_text(config, "schedule"), _table_text(config, "grid")
    run, source = _table_text(config, "run"), _table_text(document, "source")
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
        "data": Path(str(_table_text(config, "data").get("path") or "")).name,
        "rows": document.get("rows", source.get("rows")),
        "columns": document.get("columns"),
        "batch": _batch(document, schedule, grid),
        "steps": _steps(document, grid),
        "product": f"{document.get('products', '')}{ahead}",
        "recipe": _table_text(config, "precision").get("recipe"),
        "network": run.get("network"),
        "expected": _expected(document),
        "seed": _table_text(config, "sampling").get("seed"),
        "epochs": schedule.get("epochs"),
        "seconds": seconds,
        **{name: document.get(name) for name in SAME},
    }


SAME = (  # named alike in results and in points
    *("iterations", "loss", "seconds_wall", "seconds_by_phase", "ledger", "history"),
    *("energy", "versions", "transport", "host", "processor", "cores"),
)


def _algorithm(document: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return what a run is whatever it is called: a study's method, and its rule.

    Every product but `direct` computes the steps of CA-SGD.
    """
    grid = _table_text(document, "grid") or _table_text(config, "grid")
    agreement, rule = _table_text(config, "agreement"), _table_text(config, "update")
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
    """Of all replicas; configurations hold that of one."""
    for place in (document, _table_text(document, "schedule")):
        if "global_batch" in place:
            return place["global_batch"]
    own, replicas = schedule.get("batch"), grid.get("replicas")
    return own * replicas if isinstance(own, int) and isinstance(replicas, int) else own


def _steps(document: Mapping[str, Any], grid: Mapping[str, Any]) -> Any:
    """Between two messages; s only lightens the loop of a sum in every step."""
    replicas = _table_text(document, "grid").get("replicas", grid.get("replicas"))
    if document.get("products") == "direct" and replicas == 1:
        return 1
    return _table_text(document, "schedule").get("steps", document.get("steps"))


def _expected(document: Mapping[str, Any]) -> dict[str, int] | None:
    """By formula; None for a document that is older than the formula, or no run's."""
    try:
        return expected_traffic(document)
    except (AttributeError, KeyError, TypeError, ValueError, HpcsgdError):
        return None


def _table_text(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _document(path: Path) -> dict[str, Any]:
    try:
        found = parse_json("\n".join(_lines(path)))
    except ValueError as error:
        raise DataError(f"{path} is no JSON ({error}); make it again") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} holds no document of a run; make it again")
    return found


def _lines(path: Path) -> list[str]:
    try:
        return read_entry_text(path, "replace").splitlines()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); make it readable"
        ) from error


def _all(folders: Sequence[Path]) -> str:
    return ", ".join(str(folder) for folder in folders)

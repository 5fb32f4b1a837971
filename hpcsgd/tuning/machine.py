"""Machine files and measurements: what one rank can do, and the ways between ranks."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, log2
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.task import Task
from hpcsgd.comm import communicator
from hpcsgd.comm.communicator import Communicator
from hpcsgd.config import read_toml
from hpcsgd.data.readers import RowReader, is_sparse, row_words
from hpcsgd.errors import ConfigError, did_you_mean
from hpcsgd.formats import get_format
from hpcsgd.glm.unrolling import uniform_blocks
from hpcsgd.precision import make_precision
from hpcsgd.products.base import product_facts
from hpcsgd.products.cost import (
    RATES,
    SMALL,
    CostInputs,
    Machine,
    costs_of,
    machine_of,
    parts_of,
    seconds,
)
from hpcsgd.runs.choose import (
    calibrate,
    fastest_of,
    of_columns,
    task_alone,
    time_gram,
    time_passes,
    value_bytes,
)
from hpcsgd.tuning.rehearsal import FIRST, Burst, Stage, TimeBudget, TimedSetting

# Machine files: what one rank can do, and the ways between ranks, each with a source.
#
# Every number stands as { value, mark, source }: "measured" on such a machine, or
# "stated" by whom the source names.

FOLDER = Path(__file__).parents[1] / "machines"
MARKS = ("measured", "stated")
# What a rank can do, beside the ways out of it; as in the cost model.
RANK = (
    *("gram", "gram_narrow", "read", "again", "plain", "inner"),
    *("link", "exchange", "step", "alone", "turn"),
)
LEVEL = ("latency", "bandwidth")
SUM = ("base",)


@dataclass(frozen=True)
class Number:
    """A figure, and where it comes from."""

    value: float
    mark: str  # measured, or stated
    source: str

    def toml(self) -> str:
        """As a machine file has it."""
        source = json.dumps(self.source, ensure_ascii=False)
        return f'{{ value = {self.value!r}, mark = "{self.mark}", source = {source} }}'


@dataclass(frozen=True)
class NetworkLevel:
    """A way between ranks: NVLink, PCIe, shared memory, a fabric."""

    name: str
    ranks: int  # that reach each other on it, or on a nearer one; 0 = all there are
    latency: Number  # seconds of one hop
    bandwidth: Number  # bytes a second of one rank


@dataclass(frozen=True)
class Hardware:
    """A machine of as many ranks as one asks for."""

    name: str
    about: str
    rank: dict[str, Number]
    levels: tuple[NetworkLevel, ...]  # from the nearest to the farthest
    base: Number | None = None  # seconds of a sum before its first hop: sums as NCCL's

    def numbers(self) -> Iterator[tuple[str, Number]]:
        """Every figure, by name."""
        yield from ((f"rank.{name}", number) for name, number in self.rank.items())
        if self.base is not None:
            yield "sum.base", self.base
        for level in self.levels:
            yield f"{level.name}.latency", level.latency
            yield f"{level.name}.bandwidth", level.bandwidth

    def machine(self, narrow: bool = False) -> Machine:
        """One rank of it, alone; `narrow`: its matrix has 16 bits or fewer."""
        values = {name: number.value for name, number in self.rank.items()}
        fast = values.pop("gram_narrow")
        values["gram"] = fast if narrow else values["gram"]
        return Machine(latency=0.0, per_byte=0.0, **values)

    def spans(self, ranks: int) -> list[tuple[NetworkLevel, int]]:
        """Levels that so many ranks need, each with how many it joins."""
        found, inside = [], 1
        for level in self.levels:
            reach = min(level.ranks or ranks, ranks)
            parts = math.ceil(reach / inside)
            if parts > 1:
                found.append((level, parts))
            inside = max(reach, inside)
        if inside < ranks:
            raise ConfigError(
                f"{self.name}: {ranks} ranks are more than the {inside} that its"
                " levels join; ask for fewer, or add a level"
            )
        return found

    def toml(self) -> str:
        """The file that says this."""
        lines = [f"name = {json.dumps(self.name)}", f"about = {json.dumps(self.about)}"]
        lines += ["", "[rank]"]
        lines += [f"{name} = {number.toml()}" for name, number in self.rank.items()]
        if self.base is not None:
            lines += ["", "[sum]", f"base = {self.base.toml()}"]
        for level in self.levels:
            lines += ["", "[[levels]]", f"name = {json.dumps(level.name)}"]
            lines += [f"ranks = {level.ranks}", f"latency = {level.latency.toml()}"]
            lines += [f"bandwidth = {level.bandwidth.toml()}"]
        return "\n".join(lines) + "\n"


def known_machines() -> list[str]:
    """The names of the files that come with this package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_hardware(name: str) -> Hardware:
    """A machine file by its path, or one that comes with this package by its name."""
    path = Path(name)
    shipped = FOLDER / f"{name}.toml"
    if not path.is_file() and "/" not in name and shipped.is_file():
        path = shipped
    if not path.is_file():
        raise ConfigError(
            f"--machine {name}: no such file, and no machine of this name"
            f"{did_you_mean(name, known_machines())}; known:"
            f" {', '.join(known_machines())}"
        )
    return parse_hardware(read_toml(path), str(path))


def parse_hardware(tables: Mapping[str, Any], place: str) -> Hardware:
    """Every figure that is needed, and no other; each with its mark and its source."""
    _only(place, tables, ("name", "about", "rank", "sum", "levels"))
    rank, levels = tables.get("rank"), tables.get("levels", [])
    sums = tables.get("sum")
    if not isinstance(rank, Mapping) or not isinstance(levels, list):
        raise ConfigError(f"{place}: a [rank] and [[levels]] are needed; write them")
    _only(f"{place} [rank]", rank, RANK)
    if sums is not None:
        if not isinstance(sums, Mapping):
            raise ConfigError(f"{place}: sum = {sums!r} must be a table; write [sum]")
        _only(f"{place} [sum]", sums, SUM)
    return Hardware(
        name=str(tables.get("name", place)),
        about=str(tables.get("about", "")),
        rank={key: _number(f"{place} [rank] {key}", rank.get(key)) for key in RANK},
        levels=tuple(_level(place, table) for table in levels),
        base=None if sums is None else _number(f"{place} [sum] base", sums.get("base")),
    )


def _level(place: str, table: Any) -> NetworkLevel:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place}: [[levels]] are tables; write them so")
    _only(f"{place} [[levels]]", table, ("name", "ranks", *LEVEL))
    ranks, where = table.get("ranks"), f"{place} [[levels]] {table.get('name')}"
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 0:
        raise ConfigError(f"{where}: ranks = {ranks!r} must be a whole number, 0 = all")
    numbers = {key: _number(f"{where} {key}", table.get(key)) for key in LEVEL}
    return NetworkLevel(name=str(table.get("name")), ranks=ranks, **numbers)


def _number(place: str, given: Any) -> Number:
    """One figure that says where it comes from."""
    if not isinstance(given, Mapping) or set(given) != {"value", "mark", "source"}:
        raise ConfigError(
            f"{place}: write {{ value = ..., mark = 'measured' or 'stated',"
            " source = '...' }"
        )
    value, mark, source = given["value"], given["mark"], given["source"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_rate = place.split()[-1] in (*RATES, "gram_narrow", "bandwidth")
    if not is_number or not 0 <= value < math.inf or (is_rate and not value):
        least = "positive" if is_rate else "at least 0"
        raise ConfigError(f"{place} = {value!r} must be finite and {least}")
    if mark not in MARKS or not str(source).strip():
        raise ConfigError(
            f"{place}: mark = {mark!r} must be one of {', '.join(MARKS)},"
            " and source must say whose figure it is"
        )
    return Number(float(value), mark, str(source))


def _only(place: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        hint = did_you_mean(str(unknown[0]), known)
        raise ConfigError(f"{place} unknown: {unknown}{hint}; known: {list(known)}")


# Figures from times: the constants of the cost model that explain what was measured.
#
# The model is a sum of constants times what an exchange has of each (messages, bytes,
# multiply-adds, bytes of rows, ...), so a fit is least squares: relative errors,
# nothing negative, and a pull toward what was measured of each part alone where times
# cannot tell two constants apart.

Array = NDArray[np.float64]
LEAST_SECONDS = 0.1  # of what was measured alone: nothing is done in no time at all
PULL = 0.03  # weight of "as measured alone", of a time that is known to 100 %
ROUNDS = 6  # which of two terms counts, and which times are strange, is found anew
STRANGE = 0.1  # a time that is off by more counts less


@dataclass(frozen=True)
class TimeSample:
    """One time that is to be explained."""

    product: str
    steps: int
    job: CostInputs
    seconds: float  # of an exchange


def fit_line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """(α, β) of times α + β · size, neither of them negative, in relative errors."""
    x, y = np.asarray(sizes, float), np.asarray(times, float)
    unit = max(float(x.max()), 1.0)
    found = _bounded(np.stack([1.0 / y, x / unit / y], axis=1), np.ones(len(y)))
    return float(found[0]), float(found[1]) / unit


def fit_machine(times: Sequence[TimeSample], start: Machine) -> Machine:
    """The constants nearest to `start` that explain the times."""
    if not times:
        return start
    y = np.array([t.seconds for t in times])
    models = [_time_of(t) for t in times]
    first = costs_of(start)
    # A machine that is slower in all is no reason to pull at each constant.
    first *= np.exp(np.median(np.log(y / [model(first) for model in models])))
    unit = np.where(first > 0, first, SMALL)
    pull, least = PULL * np.eye(len(first)), np.where(first > 0, LEAST_SECONDS, 0.0)
    costs, weights = first, np.ones(len(y))
    for _ in range(ROUNDS):
        parts = np.array([parts_of(model, costs) for model in models])
        # Casts of narrow sums are nobody's constant.
        given = np.array([model(costs) for model in models]) - parts @ costs
        scaled = parts * unit / y[:, None] * weights[:, None]
        rows = np.concatenate([scaled, pull])
        aims = np.concatenate([weights * (1.0 - given / y), PULL * first / unit])
        costs = unit * (least + _bounded(rows, aims - rows @ least))
        off = np.abs((parts @ costs + given) / y - 1.0)
        usual = max(STRANGE, float(np.median(off)))
        weights = np.minimum(1.0, usual / np.maximum(off, 1e-9))
    return machine_of(costs)


def _time_of(timed: TimeSample) -> Callable[[Array], float]:
    """Seconds of such an exchange, from constants."""

    def time(costs: Array) -> float:
        machine = machine_of(costs)
        return seconds(timed.product, timed.steps, timed.job, machine) * timed.steps

    return time


def _bounded(rows: Array, aims: Array) -> Array:
    """Least squares without negative parts."""
    from scipy.optimize import nnls  # heavy: other commands do without

    found: Array = nnls(rows, aims)[0]
    return found


# α and β of every direction of the grid: sums of several sizes, and a line through.

WORDS = (8, 64, 512, 4096, 2**15, 2**18)  # of a sum, float32
WARM, LEAST_WORDS, MOST = 2, 3, 60  # sums of a size
SHARE = 1 / len(WORDS)


@dataclass(frozen=True)
class SumTimes:
    """What sums take among the ranks of one direction of the grid."""

    name: str  # members, or replicas
    ranks: int
    latency: float  # α, seconds of a sum of next to nothing
    per_byte: float  # β, seconds of a byte on the wire, 2(p−1)/p of the payload
    sizes: tuple[int, ...] = ()  # bytes of the payloads
    times: tuple[float, ...] = ()  # seconds of each

    @property
    def worst(self) -> float:
        """The largest relative distance of a time from the line."""
        line = [self.seconds(size) for size in self.sizes]
        pairs = zip(line, self.times, strict=True)
        return max((abs(a / b - 1.0) for a, b in pairs), default=0.0)

    def seconds(self, payload: float) -> float:
        """Of a sum of so many bytes, by the line."""
        moved = communicator.sum_bytes(int(payload), self.ranks)
        return self.latency + self.per_byte * moved

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self) | {"worst": self.worst}


def measure_direction(name: str, group: Communicator, seconds: float) -> SumTimes:
    """Sums of several sizes in about so many seconds; called by all ranks together.

    The largest sizes are left out where the smaller ones have used the time up.
    """
    if group.size == 1:
        return SumTimes(name, 1, 0.0, 0.0)
    sizes: list[int] = []
    times: list[float] = []
    left = seconds
    for words in WORDS:
        if len(sizes) >= 2 and left <= 0.0:
            break
        found, spent = _sums(group, words, seconds * SHARE)
        sizes.append(4 * words)
        times.append(found)
        left -= spent
    return line_through(name, group.size, sizes, times)


def line_through(
    name: str, ranks: int, sizes: Sequence[int], times: Sequence[float]
) -> SumTimes:
    """α and β of sums that took so long."""
    moved = [communicator.sum_bytes(size, ranks) for size in sizes]
    latency, per_byte = fit_line(moved, times)
    return SumTimes(name, ranks, latency, per_byte, tuple(sizes), tuple(times))


def _sums(group: Communicator, words: int, seconds: float) -> tuple[float, float]:
    """The median of one, and what all of them took: the same on all ranks."""
    workspace, began = group.workspace(words, np.float32), perf_counter()

    def one() -> float:
        workspace.array[...] = 0
        at = perf_counter()
        workspace.sum("control")
        return perf_counter() - at

    first = min([one() for _ in range(WARM)])
    agreed = max(group.exchange_objects(first))
    count = min(max(int(seconds / max(agreed, 1e-9)), LEAST_WORDS), MOST)
    own = median([one() for _ in range(count)])
    said = group.exchange_objects((own, perf_counter() - began))
    return max(a for a, _ in said), max(b for _, b in said)


# What was measured here as a machine file, for predictions.

NARROW = 4  # bytes of a value; fewer have a rate of their own
Rooms = dict[tuple[Any, ...], tuple[Machine, tuple[SumTimes, ...]]]


def machine_toml(rooms: Rooms, grid: tuple[int, int], ranks: int) -> str:
    """Of this grid: the Gram's rate in wide rows and in narrow ones, where measured."""
    own = {recipe: found for (place, recipe), found in rooms.items() if place == grid}
    wide = [r for r in own if _size(r) >= NARROW] or list(own)
    narrow = [r for r in own if _size(r) < NARROW] or wide
    machine, directions = own[wide[0]]
    return hardware_of(machine, own[narrow[0]][0].gram, directions, ranks).toml()


def hardware_of(
    machine: Machine, narrow: float, directions: Sequence[SumTimes], ranks: int
) -> Hardware:
    """One rank with its fitted figures; what joins ranks here is one level."""
    cores = os.cpu_count()
    kernels = compiled_calls.instructions() or "numpy"
    source = f"hpcsgd tune, {ranks} ranks, {cores} cores, {kernels}"

    def number(value: float) -> Number:
        return Number(value, "measured", source)

    figures = machine.as_dict() | {"gram_narrow": narrow}
    between = [d for d in directions if d.ranks > 1][:1]
    return Hardware(
        name="measured here",
        about=source,
        rank={name: number(figures[name]) for name in RANK},
        levels=tuple(
            NetworkLevel(
                "between ranks",
                0,
                # What a sum takes is a tree of hops.
                number(d.latency / ceil(log2(d.ranks))),
                number(1.0 / max(d.per_byte, LEAST)),
            )
            for d in between
        ),
    )


def _size(recipe: str) -> int:
    return int(get_format(make_precision(recipe).matrix).dtype.itemsize)


LEAST = 1e-13  # seconds a byte: what is less was not seen


# The cost model as it stands after a fit: seconds of a step of any setting.

FOR_EVER = 10**12  # epochs, of which the first is nothing


@dataclass(frozen=True)
class MachineModels:
    """One machine for each kind of exchange, all of them near the one measured."""

    job: CostInputs  # of the run that is planned, whatever its batch
    start: Machine
    machines: Mapping[str, Machine] = field(default_factory=dict)

    def step(self, setting: TimedSetting) -> float:
        """Seconds of a step, on average over the run."""
        keeps = product_facts(setting.product).keeps_batches
        if not keeps or not self.job.comes_again:
            return self.exchange(setting) / setting.steps
        first = 1.0 / self.job.epochs
        once = self.exchange(setting, later=False)
        later = self.exchange(setting, later=True)
        return (first * once + (1.0 - first) * later) / setting.steps

    def exchange(self, setting: TimedSetting, later: bool = False) -> float:
        """Seconds of one exchange."""
        timed = question(setting, later, self.job)
        machine = self.machines.get(kind_of(setting, later), self.start)
        return seconds(timed.product, timed.steps, timed.job, machine) * setting.steps

    def fitted(self, bursts: Sequence[Burst]) -> "MachineModels":
        """The same after a look at what really took how long."""
        kinds: dict[str, list[TimeSample]] = {}
        for burst in bursts:
            timed = question(burst.setting, burst.later, self.job)
            kind = kind_of(burst.setting, burst.later)
            kinds.setdefault(kind, []).append(replace(timed, seconds=burst.seconds))
        every = [t for times in kinds.values() for t in times]
        near = fit_machine(every, self.start)
        machines = {kind: fit_machine(times, near) for kind, times in kinds.items()}
        return MachineModels(self.job, near, machines)


def kind_of(setting: TimedSetting, later: bool) -> str:
    """What has constants of its own."""
    if not product_facts(setting.product).keeps_batches:
        return setting.kind
    return f"{setting.kind} {'later' if later else 'first'}"


def question(setting: TimedSetting, later: bool, job: CostInputs) -> TimeSample:
    """What the cost model is to be asked about such an exchange."""
    job = replace(job, batch=setting.batch, apart=job.apart or setting.look_ahead)
    if not product_facts(setting.product).keeps_batches:
        return TimeSample(setting.product, setting.steps, job, 0.0)
    if not later:
        return TimeSample(FIRST[setting.product], setting.steps, job, 0.0)
    again = replace(job, epochs=FOR_EVER, comes_again=True)
    return TimeSample(setting.product, setting.steps, again, 0.0)


# Rates of the kernels over rows and columns: where caches end, calls are short.

ROWS = (64, 256, 1024)  # of an exchange, in blocks of BLOCK
BLOCK = 32
WIDTHS = (1, 4, 16)  # parts of the columns held
SIZES = (2**16, 2**19, 2**22, 2**25)  # bytes of rows that a pass goes over


@dataclass(frozen=True)
class KernelRate:
    """What was measured of one kernel at one size."""

    kernel: str  # gram: multiply-adds a second; read, again: bytes a second
    rows: int
    columns: int
    rate: float

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def measure_kernels(
    task: Task, world: Communicator, seconds: float
) -> list[KernelRate]:
    """As many of them as fit, the slowest rank's; called by all ranks together."""
    task, began, found = task_alone(task), perf_counter(), []
    # Ranks with a row or a column less follow the same plan, as far as they can.
    for kernel, rows, columns in world.exchange_objects(_plan(task))[0]:
        spent = max(world.exchange_objects(perf_counter() - began))
        if spent > seconds:
            break
        own = _measure(task, kernel, rows, columns)
        for i, name in enumerate(("gram",) if kernel == "gram" else ("read", "again")):
            rates = [said[i] for said in world.exchange_objects(own)]
            found.append(KernelRate(name, rows, columns, min(rates)))
    return found


def _plan(task: Task) -> list[tuple[str, int, int]]:
    """(kernel, rows, columns), the most telling first, nothing that is not there."""
    height, width = task.shard.height, task.shard.width
    widths = [width] if task.shard.is_sparse else _widths(width)
    grams = [("gram", m, w) for w in widths for m in ROWS if m <= height]
    each = width * value_bytes(task.shard)
    rows = sorted({min(max(int(size / each), 1), height) for size in SIZES})
    return [("pass", m, width) for m in rows] + grams


def _widths(width: int) -> list[int]:
    return sorted({max(width // part, 1) for part in WIDTHS}, reverse=True)


def _measure(task: Task, kernel: str, rows: int, columns: int) -> tuple[float, ...]:
    """Rates of this rank, of rows that come in no order."""
    columns = min(columns, task.shard.width)
    task = of_columns(task, columns)
    order = np.random.default_rng(0).permutation(task.shard.height)
    rows = min(rows, task.shard.height)

    def some(number: int) -> Any:
        return np.roll(order, -number * rows)[:rows]

    if kernel == "gram":
        blocks = uniform_blocks(BLOCK, max(rows // BLOCK, 1))
        (each,) = fastest_of(lambda i: time_gram(task, some(i), blocks))
        return (max(blocks.gram_words, 1) * columns / each,)
    size = rows * columns * value_bytes(task.shard)
    read, again = fastest_of(lambda i: time_passes(task, some(i)))
    return size / read, size / again


# What a machine can do, all of it in one value.

PIECE = 16 * 2**20  # bytes read to see how fast that is
SAMPLE = 192 * 2**20  # bytes of float64 of all ranks: larger than a last-level cache
OF_READING = 0.5  # of the time that is set aside for it


@dataclass(frozen=True)
class Figures:
    """Of one grid, in one precision."""

    machine: Machine  # each constant alone, before any fit
    directions: tuple[SumTimes, ...]  # members, replicas
    kernels: tuple[KernelRate, ...]
    reading: float  # bytes a second of a rank, as its file has them

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {
            "machine": self.machine.as_dict(),
            "directions": [d.as_dict() for d in self.directions],
            "kernels": [rate.as_dict() for rate in self.kernels],
            "bytes_read_per_second": self.reading,
        }


def measure_reading(reader: RowReader, world: Communicator) -> float:
    """Bytes of float64 a second of the slowest rank, all ranks reading at once."""
    each = 8 * row_words(reader)
    rows, every = min(max(PIECE // each, 1), reader.rows), slice(0, reader.cols)
    began = perf_counter()
    if is_sparse(reader):
        reader.read_csr(slice(0, rows), every)
    else:
        reader.read(slice(0, rows), every)
    own = rows * each / max(perf_counter() - began, 1e-9)
    return float(min(world.exchange_objects(own)))


def sampled_rows(reader: RowReader, rate: float, seconds: float, least: int) -> int:
    """As many as tell what memory takes, and can be read in about so many seconds."""
    size = min(SAMPLE, int(OF_READING * seconds * rate))
    return min(max(size // (8 * row_words(reader)), least), reader.rows)


def measure_figures(
    stage: Stage, batch: int, reading: float, budget: TimeBudget, share: float
) -> Figures:
    """α and β of both directions, constants one by one, rates over sizes."""
    opened = stage.opened
    task, grid, world = stage.task, opened.grid, stage.world
    network = budget.until(share) / 4
    directions = (
        measure_direction("members", grid.members, network),
        measure_direction("replicas", grid.replicas, network),
    )
    machine = calibrate(task, min(batch, stage.rows), world)
    members = directions[0]
    machine = replace(machine, latency=members.latency, per_byte=members.per_byte)
    kernels = measure_kernels(task, world, budget.until(share) / 2)
    return Figures(machine, directions, tuple(kernels), reading)

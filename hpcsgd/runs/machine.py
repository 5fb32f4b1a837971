"""Speeds of a machine: their values, the file that stores them, their measurement.

Automatic choices, `hpcsgd tune` and `hpcsgd study predict` use these values.
"""

import copy
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from math import ceil, inf, log2
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hpcsgd.backends.base import Rows, StepSequence
from hpcsgd.backends.exchange import HostExchanges, batch_of
from hpcsgd.backends.task import Group, State, Task
from hpcsgd.comm import communicator
from hpcsgd.comm.communicator import Communicator, Workspace
from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.network_model import Network
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.config import read_toml
from hpcsgd.data.matrix import DenseMatrix
from hpcsgd.data.readers import RowReader, is_sparse, row_words
from hpcsgd.data.shard import Shard, take
from hpcsgd.errors import ConfigError, did_you_mean
from hpcsgd.files import parse_json, toml_literal, write_text
from hpcsgd.formats import Array
from hpcsgd.glm import make_update
from hpcsgd.glm.unrolling import Blocks, uniform_blocks
from hpcsgd.products.base import Planner
from hpcsgd.products.cost import RATES, Machine, Overheads, machine_from
from hpcsgd.products.direct import take_each_step
from hpcsgd.products.gram import Gram

# A machine file: what one rank can do, and the levels of the network between ranks.
#
# Figures of a whole machine stand as { value, mark, source }: "measured" on such a
# machine, or "stated" by whom the source names. Predictions take them. Figures of one
# kind of run stand in [kinds]: automatic choices measure them where there are none,
# and correct them by what a run took.

log = logging.getLogger(__name__)
FOLDER = Path(__file__).parents[1] / "machines"
MARKS = ("measured", "stated")
# Figures of one rank without the network, by their names in the cost model.
RANK = (
    *("gram", "gram_narrow", "read", "again", "plain", "inner"),
    *("link", "exchange", "step", "alone", "turn"),
)
LEVEL = ("latency", "bandwidth")
SUM = ("base",)
FILES = ("operation", "rate", "bandwidth")
KIND = ("machine", "corrections")
LEAST_PER_BYTE = 1e-13  # seconds of a byte: less is too short to measure
MOST_CORRECTION = 4.0  # one beyond this is an accident, and no property of a machine


@dataclass(frozen=True)
class Number:
    """A speed or time of a machine, with the source of its value."""

    value: float
    mark: str  # measured, or stated
    source: str

    def toml(self) -> str:
        """Return the number as the inline table of a machine file."""
        source = toml_literal(self.source)
        return f'{{ value = {self.value!r}, mark = "{self.mark}", source = {source} }}'


# A file system that all ranks share, for machines whose file has no [files].
SHARED_FILES = {
    "operation": Number(
        5e-4,
        "stated",
        "Dell HPC Lustre Storage with Intel Omni-Path, white paper, figure 13: one"
        " thread has 2000 stat calls of MDtest answered in a second",
    ),
    "rate": Number(
        5e5,
        "stated",
        "Dell HPC Lustre Storage with Intel Omni-Path, white paper, figure 13: 240"
        " threads have 500 000 stat calls of MDtest answered in a second",
    ),
    "bandwidth": Number(
        1e9,
        "stated",
        "Dell HPC Lustre Storage with Intel Omni-Path, white paper, section 4.1: one"
        " client writes 1 GB/s",
    ),
}


@dataclass(frozen=True)
class NetworkLevel:
    """A level of the network, such as NVLink, PCIe, shared memory or a fabric."""

    name: str
    ranks: int  # that reach each other on it, or on a nearer one; 0 = all there are
    latency: Number  # seconds of one hop
    bandwidth: Number  # bytes a second of one rank


@dataclass(frozen=True)
class MeasuredFigures:
    """The measured speeds for one kind of run, and corrections from such runs."""

    machine: Machine
    # product -> seconds a step took, over those that the model predicted
    corrections: dict[str, float] = field(default_factory=dict)

    def corrected(self, product: str, ratio: float) -> "MeasuredFigures":
        """Return a copy in which the correction for `product` is adjusted by `ratio`.

        `ratio` is the measured over the predicted time. The correction moves only
        half-way, because one run is noisy, and stays within a factor of
        `MOST_CORRECTION`.
        """
        before = self.corrections.get(product, 1.0)
        after = before * (1 + ratio) / 2
        after = min(max(after, 1 / MOST_CORRECTION), MOST_CORRECTION)
        return replace(self, corrections={**self.corrections, product: after})


@dataclass(frozen=True)
class Hardware:
    """The speeds of a machine, which do not depend on the number of ranks."""

    name: str
    about: str
    rank: dict[str, Number]  # empty where only kinds of runs were measured
    levels: tuple[NetworkLevel, ...]  # from the nearest to the farthest
    base: Number | None = None  # seconds of a sum before its first hop: sums as NCCL's
    kinds: Mapping[str, MeasuredFigures] = field(default_factory=dict)
    files: Mapping[str, Number] | None = None  # of the file system; None: SHARED_FILES

    def numbers(self) -> Iterator[tuple[str, Number]]:
        """Yield the name and the number of each figure of the whole machine.

        The figures of kinds of runs are left out.
        """
        yield from ((f"rank.{name}", number) for name, number in self.rank.items())
        if self.base is not None:
            yield "sum.base", self.base
        for level in self.levels:
            yield f"{level.name}.latency", level.latency
            yield f"{level.name}.bandwidth", level.bandwidth
        for name, number in (self.files or {}).items():
            yield f"files.{name}", number

    def machine(self, narrow: bool = False) -> Machine:
        """Return the speeds of one rank, without messages.

        With `narrow`, the speed of the Gram matrix is that for a matrix of 16 bits or
        fewer.
        """
        values = {name: number.value for name, number in self.rank.items()}
        fast = values.pop("gram_narrow")
        values["gram"] = fast if narrow else values["gram"]
        return machine_from({"latency": 0.0, "per_byte": 0.0, **values})

    def spans(self, ranks: int) -> list[tuple[NetworkLevel, int]]:
        """Return the network levels that `ranks` ranks use, from the nearest.

        Each is paired with the number of groups of ranks that it joins.
        """
        needed = []
        inside = 1
        for level in self.levels:
            reach = min(level.ranks or ranks, ranks)
            parts = ceil(reach / inside)
            if parts > 1:
                needed.append((level, parts))
            inside = max(reach, inside)
        if inside < ranks:
            raise ConfigError(
                f"machine {self.name}: {ranks} ranks are more than the {inside} that"
                " its network levels connect; use fewer ranks, or add a level to its"
                " [[levels]]"
            )
        return needed

    def toml(self) -> str:
        """Return the text of the machine file with these numbers."""
        lines = [f"name = {toml_literal(self.name)}"]
        lines += [f"about = {toml_literal(self.about)}"]
        if self.rank:
            lines += ["", "[rank]"]
            lines += [f"{name} = {number.toml()}" for name, number in self.rank.items()]
        if self.base is not None:
            lines += ["", "[sum]", f"base = {self.base.toml()}"]
        for level in self.levels:
            lines += ["", "[[levels]]", f"name = {toml_literal(level.name)}"]
            lines += [f"ranks = {level.ranks}", f"latency = {level.latency.toml()}"]
            lines += [f"bandwidth = {level.bandwidth.toml()}"]
        if self.files is not None:
            lines += ["", "[files]"]
            lines += [f"{name} = {n.toml()}" for name, n in self.files.items()]
        if self.kinds or not self.rank:
            lines += ["", "[kinds]"]
        for kind, figures in sorted(self.kinds.items()):
            lines += ["", f"[kinds.{toml_literal(kind)}]"]
            lines += [f"machine = {_inline(figures.machine.as_dict())}"]
            lines += [f"corrections = {_inline(figures.corrections)}"]
        return "\n".join(lines) + "\n"


def _inline(values: Mapping[str, float]) -> str:
    """Return `values` as a TOML table in one line."""
    pairs = (f"{toml_literal(k)} = {float(v)!r}" for k, v in values.items())
    return f"{{ {', '.join(pairs)} }}"


def known_machines() -> list[str]:
    """Return the names of the machine files that come with this package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_hardware(name: str) -> Hardware:
    """Return the machine of a machine file, by path or by name in this package.

    If the file has no numbers of the whole machine but only those of kinds of runs, the
    first kind stands for the machine.
    """
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
    hardware = parse_hardware(_tables(path), str(path))
    if hardware.rank:
        return hardware
    if not hardware.kinds:
        raise ConfigError(f"{path} must have [rank] and [[levels]]; write them")
    kind, figures = next(iter(hardware.kinds.items()))
    members = re.search(r" C(\d+) ", kind)
    network = NetworkFigures(
        name="members",
        ranks=int(members[1]) if members else 1,
        latency=figures.machine.latency,
        per_byte=figures.machine.per_byte,
    )
    source = f"hpcsgd train --machine: {kind}"
    measured = measured_hardware(figures.machine, figures.machine.gram, network, source)
    return replace(measured, name=hardware.name)


def _tables(path: Path) -> Mapping[str, Any]:
    """Return the tables of a machine file; earlier versions wrote [kinds] as JSON."""
    try:
        return read_toml(path)
    except ConfigError:
        with suppress(OSError, ValueError):
            kinds = parse_json(path.read_text())
            if isinstance(kinds, dict):
                return {"name": path.stem, "kinds": kinds}
        raise


def parse_hardware(tables: Mapping[str, Any], place: str) -> Hardware:
    """Return the machine of the tables of a machine file.

    A table must have all its numbers, each with its mark and source, and other names
    are refused. [sum] and [files] may be absent, and [rank] in a file with kinds of
    runs.
    """
    known = ("name", "about", "rank", "sum", "levels", "files", "kinds")
    _only(place, tables, known)
    rank = tables.get("rank")
    levels = tables.get("levels", [])
    sums = tables.get("sum")
    files = tables.get("files")
    kinds = tables.get("kinds")
    has_rank = isinstance(rank, Mapping) or (rank is None and kinds is not None)
    if not has_rank or not isinstance(levels, list):
        raise ConfigError(f"{place} must have [rank] and [[levels]]; write them")
    _only(f"{place} [rank]", rank or {}, RANK)
    for name, table, names in (("sum", sums, SUM), ("files", files, FILES)):
        if table is not None:
            if not isinstance(table, Mapping):
                raise ConfigError(
                    f"{place}: {name} = {table!r} must be a table; write [{name}]"
                )
            _only(f"{place} [{name}]", table, names)
    figures = {} if rank is None else {key: rank.get(key) for key in RANK}
    return Hardware(
        name=str(tables.get("name", place)),
        about=str(tables.get("about", "")),
        rank={k: _number(f"{place} [rank] {k}", value) for k, value in figures.items()},
        levels=tuple(_level(place, table) for table in levels),
        base=None if sums is None else _number(f"{place} [sum] base", sums.get("base")),
        kinds=_kinds(place, {} if kinds is None else kinds),
        files=None
        if files is None
        else {k: _number(f"{place} [files] {k}", files.get(k)) for k in FILES},
    )


def _level(place: str, table: Any) -> NetworkLevel:
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"{place}: an entry of levels is no table; write each below [[levels]]"
        )
    _only(f"{place} [[levels]]", table, ("name", "ranks", *LEVEL))
    ranks = table.get("ranks")
    where = f"{place} [[levels]] {table.get('name')}"
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 0:
        raise ConfigError(
            f"{where}: ranks = {ranks!r} must be a whole number, or 0 for all ranks"
        )
    numbers = {key: _number(f"{where} {key}", table.get(key)) for key in LEVEL}
    return NetworkLevel(name=str(table.get("name")), ranks=ranks, **numbers)


def _number(place: str, given: Any) -> Number:
    """Return a number of a machine file; it must have a mark and a source."""
    if not isinstance(given, Mapping) or set(given) != {"value", "mark", "source"}:
        raise ConfigError(
            f"{place} must have a value, a mark and a source alone; write"
            " { value = ..., mark = 'measured' or 'stated', source = '...' }"
        )
    value = given["value"]
    mark = given["mark"]
    source = given["source"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_rate = place.split()[-1] in (*RATES, "gram_narrow", "bandwidth", "rate")
    if not is_number or not 0 <= value < inf or (is_rate and not value):
        least = "positive" if is_rate else "at least 0"
        raise ConfigError(f"{place} = {value!r} must be finite and {least}")
    if mark not in MARKS or not str(source).strip():
        raise ConfigError(
            f"{place}: mark = {mark!r} must be one of {', '.join(MARKS)},"
            " and source must name the origin of the figure"
        )
    return Number(float(value), mark, str(source))


def _kinds(place: str, table: Any) -> dict[str, MeasuredFigures]:
    """Return the measured speeds of each kind of run, by its key."""
    try:
        return {
            str(kind): MeasuredFigures(
                machine=machine_from(entry["machine"]),
                corrections={k: float(v) for k, v in entry["corrections"].items()},
            )
            for kind, entry in table.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{place} [kinds]: each kind of run needs {' and '.join(KIND)} with all"
            f" figures ({error!r}); delete the incomplete kind, and the next run"
            " measures it again"
        ) from error


def _only(place: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        hint = did_you_mean(str(unknown[0]), known)
        raise ConfigError(f"{place} unknown: {unknown}{hint}; known: {list(known)}")


# The time of an all-reduce of n bytes over the levels of a machine (node, network).
#
# The ranks of a node sum among themselves first; then one rank of each node, or each
# rank with its share of the n bytes, takes part in the sum of the next level. A level
# with latency α and bandwidth B connects f groups of F ranks each:
#
#   tree    Σ over levels of ⌈log2 f⌉ (α + n / B): partners exchange all n bytes, and
#           their distance doubles (recursive doubling)
#   halves  Σ over levels of 2 ⌈log2 f⌉ α, and the bytes of rings: recursive halving of
#           the shares, then recursive doubling
#   rings   Σ over levels of 2 (f − 1) (α + n / (f F B)): each of the F ranks of a group
#           sends its share of n / F bytes around a ring of f groups
#
# Trees are fastest for short messages, halves and rings for long ones. The model takes
# the fastest of the three.
#
# If the machine file has the base β₀ of a sum, the model is that of NCCL
# (ncclTopoTuneModel in src/graph/tuning.cc): β₀ before the first hop, no halves, and a
# tree up and down again, which is a chain within a node (a level with a number of
# ranks) and a binary tree over nodes:
#
#   tree    β₀ + 2 × Σ over levels of h α + 2 n / B of the slowest level,
#           h = f − 1 within a node, ⌊log2 f⌋ over nodes
#   rings   β₀ + Σ over levels of 2 (f − 1) (α + n / (f F B))


@dataclass(frozen=True)
class Sum:
    """The latency and the time per byte of one all-reduce algorithm on some ranks."""

    way: str  # the algorithm: none, tree, halves or rings
    latency: float  # seconds
    per_byte: float  # seconds for each byte that a rank would send in a ring
    slowest: str  # the level on which a long sum spends most of its time

    def seconds(self, calls: int, moved: float) -> float:
        """Return the seconds of `calls` all-reduces.

        `moved` is the number of bytes that one rank would send if all were rings.
        """
        return calls * self.latency + moved * self.per_byte


def sums_over(hardware: Hardware, ranks: int) -> list[Sum]:
    """Return the times of all possible all-reduce algorithms on `ranks` ranks.

    One rank has a single entry that takes no time.
    """
    if ranks == 1:
        return [Sum("none", 0.0, 0.0, "")]
    if hardware.base is not None:
        base = hardware.base.value
        rings = _shares("rings", hardware, ranks, lambda parts: parts - 1)
        sums = [_tree_of_nccl(hardware, ranks), rings]
        return [replace(s, latency=base + s.latency) for s in sums]
    return [
        _tree(hardware, ranks),
        _shares("halves", hardware, ranks, lambda parts: ceil(log2(parts))),
        _shares("rings", hardware, ranks, lambda parts: parts - 1),
    ]


def _tree(hardware: Hardware, ranks: int) -> Sum:
    latency = 0.0
    times = {}
    for level, parts in hardware.spans(ranks):
        hops = ceil(log2(parts))
        latency += hops * level.latency.value
        times[level.name] = hops / level.bandwidth.value
    per_byte = sum(times.values()) / _ring_bytes(ranks)
    return Sum("tree", latency, per_byte, _slowest(times))


def _tree_of_nccl(hardware: Hardware, ranks: int) -> Sum:
    """Return NCCL's all-reduce up a tree and down again, without the base β₀."""
    latency = 0.0
    times = {}
    for level, parts in hardware.spans(ranks):
        hops = parts - 1 if level.ranks else parts.bit_length() - 1
        latency += 2 * hops * level.latency.value
        times[level.name] = 2.0 / level.bandwidth.value
    per_byte = max(times.values()) / _ring_bytes(ranks)
    return Sum("tree", latency, per_byte, _slowest(times))


def _shares(
    way: str, hardware: Hardware, ranks: int, hops: Callable[[int], int]
) -> Sum:
    """Return the times of a reduce-scatter followed by an all-gather.

    Each of them takes `hops(f)` hops at a level that joins f groups. `way` is the name
    of the algorithm.
    """
    latency = 0.0
    times = {}
    inside = 1
    for level, parts in hardware.spans(ranks):
        latency += 2 * hops(parts) * level.latency.value
        share = 1.0 / (parts * inside)
        times[level.name] = 2 * (parts - 1) * share / level.bandwidth.value
        inside *= parts
    per_byte = sum(times.values()) / _ring_bytes(ranks)
    return Sum(way, latency, per_byte, _slowest(times))


def tree_of_network(network: Network, ranks: int) -> Sum:
    """Return the times of an all-reduce on an emulated network, always a tree.

    If the network emulates a number of ranks, the tree has that number, not `ranks`.
    """
    if ranks == 1:
        return Sum("none", 0.0, 0.0, "")
    many = network.ranks or ranks
    per_byte = _ring_bytes(many) / _ring_bytes(ranks) / network.bandwidth
    return Sum("tree", ceil(log2(many)) * network.alpha, per_byte, "network")


def _ring_bytes(ranks: int) -> float:
    """Return the bytes that each rank sends for a byte of a ring all-reduce.

    They are 2 (P − 1) / P for P = `ranks` ranks.
    """
    return communicator.sum_bytes(1, ranks)


def _slowest(times: dict[str, float]) -> str:
    return max(times, key=lambda name: times[name])


class MachineFile:
    """The machine file that `[products] machine` names.

    Only rank 0 reads and writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, kind: str) -> MeasuredFigures | None:
        """Return the measured speeds for a kind of run; None if there are none."""
        return self._load().kinds.get(kind)

    def write(self, kind: str, known: MeasuredFigures | None) -> None:
        """Write the speeds for a kind of run, or remove them if `known` is None.

        Other kinds stay as they are. If the file cannot be written, a warning is logged
        and the run continues.
        """
        hardware = self._load()
        kinds = {k: v for k, v in hardware.kinds.items() if k != kind}
        if known is not None:
            kinds[kind] = known
        try:
            write_text(self.path, replace(hardware, kinds=kinds).toml())
        except OSError as error:
            log.warning("%s cannot be written: %s; the run goes on", self.path, error)

    def correct(
        self, kind: str, product: str, ratio: float, sure: bool = False
    ) -> None:
        """Adjust the correction of a product by the `ratio` that a run has measured.

        `ratio` is the measured over the predicted time. If the run was long enough to
        be `sure` and the ratio is beyond a factor of `MOST_CORRECTION`, the speeds must
        be of another machine or load: they are removed, and the next run measures them
        again. A kind without speeds is left alone.
        """
        figures = self.read(kind)
        if figures is None:
            return
        if sure and not 1 / MOST_CORRECTION <= ratio <= MOST_CORRECTION:
            log.info(
                "%s: a run of the kind %s took %.2g times as long as predicted, so that"
                " the next run of this kind measures the machine again",
                self.path,
                kind,
                ratio,
            )
            self.write(kind, None)
            return
        self.write(kind, figures.corrected(product, ratio))

    def _load(self) -> Hardware:
        if not self.path.exists():
            return Hardware(self.path.stem, "measured by hpcsgd train", {}, ())
        try:
            return parse_hardware(_tables(self.path), str(self.path))
        except ConfigError as error:
            raise ConfigError(
                f"[products] machine = {str(self.path)!r} is no valid machine file"
                f" ({error}); delete the file, and the run writes a new one"
            ) from error


def measured_hardware(
    machine: Machine, narrow: float, network: "NetworkFigures", source: str
) -> Hardware:
    """Return a machine with measured speeds and one network level between its ranks.

    One rank has no network level. `narrow` is the speed of the Gram matrix of 16-bit
    rows.
    """

    def number(value: float) -> Number:
        return Number(value, "measured", source)

    figures = machine.as_dict() | {"gram_narrow": narrow}
    level = NetworkLevel(
        name="between ranks",
        ranks=0,
        latency=number(network.latency_of_hop),
        bandwidth=number(1.0 / max(network.per_byte, LEAST_PER_BYTE)),
    )
    return Hardware(
        name="measured here",
        about=source,
        rank={name: number(figures[name]) for name in RANK},
        levels=(level,) if network.ranks > 1 else (),
    )


# The network: sums of several sizes, and a line through their times.

WARM_SUMS = 2
LEAST_SUMS = 3  # of a size, where time is short
# (words of a sum, repetitions at most): for `tune`, which has seconds for them. The
# first two tell α and β apart, where there is time for no more.
SUMS = tuple((words, 60) for words in (8, 2**15, 512, 64, 4096, 2**18))
LONG = (2**16, 5)  # for automatic choices, beside sums of one batch
SHORT_SUMS = 20


@dataclass(frozen=True)
class NetworkFigures:
    """The times of all-reduces over the members or the replicas of the grid."""

    name: str  # members, or replicas
    ranks: int
    latency: float  # α, seconds of a sum of next to nothing
    per_byte: float  # β, seconds of a byte on the wire, 2(p−1)/p of the payload
    sizes: tuple[int, ...] = ()  # bytes of the payloads
    times: tuple[float, ...] = ()  # seconds of each

    @property
    def latency_of_hop(self) -> float:
        """Return the seconds of one hop; a sum is a tree of ⌈log2 ranks⌉ hops."""
        return self.latency / max(ceil(log2(self.ranks)), 1)

    @property
    def worst(self) -> float:
        """Return the largest relative error of the line α + β · size."""
        line = [self.seconds(size) for size in self.sizes]
        pairs = zip(line, self.times, strict=True)
        return max((abs(a / b - 1.0) for a, b in pairs), default=0.0)

    def seconds(self, payload: float) -> float:
        """Return the seconds of a sum of `payload` bytes, by the fitted line."""
        moved = communicator.sum_bytes(int(payload), self.ranks)
        return self.latency + self.per_byte * moved

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as a dictionary, for a report."""
        return asdict(self) | {"worst": self.worst}


def measure_network(
    name: str,
    group: Communicator,
    sums: Sequence[tuple[int, int]] = SUMS,
    dtype: Any = np.float32,
    seconds: float = inf,
) -> NetworkFigures:
    """Measure latency α and seconds per byte β of sums over `group`. Collective.

    `sums` are pairs (words of a sum, repetitions at most). Times include everything
    around a sum. After the first two sizes, the others are left out once `seconds` are
    used up.
    """
    if group.size == 1:
        return NetworkFigures(name, 1, 0.0, 0.0)
    sizes: list[int] = []
    times: list[float] = []
    left = seconds
    for words, most in sums:
        if len(sizes) >= 2 and left <= 0.0:
            break
        workspace = group.workspace(words, dtype)
        sum_seconds, all_of_them = _time_sums(
            workspace, group, most, seconds / len(sums)
        )
        sizes.append(words * np.dtype(dtype).itemsize)
        times.append(sum_seconds)
        left -= all_of_them
    return line_through(name, group.size, sizes, times)


def line_through(
    name: str, ranks: int, sizes: Sequence[int], times: Sequence[float]
) -> NetworkFigures:
    """Return α and β fitted to sums of these sizes that took these times.

    `sizes` are the bytes of the payloads, `times` seconds.
    """
    moved = [communicator.sum_bytes(size, ranks) for size in sizes]
    latency, per_byte = fit_line(moved, times)
    return NetworkFigures(name, ranks, latency, per_byte, tuple(sizes), tuple(times))


def fit_line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Fit times = α + β · size by least squares of relative errors; return (α, β).

    Neither is negative: where the best line has a negative coefficient, it is set to 0
    and the other is fitted alone.
    """
    x = np.asarray(sizes, float)
    y = np.asarray(times, float)
    unit = max(float(x.max()), 1.0)
    rows = np.stack([1.0 / y, x / unit / y], axis=1)
    line = np.linalg.lstsq(rows, np.ones(len(y)), rcond=None)[0]
    if line.min() < 0.0:
        # One column alone: α of level times, or β of a line through 0.
        alone = np.diag(rows.sum(axis=0) / np.square(rows).sum(axis=0))
        errors = [np.linalg.norm(rows @ part - 1.0) for part in alone]
        line = alone[int(np.argmin(errors))]
    return float(line[0]), float(line[1]) / unit


def _time_sums(
    workspace: Workspace, group: Communicator, most: int, seconds: float
) -> tuple[float, float]:
    """Return the median seconds of one sum, and the seconds of all sums with warm-up.

    Both are the maxima over the ranks. At most `most` sums are timed.
    """
    began = perf_counter()

    def send() -> float:
        workspace.array[...] = 0
        at = perf_counter()
        workspace.sum("control")
        return perf_counter() - at

    first = group.max_number(min(send() for _ in range(WARM_SUMS)))
    count = int(min(max(seconds / max(first, 1e-9), LEAST_SUMS), most))
    median = _median([send() for _ in range(count)])
    spent = perf_counter() - began
    return group.max_number(median), group.max_number(spent)


# Tasks as they are timed: of one member alone, on few rows and columns.

SOME = 4096  # rows of what is as good as no data
FEW = 8  # columns of it


def task_alone(task: Task) -> Task:
    """Return the task as that of a replica of one member, without momentum."""
    return Task(
        shard=task.shard,
        backend=task.backend,
        members=SerialCommunicator(),
        family=task.family,
        precision=task.precision,
        columns=task.columns,
        states=1,
        probe=np.ones(1),
        clock=Clock(),
        models=task.models,
    )


def of_few_columns(task: Task) -> Task:
    """Return the task on some of its rows with a few of its columns.

    The data are copied, since kernels expect the memory layout of so few columns. A
    task with sparse rows, or with no more columns than that, is returned as it is.
    """
    shard = task.shard
    scaling = task.backend.scaling
    if shard.is_sparse or shard.width <= FEW:
        return task
    few = slice(0, FEW)
    rows = np.arange(min(SOME, shard.height))
    values = shard.matrix.operand(slice(0, len(rows)))[:, few]
    narrow = replace(
        shard,
        matrix=DenseMatrix(np.ascontiguousarray(values)),
        targets=shard.targets[: len(rows)],
        weights=take(shard.weights, rows),
        offsets=take(shard.offsets, rows),
        columns=few,
        parts=(few,),
    )
    backend = copy.copy(task.backend)
    if scaling is not None:
        exponents = scaling.exponents[scaling.own][few]
        backend.scaling = replace(scaling, exponents=exponents, own=few)
    return replace(task, shard=narrow, backend=backend)


# What one rank computes, measured on the data at hand in well under two seconds.
#
# Every rank measures the same things in the same order, so that the sums in between
# meet; the slowest of them counts, since ranks wait for each other.

STEPS = 8  # of the exchanges that are timed
PASS = 2**20  # bytes of rows that passes are timed on, where there are as many
REPEATS = 5
PASSES = 9  # over rows: tens of microseconds each


def measure_machine(
    task: Task, batch: int, world: Communicator, members: NetworkFigures | None = None
) -> Machine:
    """Measure the machine, and return the speeds of the slowest rank. Collective.

    The slowest of the world counts, not of the members alone, since all replicas must
    choose alike. `members` are the times of sums over the members, if they were
    measured before.
    """
    if members is None:
        sums = ((batch, SHORT_SUMS), LONG)
        members = measure_network("members", task.members, sums, task.margin_dtype)
    own_figures = replace(
        measure_rates(task, batch),
        latency=members.latency,
        per_byte=members.per_byte,
    )
    everyone: list[Machine] = world.exchange_objects(own_figures)
    return reduce(Machine.slowest, everyone)


def measure_rates(task: Task, batch: int) -> Machine:
    """Measure the speeds of this rank alone, as if its messages took no time."""
    plain = task_alone(task)
    blocks, rows = timed_rows(task.shard, batch)
    size = rows * task.shard.width * value_bytes(task.shard)
    draw, of_gram = _draws(plain, rows), _draws(plain, blocks.rows)
    read, again = fastest_of(lambda i: time_passes(plain, draw(i)))
    (steps,) = fastest_of(lambda i: _steps(plain, draw(i), batch))
    steps = min(steps, read + again)
    (gram,) = fastest_of(lambda i: time_gram(plain, of_gram(i), blocks))
    exchange, step = _overheads(plain, batch)
    inner, link = _recurrence(plain, blocks)
    return Machine(
        latency=0.0,
        per_byte=0.0,
        gram=max(blocks.gram_words, 1) * task.shard.width / gram,
        read=size / read,
        again=size / again,
        plain=size / max(steps - rows * link, steps / 4),
        inner=max(blocks.gram_words, 1) / inner,
        link=link,
        overheads=Overheads(exchange=exchange, step=step),
    )


def timed_rows(shard: Shard, batch: int) -> tuple[Blocks, int]:
    """Return the blocks whose Gram matrix is timed, and the rows of the timed passes.

    The latter is a number of rows, at least that of the blocks.
    """
    blocks = uniform_blocks(batch, max(min(STEPS, shard.height // batch), 1))
    # Enough of narrow rows for a call of microseconds to be nothing beside them.
    fits = int(PASS / (shard.width * value_bytes(shard)))
    return blocks, max(blocks.rows, min(shard.height, fits))


def _draws(task: Task, rows: int) -> Callable[[int], Array]:
    """Return a function from the number of a repetition to `rows` row numbers."""
    order = np.random.default_rng(0).permutation(task.shard.height)
    return lambda i: np.roll(order, -i * rows)[:rows]


def time_passes(task: Task, rows: Array) -> tuple[float, float]:
    """Return the seconds of gathering rows and their scores, and those of the update.

    Gathering reads the rows from memory; the update reads them from the cache.
    """
    shard = task.shard
    backend = task.backend
    weights = backend.zeros((shard.width, task.columns))
    margins = np.empty((len(rows), task.columns), dtype=task.margin_dtype)
    residuals = np.zeros((len(rows), task.columns), dtype=_inner(task))
    plan = _group(task, rows, (len(rows),)).plan
    buffer = _room(task, len(rows))
    began = perf_counter()
    sampled: Rows = shard.matrix.gather(backend, rows, buffer)
    backend.scores(sampled, weights, margins)
    read = perf_counter()
    backend.apply_update(weights, sampled, residuals, plan)
    return read - began, perf_counter() - read


def _steps(task: Task, rows: Array, batch: int) -> tuple[float]:
    """Return the seconds of plain steps on rows from memory, in one fused kernel.

    They are alone in a tuple, and inf if the backend has no such kernel.
    """
    sizes = [batch] * (len(rows) // batch)
    sizes += [len(rows) - sum(sizes)] if sum(sizes) < len(rows) else []
    group = _group(task, rows, tuple(sizes))
    weights = task.backend.zeros((task.shard.width, task.columns))
    buffer = _room(task, len(rows))
    sampled: Rows = task.shard.matrix.gather(task.backend, rows, buffer)
    sequence = StepSequence(
        rows=sampled,
        blocks=group.blocks,
        steps=group.coefficients.plain,
        family=task.family,
        batch=batch_of(task, rows),
        intercept=None,
    )
    began = perf_counter()
    residuals = task.backend.fused_steps(weights, sequence)
    return (float("inf") if residuals is None else perf_counter() - began,)


def time_gram(task: Task, rows: Array, blocks: Blocks) -> tuple[float]:
    """Return the seconds of the Gram matrix of these rows, as a tuple of one number."""
    packed = np.ones(blocks.gram_words, dtype=_inner(task))  # touched
    buffer = _room(task, len(rows))
    sampled: Rows = task.shard.matrix.gather(task.backend, rows, buffer)
    began = perf_counter()
    task.backend.strict_gram(sampled, blocks, packed)
    return (perf_counter() - began,)


def _room(task: Task, rows: int) -> Array | None:
    """Return a buffer for sampled rows, already written to; None for sparse rows."""
    if task.shard.is_sparse:
        return None
    buffer = np.empty((rows, task.shard.width), dtype=task.precision.working)
    buffer.fill(0)
    return buffer


def fastest_of(
    sample: Callable[[int], tuple[float, ...]], repeats: int = PASSES
) -> tuple[float, ...]:
    """Return the shortest of each of the times that `sample` returns.

    It is called `repeats` times. One more call at first warms up. Other programs only
    ever add time, and they disturb one speed more than another, so the shortest times
    compare products best.
    """
    sample(0)
    samples = [sample(i) for i in range(1, repeats + 1)]
    return tuple(max(min(values), 1e-9) for values in zip(*samples, strict=True))


def _recurrence(task: Task, blocks: Blocks) -> tuple[float, float]:
    """Return the seconds of the recurrence, and those of the link function for a row.

    The recurrence is that of all rows of `blocks`, without the link function.
    """
    whole = _residuals(task, blocks)
    links = _residuals(task, uniform_blocks(blocks.rows, 1))
    return max(whole - links, 1e-9), links / blocks.rows


def _residuals(task: Task, blocks: Blocks) -> float:
    rows = np.arange(blocks.rows) % task.shard.height
    group, batch = _group(task, rows, blocks.sizes), batch_of(task, rows)
    margins = np.zeros((blocks.rows, task.columns), dtype=task.margin_dtype)
    packed = np.zeros(blocks.gram_words, dtype=_inner(task))
    return _seconds(
        lambda: task.backend.corrected_residuals(
            margins, packed, group.plan, task.family, batch, None
        ),
        REPEATS,
    )


def _overheads(task: Task, batch: int) -> tuple[float, float]:
    """Return the seconds around an exchange, and around a plain step with a message.

    They are measured on so few data that arithmetic takes no time.
    """
    task = of_few_columns(task)
    shard = task.shard
    few = min(4, batch, shard.height)
    steps = max(min(STEPS, shard.height // few), 1)
    weights = task.backend.zeros((shard.width, task.columns))
    state = State(weights=weights, intercept=None)
    product = Gram(task, HostExchanges(task))
    rows = np.arange(few * steps, dtype=np.int64)
    group = _group(task, rows, (few,) * steps)
    exchange = _seconds(lambda: product.advance(state, group, None), REPEATS)
    one_step, many = (_seconds(_stepping(task, few, n), REPEATS) for n in (1, steps))
    # What surrounds all steps together is in the first of them, and counted above.
    return exchange, max((many - one_step) / max(steps - 1, 1), many / steps / 4)


def _stepping(task: Task, few: int, steps: int) -> Callable[[], None]:
    """Return a function that takes `steps` plain steps of a replica of one member.

    Each step has a batch of `few` rows.
    """
    rows = np.arange(few * steps, dtype=np.int64)
    exchanges = HostExchanges(task)
    group = _group(task, rows, (few,) * steps)
    weights = task.backend.zeros((task.shard.width, task.columns))
    state = State(weights=weights, intercept=None)
    margins = np.empty(few * task.columns, dtype=task.margin_dtype)
    x = exchanges.plain(group.blocks)

    def step_by_step() -> None:
        x.load(group)
        x.attach(state)
        x.sample()
        by_kernel = task.backend.pipelined_steps(weights, x.step_sequence())
        if by_kernel is None:
            take_each_step(exchanges, x)
            return
        by_kernel[0](-1, None, margins)
        for j in range(steps):
            by_kernel[0](j, margins, margins)

    return step_by_step


def _group(task: Task, rows: Array, sizes: tuple[int, ...]) -> Group:
    """Return a group of steps with rate 0, which change no weights while timed."""
    update = make_update("sgd", 0.0)
    planner = Planner(update, 0.0, lambda _, count: np.zeros(count), task.backend)
    return planner.group(0, 0, rows, 0, sizes, 0)


def _inner(task: Task) -> Any:
    """Return the dtype in which residuals are computed."""
    return task.no_gram.dtype


def value_bytes(shard: Shard) -> float:
    """Return the bytes of one stored value of the matrix.

    For sparse rows it is the mean over all entries, zeros included, of the bytes of
    values and column numbers.
    """
    matrix = shard.matrix
    if matrix.is_sparse:
        stored_bytes = matrix.data.nbytes + matrix.indices.nbytes
        return float(max(stored_bytes / (shard.height * shard.width), 1e-9))
    return float(matrix.dtype.itemsize)


def _seconds(action: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of `repeats` calls of `action`, after a first call."""
    action()
    times = []
    for _ in range(repeats):
        began = perf_counter()
        action()
        times.append(perf_counter() - began)
    return _median(times)


def _median(times: Sequence[float]) -> float:
    from statistics import median  # with decimals and fractions: not for all runs

    return float(median(times))


# The file of the rows.

PIECE = 16 * 2**20  # bytes read to see how fast that is


def measure_reading(reader: RowReader, world: Communicator) -> float:
    """Measure how fast the slowest rank reads rows, in bytes of float64 a second.

    All ranks read at the same time. Collective.
    """
    each = 8 * row_words(reader)
    rows = min(max(PIECE // each, 1), reader.rows)
    every = slice(0, reader.cols)
    began = perf_counter()
    if is_sparse(reader):
        reader.read_csr(slice(0, rows), every)
    else:
        reader.read(slice(0, rows), every)
    bandwidth = rows * each / max(perf_counter() - began, 1e-9)
    return -world.max_number(-bandwidth)

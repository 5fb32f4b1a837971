"""Machine files: what one rank can do, and the ways between ranks, each with a source.

Every number stands as { value, mark, source }: "measured" on such a machine, or
"stated" by whom the source names.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcsgd.config import read_toml
from hpcsgd.cost import RATES, Machine
from hpcsgd.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "machines"
MARKS = ("measured", "stated")
# What a rank can do, beside the ways out of it; as in the cost model.
RANK = (
    *("gram", "gram_narrow", "read", "again", "plain", "inner"),
    *("link", "exchange", "step", "alone", "turn"),
)
LEVEL = ("latency", "bandwidth")


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
class Level:
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
    levels: tuple[Level, ...]  # from the nearest to the farthest

    def numbers(self) -> Iterator[tuple[str, Number]]:
        """Every figure, by name."""
        yield from ((f"rank.{name}", number) for name, number in self.rank.items())
        for level in self.levels:
            yield f"{level.name}.latency", level.latency
            yield f"{level.name}.bandwidth", level.bandwidth

    def machine(self, narrow: bool = False) -> Machine:
        """One rank of it, alone; `narrow`: its matrix has 16 bits or fewer."""
        values = {name: number.value for name, number in self.rank.items()}
        fast = values.pop("gram_narrow")
        values["gram"] = fast if narrow else values["gram"]
        return Machine(latency=0.0, per_byte=0.0, **values)

    def spans(self, ranks: int) -> list[tuple[Level, int]]:
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
            f"--machine {name}: no such file, and no machine of this name; known:"
            f" {', '.join(known_machines())}"
        )
    return parse_hardware(read_toml(path), str(path))


def parse_hardware(tables: Mapping[str, Any], place: str) -> Hardware:
    """Every figure that is needed, and no other; each with its mark and its source."""
    _only(place, tables, ("name", "about", "rank", "levels"))
    rank, levels = tables.get("rank"), tables.get("levels", [])
    if not isinstance(rank, Mapping) or not isinstance(levels, list):
        raise ConfigError(f"{place}: a [rank] and [[levels]] are needed; write them")
    _only(f"{place} [rank]", rank, RANK)
    return Hardware(
        name=str(tables.get("name", place)),
        about=str(tables.get("about", "")),
        rank={key: _number(f"{place} [rank] {key}", rank.get(key)) for key in RANK},
        levels=tuple(_level(place, table) for table in levels),
    )


def _level(place: str, table: Any) -> Level:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place}: [[levels]] are tables; write them so")
    _only(f"{place} [[levels]]", table, ("name", "ranks", *LEVEL))
    ranks, where = table.get("ranks"), f"{place} [[levels]] {table.get('name')}"
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 0:
        raise ConfigError(f"{where}: ranks = {ranks!r} must be a whole number, 0 = all")
    numbers = {key: _number(f"{where} {key}", table.get(key)) for key in LEVEL}
    return Level(name=str(table.get("name")), ranks=ranks, **numbers)


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
        raise ConfigError(f"{place} unknown: {unknown}; known: {list(known)}")

"""One run of a study, as the report sees it, whatever file it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from hpcsgd.comm.ledger import TRAINING
from hpcsgd.result import WORSE

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
class Point:
    """What was measured once; None where nobody knows."""

    label: str  # of the method, or the setting's own name
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

    @property
    def is_good(self) -> bool:
        """Whether its figures are those of a whole run."""
        return self.status in GOOD and self.seconds is not None and self.seconds > 0

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


def read_point(line: Mapping[str, Any], where: str, label: str = "") -> Point:
    """The point of one line of points.jsonl; what has another type is not known."""
    grid, energy = _table(line, "grid"), _table(line, "energy")
    ranks = max(_count(line, "ranks"), 1)
    method = _word(line, "method")
    return Point(
        label=plain(label) or METHODS.get(method, method) or "run",
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

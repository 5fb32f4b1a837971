"""What a comparison found: a row for each setting, and what was refused."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcsgd.agreement.beginnings import still_before
from hpcsgd.comm.ledger import TRAINING
from hpcsgd.errors import ConfigError
from hpcsgd.files import write_text
from hpcsgd.result import WORSE, Result, Status, finite
from hpcsgd.study.settings import Refusal, Setting, is_equal_batch

FILES = ("compare.json", "compare.png", "report.html")
REFUSED = "refused"
# Losses of methods are held to the first of these that is there and did not diverge.
REFERENCES = ("sgd", "ddp")
BASELINE = "bf16"  # dense sums in 16 bits: what a method that sends less has to beat


@dataclass(frozen=True)
class Row:
    """One setting: its run of median time, and the times of all its repeats."""

    setting: Setting
    result: Result
    times: tuple[float, ...]  # seconds_total of each repeat, in the order they ran

    @property
    def name(self) -> str:
        """Of the setting."""
        return self.setting.name

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.times)

    @property
    def diverged(self) -> bool:
        """True where the loss grew without bound."""
        return self.result.status is Status.DIVERGED

    @property
    def worse(self) -> bool:
        """True where the loss ended above where it began."""
        return self.result.is_worse

    @property
    def status(self) -> str:
        """How its run ended; `worse` where that is above where it began."""
        return WORSE if self.worse else self.result.status.value

    @property
    def rate(self) -> float:
        """The first rate of its steps, as found where it was left to the data."""
        return float(self.result.config["rate"]["value"])

    @property
    def steps(self) -> int:
        """Between two messages; a sum in every step has an s that lightens its loop."""
        report = self.result.report
        sums_each = report["products"] == "direct" and report["grid"]["replicas"] == 1
        return 1 if sums_each else int(report["schedule"]["steps"])

    @property
    def update(self) -> str:
        """The rule of its steps."""
        return self.setting.config.update.kind

    def traffic(self, figure: str) -> int:
        """Calls, words or bytes of rank 0, sent for products and agreements."""
        return sum(int(self.result.ledger[purpose][figure]) for purpose in TRAINING)

    @property
    def wire_bytes(self) -> float:
        """Bytes that a ring moves for each rank to carry what `bytes` were given."""
        each = (self.result.ledger[purpose]["wire_bytes"] for purpose in TRAINING)
        return float(sum(each))


@dataclass(frozen=True)
class Comparison:
    """What was trained and what was refused, in the order in which it was asked for."""

    entries: tuple[Row | Refusal, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Those that were trained."""
        return tuple(one for one in self.entries if isinstance(one, Row))

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """Methods that cannot run as asked."""
        return tuple(one for one in self.entries if isinstance(one, Refusal))

    @property
    def reference(self) -> Row:
        """What others are held to: sgd, else ddp, among methods; else the first."""
        by_name = {row.name: row for row in self.rows if row.setting.is_method}
        known = [by_name[name] for name in REFERENCES if name in by_name]
        learnt = (row for row in known if not row.diverged and not row.worse)
        return next(learnt, self.rows[0])

    @property
    def baseline(self) -> str | None:
        """The method that compressors are held to, where it is among the rows."""
        names = [row.name for row in self.rows if row.setting.is_method]
        return BASELINE if BASELINE in names else None

    @property
    def is_equal_batch(self) -> bool:
        """True where every step of every setting sees as many rows."""
        return is_equal_batch([row.setting for row in self.rows])

    @property
    def diverged(self) -> list[str]:
        """The settings whose run diverged."""
        return [row.name for row in self.rows if row.diverged]

    @property
    def worse(self) -> list[str]:
        """The settings whose run ended above where it began."""
        return [row.name for row in self.rows if row.worse]

    @property
    def before(self) -> dict[str, str]:
        """Rows that were over before their method began -> what they were instead."""
        said = {
            row.name: still_before(row.setting.config, row.result.exchanges)
            for row in self.rows
        }
        return {name: why for name, why in said.items() if why}

    @property
    def others(self) -> dict[str, list[str]]:
        """Rules of steps that are not the reference's -> the rows that step by them."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if row.update != self.reference.update:
                found.setdefault(row.update, []).append(row.name)
        return found

    def loss_gap(self, row: Row) -> float:
        """(loss − loss of the reference) / |that|."""
        held_to = self.reference.result.loss
        return (row.result.loss - held_to) / abs(held_to) if held_to else float("nan")

    def speed_up(self, row: Row) -> float:
        """The reference's seconds over this one's."""
        held_to = self.reference.seconds
        return held_to / row.seconds if row.seconds > 0 else float("nan")

    def histories(self) -> dict[str, list[dict[str, Any]]]:
        """name -> loss curve."""
        return {row.name: row.result.history for row in self.rows}

    def as_dict(self) -> dict[str, Any]:
        """Everything but the weights, ready for JSON."""
        first = self.rows[0]
        return {
            "ranks": first.result.report["ranks"],
            "repeats": len(first.times),
            "network": first.setting.config.run.network,
            "equal_global_batch": self.is_equal_batch,
            "held_to": self.reference.name,
            "baseline": self.baseline,
            "rows": [self._brief(entry) for entry in self.entries],
            "settings": [self._figures(row) for row in self.rows],
        }

    def json(self) -> str:
        """One document; a number that is not finite is written as null."""
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False)

    def save(self, folder: Path) -> None:
        """Write compare.json into `folder`."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            put_aside(folder)
            write_text(folder / "compare.json", self.json() + "\n")
        except OSError as error:
            raise ConfigError(
                f"cannot write into --out {folder}: {error.strerror};"
                " choose a folder that can be written"
            ) from error

    def _brief(self, entry: Row | Refusal) -> dict[str, Any]:
        """One line of the table; what was refused has no figures."""
        if isinstance(entry, Refusal):
            empty = dict.fromkeys(("reason", *BRIEF))
            return {
                "method": entry.name,
                "status": REFUSED,
                **empty,
                "reason": entry.why,
            }
        figures = self._figures(entry)
        grid = entry.result.report["grid"]
        named = {
            "grid": f"{grid['replicas']}x{grid['members']}",
            "period": entry.result.report["schedule"]["period"],
            "messages": figures["synchronisations"],
        }
        said = {"method": entry.name, "status": figures["status"], "reason": None}
        return said | {name: {**figures, **named}[name] for name in BRIEF}

    def _figures(self, row: Row) -> dict[str, Any]:
        result, report = row.result, row.result.report
        return {
            "name": row.name,
            "global_batch": row.setting.global_batch,
            "steps": row.steps,
            "products": report["products"],
            "look_ahead": report["look_ahead"],
            "precision": row.setting.config.precision.recipe,
            "update": row.update,
            "rate": row.rate,
            "status": row.status,
            "loss": result.loss,
            "loss_gap": self.loss_gap(row),
            "synchronisations": row.traffic("calls"),
            "words": row.traffic("words"),
            "bytes": row.traffic("bytes"),
            "wire_bytes": row.wire_bytes,
            "seconds": row.seconds,
            "seconds_of_repeats": list(row.times),
            "speed_up": self.speed_up(row),
            "iterations": result.iterations,
            "weights_sha256": result.weights_sha256,
            "ledger": result.ledger,
            "history": result.history,
            "config": result.config,
        }


# Of a line of the table, in `rows` of the document.
BRIEF = (
    *("loss", "loss_gap", "seconds", "speed_up", "messages", "words", "bytes"),
    *("wire_bytes", "grid", "global_batch", "steps", "period", "products", "update"),
    *("rate", "iterations"),
)


def row_of(setting: Setting, results: list[Result]) -> Row:
    """All repeats of one setting; figures are those of the run of median time."""
    times = [result.report["seconds_total"] for result in results]
    middle = times.index(statistics.median_low(times))
    return Row(setting, results[middle], tuple(times))


def put_aside(folder: Path) -> None:
    """Give what an earlier comparison left here the next free number."""
    number = 1
    while any(folder.glob(f"compare-earlier-{number}.*")):
        number += 1
    for name in FILES:
        if (folder / name).exists():
            suffix = Path(name).suffix
            (folder / name).rename(folder / f"compare-earlier-{number}{suffix}")

"""What was measured, beside what was aimed at: one record each, and their table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Figure:
    """One number, or the sentence that says why there is none."""

    name: str
    says: str  # what of, beside what
    target: float | None = None
    at_most: bool = False  # what is aimed at is a least number, or a most
    reached: float | None = None
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    @property
    def is_met(self) -> bool:
        """Measured, and as good as it was to be."""
        if self.failure or self.reached is None:
            return False
        if self.target is None:
            return True
        if self.at_most:
            return self.reached <= self.target
        return self.reached >= self.target

    @property
    def line(self) -> str:
        """One row of the table."""
        sign = "<=" if self.at_most else ">="
        wanted = "-" if self.target is None else f"{sign} {self.target:g}"
        found = "-" if self.reached is None else f"{self.reached:.4g}"
        verdict = "met" if self.is_met else "FAILED" if self.failure else "missed"
        said = f"\n{'':24s} {self.failure}" if self.failure else ""
        return (
            f"{self.name:24s} {wanted:>10s} {found:>10s} {self.unit:6s} {verdict:7s}"
            f" {self.says}{said}"
        )


def table(figures: Sequence[Figure]) -> str:
    """All of them, one below the other."""
    head = f"{'figure':24s} {'target':>10s} {'reached':>10s} {'':6s} {'':7s} of what"
    return "\n".join([head, *(figure.line for figure in figures)])


def write(path: Path, machine: dict[str, Any], figures: Sequence[Figure]) -> None:
    """The file as a whole; what was there before goes only when all is written."""
    listed = [{**asdict(figure), "met": figure.is_met} for figure in figures]
    text = json.dumps({"machine": machine, "figures": listed}, indent=2)
    part = path.with_suffix(".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(text + "\n")
    part.replace(path)

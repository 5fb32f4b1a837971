"""Figures that are on disk as soon as they are known, and found again after a break."""

import json
import math
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


class Notebook:
    """One JSON file; figures of another configuration are not taken over."""

    def __init__(
        self, path: Path, machine: Figures, configuration: Figures, fresh: bool = False
    ) -> None:
        self.path = path
        self.document: Figures = {
            "machine": machine,
            "figures": {"configuration": configuration, "problems": {}},
        }
        self.started_anew = False
        if path.exists():
            self._take_over(json.loads(path.read_text()), fresh)

    def _take_over(self, found: Figures, fresh: bool) -> None:
        same = _marks(found) == _marks(self.document)
        if same and not fresh:
            self.document = found
        self.started_anew = not (same and not fresh)

    @property
    def figures(self) -> Figures:
        """Everything that was measured."""
        figures: Figures = self.document["figures"]
        return figures

    def problem(self, name: str) -> Figures:
        """The part of one problem, to be filled."""
        part: Figures = self.figures["problems"].setdefault(name, {})
        return part

    def save(self) -> None:
        """The file appears whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".partial")
        text = json.dumps(_plain(self.document), indent=2, allow_nan=False)
        beside.write_text(text + "\n")
        beside.replace(self.path)


def _marks(document: Figures) -> Figures:
    """What has to be the same for figures to stand in one table."""
    figures = _plain(document.get("figures", {}))
    return {
        "configuration": figures.get("configuration"),
        "machine": document.get("machine"),
    }


def _plain(value: Any) -> Any:
    """What JSON can hold: no infinities, and lists for tuples."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

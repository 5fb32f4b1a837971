"""The loss curve: a list in memory, and JSON lines in the run folder."""

import json
from pathlib import Path
from typing import Any

from hpcsgd.callbacks.base import Callback, View
from hpcsgd.result import finite


class History(Callback):
    """One record for each evaluation, written and flushed as it comes."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []

    def on_start(self, view: View) -> None:
        """Begin an empty file."""
        if self.path is not None:
            self.path.write_text("")

    def on_evaluate(self, view: View) -> None:
        """Keep where the run stands."""
        record = {
            "epoch": view.epoch,
            "exchanges": view.exchanges,
            "iterations": view.steps,
            "rows": view.rows,
            "loss": view.loss,
            "seconds": view.seconds,
        }
        self.records.append(record)
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(finite(record)) + "\n")

"""The loss curve as JSON lines in the run folder."""

import json
from pathlib import Path

from hpcsgd.callbacks.base import Callback, View
from hpcsgd.result import finite


class History(Callback):
    """One record for each evaluation, written and flushed as it comes."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    def on_start(self, view: View) -> None:
        """Begin with what is known: nothing, or the record that a checkpoint kept."""
        if self.path is not None:
            self.path.write_text("".join(map(_line, view.history)), encoding="utf-8")

    def on_evaluate(self, view: View) -> None:
        """Add the newest."""
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(_line(view.history[-1]))


def _line(record: dict[str, object]) -> str:
    return json.dumps(finite(record)) + "\n"

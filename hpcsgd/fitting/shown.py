"""What a person sees of a fit: a line for every pass."""

import sys
from typing import Any, TextIO

from hpcsgd.callbacks.base import Callback, View

FIGURES = {"loss": "F", "gap": "gap", "gradient": "gradient", "held": "held out"}


class Shown(Callback):
    """F, and whatever else is known of it, after each pass over the rows."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream

    def on_evaluate(self, view: View) -> None:
        """One line."""
        print(line_of(view.history[-1]), file=self.stream or sys.stdout, flush=True)


def line_of(record: dict[str, Any]) -> str:
    """For example "pass 3: F 0.31207, gap 2e-05, 0.12 s"."""
    said = [
        f"{name} {record[key]:.8g}"
        for key, name in FIGURES.items()
        if record.get(key) is not None
    ]
    passes = record["epoch"] + record.get("passes", 0)
    return f"pass {passes}: {', '.join(said)}, {record['seconds']:.3g} s"

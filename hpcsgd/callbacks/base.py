"""What watches a run: a read-only view in, at most the wish to stop out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class View:
    """Where the run stands; callbacks read it, the engine writes it."""

    epochs: int  # asked for
    exchanges_planned: int
    total_rows: int
    epoch: int = 0  # done
    exchanges: int = 0  # done
    steps: int = 0  # SGD steps this replica has done
    rows: int = 0  # rows all replicas have seen, as far as this rank can tell
    loss: float = float("nan")  # at the last evaluation
    seconds: float = 0.0  # of training, evaluations left out
    words: Callable[[], int] = lambda: 0  # put on the wire for products so far
    phases: Callable[[], Mapping[str, float]] = dict  # seconds of each phase so far
    evaluations_planned: int = 0  # full losses, the one before the first exchange too
    status: str = "running"


class Callback:
    """Base with nothing to do; each method may return True to ask for a stop."""

    def on_start(self, view: View) -> Any:
        """Before the first exchange."""

    def on_exchange(self, view: View) -> Any:
        """After every exchange."""

    def on_evaluate(self, view: View) -> Any:
        """After every full loss."""

    def on_end(self, view: View) -> Any:
        """After the last exchange, however the run ends."""

"""What watches a run: a read-only view in, at most a wish out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from hpcsgd.comm.ledger import Ledger


class Request(IntEnum):
    """What a callback may ask for; where ranks differ, the largest is granted."""

    NONE = 0
    SAVE = 1  # a checkpoint
    STOP = 2  # save and end well
    PREEMPT = 3  # save and end with the code that asks to be started again
    INTERRUPT = 4  # save and end as a person asked


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
    more: dict[str, Any] = field(default_factory=dict)  # that was measured with it
    seconds: float = 0.0  # of training, evaluations left out
    words: Callable[[], int] = lambda: 0  # put on the wire for products so far
    phases: Callable[[], Mapping[str, float]] = dict  # seconds of each phase so far
    evaluations_planned: int = 0  # full losses, the one before the first exchange too
    status: str = "running"
    history: list[dict[str, Any]] = field(default_factory=list)  # of evaluations
    events: list[dict[str, Any]] = field(default_factory=list)  # alarms, fall-backs

    def note(self, ledger: Ledger, **more: Any) -> None:
        """One line more of the loss curve."""
        self.history.append(
            {
                "epoch": self.epoch,
                "exchanges": self.exchanges,
                "iterations": self.steps,
                "rows": self.rows,
                "loss": self.loss,
                "seconds": self.seconds,
                **ledger.sent(),
                **self.more,
                **more,
            }
        )


class Callback:
    """Base with nothing to do; each method may return a Request (True means STOP)."""

    def on_start(self, view: View) -> Any:
        """Before the first exchange."""

    def on_exchange(self, view: View) -> Any:
        """After every exchange."""

    def on_evaluate(self, view: View) -> Any:
        """After every full loss."""

    def on_end(self, view: View) -> Any:
        """After the last exchange, however the run ends."""


def request_of(answer: Any) -> Request:
    """Return the request that a callback's answer stands for."""
    if isinstance(answer, Request):
        return answer
    return Request.STOP if answer else Request.NONE

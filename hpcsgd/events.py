"""What happened to a run besides its losses: alarms, and what was done about them."""

import logging
from dataclasses import dataclass
from typing import Any

from hpcsgd.callbacks.base import View
from hpcsgd.config import RunConfig

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks note the same events
Event = dict[str, Any]


@dataclass(frozen=True)
class Rung:
    """One change."""

    config: RunConfig
    key: str  # schedule.steps or precision.FIELD
    before: int | str
    after: int | str

    @property
    def text(self) -> str:
        """What changes, in short."""
        name = self.key.split(".")[1]
        return f"{name} {self.before} -> {self.after}"


def note(view: View, event: str, text: str, **facts: Any) -> Event:
    """Add it to the history of the run, and warn."""
    found = {
        "kind": "event",
        "event": event,
        "exchange": view.exchanges,
        # Between which losses it stands in the history.
        "evaluations": len(view.history),
        "text": text,
        **facts,
    }
    view.events.append(found)
    log.warning("%s", text, extra=ONCE)
    return found


def alarm_text(alarm: dict[str, Any]) -> str:
    """What the monitor found, as a sentence."""
    what = {
        "scores": "the scores of the recurrence are off from fresh products",
        "residuals": "residuals are off from those of their scores",
    }[alarm["of"]]
    return (
        f"exchange {alarm['exchange']}: {what} by {alarm['gap']:.3g}, and rounding"
        f" explains {alarm['tolerance']:.3g}"
    )


Cause = dict[str, Any] | None  # an alarm, or a divergence


def fallen(view: View, rung: Rung, cause: Cause, stopped: int, there: int) -> Event:
    """A fall-back: why, from where, to where, and what is changed.

    `stopped` counts exchanges as before, `there` as from now on.
    """
    reason, why, figures = _reason(cause)
    text = (
        f"fell back after exchange {stopped} ({why}): goes on after exchange"
        f" {view.exchanges} with {rung.text}"
    )
    if there != view.exchanges:
        text += f", which is now exchange {there}"
    return note(
        view,
        "fall-back",
        text,
        change=rung.text,
        key=rung.key,
        before=rung.before,
        after=rung.after,
        reason=reason,
        stopped=stopped,
        now=there,
        **figures,
    )


def _reason(cause: Cause) -> tuple[str, str, dict[str, float]]:
    """In a word, in a phrase, in figures."""
    if cause is None:
        return "diverged", "weights or a loss without bound", {}
    return "gap", "a gap", {key: cause[key] for key in ("gap", "tolerance")}

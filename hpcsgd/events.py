"""What happened to a run besides its losses: alarms, and what was done about them."""

import logging
from typing import Any

from hpcsgd.callbacks.base import View
from hpcsgd.fall_back import Rung

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks note the same events
Event = dict[str, Any]


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


def fallen(
    view: View, rung: Rung, alarm: dict[str, Any] | None, stopped: int, there: int
) -> Event:
    """A fall-back: why, from where, to where, and what is changed.

    `stopped` counts exchanges as before, `there` as from now on.
    """
    why = "a gap" if alarm else "weights or a loss without bound"
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
        reason="gap" if alarm else "diverged",
        stopped=stopped,
        now=there,
        **({k: alarm[k] for k in ("gap", "tolerance")} if alarm else {}),
    )

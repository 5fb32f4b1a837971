"""One word for what became of a job, from its own notes and from Slurm."""

from collections.abc import Sequence
from typing import Any

from hpcsgd.jobs.queue import WAITING, Seen
from hpcsgd.result import REQUEUE

Notes = Sequence[dict[str, Any]]
# Ends that only Slurm knows of, and what to do.
ENDS = {
    "TIMEOUT": (
        "timeout",
        "the time limit came before its end; submit it again to go on, with a longer"
        " --walltime, or with an earlier --signal where it had no time to save",
    ),
    "DEADLINE": ("timeout", "its deadline came before its end"),
    "NODE_FAIL": ("failed", "a node failed; submit it again to go on"),
    "BOOT_FAIL": ("failed", "a node did not start; submit it again"),
    "OUT_OF_MEMORY": (
        "failed",
        "memory ran out; ask for more --memory, or for more --nodes",
    ),
    "CANCELLED": ("cancelled", ""),
    "REVOKED": ("cancelled", ""),
    "PREEMPTED": ("preempted", "preempted; submit it again to go on"),
}
SAID = {"COMPLETED": "completed", "FAILED": "failed"}


def judge(notes: Notes, seen: Seen | None, has_queue: bool) -> tuple[str, str]:
    """(word, why).

    The word is pending, running, requeued, completed, preempted, failed, timeout,
    cancelled, terminated, lost or unknown.
    """
    if seen is not None and seen.is_active:
        active = _of_active(notes, seen)
        if active:
            return active
    last = last_event(notes)
    is_good = last.get("event") == "ended" and last["code"] == 0
    if seen is not None and seen.state in ENDS and not is_good:
        return ENDS[seen.state]
    if last:
        return _of_notes(last, has_queue)
    if seen is not None and seen.state in SAID:
        return SAID[seen.state], ""
    if has_queue:
        why = (
            "it never began, and Slurm knows it no more: cancelled, or waiting in vain"
        )
        return "unknown", why
    return "unknown", "it has not begun, and there is no Slurm here to ask"


def _of_active(notes: Notes, seen: Seen) -> tuple[str, str] | None:
    """None for one that has said its last word and is being cleaned up after."""
    if seen.state in WAITING:
        reason = seen.reason if seen.reason not in ("", "None") else ""
        return ("requeued" if notes else "pending", reason)
    over = last_event(notes).get("event") in ("ended", "given-up", "terminated")
    return None if over and seen.state == "COMPLETING" else ("running", "")


def _of_notes(last: dict[str, Any], has_queue: bool) -> tuple[str, str]:
    """By what its script wrote last."""
    event, code = last["event"], last.get("code", 0)
    if event == "ended" and code == REQUEUE:
        return "preempted", "its state is saved; submit it again to go on"
    if event == "ended":
        return ("failed", "") if code else ("completed", "")
    if event == "given-up":
        return "failed", "start after start saved nothing new; ask for more --walltime"
    if event == "terminated":
        return "terminated", "ended from outside: a time limit, or somebody"
    if not has_queue:
        return "unknown", "it has begun, and there is no Slurm here to ask"
    if event == "requeued":
        return "lost", "it was requeued and is not in the queue; submit it again"
    why = "its script ended without a word: a node, its memory or a kill"
    return "lost", f"{why}; submit it again to go on"


def last_event(notes: Notes) -> dict[str, Any]:
    """The last note about the job as a whole; empty without one."""
    whole = [n for n in notes if n.get("event") not in (None, "step")]
    return whole[-1] if whole else {}

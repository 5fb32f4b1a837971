"""How far a run is, from its folder alone."""

from pathlib import Path
from typing import Any

from hpcsgd.files import read_entry_text
from hpcsgd.folder_lock import is_abandoned, user_of
from hpcsgd.jobs.records import lines
from hpcsgd.json_text import parse_json


def run_facts(folder: Path, is_over: bool = False) -> dict[str, Any]:
    """Return status, epoch and loss of a run folder; empty where there is none yet.

    Parameters
    ----------
    folder : of the run
    is_over : whether the job that trained there has ended

    A run without a result is "running" while a process trains in its folder, and where
    this cannot be known from here; "unfinished" where its process or job has ended.
    """
    result = read_result(folder)
    if result:
        names = ("status", "loss", "iterations", "seconds_total", "weights_sha256")
        facts = {name: result.get(name) for name in names}
        history = result.get("history") or [{}]
        return {**facts, "epoch": history[-1].get("epoch")}
    seen = [r for r in lines(folder / "history.jsonl") if "loss" in r and "epoch" in r]
    if not seen:
        return {}
    has_ended = not user_of(folder) and (is_over or is_abandoned(folder))
    status = "unfinished" if has_ended else "running"
    return {"status": status, "epoch": seen[-1]["epoch"], "loss": seen[-1]["loss"]}


def read_result(folder: Path) -> dict[str, Any]:
    """result.json, or nothing."""
    try:
        found = parse_json(read_entry_text(folder / "result.json"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

"""How far a run is, from its folder alone."""

import json
from pathlib import Path
from typing import Any

from hpcsgd.files import read_entry_text
from hpcsgd.jobs.records import lines


def run_facts(folder: Path) -> dict[str, Any]:
    """Status, epoch and loss of a run folder; empty where there is none yet."""
    result = read_result(folder)
    if result:
        names = ("status", "loss", "iterations", "seconds_total", "weights_sha256")
        facts = {name: result.get(name) for name in names}
        history = result.get("history") or [{}]
        return {**facts, "epoch": history[-1].get("epoch")}
    seen = [r for r in lines(folder / "history.jsonl") if "loss" in r and "epoch" in r]
    if not seen:
        return {}
    return {"status": "running", "epoch": seen[-1]["epoch"], "loss": seen[-1]["loss"]}


def read_result(folder: Path) -> dict[str, Any]:
    """result.json, or nothing."""
    try:
        found = json.loads(read_entry_text(folder / "result.json"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

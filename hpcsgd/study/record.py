"""From the end of a run to its line in points.jsonl."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcsgd.study.expected import expected_traffic
from hpcsgd.study.points import Point

SCHEMA = 1
Report = Mapping[str, Any]
# What a run calls its end, and what a study makes of it.
STATUS = {
    "completed": "finished",
    "converged": "finished",
    "stopped": "finished",
    "diverged": "diverged",
}
FIGURES = (
    *("epochs", "iterations", "exchanges", "loss", "seconds", "seconds_setup"),
    *("seconds_evaluate", "seconds_wall", "seconds_by_phase", "peak_rss_bytes"),
    *("ledger", "expected", "history", "energy", "versions", "transport"),
    *("weights_sha256", "product", "columns", "fell_back"),
)


def line(
    point: Point,
    data: str,
    report: Report | None,
    *,
    error: str = "",
    status: str = "failed",
    machine: Mapping[str, Any] | None = None,
    cpu_seconds: float | None = None,
) -> dict[str, Any]:
    """Everything of one run; `status` is that of one that left no report."""
    figures = _figures(report) if report else dict.fromkeys(FIGURES)
    advice = str(report.get("advice") or "") if report else ""
    return {
        "schema": SCHEMA,
        "key": point.key,
        "study": point.study,
        "method": point.method,
        "ranks": point.ranks,
        "emulated": point.emulated,
        "repeat": point.repeat,
        "seed": point.seed,
        "status": _status(report) if report else status,
        "error": error or advice or None,
        "data": Path(data).name,
        "rows": report["rows"] if report else point.rows or None,
        "grid": {"replicas": point.grid[0], "members": point.grid[1]},
        "batch": point.batch,
        "batch_per_replica": point.batch_per_replica,
        "steps": _steps(point, report),
        "recipe": point.recipe,
        "network": _network(point, report),
        **figures,
        "oversubscribed": _is_oversubscribed(point, report, machine),
        **(machine or {}),
        "cpu_seconds": cpu_seconds,
        "run": f"runs/{point.name}",
    }


def _status(report: Report) -> str:
    return STATUS.get(report["status"], "failed")


def _steps(point: Point, report: Report | None) -> int | None:
    """s as it ran, where it was left open."""
    if point.steps != "auto":
        return int(point.steps)
    return int(report["schedule"]["steps"]) if report else None


def _network(point: Point, report: Report | None) -> str | None:
    tables = report["config"] if report else point.base
    return tables.get("run", {}).get("network")


def _is_oversubscribed(
    point: Point, report: Report | None, machine: Mapping[str, Any] | None
) -> bool | None:
    """More threads of ranks than cores; None where nobody knows the cores."""
    if not machine or "cores" not in machine:
        return None
    tables = report["config"] if report else point.base
    threads = tables.get("run", {}).get("threads", 1)
    return bool(point.launched * threads > machine["cores"])


def _figures(report: Report) -> dict[str, Any]:
    """What the run measured, under the names of FIGURES."""
    same = {name: report.get(name) for name in FIGURES}
    return same | {
        "epochs": report["schedule"]["epochs"],
        "seconds": report["seconds_total"],
        "product": report["products"],
        "expected": expected_traffic(report),
        "fell_back": any(e.get("event") == "fall-back" for e in report["events"]),
    }

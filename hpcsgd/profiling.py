"""Where the time of a run went: mean over ranks, the slowest, and its number."""

from collections.abc import Iterable, Mapping
from typing import Any

from hpcsgd.assembly.engine_parts import Live

Section = dict[str, dict[str, Any]]  # what took time -> its figures


def profile(live: Live, setup: Mapping[str, float]) -> dict[str, Section]:
    """The sections of the profile, from what all ranks measured.

    whole: set-up, training, evaluations; training: by phase; communication: by the
    purpose of the words, evaluations and control included; set-up: by its parts.
    """
    world, exchanges = live.grid.world, live.engine.view.exchanges
    everyone = world.exchange_objects(measured(live, setup))
    return {
        section: compare_ranks([own[section] for own in everyone], exchanges)
        for section in everyone[0]
    }


def measured(live: Live, setup: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """section -> name -> seconds of this rank."""
    clock, total = dict(live.task.clock.seconds), live.engine.view.seconds
    evaluate = clock.pop("evaluate", 0.0)
    # Agreement, checks and callbacks between the laps of the products.
    clock["other"] = max(total - sum(clock.values()), 0.0)
    entries = live.grid.world.ledger.entries
    return {
        "whole": {
            "setup": sum(setup.values()),
            "training": total,
            "evaluate": evaluate,
        },
        "training": clock,
        "communication": {name: e.seconds for name, e in entries.items()},
        "setup": dict(setup),
    }


def compare_ranks(ranks: list[dict[str, float]], exchanges: int) -> Section:
    """One row for each name that any rank measured."""
    rows = {name: _row([r.get(name, 0.0) for r in ranks]) for name in _names(ranks)}
    total = sum(row["seconds"] for row in rows.values())
    for row in rows.values():
        row["share"] = row["seconds"] / total if total > 0 else 0.0
        row["us_per_exchange"] = 1e6 * row["seconds"] / max(exchanges, 1)
    return rows


def _names(ranks: Iterable[dict[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for rank in ranks for name in rank))


def _row(seconds: list[float]) -> dict[str, Any]:
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    return {
        "seconds": sum(seconds) / len(seconds),
        "slowest_seconds": seconds[slowest],
        "slowest_rank": slowest,
    }

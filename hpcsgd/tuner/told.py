"""A tuning as a document, as a configuration file, and in sentences."""

import platform
from collections.abc import Iterator, Sequence
from typing import Any

import hpcsgd
from hpcsgd.backends import cpu
from hpcsgd.tuner.learning import Learnt
from hpcsgd.tuner.machine_toml import machine_toml
from hpcsgd.tuner.rooms import Candidate
from hpcsgd.tuner.tune import Tuning

SCHEMA = 1


def document(found: Tuning) -> dict[str, Any]:
    """All of it, as JSON may have it."""
    return {
        "schema": SCHEMA,
        "chosen": row(found.chosen, found.ranks),
        "best": [row(one, found.ranks) for one in found.best],
        "considered": found.considered,
        "learning": [_learnt(one) for one in found.learnt],
        "recipes": found.gaps,
        "tolerance": found.question.config.precision.tolerance,
        "figures": {f"{found.ranks} ranks {k}": v for k, v in found.figures.items()},
        "rows_timed": found.sampled[0],
        "rows": found.sampled[1],
        "seconds": found.seconds,
        "kernels": cpu.instructions() or "numpy",
        "processor": platform.machine(),
        "version": hpcsgd.__version__,
        "config": found.config().tables(),
        "toml": _toml(found),
        "machine_toml": machine_toml(found.rooms, found.chosen.grid, found.ranks),
    }


def row(one: Candidate, ranks: int) -> dict[str, Any]:
    """One line of the table."""
    setting, way = one.setting, one.learnt.way
    return {
        "ranks": ranks,
        "grid": f"{one.grid[0]}x{one.grid[1]}",
        "recipe": one.recipe,
        "product": setting.product,
        "look_ahead": setting.look_ahead,
        "steps": setting.steps,
        "batch": setting.batch,
        "period": setting.period,
        "rate": way.rate,
        "predicted": one.predicted,
        "measured": one.measured,
        "penalty": one.learnt.penalty,
        "seconds_per_row": one.score,  # for as much learning
    }


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of several numbers of ranks: the best of all, and all that was measured."""
    first = min(parts, key=lambda part: float(part["chosen"]["seconds_per_row"]))
    rows = [one for part in parts for one in part["best"]]
    figures = {k: v for part in parts for k, v in part["figures"].items()}
    return {
        **first,
        "best": sorted(rows, key=lambda one: float(one["seconds_per_row"])),
        "considered": sum(part["considered"] for part in parts),
        "figures": figures,
        "seconds": sum(part["seconds"] for part in parts),
    }


def explained(found: dict[str, Any], path: str | None) -> Iterator[str]:
    """What was chosen, why, and what to do with it."""
    best = found["chosen"]
    yield (
        f"{best['product']} with s = {best['steps']} and batch {best['batch']} on a"
        f" {best['grid']} grid in {best['recipe']}: {1e6 * best['measured']:.1f} µs a"
        f" step, the best of {found['considered']} settings by the model and of"
        f" {len(found['best'])} that were run"
    )
    tried = [one for one in found["learning"] if one["penalty"] is not None]
    if len(found["learning"]) > 1:
        said = [f"{one['way']}: {one['penalty']:.2f}" for one in tried]
        yield f"rows for the same loss, over those of the first: {'; '.join(said)}"
    yield (
        f"timed on {found['rows_timed']} of {found['rows']} rows,"
        f" {found['seconds']:.1f} s in all"
    )
    if path:
        yield f"hpcsgd train {path}{_ranks(best)} runs it"


def _ranks(best: dict[str, Any]) -> str:
    return "" if best["ranks"] == 1 else f" --ranks {best['ranks']}"


def _learnt(one: Learnt) -> dict[str, Any]:
    endless = one.penalty == float("inf")
    return {
        "way": str(one.way),
        "batch": one.way.batch,
        "rate": one.way.rate,
        "replicas": one.way.replicas,
        "local_steps": one.way.local,
        "penalty": None if endless else one.penalty,
    }


def _toml(found: Tuning) -> str:
    """What train takes, with a line on where it comes from."""
    best = found.chosen
    return (
        f"# hpcsgd tune on {found.ranks} ranks: a step was predicted to take"
        f" {1e6 * best.predicted:.1f} us and took {1e6 * best.measured:.1f}\n"
        f"{found.config().toml()}"
    )

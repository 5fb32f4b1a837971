"""Which exchanges of a run are written down, and what makes two legs one run."""

from pathlib import Path
from typing import Any

from hpcsgd.agreement import Agreement
from hpcsgd.assembly.engine_parts import Parts
from hpcsgd.assembly.replayable import is_replayable
from hpcsgd.config import RunConfig
from hpcsgd.recording import NAME, Recorder, choose_exchanges


def recorder_of(parts: Parts, agreement: Agreement) -> Recorder:
    """One that records nothing where exchanges could not be replayed."""
    config, grid = parts.config, parts.grid
    run, total = config.run, parts.feed.exchanges_per_epoch * config.schedule.epochs
    replays = is_replayable(
        config, parts.words.precision, agreement, parts.task.models is not None
    )
    if run.out is None or not run.record or grid.replica or not replays:
        return Recorder(frozenset())
    return Recorder(
        chosen=_recorded(parts, agreement, total),
        columns=parts.columns,
        to_host=parts.task.backend.to_host,
        path=Path(run.out) / NAME if grid.world.rank == 0 else None,
        facts={
            "fingerprint": parts.loaded.fingerprint,
            "replicas": grid.replicas.size,
            "sections": _identity(config),
        },
        leg={
            "planned": total,
            "members": grid.members.size,
            "product": parts.product_name,
            "look_ahead": parts.look_ahead,
            "reproducible": grid.world.reproducible,
            "gap_every": run.gap_every if parts.is_watched else 0,
            "circles": agreement.circle_sizes,
        },
    )


def _recorded(parts: Parts, agreement: Agreement, total: int) -> frozenset[int]:
    """Some of the exchanges in which this replica trains."""
    count, seed = parts.config.run.record, parts.config.sampling.seed
    if agreement.workers == parts.grid.replicas.size:
        return choose_exchanges(count, seed, total)
    there = [n for n in range(1, total + 1) if agreement.trains(n)]
    chosen = choose_exchanges(count, seed, len(there))
    return frozenset(there[number - 1] for number in chosen)


def _identity(config: RunConfig) -> dict[str, Any]:
    """What makes two legs parts of one run: a run may be made longer."""
    names = ("problem", "schedule", "update", "rate", "sampling", "precision")
    tables = {name: dict(config.tables()[name]) for name in names}
    del tables["schedule"]["epochs"]
    return tables

"""What a coordinate run leaves behind, in the words that other runs use."""

import resource
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcsgd.backends.ways import ways
from hpcsgd.columns import Columns
from hpcsgd.energy import total
from hpcsgd.report import named, where_it_ran
from hpcsgd.result import Result, Status

if TYPE_CHECKING:
    from hpcsgd.coordinate.run import Training


def result_of(
    training: "Training", status: Status, began: float, setup: Mapping[str, float]
) -> Result:
    """The model and everything measured, alike on every rank."""
    ready, view = training.ready, training.view
    opened, config = ready.opened, ready.config
    weights, beta = ready.form.model(training.descent.point)
    if beta is not None and ready.centers is not None:
        beta = beta - ready.centers.moved(ready.form.objective, weights)
    classes = opened.loaded.columns
    columns = Columns(opened.grid, opened.loaded.shard.parts, whole=False)
    joined = columns.join(ready.nonempty.widen(weights))
    facts = _facts(training, began, setup)
    return Result(
        status=status,
        loss=float(view.loss),
        weights=joined if classes > 1 else joined[:, 0],
        intercept=beta if beta is None or classes > 1 else np.asarray(beta[0]),
        iterations=view.steps,
        exchanges=view.exchanges,
        history=list(view.history),
        ledger=opened.grid.world.ledger.as_dict(),
        config=config.tables(),
        report=facts,
        preparation=opened.loaded.preparation,
    )


def _facts(
    training: "Training", began: float, setup: Mapping[str, float]
) -> dict[str, Any]:
    ready, view = training.ready, training.view
    grid, loaded, words = ready.opened.grid, ready.opened.loaded, ready.opened.words
    schedule, clock = ready.config.schedule, ready.clock
    phases = {k: v for k, v in clock.seconds.items() if k != "evaluate"}
    return {
        "solver": "coordinate",
        "coordinate": _ending(training),
        "schedule": {
            "batch": schedule.batch,
            "steps": schedule.steps,
            "period": schedule.period,
            "epochs": schedule.epochs,
            "global_batch": schedule.batch,
        },
        "grid": {"replicas": grid.replicas.size, "members": grid.members.size},
        "ranks": grid.world.size,
        "emulated_members": 0,
        "products": "cached" if ready.is_cached else "gram",
        "look_ahead": False,
        "rows": loaded.shard.total_rows,
        "columns": loaded.shard.total_columns,
        "sparse": loaded.shard.is_sparse,
        "density": loaded.density,
        "classes": loaded.columns,
        "labels": list(loaded.targets.labels),
        "precision": dict(vars(words.precision)),
        "precision_runs": ways(words.precision),
        "clipped_scores": 0,
        "mended_members": 0,
        "events": list(view.events),
        "seconds_total": view.seconds,
        "seconds_setup": sum(setup.values()),
        "seconds_evaluate": clock.seconds.get("evaluate", 0.0),
        "seconds_wall": time.perf_counter() - began,
        "seconds_by_phase": phases,
        "rows_per_second": view.rows / view.seconds if view.seconds > 0 else 0.0,
        **_of_all_ranks(training),
        "transport": grid.world.transport,
        "source": loaded.source,
        **named(loaded),
        "data_fingerprint": loaded.fingerprint,
        "resumes": 0,
        "checkpoints_written": 0,
        "checkpoints_failed": 0,
        **where_it_ran(),
    }


def _ending(training: "Training") -> dict[str, Any]:
    """Which form it was, and why it went no further."""
    seen = training.descent.seen
    return {
        "form": training.ready.form.name,
        "columns": training.ready.form.objective.shard.total_columns,
        "ended": training.ended,
        "tol": training.ready.config.coordinate.tol,
        "gap": None if seen is None else seen.gap,
        "null_excess": training.ready.form.worst,
        "gradient": None if seen is None else seen.gradient,
    }


def _of_all_ranks(training: "Training") -> dict[str, Any]:
    """The largest resident set of any rank, and the energy of all, in one message."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    own *= 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
    world = training.ready.opened.grid.world
    everyone = world.exchange_objects((own, training.meter.said()))
    energy, why = total(said for _, said in everyone)
    return {
        "peak_rss_bytes": int(max(rss for rss, _ in everyone)),
        "energy": energy,
        "energy_reason": why,
    }

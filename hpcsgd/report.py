"""From the live parts to a Result, once the last exchange is done."""

import os
import platform
import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import hpcsgd
from hpcsgd.agreement import Infinity
from hpcsgd.assembly.engine_parts import Live
from hpcsgd.backends.rounded import RoundedBackend
from hpcsgd.backends.ways import ways
from hpcsgd.energy import total
from hpcsgd.from_disk.model import NAME, model_of
from hpcsgd.loading import Loaded
from hpcsgd.products.base import State
from hpcsgd.profiling import profile
from hpcsgd.result import Result, Status
from hpcsgd.weights_file import ON_FILE


def report(
    live: Live,
    state: State,
    status: Status,
    began: float,
    setup: Mapping[str, float],
    more: Mapping[str, Any],
) -> Result:
    """Gather the weights and everything measured; every rank gets the same model."""
    columns = live.task.columns
    if isinstance(live.engine.agreement, Infinity):
        weights = model_of(live)
    else:
        held = live.task.backend.to_host(state.weights[:, :columns])
        weights = live.columns.join(live.engine.agreement.joined(held))
    intercept = None if state.intercept is None else state.intercept[0].copy()
    # Several models stay side by side, whatever each of them has.
    scalar = live.task.family.targets != "classes" and live.task.models is None
    loss, history = float(live.engine.view.loss), list(live.engine.view.history)
    if live.config.run.emulate_members:  # what others would have said was made up
        loss, history, weights = float("nan"), [], np.full_like(weights, np.nan)
    return Result(
        status=status,
        loss=loss,
        weights=weights[:, 0] if scalar else weights,
        intercept=intercept[0] if scalar and intercept is not None else intercept,
        iterations=live.engine.view.steps,
        exchanges=live.engine.view.exchanges,
        history=history,
        ledger=live.grid.world.ledger.as_dict(),
        config=live.config.tables(),
        preparation=live.loaded.preparation,
        report=_facts(live, began, setup)
        | ({ON_FILE: NAME} if isinstance(weights, np.memmap) else {})
        | _judged(live)
        | _polished(live)
        | dict(more),
    )


def _judged(live: Live) -> dict[str, Any]:
    """The models of a sweep with their losses, and the loss of rows held out."""
    models, history = live.task.models, live.engine.view.history
    made_up = live.config.run.emulate_members  # then nobody knows a loss
    found = {} if made_up else dict(live.engine.view.more)
    if models is None:
        return found
    first = history[0]["losses"] if history and not made_up else []
    known = {"models": [vars(m) for m in models.each], "first_losses": first}
    return {"losses": [None] * len(models)} | found | known


def _facts(live: Live, began: float, setup: Mapping[str, float]) -> dict[str, Any]:
    config, view, clock = live.config, live.engine.view, live.task.clock
    grid, batch = live.grid, config.schedule.batch
    evaluate = clock.seconds.get("evaluate", 0.0)
    phases = {k: v for k, v in clock.seconds.items() if k != "evaluate"}
    return {
        "schedule": {
            "batch": batch,
            "steps": config.schedule.steps,
            "period": config.schedule.period,
            "epochs": config.schedule.epochs,
            "global_batch": batch * grid.replicas.size * config.agreement.accumulate,
        },
        "grid": {"replicas": grid.replicas.size, "members": grid.members.size},
        "ranks": grid.world.size,
        "emulated_members": config.run.emulate_members,
        "products": live.product_name,
        "look_ahead": live.look_ahead,
        "gram_kernel": getattr(live.product, "gram_kernel", ""),
        "rows": live.loaded.shard.total_rows,
        "columns": live.loaded.shard.total_columns,
        "sparse": live.loaded.shard.is_sparse,
        "density": live.loaded.density,
        "classes": live.loaded.columns,
        "labels": list(live.loaded.targets.labels),
        "precision": _precision(live),
        "precision_runs": ways(live.task.precision),
        **_casts(live),
        "clipped_scores": live.engine.evaluation.clipped,
        "mended_members": live.engine.guard.mended,
        "events": list(view.events),
        **live.engine.hooks.facts(),
        "gap_looks": live.task.monitor.looks,
        "seconds_total": view.seconds,
        "seconds_setup": sum(setup.values()),
        "seconds_evaluate": evaluate,
        "seconds_wall": time.perf_counter() - began,
        "seconds_by_phase": phases,
        "rows_per_second": view.rows / view.seconds if view.seconds > 0 else 0.0,
        "agreement": _agreement(live),
        **_of_all_ranks(live),
        "transport": grid.world.transport,
        "source": live.loaded.source,
        **named(live.loaded),
        "data_fingerprint": live.loaded.fingerprint,
        "resumes": live.capture.resumes,
        "checkpoints_written": live.engine.saver.written,
        "checkpoints_failed": live.engine.saver.failed,
        **_where(),
        **({"profile": profile(live, setup)} if config.run.profile else {}),
    }


def _agreement(live: Live) -> dict[str, Any]:
    """How replicas agreed, and what that says of itself."""
    asked = {name: getattr(live.config.agreement, name) for name in ("kind", "method")}
    return {**asked, **live.engine.agreement.facts()}


def _polished(live: Live) -> dict[str, Any]:
    """What came after the last step, if anything did."""
    facts = live.engine.finisher.facts
    found = {} if facts is None else {"polish": facts}
    return found if live.engine.has_minimum else {**found, "has_minimum": False}


def _precision(live: Live) -> dict[str, str]:
    return dict(vars(live.task.precision))


def _casts(live: Live) -> dict[str, int | float]:
    """What became of values that a narrow format could not hold."""
    backend = live.task.backend
    found: dict[str, int | float] = {}
    if live.task.clip is not None:
        found["clipped_updates"] = live.task.clip.clipped
    if backend.scaling is not None:
        found |= {
            "matrix_saturated": backend.scaling.saturated,
            "matrix_flushed": backend.scaling.flushed,
        }
    if isinstance(backend, RoundedBackend) and backend.loss_scale is not None:
        scale = backend.loss_scale
        found |= {"loss_scale": scale.value, "skipped_exchanges": scale.skipped}
    return found


def _of_all_ranks(live: Live) -> dict[str, Any]:
    """The largest resident set of any rank, and the energy of all, in one message."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts KiB, macOS bytes.
    own *= 1 if sys.platform == "darwin" else 1024
    everyone = live.grid.world.exchange_objects((own, live.engine.meter.said()))
    energy, why = total(said for _, said in everyone)
    return {
        "peak_rss_bytes": int(max(rss for rss, _ in everyone)),
        "energy": energy,
        "energy_reason": why,
    }


def _where() -> dict[str, Any]:
    """The machine of this rank, and what ran on it."""
    return {
        "host": platform.node(),
        "cores": os.cpu_count() or 1,
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    import scipy

    from hpcsgd.backends import cpu

    return {
        "hpcsgd": hpcsgd.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "kernels": cpu.instructions() or "NumPy",
    }


def named(loaded: Loaded) -> dict[str, Any]:
    """The names of the columns, where the data has any."""
    return {} if loaded.names is None else {"feature_names": loaded.names}


def where_it_ran() -> dict[str, Any]:
    """The machine of this rank, and what ran on it."""
    return _where()

"""The result of a finished run: its model, its measurements and its facts."""

import os
import platform
import resource
import sys
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import hpcsgd
from hpcsgd.agreements.more.infinity import OnDisk
from hpcsgd.backends.base import emulated_fields
from hpcsgd.backends.task import State
from hpcsgd.files import CREATE, check_entry, open_entry
from hpcsgd.formats import Array
from hpcsgd.runs.agreements import spent_epsilon
from hpcsgd.runs.assembled_run import AssembledRun
from hpcsgd.runs.energy import total
from hpcsgd.runs.load import LoadedRows
from hpcsgd.runs.result import ON_FILE, Result, Status
from hpcsgd.solvers.evaluation import Columns

# Where the time of a run went: mean over ranks, the slowest, and its number.

Section = dict[str, dict[str, Any]]  # what took time -> its figures


def profile(live: AssembledRun, setup: Mapping[str, float]) -> dict[str, Section]:
    """Return the sections of the profile, from the times of all ranks. Collective.

    whole: set-up, training, evaluations; training: by phase; communication: by the
    purpose of the words, evaluations and control included; set-up: by its parts.
    """
    world = live.grid.world
    exchanges = live.view.exchanges
    everyone = world.exchange_objects(measured(live, setup))
    return {
        section: compare_ranks([sections[section] for sections in everyone], exchanges)
        for section in everyone[0]
    }


def measured(
    live: AssembledRun, setup: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return section -> name -> seconds, as this rank has measured them."""
    clock = dict(live.task.clock.seconds)
    total = live.view.seconds
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
    """Return a row of figures for each name that any rank measured.

    They are the mean seconds over the ranks, the slowest rank and its seconds, the
    share of the mean in the sum of all rows, and the mean µs of an exchange. `ranks`
    contains name -> seconds of every rank.
    """
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


# The model of a run whose weights are on disk: a file, of which an array is a view.

NAME = "weights.npy"


class ModelFile:
    """A file of (d, K) words that is written tile by tile.

    A failed write is raised by `finish` and not before, because other ranks would wait
    for this rank at the next tile.
    """

    def __init__(
        self, path: Path, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> None:
        self.path = path
        self.width = shape[1]
        self.failure: OSError | None = None
        try:
            with open(open_entry(path, CREATE), "wb") as file:
                header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                self.first = file.tell()
        except OSError as error:
            self.failure = error

    def put(self, column: int, words: Array) -> None:
        """Write `words`, (columns, K), from column `column` of the data on."""
        flat = np.ascontiguousarray(words).reshape(-1).view(np.uint8)
        if self.failure is not None:
            return
        try:
            number = open_entry(self.path, os.O_RDWR)
            with open(number, "r+b", buffering=0) as file:
                file.seek(self.first + column * self.width * words.itemsize)
                left = memoryview(flat.data)
                while left:
                    left = left[file.write(left) :]
        except OSError as error:
            self.failure = error

    def finish(self) -> None:
        """Raise DataError for the first write that failed, if one did."""
        if self.failure is not None:
            from hpcsgd.agreements.more.infinity.tiles import disk_full_error

            raise disk_full_error(self.path, self.failure, self.path.stat().st_size)


def write_model(weights: OnDisk, columns: Columns, folder: Path, height: int) -> Path:
    """Write all columns of w by tiles, on every rank to a file of its own. Collective.

    Return the path of the file. A tile has up to `height` columns. Members store
    different columns, and some have fewer tiles than others.
    """
    K = weights.columns
    parts = columns.parts
    world = columns.grid.world
    file = ModelFile(folder / NAME, (columns.total, K), weights.dtype)
    tiles = weights.tiles("control")
    nothing = slice(0), np.empty((0, K), weights.dtype)
    for number in range(-(-max(part.stop - part.start for part in parts) // height)):
        _, tile = next(tiles, nothing)
        pieces = [_piece(part, number * height, height) for part in parts]
        for piece, words in zip(pieces, _all(tile, pieces, columns, K), strict=True):
            file.put(piece.start, words)
    weights.check_reads()
    world.together(file.finish)
    return file.path


def open_model(path: Path, budget: float) -> Array:
    """Return the weights in a file: in memory up to `budget` MiB, else as a view."""
    check_entry(path)
    weights: Array = np.load(path, mmap_mode="r")
    return np.array(weights) if weights.nbytes <= budget * 2**20 else weights


def _piece(part: slice, first: int, height: int) -> slice:
    """Return the columns of the tile that begins `first` columns into `part`."""
    start = min(part.start + first, part.stop)
    return slice(start, min(start + height, part.stop))


def _all(own: Array, pieces: list[slice], columns: Columns, K: int) -> list[Array]:
    """Return the tiles of all members, in the order of members.

    Collective over members.
    """
    if columns.grid.members.size == 1:
        return [own]
    counts = [(piece.stop - piece.start) * K for piece in pieces]
    out = np.empty(sum(counts), dtype=own.dtype)
    flat = np.ascontiguousarray(own).reshape(-1)
    columns.grid.members.gather(flat, counts, out, "control")
    return np.split(out, np.cumsum(counts)[:-1])


def model_of(live: AssembledRun) -> Array:
    """Return the weights of all members, which are on disk, on every rank.

    Collective.
    """
    agreement: Any = live.agreement
    weights: Any = live.state.weights
    folder = agreement.store.folder
    path = write_model(weights, live.columns, folder, agreement.height)
    return open_model(path, agreement.inputs.settings.tile)


# From the live parts to a Result, once the last exchange is done.


def report(
    live: AssembledRun,
    state: State,
    status: Status,
    began: float,
    setup: Mapping[str, float],
    more: Mapping[str, Any],
) -> Result:
    """Return the result of a run: the weights, and what was measured. Collective.

    Every rank gets the same model.
    """
    columns = live.task.columns
    if live.config.agreement.on_disk:
        weights = model_of(live)
    else:
        own_weights = live.task.backend.to_host(state.weights[:, :columns])
        weights = live.columns.join(live.agreement.joined(own_weights))
    intercept = None if state.intercept is None else state.intercept[0].copy()
    # Several models stay side by side, whatever each of them has.
    scalar = live.task.family.targets != "classes" and live.task.models is None
    loss = float(live.view.loss)
    history = list(live.view.history)
    if live.config.run.emulate_members:  # messages of other ranks were made up
        loss = float("nan")
        history = []
        weights = np.full_like(weights, np.nan)
    result = Result(
        status=status,
        loss=loss,
        weights=weights[:, 0] if scalar else weights,
        intercept=intercept[0] if scalar and intercept is not None else intercept,
        iterations=live.view.steps,
        exchanges=live.view.exchanges,
        history=history,
        ledger=live.grid.world.ledger.as_dict(),
        config=live.config.tables(),
        preparation=live.loaded.facts.preparation,
        report=_facts(live, began, setup)
        | ({ON_FILE: NAME} if isinstance(weights, np.memmap) else {})
        | _judged(live)
        | _polished(live)
        | dict(more),
    )
    return result.in_int8() if live.config.run.model == "int8" else result


def _judged(live: AssembledRun) -> dict[str, Any]:
    """Return what the last evaluation measured beside F, and the models of a sweep.

    It may have measured the loss on held-out rows, the gradient, the gap, and the
    losses of a sweep's models. For one model the dict is empty after a refinement,
    whose facts are apart, and with emulated members.
    """
    models = live.task.models
    history = live.view.history
    made_up = live.config.run.emulate_members  # then nobody knows a loss
    # A refinement has its figures in facts of its own.
    is_elsewhere = made_up or live.training.polish_facts is not None
    figures = {} if is_elsewhere else dict(live.view.more)
    if models is None:
        return figures
    first = history[0]["losses"] if history and not made_up else []
    facts = {"models": [vars(m) for m in models.each], "first_losses": first}
    return {"losses": [None] * len(models)} | figures | facts


def _facts(
    live: AssembledRun, began: float, setup: Mapping[str, float]
) -> dict[str, Any]:
    config = live.config
    view = live.view
    clock = live.task.clock
    grid = live.grid
    batch = config.schedule.batch
    agreement = config.agreement
    evaluate = clock.seconds.get("evaluate", 0.0)
    phases = {k: v for k, v in clock.seconds.items() if k != "evaluate"}
    return {
        "schedule": {
            "batch": batch,
            "steps": config.schedule.steps,
            "period": config.schedule.period,
            "epochs": config.schedule.epochs,
            "global_batch": batch * grid.replicas.size * agreement.batches_together,
        },
        "grid": {"replicas": grid.replicas.size, "members": grid.members.size},
        "ranks": grid.world.size,
        "emulated_members": config.run.emulate_members,
        "products": live.product_name,
        "look_ahead": live.look_ahead,
        "gram_kernel": getattr(
            getattr(live.product, "exchanges", None), "gram_kernel", ""
        ),
        "rows": live.loaded.shard.total_rows,
        "columns": live.loaded.shard.total_columns,
        "sparse": live.loaded.shard.is_sparse,
        "density": live.loaded.density,
        "classes": live.loaded.columns,
        "labels": list(live.loaded.targets.labels),
        "precision": _precision(live),
        "precision_runs": emulated_fields(live.task.precision),
        **_casts(live),
        "clipped_scores": live.evaluation.clipped,
        **live.loop.observers.facts(),
        "events": list(view.events),
        "gap_looks": 0 if live.task.monitor is None else live.task.monitor.checks,
        "seconds_total": view.seconds,
        "seconds_setup": sum(setup.values()),
        "seconds_evaluate": evaluate,
        "seconds_wall": time.perf_counter() - began,
        "seconds_by_phase": phases,
        "rows_per_second": view.rows / view.seconds if view.seconds > 0 else 0.0,
        "agreement": _agreement(live),
        **_privacy(live),
        **_of_all_ranks(live),
        "transport": grid.world.transport,
        "source": live.loaded.facts.source,
        **named(live.loaded),
        "data_fingerprint": live.loaded.facts.fingerprint,
        "resumes": live.capture.resumes,
        "checkpoints_written": 0 if live.saver is None else live.saver.written,
        "checkpoints_failed": 0 if live.saver is None else live.saver.failed,
        **_where(),
        # Rank 0 alone loads SciPy for its version.
        "versions": grid.world.share_object(None if grid.world.rank else _versions()),
        **({"profile": profile(live, setup)} if config.run.profile else {}),
    }


def _agreement(live: AssembledRun) -> dict[str, Any]:
    """Return kind and method of the agreement, and the facts that it reports."""
    settings = {
        name: getattr(live.config.agreement, name) for name in ("kind", "method")
    }
    return {**settings, **live.agreement.facts()}


def _privacy(live: AssembledRun) -> dict[str, Any]:
    """Return the privacy that the exchanges so far have spent, if rows have any."""
    privacy = live.config.privacy
    if not privacy.is_on:
        return {}
    rows = live.loaded.shard.total_rows
    spent = spent_epsilon(live.config, rows, privacy.noise, live.view.exchanges)
    shown = {name: getattr(privacy, name) for name in ("kind", "clip", "noise")}
    return {"privacy": {**shown, "epsilon": spent, "delta": privacy.delta}}


def _polished(live: AssembledRun) -> dict[str, Any]:
    """Return the facts of the refinement, if any, and has_minimum if that is False."""
    facts = live.training.polish_facts
    section = {} if facts is None else {"polish": facts}
    return section if live.training.has_minimum else {**section, "has_minimum": False}


def _precision(live: AssembledRun) -> dict[str, str]:
    return dict(vars(live.task.precision))


def _casts(live: AssembledRun) -> dict[str, int | float]:
    """Return the facts on clipping, on values of X that saturated, and on loss scaling.

    They are counts, and the present loss scale. Facts that a run lacks are left out.
    """
    backend = live.task.backend
    counts: dict[str, int | float] = {}
    if live.task.clip is not None:
        counts["clipped_updates"] = live.task.clip.clipped
    if backend.scaling is not None:
        counts |= {
            "matrix_saturated": backend.scaling.saturated,
            "matrix_flushed": backend.scaling.flushed,
        }
    if backend.loss_scale is not None:
        scale = backend.loss_scale
        counts |= {"loss_scale": scale.value, "skipped_exchanges": scale.skipped}
    return counts


def _of_all_ranks(live: AssembledRun) -> dict[str, Any]:
    """Return the largest resident set of any rank, and the energy of all. Collective.

    Both travel in one message.
    """
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts KiB, macOS bytes.
    peak_rss *= 1 if sys.platform == "darwin" else 1024
    everyone = live.grid.world.exchange_objects((peak_rss, live.training.energy))
    energy, why = total(energy_report for _, energy_report in everyone)
    return {
        "peak_rss_bytes": int(max(rss for rss, _ in everyone)),
        "energy": energy,
        "energy_reason": why,
    }


@cache
def _where() -> dict[str, Any]:
    """Return the host, processor and cores of this rank."""
    return {
        "host": platform.node(),
        "processor": processor(),
        "cores": os.cpu_count() or 1,
    }


@cache
def processor() -> str:
    """Return the name of the processor, or its architecture if it has no name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass  # not Linux
    return platform.machine()


def _versions() -> dict[str, str]:
    from hpcsgd.backends import compiled_calls

    return {**_packages(), "kernels": compiled_calls.instructions() or "NumPy"}


@cache
def _packages() -> dict[str, str]:
    import scipy

    return {
        "hpcsgd": hpcsgd.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def named(loaded: LoadedRows) -> dict[str, Any]:
    """Return the names of the columns, and the levels of columns that were text.

    Either is left out if the data do not have it.
    """
    names = {} if loaded.facts.names is None else {"feature_names": loaded.facts.names}
    levels = loaded.facts.categories
    return names if levels is None else {**names, "categories": levels}


def machine_facts() -> dict[str, Any]:
    """Return the facts on the machine of this rank and the software it runs."""
    return {**_where(), "versions": _versions()}

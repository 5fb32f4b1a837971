"""The engine with all that it looks at: evaluation, guards, looks, checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcsgd.agreement import AGREEMENTS, Agreement, Infinity, Sharded, Terms
from hpcsgd.agreement.kinds import is_on_disk
from hpcsgd.assembly.feed import Feed
from hpcsgd.assembly.hooks import make_hooks
from hpcsgd.assembly.proximal import penalty_of
from hpcsgd.assembly.replayable import is_replayable
from hpcsgd.assembly.vocabulary import Vocabulary
from hpcsgd.callbacks.base import Callback, View
from hpcsgd.callbacks.guards import MemberCheck
from hpcsgd.capture import Capture
from hpcsgd.checkpoint import Store
from hpcsgd.columns import Columns
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Ledger
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.engine import Engine, Pace
from hpcsgd.errors import ConfigError
from hpcsgd.evaluation import Evaluation
from hpcsgd.fall_back import next_rung
from hpcsgd.finisher import UNFINISHED, Finisher, Unfinished
from hpcsgd.from_disk.capture import TiledCapture
from hpcsgd.from_disk.objective import TiledObjective
from hpcsgd.good_states import GoodStates
from hpcsgd.load import Loaded
from hpcsgd.looks import Looks
from hpcsgd.objective import Objective
from hpcsgd.products.base import Product, Task
from hpcsgd.products.watcher import UNWATCHED
from hpcsgd.recording import NAME, Recorder, choose_exchanges
from hpcsgd.saving import Saver
from hpcsgd.sliced_objective import SlicedObjective
from hpcsgd.stopping import MEASURES
from hpcsgd.timing import Clock


@dataclass(frozen=True)
class Parts:
    """What is there before the engine is."""

    config: RunConfig
    words: Vocabulary
    grid: Grid
    loaded: Loaded
    task: Task
    product: Product
    product_name: str
    look_ahead: bool
    feed: Feed
    columns: Columns
    undo: list[Callable[[], None]]  # what closes the groups that were opened


def make_engine(parts: Parts, callbacks: list[Callback]) -> tuple[Capture, Engine]:
    """The engine, and what takes its state and puts it back."""
    config, grid, task = parts.config, parts.grid, parts.task
    agreement = _agreement(parts)
    parts.undo.append(agreement.close)
    guard = MemberCheck(grid.members, config.run.check_members, parts.columns.whole)
    evaluation = _evaluation(parts, agreement)
    capture = _capture(parts, agreement, evaluation, guard)
    schedule, each = config.schedule, parts.feed.exchanges_per_epoch
    view = View(
        epochs=schedule.epochs,
        exchanges_planned=each * schedule.epochs,
        total_rows=parts.loaded.shard.total_rows,
        words=lambda: grid.world.ledger.words("products"),
        phases=lambda: phases_so_far(task.clock, grid.world.ledger),
        evaluations_planned=evaluations(schedule.epochs, config.run.evaluate_every),
    )
    return capture, Engine(
        grid=grid,
        product=parts.product,
        agreement=agreement,
        guard=guard,
        evaluation=evaluation,
        saver=_saver(parts, capture),
        looks=Looks(grid.world, _looks_every(parts)),
        pace=Pace(schedule.epochs, each, config.run.evaluate_every),
        view=view,
        callbacks=callbacks,
        clock=task.clock,
        recorder=_recorder(parts, agreement),
        monitor=task.monitor,
        states=_good_states(parts),
        falls_back=_falls_back(parts),
        hooks=make_hooks(
            config,
            parts.columns,
            task,
            parts.product,
            evaluation,
            (schedule.epochs, each),
            view.history,
        ),
        finisher=_finisher(parts, evaluation),
        stop=config.stop,
    )


def _finisher(parts: Parts, evaluation: Evaluation) -> Unfinished:
    """What comes after the last step; weights that are made up have no optimum."""
    config = parts.config
    if config.polish.kind == "none":
        return UNFINISHED
    if config.run.emulate_members:
        raise ConfigError(
            "[polish] needs the rows of all members, and --emulate-members has those of"
            " one; set polish.kind = 'none'"
        )
    if evaluation.objective.models is not None:
        raise ConfigError(
            "[polish] goes to the optimum of one model, and a sweep has several; set"
            " polish.kind = 'none', and polish the model that was chosen"
        )
    if not evaluation.objective.penalty.is_smooth:
        raise ConfigError(
            "[polish] follows gradients, and l1 or bounds have none where they bend F;"
            " set polish.kind = 'none'"
        )
    each = config.run.evaluate == "gap"
    return Finisher(config.polish, evaluation, parts.columns, bounds_passes=each)


def _looks_every(parts: Parts) -> int:
    """Verdicts on the recurrence are heard of when all ranks look up: soon."""
    run = parts.config.run
    if not _is_watched(parts):
        return run.check_every
    return min(run.check_every, run.gap_every)


def _is_watched(parts: Parts) -> bool:
    return parts.task.monitor is not UNWATCHED


def _good_states(parts: Parts) -> GoodStates:
    """Copies are kept where there is something to fall back to."""
    every = parts.config.run.gap_every if _is_watched(parts) else 0
    rung = next_rung(parts.config, parts.product_name) if _falls_back(parts) else None
    return GoodStates(every, rung is not None)


def _falls_back(parts: Parts) -> bool:
    run, kind = parts.config.run, parts.words.agreement
    return run.fall_back and not run.emulate_members and not is_on_disk(kind)


def phases_so_far(clock: Clock, ledger: Ledger) -> dict[str, float]:
    """Seconds of every phase; agreements are timed by the ledger, not the clock."""
    return {**clock.seconds, "agreement": ledger.entries["agreement"].seconds}


def evaluations(epochs: int, every: int) -> int:
    """Full losses of a run: at both ends, and every so many epochs."""
    if not every:
        return 2
    return 1 + -(-epochs // every)


def _agreement(parts: Parts) -> Agreement:
    if isinstance(parts.task.gradient, Agreement):
        return parts.task.gradient
    config, replicas = parts.config, parts.grid.replicas.size
    total = parts.loaded.shard.total_rows
    rows = [split_range(total, replicas, r) for r in range(replicas)]
    terms = Terms(
        grid=parts.grid,
        rows=tuple(part.stop - part.start for part in rows),
        classes=parts.task.columns,
        period=config.schedule.period,
        exchanges_per_epoch=parts.feed.exchanges_per_epoch,
        seed=config.sampling.seed,
        settings=config.agreement,
    )
    return AGREEMENTS[parts.words.agreement].of(terms)


def _evaluation(parts: Parts, agreement: Agreement) -> Evaluation:
    loaded, task = parts.loaded, parts.task
    known = (
        parts.grid,
        task.family,
        loaded.judged,
        penalty_of(parts.config.problem, loaded.shard.total_columns).of(
            loaded.shard.columns
        ),
        loaded.read_exact,
        task.models,
    )
    on_disk = isinstance(agreement, Infinity)
    objective = (
        TiledObjective(*known, loaded.read_some) if on_disk else Objective(*known)
    )
    own = loaded.shard.columns if parts.columns.whole else slice(None)
    if isinstance(agreement, Sharded) and agreement.stage == 3:
        objective = SlicedObjective(**vars(objective), tiles=agreement.tiles)
    takes = _measure(parts.config, several=task.models is not None)
    return Evaluation(objective, agreement, task.columns, own, takes)


def _measure(config: RunConfig, several: bool) -> str:
    """What every evaluation takes: what was asked for, and what the goal needs."""
    asked, goal = config.run.evaluate, config.stop.on
    if goal == "validation" and not config.sampling.hold_out:
        raise ConfigError(
            "[stop] on = 'validation' goes by rows that are held out, and there are"
            " none; set sampling.hold_out, 0.1 is usual"
        )
    if goal == "validation" and config.polish.kind != "none":
        raise ConfigError(
            "[stop] on = 'validation' ends before the optimum, to which [polish] would"
            " go on; set polish.kind = 'none'"
        )
    if goal != "none" and not config.run.evaluate_every:
        raise ConfigError(
            f"[stop] on = {goal!r} is looked for at evaluations, and there are none"
            " before the end; set run.evaluate_every, 1 is usual"
        )
    if goal in ("validation", "loss") and several:
        raise ConfigError(
            f"[stop] on = {goal!r} would end all models where one is best; set"
            " stop.on = 'none' for a sweep, which judges each by its held loss"
        )
    takes = max(asked, goal if goal in MEASURES else "loss", key=MEASURES.index)
    each = config.run.evaluate_every == config.update.snapshot == 1
    if config.update.kind == "svrg" and each and takes == "loss":
        takes = "gradient"  # its snapshot has to take it there anyway
    if several and takes != "loss":
        raise ConfigError(
            f"the {takes} of several models is not taken; set stop.on = 'none' and"
            " run.evaluate = 'loss' for a sweep"
        )
    return takes


def _capture(
    parts: Parts, agreement: Agreement, evaluation: Evaluation, guard: MemberCheck
) -> Capture:
    kind = TiledCapture if isinstance(agreement, Infinity) else Capture
    return kind(
        grid=parts.grid,
        columns=parts.columns,
        agreement=agreement,
        evaluation=evaluation,
        guard=guard,
        clock=parts.task.clock,
        facts={
            "config": parts.config.tables(),
            "fingerprint": parts.loaded.fingerprint,
            "rows": parts.loaded.shard.total_rows,
            "product": parts.product_name,
            "look_ahead": parts.look_ahead,
            "members": parts.grid.members.size,
        },
        exchanges_per_epoch=parts.feed.exchanges_per_epoch,
        to_host=parts.task.backend.to_host,
    )


def _saver(parts: Parts, capture: Capture) -> Saver:
    config, out = parts.config.checkpoint, parts.config.run.out
    shrinks = parts.config.run.on_failure == "shrink"
    if out is None and not shrinks:
        return Saver(None, capture.take, None)
    world = parts.grid.world
    store = Store(Path(out), config.keep) if out and world.rank == 0 else None
    # Two: a rank may be lost while the newest is being collected.
    return Saver(config, capture.take, store, world.working, 2 if shrinks else 0)


def _recorder(parts: Parts, agreement: Agreement) -> Recorder:
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
            "gap_every": run.gap_every if _is_watched(parts) else 0,
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

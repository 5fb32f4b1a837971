"""The engine of a run, made with its observers, evaluations and recordings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcsgd.agreements import get_agreement
from hpcsgd.agreements.base import Agreement, AgreementInputs
from hpcsgd.agreements.gradient import Gradient
from hpcsgd.backends.task import Task
from hpcsgd.comm.ledger import Clock, Ledger
from hpcsgd.config import RunConfig
from hpcsgd.data.shard import lengths
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.products.base import Product
from hpcsgd.products.direct import MicroBatches
from hpcsgd.products.hooks import Hook, HookList
from hpcsgd.runs.assembled_run import Parts, last_rate
from hpcsgd.runs.checkpoint import Capture, CheckpointStore, Saver, TiledCapture
from hpcsgd.runs.checks import penalty_of, proximal_hooks, snapshot_hooks
from hpcsgd.runs.gpu import on_gpu
from hpcsgd.runs.loop import Engine, GoodStates, PollSchedule, RunLength
from hpcsgd.runs.recording import NAME, MemberCheck, Recorder, choose_exchanges
from hpcsgd.runs.recovery import next_fallback_level
from hpcsgd.solvers.callbacks import Callback, View
from hpcsgd.solvers.evaluation import (
    MEASURES,
    BestWeights,
    Columns,
    Evaluation,
    ReplicaLossScale,
    TailAverage,
)
from hpcsgd.solvers.newton import UNFINISHED, Finisher, NoFinisher
from hpcsgd.solvers.objective import Objective, SlicedObjective, TiledObjective

# Which hooks a run has: what touches its state between exchanges.


def make_hooks(
    config: RunConfig,
    columns: Columns,
    task: Task,
    product: Product,
    evaluation: Evaluation,
    epochs: tuple[int, int],
    history: Sequence[Mapping[str, Any]],
) -> HookList:
    """Those that the configuration asks for, in the order they are called.

    The run has so many `epochs`, of so many exchanges each.
    """
    total, held = columns.total, columns.own
    return HookList(
        [
            *proximal_hooks(config, total, held, task.columns, task.backend),
            *snapshot_hooks(config, epochs[1], evaluation, columns),
            *_averages(config, task, product, evaluation, epochs[0] * epochs[1]),
            *_best_held(config, task, evaluation, history),
            *_scales(task),
        ]
    )


def _best_held(
    config: RunConfig,
    task: Task,
    evaluation: Evaluation,
    history: Sequence[Mapping[str, Any]],
) -> list[Hook]:
    """The weights that held-out rows liked best, where these end the run."""
    if config.stop.on != "validation":
        return []
    return [BestWeights(evaluation, task.columns, history)]


def _scales(task: Task) -> list[Hook]:
    """What residuals are multiplied by, where that adapts and is each replica's own."""
    scale = task.backend.loss_scale
    if scale is None or scale.is_fixed or scale.waits:
        return []
    return [ReplicaLossScale(scale)]


def _averages(
    config: RunConfig,
    task: Task,
    product: Product,
    evaluation: Evaluation,
    planned: int,
) -> list[Hook]:
    """The mean of the last exchanges, where it is wanted."""
    average, period = config.average, evaluation.agreement.period
    if average.kind == "none":
        return []
    every = period if config.grid.replicas > 1 else 1
    if not isinstance(product, MicroBatches) and on_gpu(product):
        # Each iterate has to be fetched.
        every *= -(-config.run.check_every // every)
    return [
        TailAverage(
            evaluation=evaluation,
            backend=task.backend,
            first=planned - max(round(average.share * planned), 1),
            every=every,
            columns=task.columns,
            own=evaluation.own,
        )
    ]


# What a run takes of its weights, and with which objective.


def evaluation_of(parts: Parts, agreement: Agreement) -> Evaluation:
    """By tiles or slices where no rank holds all of its weights."""
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
    asked = parts.config.agreement
    objective = (
        TiledObjective(*known, loaded.read_some) if asked.on_disk else Objective(*known)
    )
    own = loaded.shard.columns if parts.columns.whole else slice(None)
    if asked.slices_weights:
        sharded: Any = agreement
        objective = SlicedObjective(**vars(objective), tiles=sharded.tiles)
    takes = _measure(parts.config, several=task.models is not None)
    return Evaluation(
        objective,
        agreement,
        task.columns,
        own,
        takes,
        has_intercept=parts.config.problem.intercept,
    )


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


# Which runs are recorded: those whose exchanges plain SGD in longdouble can repeat.


def is_replayable(
    config: RunConfig, precision: Precision, agreement: Agreement, several: bool
) -> bool:
    """One model, whose steps are neither clipped, nor anchored, nor of another rule."""
    update = config.update
    if update.clip != "none" or update.kind == "svrg" or several:
        return False
    if not isinstance(agreement, Gradient):
        return True
    # Others say more than sums, or leave steps out where residuals overflow.
    plain = (
        type(agreement) is Gradient and not get_format(precision.residual).wants_scale
    )
    return (
        plain and not agreement.steps.rule.state_names and not agreement.means.shapers
    )


# Which exchanges of a run are written down, and what makes two legs one run.


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


# The engine with all that it looks at: evaluation, guards, looks, checkpoints.


def make_engine(parts: Parts, callbacks: list[Callback]) -> tuple[Capture, Engine]:
    """The engine, and what takes its state and puts it back."""
    config, grid, task = parts.config, parts.grid, parts.task
    agreement = _agreement(parts)
    parts.undo.append(agreement.close)
    guard = MemberCheck(grid.members, config.run.check_members, parts.columns.whole)
    evaluation = evaluation_of(parts, agreement)
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
        polls=PollSchedule(grid.world, _looks_every(parts)),
        pace=RunLength(schedule.epochs, each, config.run.evaluate_every),
        view=view,
        callbacks=callbacks,
        clock=task.clock,
        recorder=recorder_of(parts, agreement),
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
        has_own_loss=not config.run.emulate_members and task.models is None,
    )


def _finisher(parts: Parts, evaluation: Evaluation) -> NoFinisher:
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
    if not parts.is_watched:
        return run.check_every
    return min(run.check_every, run.gap_every)


def _good_states(parts: Parts) -> GoodStates:
    """Copies are kept where there is something to fall back to."""
    every = parts.config.run.gap_every if parts.is_watched else 0
    rung = (
        next_fallback_level(parts.config, parts.product_name)
        if _falls_back(parts)
        else None
    )
    return GoodStates(every, rung is not None)


def _falls_back(parts: Parts) -> bool:
    run, on_disk = parts.config.run, parts.config.agreement.on_disk
    return run.fall_back and not run.emulate_members and not on_disk


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
    terms = AgreementInputs(
        grid=parts.grid,
        rows=lengths(total, replicas),
        classes=parts.task.columns,
        period=config.schedule.period,
        exchanges_per_epoch=parts.feed.exchanges_per_epoch,
        seed=config.sampling.seed,
        settings=config.agreement,
        last_rate=last_rate(config, lengths(total, replicas)[0]),
    )
    return get_agreement(parts.words.agreement).of(terms)


def _capture(
    parts: Parts, agreement: Agreement, evaluation: Evaluation, guard: MemberCheck
) -> Capture:
    kind = TiledCapture if parts.config.agreement.on_disk else Capture
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
    store = CheckpointStore(Path(out), config.keep) if out and world.rank == 0 else None
    # Two: a rank may be lost while the newest is being collected.
    return Saver(config, capture.take, store, world.working, 2 if shrinks else 0)

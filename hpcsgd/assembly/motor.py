"""The engine with all that it looks at: evaluation, guards, looks, checkpoints."""

from pathlib import Path

from hpcsgd.agreement import AGREEMENTS, Agreement, Infinity, Terms
from hpcsgd.agreement.kinds import is_on_disk
from hpcsgd.assembly.engine_parts import Parts
from hpcsgd.assembly.evaluating import evaluation_of
from hpcsgd.assembly.feed import last_rate
from hpcsgd.assembly.hooks import make_hooks
from hpcsgd.assembly.recorder import recorder_of
from hpcsgd.callbacks.base import Callback, View
from hpcsgd.callbacks.guards import MemberCheck
from hpcsgd.capture import Capture
from hpcsgd.checkpoint import Store
from hpcsgd.comm.ledger import Ledger
from hpcsgd.data.partition import lengths
from hpcsgd.engine import Engine
from hpcsgd.errors import ConfigError
from hpcsgd.evaluation import Evaluation
from hpcsgd.fall_back import next_rung
from hpcsgd.finisher import UNFINISHED, Finisher, Unfinished
from hpcsgd.from_disk.capture import TiledCapture
from hpcsgd.good_states import GoodStates
from hpcsgd.looks import Looks
from hpcsgd.pace import Pace
from hpcsgd.saving import Saver
from hpcsgd.timing import Clock


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
        looks=Looks(grid.world, _looks_every(parts)),
        pace=Pace(schedule.epochs, each, config.run.evaluate_every),
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
    if not parts.is_watched:
        return run.check_every
    return min(run.check_every, run.gap_every)


def _good_states(parts: Parts) -> GoodStates:
    """Copies are kept where there is something to fall back to."""
    every = parts.config.run.gap_every if parts.is_watched else 0
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
    terms = Terms(
        grid=parts.grid,
        rows=lengths(total, replicas),
        classes=parts.task.columns,
        period=config.schedule.period,
        exchanges_per_epoch=parts.feed.exchanges_per_epoch,
        seed=config.sampling.seed,
        settings=config.agreement,
        last_rate=last_rate(config, lengths(total, replicas)[0]),
    )
    return AGREEMENTS[parts.words.agreement].of(terms)


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

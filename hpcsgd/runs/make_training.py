"""The training of a run, made with its observers, evaluations and recordings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcsgd.agreements import get_agreement
from hpcsgd.agreements.base import Agreement, AgreementInputs
from hpcsgd.agreements.gradient import Gradient
from hpcsgd.backends.task import State, Task
from hpcsgd.comm.ledger import Clock, Ledger
from hpcsgd.config import RunConfig
from hpcsgd.data.shard import lengths
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.products.direct import MicroBatches
from hpcsgd.products.observers import Observer, Observers
from hpcsgd.runs.assembled_run import Parts, poll_every
from hpcsgd.runs.checkpoint import Capture, CheckpointStore, Saver, TiledCapture
from hpcsgd.runs.checks import penalty_of, proximal_observers, snapshot_observers
from hpcsgd.runs.fall_back import GoodStates, next_fallback_level
from hpcsgd.runs.feed import LastRate
from hpcsgd.runs.gpu import on_gpu
from hpcsgd.runs.loop import PollSchedule, Training, TrainingLoop
from hpcsgd.runs.recording import NAME, MemberCheck, Recorder, choose_exchanges
from hpcsgd.solvers.callbacks import Callback, Callbacks, View
from hpcsgd.solvers.evaluation import (
    MEASURES,
    BestWeights,
    Evaluation,
    HistoryRecords,
    PlateauWatch,
    ReplicaLossScale,
    TailAverage,
)
from hpcsgd.solvers.newton import Refinement
from hpcsgd.solvers.objective import Objective, SlicedObjective, TiledObjective
from hpcsgd.solvers.sgd import RunLength, SgdSolver

# Which observers a run has: what reads or touches its state between exchanges.


def make_observers(
    parts: Parts, agreement: Agreement, evaluation: Evaluation, view: View
) -> list[Observer]:
    """Return the observers of a run that its settings request, in calling order.

    `make_training` puts records and the check of members before them, and good states
    behind them.
    """
    config = parts.config
    columns = parts.columns
    task = parts.task
    each = parts.feed.exchanges_per_epoch
    return [
        *recorders(parts, agreement),
        *proximal_observers(
            config, columns.total, columns.own, task.columns, task.backend
        ),
        *snapshot_observers(config, each, evaluation, columns),
        *_averages(parts, evaluation, config.schedule.epochs * each),
        *_best_held(config, task, evaluation, view.history),
        *_plateaus(config, agreement, view.history),
        *_scales(task),
    ]


def _best_held(
    config: RunConfig,
    task: Task,
    evaluation: Evaluation,
    history: Sequence[Mapping[str, Any]],
) -> list[Observer]:
    """Return a list with an observer of the weights that are best on held-out rows.

    The list is empty unless the run stops by its validation loss.
    """
    if config.stop.on != "validation":
        return []
    return [BestWeights(evaluation, task.columns, history)]


def _plateaus(
    config: RunConfig, agreement: Agreement, history: Sequence[Mapping[str, Any]]
) -> list[Observer]:
    """Return a list with an observer of a loss that stops falling.

    The list is empty unless the codec accordion follows the loss.
    """
    accordion = config.accordion
    is_followed = config.agreement.codec == "accordion" and accordion.by == "loss"
    if not is_followed or not isinstance(agreement, Gradient):
        return []
    return [
        PlateauWatch(
            history,
            is_held=config.sampling.hold_out > 0,
            patience=accordion.patience,
            tol=accordion.tol,
            note_plateau=agreement.note_plateau,
        )
    ]


def _scales(task: Task) -> list[Observer]:
    """Return a list with an observer of a loss scale that replicas adapt separately.

    The list is empty if there is no such loss scale.
    """
    scale = task.backend.loss_scale
    if scale is None or scale.is_fixed or scale.waits:
        return []
    return [ReplicaLossScale(scale)]


def _averages(parts: Parts, evaluation: Evaluation, planned: int) -> list[Observer]:
    """Return a list with an observer that averages the last iterates.

    The list is empty if the run requests no average. `planned` is the number of
    exchanges of the run.
    """
    config = parts.config
    task = parts.task
    product = parts.product
    average = config.average
    period = evaluation.agreement.period
    if average.kind == "none":
        return []
    every = period if config.grid.replicas > 1 else 1
    if not isinstance(product, MicroBatches) and on_gpu(product):
        # Each iterate is copied from the device.
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


# The evaluation of a run: its objective, and what each evaluation measures.


def evaluation_of(parts: Parts, agreement: Agreement) -> Evaluation:
    """Return the evaluation of the objective.

    It is by tiles if the weights are on disk, and by slices if replicas divide them.
    """
    loaded = parts.loaded
    task = parts.task
    arguments = (
        parts.grid,
        task.family,
        loaded.judged,
        penalty_of(parts.config.problem, loaded.shard.total_columns).of(
            loaded.shard.columns
        ),
        loaded.read_exact,
        task.models,
        task.columns,
    )
    settings = parts.config.agreement
    objective = (
        TiledObjective(*arguments, loaded.read_some)
        if settings.on_disk
        else Objective(*arguments)
    )
    own_columns = loaded.shard.columns if parts.columns.whole else slice(None)
    if settings.slices_weights:
        sharded: Any = agreement
        objective = SlicedObjective(**vars(objective), tiles=sharded.tiles)
    takes = _measure(parts.config, several=task.models is not None)
    return Evaluation(
        objective,
        agreement,
        own_columns,
        takes,
        has_intercept=parts.config.problem.intercept,
        stop=parts.config.stop,
    )


def _measure(config: RunConfig, several: bool) -> str:
    """Return which of `MEASURES` each evaluation takes; refuse goals it cannot serve.

    It is the later one of what `run.evaluate` requests and what the goal `[stop] on`
    needs. SVRG with a snapshot at each evaluation takes the gradient at least.
    `several`: the run is a sweep.
    """
    measure = config.run.evaluate
    goal = config.stop.on
    if goal == "validation" and not config.sampling.hold_out:
        raise ConfigError(
            "[stop] on = 'validation' needs rows that are held out, and there are none;"
            " set sampling.hold_out, 0.1 is usual"
        )
    if goal == "validation" and config.polish.kind != "none":
        raise ConfigError(
            "[stop] on = 'validation' cannot be used with [polish], because it ends a"
            " run before the optimum, to which [polish] would continue; set"
            " polish.kind = 'none'"
        )
    if goal != "none" and not config.run.evaluate_every:
        raise ConfigError(
            f"[stop] on = {goal!r} is checked at evaluations, and this run has none"
            " before its end; set run.evaluate_every, 1 is usual"
        )
    if goal in ("validation", "loss") and several:
        raise ConfigError(
            f"[stop] on = {goal!r} cannot be used for a sweep, because it would end"
            " all models when one is best; set stop.on = 'none': a sweep compares its"
            " models by the loss of held-out rows"
        )
    takes = max(measure, goal if goal in MEASURES else "loss", key=MEASURES.index)
    each = config.run.evaluate_every == config.update.snapshot == 1
    if config.update.kind == "svrg" and each and takes == "loss":
        takes = "gradient"  # its snapshot computes it there anyway
    if several and takes != "loss":
        raise ConfigError(
            f"a sweep cannot evaluate the {takes} of its models; set stop.on = 'none'"
            " and run.evaluate = 'loss'"
        )
    return takes


# Which runs are recorded: those whose exchanges plain SGD in longdouble can repeat.


def is_replayable(
    config: RunConfig, precision: Precision, agreement: Agreement, several: bool
) -> bool:
    """Return whether plain SGD can repeat the exchanges of a run.

    It can if there is one model, and steps are neither clipped nor of svrg or FedProx.
    If replicas
    agree on gradients, these must also be plain sums of residuals in a format without a
    scale, which a rule without further state applies unshaped.
    """
    update = config.update
    if update.clip != "none" or update.kind == "svrg" or several:
        return False
    if config.agreement.proximal:
        return False
    if not isinstance(agreement, Gradient):
        return True
    # Other agreements send more than sums, or skip steps with overflowing residuals.
    plain = (
        type(agreement) is Gradient and not get_format(precision.residual).wants_scale
    )
    return (
        plain and not agreement.steps.rule.state_names and not agreement.inputs.shapers
    )


# Which exchanges of a run are written down, and what makes two legs one run.


def recorders(parts: Parts, agreement: Agreement) -> list[Observer]:
    """Return a list with the recorder of exchanges of this rank.

    The list is empty if they cannot be replayed, if the run requests no recording or
    has no run folder, or if this rank is not in replica 0.
    """
    config = parts.config
    grid = parts.grid
    run = config.run
    total = parts.feed.exchanges_per_epoch * config.schedule.epochs
    replays = is_replayable(
        config, parts.words.precision, agreement, parts.task.models is not None
    )
    if run.out is None or not run.record or grid.replica or not replays:
        return []
    recorder = Recorder(
        chosen=_recorded(parts, agreement, total),
        columns=parts.columns,
        to_host=parts.task.backend.to_host,
        path=Path(run.out) / NAME if grid.world.rank == 0 else None,
        facts_of_run={
            "fingerprint": parts.loaded.facts.fingerprint,
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
    return [recorder]


def _recorded(parts: Parts, agreement: Agreement, total: int) -> frozenset[int]:
    """Return the numbers of the exchanges to record.

    They are drawn at random from those of 1..`total` in which this replica trains.
    """
    count = parts.config.run.record
    seed = parts.config.sampling.seed
    if agreement.workers == parts.grid.replicas.size:
        return choose_exchanges(count, seed, total)
    exchanges = [n for n in range(1, total + 1) if agreement.trains(n)]
    chosen = choose_exchanges(count, seed, len(exchanges))
    return frozenset(exchanges[number - 1] for number in chosen)


def _identity(config: RunConfig) -> dict[str, Any]:
    """Return the settings that must be equal in two legs of one run.

    A leg is the part of a run between a start and its end. The number of epochs is left
    out, since a run may be made longer.
    """
    names = ("problem", "schedule", "update", "rate", "sampling", "precision")
    tables = {name: dict(config.tables()[name]) for name in names}
    del tables["schedule"]["epochs"]
    return tables


# The training loop with its observers: evaluation, checks, polls, checkpoints.


def make_training(
    parts: Parts, callbacks: list[Callback]
) -> tuple[Capture, SgdSolver, Training[State]]:
    """Make the capture of the state for checkpoints, the solver, and the training."""
    config = parts.config
    grid = parts.grid
    task = parts.task
    agreement = _agreement(parts)
    parts.undo.append(agreement.close)
    guard = MemberCheck(grid.members, config.run.check_members, parts.columns.whole)
    evaluation = evaluation_of(parts, agreement)
    capture = _capture(parts, agreement, evaluation, guard)
    schedule = config.schedule
    each = parts.feed.exchanges_per_epoch
    view = View(
        epochs=schedule.epochs,
        exchanges_planned=each * schedule.epochs,
        total_rows=parts.loaded.shard.total_rows,
        words=lambda: grid.world.ledger.words("products"),
        phases=lambda: phases_so_far(task.clock, grid.world.ledger),
        evaluations_planned=evaluations(schedule.epochs, config.run.evaluate_every),
    )
    records = HistoryRecords(grid.world.ledger)  # the observers behind it read them
    observers = [records, guard, *make_observers(parts, agreement, evaluation, view)]
    good_states = _good_states(parts, view, evaluation)
    if good_states is not None:
        observers.append(good_states)
    solver = SgdSolver(
        product=parts.product,
        agreement=agreement,
        clock=task.clock,
        observers=Observers(observers),
        groups_after=parts.feed.groups,
        length=RunLength(schedule.epochs, each, config.run.evaluate_every),
    )
    loop = TrainingLoop(
        solver=solver,
        evaluation=evaluation,
        callbacks=Callbacks(callbacks, view),
        observers=solver.observers,
        polls=PollSchedule(
            grid.world,
            poll_every(config, task),
            monitor=task.monitor,
            ends_on_alarm=_falls_back(parts),
        ),
        saver=_saver(parts, capture),
    )
    training = Training(
        loop,
        refinement=_refinement(parts, evaluation, loop),
        good_states=good_states,
        has_own_loss=not config.run.emulate_members and task.models is None,
    )
    return capture, solver, training


def _refinement(
    parts: Parts, evaluation: Evaluation, loop: TrainingLoop[State]
) -> TrainingLoop[State] | None:
    """Return the loop of full passes that follows `loop`; None if none is requested.

    Refuse emulated members, a sweep, and a penalty that is not smooth.
    """
    config = parts.config
    if config.polish.kind == "none":
        return None
    if config.run.emulate_members:
        raise ConfigError(
            "[polish] needs the rows of all members, and --emulate-members has those of"
            " one; set polish.kind = 'none'"
        )
    if evaluation.objective.models is not None:
        raise ConfigError(
            "[polish] refines one model, and a sweep has several; set polish.kind ="
            " 'none', and refine the best model in a run of its own"
        )
    if not evaluation.objective.penalty.is_smooth:
        raise ConfigError(
            "[polish] cannot be used with l1 or bounds, because it needs a smooth F;"
            " set polish.kind = 'none'"
        )
    refinement = Refinement(
        settings=config.polish,
        evaluation=evaluation,
        columns=parts.columns,
        callbacks=loop.callbacks,
        clock=loop.solver.clock,
        bounds_passes=config.run.evaluate == "gap",
    )
    return TrainingLoop(
        solver=refinement,
        evaluation=refinement,
        callbacks=loop.callbacks,
        observers=Observers([HistoryRecords(parts.grid.world.ledger)]),
    )


def _good_states(parts: Parts, view: View, evaluation: Evaluation) -> GoodStates | None:
    """Return the store of good states.

    Return None if the run does not fall back, or has no level to fall back to.
    """
    if not _falls_back(parts):
        return None
    if next_fallback_level(parts.config, parts.product_name) is None:
        return None
    every = parts.config.run.gap_every if parts.is_watched else 0
    return GoodStates(every, view, evaluation)


def _falls_back(parts: Parts) -> bool:
    run = parts.config.run
    on_disk = parts.config.agreement.on_disk
    return run.fall_back and not run.emulate_members and not on_disk


def phases_so_far(clock: Clock, ledger: Ledger) -> dict[str, float]:
    """Return the seconds of every phase so far.

    The ledger times agreements, and the clock all other phases.
    """
    return {**clock.seconds, "agreement": ledger.entries["agreement"].seconds}


def evaluations(epochs: int, every: int) -> int:
    """Return the number of evaluations in a run of `epochs` epochs.

    The loss is evaluated at the start, after each `every` epochs and at the end; if
    `every` is 0, at the start and the end alone.
    """
    if not every:
        return 2
    return 1 + -(-epochs // every)


def _agreement(parts: Parts) -> Agreement:
    if isinstance(parts.task.gradient, Agreement):
        return parts.task.gradient
    config = parts.config
    replicas = parts.grid.replicas.size
    rows = lengths(parts.loaded.shard.total_rows, replicas)
    terms = AgreementInputs(
        grid=parts.grid,
        rows=rows,
        classes=parts.task.columns,
        period=config.schedule.period,
        exchanges_per_epoch=parts.feed.exchanges_per_epoch,
        seed=config.sampling.seed,
        settings=config.agreement,
        last_rate=LastRate(config, rows[0]),
        codec=config.codec if config.agreement.codec != "identity" else None,
    )
    return get_agreement(parts.words.agreement).of(terms)


def _capture(
    parts: Parts, agreement: Agreement, evaluation: Evaluation, guard: MemberCheck
) -> Capture:
    kind = TiledCapture if parts.config.agreement.on_disk else Capture
    return kind(
        config=parts.config,
        task=parts.task,
        columns=parts.columns,
        agreement=agreement,
        evaluation=evaluation,
        guard=guard,
        facts={
            "fingerprint": parts.loaded.facts.fingerprint,
            "rows": parts.loaded.shard.total_rows,
            "product": parts.product_name,
            "look_ahead": parts.look_ahead,
            "members": parts.grid.members.size,
        },
        exchanges_per_epoch=parts.feed.exchanges_per_epoch,
    )


def _saver(parts: Parts, capture: Capture) -> Saver[State] | None:
    """Return the saver of checkpoints; None if the run makes none.

    They are written to the run folder; if surviving ranks continue after a failure,
    every rank also has the last ones in memory.
    """
    config = parts.config.checkpoint
    out = parts.config.run.out
    shrinks = parts.config.run.on_failure == "shrink"
    if out is None and not shrinks:
        return None
    world = parts.grid.world
    store = CheckpointStore(Path(out), config.keep) if out and world.rank == 0 else None
    if not shrinks:
        return Saver(config, capture.take_to_write, store, world.working)
    # Two: a rank may be lost while the newest is being collected.
    return Saver(config, capture.take, store, world.working, remember=2)

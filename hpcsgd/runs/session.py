"""A run on the ranks of a world, and what happens when ranks are lost."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np

from hpcsgd.agreements.base import check_plan, check_same
from hpcsgd.backends.base import emulated
from hpcsgd.backends.task import Snapshot, State
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import close_on_agreed_error
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import FIT, RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.errors import ConfigError, DeviceLost
from hpcsgd.formats import Array
from hpcsgd.glm.families import LOG_LINK_TARGETS
from hpcsgd.products.base import product_facts
from hpcsgd.runs.advice import judge_fit, name_remedies, suppress_repeated_logs
from hpcsgd.runs.assembled_run import AssembledRun
from hpcsgd.runs.build import build
from hpcsgd.runs.checkpoint import PRECISION_AUTO, REQUESTED
from hpcsgd.runs.energy import EnergyMeter, make_meter
from hpcsgd.runs.fall_back import (
    convert_checkpoint,
    fallback_event,
    next_fallback_level,
)
from hpcsgd.runs.folder import RunFolder
from hpcsgd.runs.gpu import on_gpu
from hpcsgd.runs.progress import History, SlowerThanExpected
from hpcsgd.runs.recovery import (
    device_loss_error,
    find_damage,
    last_common,
    smaller_grid,
)
from hpcsgd.runs.report import report
from hpcsgd.runs.result import Result, Status
from hpcsgd.runs.resume import CheckpointedRun, resume
from hpcsgd.runs.settle import note_measured
from hpcsgd.solvers.callbacks import Callback, Request

# Where a run begins, if not at zero.


@dataclass(frozen=True)
class Start:
    """The model that a run begins with; the momentum of its update begins at zero.

    Without weights it is the null model: zero weights and, if the model has an
    intercept, that of `best_constant`.
    """

    weights: Array | None = None  # (d, K)
    intercept: Array | None = None  # (1, K), where it is known

    def load_into(self, live: AssembledRun) -> None:
        """Write the model into the state of a run. Collective."""
        state = live.state
        if self.weights is not None:
            self._load_weights(self.weights, live)
            intercept = self.intercept
        else:
            intercept = None if state.intercept is None else best_constant(live)
        if state.intercept is not None and intercept is not None:
            state.intercept[:1] = intercept

    def _load_weights(self, weights: Array, live: AssembledRun) -> None:
        """Write this rank's columns of `weights` into the state.

        They are rounded to the format of the run's weights.
        """
        columns = live.task.columns
        state = live.state
        needed = (live.task.shard.total_columns, columns)
        if weights.shape != needed:
            raise ConfigError(
                f"the initial model (start) has weights of shape {weights.shape}, and"
                f" these data need {needed}; give a model of the same columns and"
                " classes"
            )
        if live.config.agreement.on_disk:
            raise ConfigError(
                "[agreement] kind = 'infinity' begins at zero, and initial weights were"
                " given; leave the initial weights out, or use --agreement gradient"
            )
        agreement = live.agreement
        own_weights = weights[live.columns.own]
        whole = np.zeros(
            (len(own_weights), agreement.width(state)), state.weights.dtype
        )
        whole[:, :columns] = own_weights
        live.task.backend.round(whole, live.task.precision.weights)
        agreement.put_whole(state, whole)


def best_constant(live: AssembledRun) -> Array:
    """Return the intercept of the null model, (K,) or (1,). Collective.

    One number is for all K scores. It is the link of the mean target, which is best
    with zero weights for most families, and about best for huber. It is zero for probit
    and for losses of signed targets.
    """
    shard = live.task.shard
    family = live.task.family
    kind = family.targets
    if kind in ("signed",) or family.name == "probit":
        return np.zeros(live.task.columns)
    y = shard.targets.astype(np.float64, copy=False)
    c = np.ones_like(y) if shard.weights is None else shard.weights.astype(np.float64)
    c = c[:, :1]
    o = np.zeros(1) if shard.offsets is None else shard.offsets.astype(np.float64)
    own_sums = _sums(kind, c, y, o, live.task.columns)
    grid = live.grid
    total = sum(grid.world.exchange_objects(own_sums * (grid.member == 0)))
    return _link(kind, np.asarray(total))


def _sums(kind: str, c: Array, y: Array, o: Array, columns: int) -> Array:
    """Return the sums over the local rows from which `_link` finds the mean target.

    With weights c, targets y and offsets o they are Σc and Σc(y − o) for real targets,
    Σc e^o and Σcy for families with a log link, Σc and Σcy for others, each (2,); for
    classes they are Σc of each class, (K,).
    """
    if kind == "classes":
        return _by_class(c, y, columns)
    if kind == "real":
        return np.array([c.sum(), (c * (y - o)).sum()])
    exposed = np.exp(o) if kind in LOG_LINK_TARGETS else 1.0
    return np.array([(c * exposed).sum(), (c * y).sum()])


def _by_class(c: Array, y: Array, columns: int) -> Array:
    labels = y[:, 0].astype(np.intp)
    class_weights: Array = np.bincount(labels, weights=c[:, 0], minlength=columns)
    return class_weights


def _link(kind: str, total: Array) -> Array:
    """Return the link of the mean target, (K,), from sums over all rows.

    The links of classes are the logarithms of their weights, less the mean of these. A
    class of a weight below one counts as if it had a weight of one.
    """
    link: Array
    if kind == "real":
        link = total[1:] / total[0]
    elif kind in ("binary", "proportions"):
        some = max(1.0, 1e-9 * total[0])
        none = max(total[0] - total[1], some)
        link = np.log(np.maximum(total[1:], some) / none)
    elif kind == "classes":
        logs = np.log(np.maximum(total, 1.0))
        link = logs - logs.mean()
    else:
        # Targets may be of any size; where all are 0 no intercept is best.
        mean = total[1:] / total[0]
        link = np.log(np.where(mean > 0.0, mean, 1e-9))
    return link


# Settings that must be the same on all ranks, since they decide what is sent.

OWN = (
    "data.path",
    "run.out",
    "run.memory",
    "agreement.store",
)  # where a rank reads and writes


def check_settings(config: RunConfig, world: Communicator) -> None:
    """Raise an error if ranks have different settings. Collective, of two words."""
    if world.size > 1:
        check_same(world, settings_of(config))


def check_live(live: AssembledRun) -> None:
    """Raise an error if replicas planned agreements differently. Collective."""
    if live.grid.world.size > 1:
        check_plan(live.grid, live.agreement.plan_in_words(live.state))


def settings_of(config: RunConfig) -> dict[str, str]:
    """Return the settings that decide what is sent, by name."""
    settings = {
        f"{section}.{key}": repr(value)
        for section, table in config.tables().items()
        for key, value in table.items()
    }
    # Ranks with a run folder take part in what is written there.
    folder = "no folder" if config.run.out is None else "a folder"
    return {n: v for n, v in settings.items() if n not in OWN} | {"run.out": folder}


# One run on the ranks of a world, from its settings to a result.

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would log the same
RATE_FACTOR = 0.125  # of a rate from the data with which the loss blew up


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run before its rows are loaded, and where they come from.

    Attributes
    ----------
    config : RunConfig
        All settings; the rate, the product and the steps may be open.
    recorded : CheckpointedRun or None
        What a checkpoint says of the run that goes on.
    notes : mapping
        Facts on the choice of settings, for the report.
    reasons : mapping
        section.key -> why its value was chosen.
    """

    config: RunConfig
    recorded: CheckpointedRun | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Leg:
    """A part of a run: to its end, a fall-back, a lower rate, or the loss of ranks.

    Attributes
    ----------
    config : RunConfig
        The settings.
    snapshot : Snapshot or None
        The state that it goes on from; None: the start of the run, or its checkpoint.
    requested : RunConfig or None
        The settings before the first fall-back; None: there was none.
    request : Request
        What callbacks asked for in the leg before.
    lost_ranks : int
        Ranks that were lost in the legs before.
    rates_tried : int
        Rates that the run has begun with, this leg's included.
    recorded : CheckpointedRun or None
        What a checkpoint says of the run that goes on, if there is no snapshot.
    """

    config: RunConfig
    snapshot: Snapshot | None = None
    requested: RunConfig | None = None
    request: Request = Request.NONE
    lost_ranks: int = 0
    rates_tried: int = 1
    recorded: CheckpointedRun | None = None

    def with_settings(self, values: Mapping[str, Any]) -> "Leg":
        """Return this leg with other values of some settings."""
        return replace(self, config=self.config.with_values(values))


class Session:
    """The run of one call of `train` or `fit`, which may outlive some of its ranks."""

    def __init__(
        self,
        settings: RunSettings,
        world: Communicator,
        reader: Callable[[Communicator], RowReader],
        callbacks: list[Callback],
        start: Start | None = None,
        setup: Clock | None = None,
        most_rates: int = 1,
    ) -> None:
        self.settings = settings
        self.world = world  # the ranks that are left
        self.reader = reader
        self.callbacks = callbacks
        self.start = start  # None: at zero, or at a checkpoint
        self.setup = setup or Clock()
        self.most_rates = most_rates  # that are tried, if a rate from the data is open
        self.live: AssembledRun | None = None
        self.meter: EnergyMeter | None = None  # of energy, over all legs
        # Of legs whose rates were too high:
        self.ledgers_of_attempts: list[dict[str, dict[str, Any]]] = []

    @property
    def config(self) -> RunConfig:
        """Return the settings that the run begins with."""
        return self.settings.config

    def run(self) -> Result:
        """Train leg after leg, until one ends with the result. Collective.

        A leg ends with the run, with a fall-back, with a rate that was too high, or
        with the loss of ranks.
        """
        leg = Leg(self.config, recorded=self.settings.recorded)
        result = None
        with self._borrowed_ranks():
            while result is None:
                # Rows and states of an earlier leg are released before the next.
                live = state = None
                try:
                    with self._opened(leg) as (live, folder):
                        state, status = live.training.run(
                            live.state, self.meter, leg.request
                        )
                        damage = find_damage(live) if status is Status.DIVERGED else ""
                        following = self._next_leg(leg, live, status, damage)
                        if following is None:
                            result = self._finish(
                                leg, live, folder, state, status, damage
                            )
                    if following is not None:
                        self.setup.start()  # training is no part of the set-up
                        leg = following
                except DeviceLost as error:
                    self._leave_without_gpu(error)
                except (Exception, KeyboardInterrupt) as error:
                    if self.live is not None:  # the caller may go on from there
                        self.live.finish_saving()
                    shrinks = self.config.run.on_failure == "shrink"
                    if not (shrinks and self.world.has_lost_ranks(error)):
                        raise
                    leg = self._leg_of_survivors(leg)
        if self.most_rates > 1:
            result.report["rates_tried"] = leg.rates_tried
        return result

    @contextmanager
    def _borrowed_ranks(self) -> Iterator[None]:
        """Borrow the ranks for one run; a rank that exits ends all others, too."""
        # A fit judges its result itself, and warns once.
        is_fit = self.most_rates > 1
        logs = suppress_repeated_logs() if is_fit else nullcontext()
        try:
            with logs, borrow_world(self.world, self.config.run.reproducible):
                try:
                    yield
                finally:
                    for counted in self.ledgers_of_attempts:
                        self.world.ledger.add(counted)
        except SystemExit as leaving:
            # No hook sees this one; the others would wait for this rank for ever.
            world = self.world
            if world.size > 1:
                print(f"hpcsgd: rank {world.rank} leaves the run", file=sys.stderr)
                world.abort(leaving.code if isinstance(leaving.code, int) else 1)
            raise

    @contextmanager
    def assembled(self) -> Iterator[AssembledRun]:
        """Yield the assembled run before it trains. Collective.

        It is at its beginning, or at the checkpoint from which it resumes. Its folder
        is neither claimed nor written.
        """
        with (
            borrow_world(self.world, self.config.run.reproducible),
            self._assemble(
                Leg(self.config, recorded=self.settings.recorded), self.callbacks
            ) as live,
        ):
            resume(live.config, live)
            yield live

    @contextmanager
    def _assemble(
        self, leg: Leg, callbacks: list[Callback], folder: RunFolder | None = None
    ) -> Iterator[AssembledRun]:
        """Yield the assembled run of a leg, and close it afterwards. Collective.

        After an error that not all ranks raise it is left open: closing waits for all
        ranks.
        """
        world = self.world
        recorded = leg.recorded
        if leg.snapshot is not None:
            recorded = CheckpointedRun.of(leg.snapshot.document)
        check_settings(leg.config, world)
        live = self.live = build(
            leg.config,
            world,
            self.reader,
            callbacks,
            self.setup,
            None if recorded is None else recorded.choice,
        )
        with close_on_agreed_error(live.close):
            check_live(live)
            if folder is not None:
                world.together(folder.claim)
            try:
                yield live
            finally:
                live.release()
                if folder is not None:
                    folder.release()
        self.live = None
        live.close()  # an MPI has some two thousand communicators, not more

    @contextmanager
    def _opened(self, leg: Leg) -> Iterator[tuple[AssembledRun, RunFolder]]:
        """Yield the run of a leg, ready to train, and its folder. Collective."""
        world = self.world
        self.live = None
        world.watch(leg.config.run.timeout)
        folder = RunFolder(leg.config.run.out if world.rank == 0 else None)
        callbacks = [History(folder.history), *self.callbacks]
        with (
            close_on_agreed_error(world.unwatch),
            self._assemble(leg, callbacks, folder) as live,
        ):
            self._begin(leg, live, folder)
            self.meter = self.meter or make_meter(_gpu(live))
            yield live, folder
        world.unwatch()

    def _next_leg(
        self, leg: Leg, live: AssembledRun, status: Status, damage: str
    ) -> Leg | None:
        """Return the leg with which a run that diverged continues. Collective.

        It is one of a fall-back, or else one with a lower rate. Return None if there is
        neither, if the run did not diverge, or if `damage` explains the divergence.
        """
        log.debug("training: %s", live.task.clock)
        if damage or status is not Status.DIVERGED:
            return None
        return self._leg_of_fallback(leg, live) or self._leg_of_lower_rate(leg, live)

    def _begin(self, leg: Leg, live: AssembledRun, folder: RunFolder) -> None:
        """Restore the state from which the leg begins; prepare to train. Collective.

        The run folder is prepared, too, and kernels are warmed up.
        """
        config = live.config
        world = live.grid.world
        with world.working("preparing the run folder"):
            goes_on = resume(config, live, leg.snapshot)
            world.together(lambda: folder.begin(config, goes_on))
            # Not over what a checkpoint, or a leg before a fall-back, has put there.
            if self.start is not None and not live.view.exchanges:
                self.start.load_into(live)
        if PRECISION_AUTO in self.settings.notes:
            live.capture.add_fact(PRECISION_AUTO, self.settings.notes[PRECISION_AUTO])
        if live.chosen.rival is not None and self.world.rank == 0:
            keeps = product_facts(live.product_name).keeps_batches
            live.loop.callbacks.add(SlowerThanExpected(live.chosen, keeps))
        if leg.requested is not None:
            # At once: what is on disk was made with the settings that failed.
            live.save()
        live.open()
        if log.isEnabledFor(logging.INFO):
            log.info(*_chosen(live), extra=ONCE)
        made_up = emulated(live.task.precision)
        if made_up:
            log.info(
                "number formats are emulated, so that times mean nothing: %s",
                ", ".join(f"{name} in {form}" for name, form in made_up.items()),
                extra=ONCE,
            )
        live.warm_up()
        world.max_flag(0)
        self.setup.lap("warm_up")
        log.debug("set-up: %s", self.setup)

    def _finish(
        self,
        leg: Leg,
        live: AssembledRun,
        folder: RunFolder,
        state: State,
        status: Status,
        damage: str,
    ) -> Result:
        """Return the result, after writing it to the run folder. Collective.

        The measured time of a step is written to the machine file, if there is one.
        """
        config = live.config
        setup = self.setup
        more = {"damage": damage, "lost_ranks": leg.lost_ranks, **self.settings.notes}
        if not damage:
            more |= name_remedies(live, status, leg.config.rate.is_open)
        result = report(live, state, status, setup.began, setup.seconds, more)
        if config.run.defaults == FIT and live.task.models is None:
            judge_fit(result)
        total = result.report["seconds_total"]
        each = total / max(result.iterations, 1)
        note_measured(config, live.chosen, each, self.world.rank, total)
        write_result(live.grid.world, folder, result)
        return result

    def _leave_without_gpu(self, error: DeviceLost) -> NoReturn:
        """Raise the error of a lost GPU, whose weights are lost.

        If other ranks can continue without this one, end its process instead.
        """
        lost_rank = None if error.on_all_ranks else self.world.rank
        refined = device_loss_error(error, lost_rank, self.live, self.config.run)
        shrinks = self.config.run.on_failure == "shrink" and self.world.size > 1
        if shrinks and lost_rank is not None:
            log.error("%s; this rank leaves the run, and the others may go on", refined)
            self.world.exit_abruptly()
        raise refined from error

    def _leg_of_survivors(self, leg: Leg) -> Leg:
        """Return the leg on the ranks that are left. Collective over these ranks.

        It resumes from the last checkpoint that all of them have in memory, or else
        from where `leg` began.
        """
        self.setup.start()  # what was trained is no part of the set-up
        before = self.world.size
        live = self.live
        world = self.world = self.world.survivors()
        grid = smaller_grid(leg.config.grid, world.size)
        saver = None if live is None else live.saver
        snapshots = [] if saver is None else list(saver.remembered)
        snapshot = last_common(world, snapshots) or leg.snapshot
        for callback in self.callbacks:
            if live is not None:
                callback.on_end(live.view)
        if world.rank == 0:
            log.warning(
                "%d of %d ranks were lost; the others go on with the grid %dx%d %s",
                before - world.size,
                before,
                grid.replicas,
                grid.members,
                "from where the run began or resumed"
                if snapshot is None
                else f"after exchange {snapshot.exchanges}",
            )
        left = replace(
            leg, snapshot=snapshot, lost_ranks=leg.lost_ranks + before - world.size
        )
        return left.with_settings(
            {"grid.replicas": grid.replicas, "grid.members": grid.members}
        )

    def _leg_of_fallback(self, leg: Leg, live: AssembledRun) -> Leg | None:
        """Return the leg that resumes from a good state with more careful settings.

        Return None where there is no such state, or no such settings.
        """
        good_states = live.training.good_states
        alarm = live.loop.alarm
        level = next_fallback_level(live.config, live.product_name)
        if good_states is None or level is None:
            return None
        stopped = live.view.exchanges
        has_gap = alarm is not None
        if not good_states.put_back(live.state, live.view, has_gap):
            return None
        settled = replace(leg, config=live.config)
        # The product is that of the snapshot, as long as the grid is the same.
        products = leg.config.products
        careful = settled.with_settings(
            {
                level.key: level.after,
                "products.kind": products.kind,
                "products.look_ahead": products.look_ahead,
            }
        )
        if careful.config.schedule.steps != live.config.schedule.steps:
            # The number of the exchange changes, and would no longer show that
            # replicas differ.
            live.agreement.settle(live.state, live.view.exchanges)
        # Ranks that survive a loss may resume from it on a smaller grid.
        shrinks = live.config.run.on_failure == "shrink"
        taken = live.capture.take(live.state, live.view, on_any_grid=shrinks)
        snapshot = convert_checkpoint(taken, live.config, careful.config)
        snapshot.document["events"].append(
            fallback_event(live.view, level, alarm, stopped, snapshot.exchanges)
        )
        requested = leg.requested or leg.config
        snapshot.document.setdefault(REQUESTED, requested.tables())
        # `restore` adds what was sent so far, also in the exchanges that are lost.
        live.grid.world.ledger.clear()
        return replace(
            careful,
            snapshot=snapshot,
            requested=requested,
            request=live.loop.callbacks.request,
        )

    def _leg_of_lower_rate(self, leg: Leg, live: AssembledRun) -> Leg | None:
        """Return the leg that trains from the start with `LOWER` times the rate.

        Return None if the caller has set the rate, or if `most_rates` were tried.
        """
        is_open = self.config.rate.is_open
        if not is_open or leg.rates_tried >= self.most_rates:
            return None
        high = live.config.rate.value
        rate = high * RATE_FACTOR
        log.warning(
            "the run diverged with rate %.3g; training starts again with rate %.3g",
            high,
            rate,
            extra=ONCE,
        )
        # What the attempt has sent is not part of the run that is reported.
        ledger = live.grid.world.ledger
        self.ledgers_of_attempts.append(ledger.as_dict())
        ledger.clear()
        again = Leg(
            self.config, lost_ranks=leg.lost_ranks, rates_tried=leg.rates_tried + 1
        )
        # The report is of this attempt alone: its time, and its energy.
        self.setup = Clock()
        self.setup.start()
        self.meter = None
        return again.with_settings(
            {
                "rate.value": rate,
                "run.resume": "no",
                "grid.replicas": leg.config.grid.replicas,
                "grid.members": leg.config.grid.members,
            }
        )


def write_result(world: Communicator, folder: RunFolder, result: Result) -> None:
    """Write the result into the run folder. Collective.

    A failure to write is noted in the report of the result, and logged.
    """
    with world.working("writing the result"):
        unsaved = world.share_object(folder.finish(result))
    if unsaved:
        # The model is there; a disk must not take it away from the caller.
        result.report["unsaved"] = unsaved
        log.error("%s", unsaved, extra=ONCE)


def _gpu(live: AssembledRun) -> str:
    """Return the bus address of the GPU of this rank, or "" without a GPU."""
    gpu = on_gpu(live.product)
    return str(gpu.device.layer.place).split()[1] if gpu else ""


@contextmanager
def borrow_world(world: Communicator, reproducible: bool) -> Iterator[None]:
    """Lend the world to one run, with an empty ledger and the run's order of sums.

    If `reproducible`, sums have a fixed order. Afterwards the counts from before are
    added to those of the run, and the order is restored. The ledger stays the same
    object: groups and wrappers of the world share it.
    """
    with world.ledger.apart(), world.ordered_sums(reproducible):
        yield


def _chosen(live: AssembledRun) -> tuple[Any, ...]:
    """Return format and values of the line of the log that describes the run."""
    config = live.config
    grid = live.grid
    shard = live.loaded.shard
    return (
        "%d x %d on %d rank%s as %d x %d, %s: %s by %s%s, batch %d, steps %d, %s",
        *(shard.total_rows, shard.total_columns, grid.world.size),
        "" if grid.world.size == 1 else "s",
        *(grid.replicas.size, grid.members.size, grid.world.transport),
        *(config.problem.family, live.product_name),
        " with look-ahead" if live.look_ahead else "",
        *(config.schedule.batch, config.schedule.steps, config.precision.recipe),
    )

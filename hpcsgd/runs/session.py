"""A run on the ranks of a world, and what happens when ranks are lost."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from hpcsgd.agreements.base import check_plan, check_same
from hpcsgd.agreements.more.infinity import OnDisk
from hpcsgd.backends.base import emulated
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import close_on_agreed_error
from hpcsgd.comm.ledger import Clock, Ledger
from hpcsgd.config import FIT, RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.errors import ConfigError, DeviceLost
from hpcsgd.formats import Array
from hpcsgd.products.base import product_facts
from hpcsgd.runs.advice import judge_fit, name_remedies
from hpcsgd.runs.assembled_run import AssembledRun
from hpcsgd.runs.build import build
from hpcsgd.runs.checkpoint import PRECISION_AUTO, REQUESTED
from hpcsgd.runs.choose import note_measured
from hpcsgd.runs.energy import EnergyMeter, make_meter
from hpcsgd.runs.fall_back import (
    Cause,
    FallbackLevel,
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
from hpcsgd.runs.resume import restore_fallback, resume
from hpcsgd.solvers.callbacks import Callback, Request
from hpcsgd.solvers.snapshot import Snapshot

# Where a run begins, if not at zero.


@dataclass(frozen=True)
class Start:
    """The model that a run begins with; the momentum of its update begins at zero.

    Without weights it is the null model: zero weights, and the intercept that is best
    with them, where there is one.
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
        """Write this rank's columns, rounded to the format of its weights."""
        columns, state = live.task.columns, live.state
        needed = (live.task.shard.total_columns, columns)
        if weights.shape != needed:
            raise ConfigError(
                f"start has weights of shape {weights.shape} and these data need"
                f" {needed}; give the model of the same columns and classes"
            )
        if isinstance(state.weights, OnDisk):
            raise ConfigError(
                "[agreement] kind = 'infinity' begins at zero and initial weights were"
                " given; leave them out, or use --agreement gradient"
            )
        agreement, own = live.agreement, weights[live.columns.own]
        whole = np.zeros((len(own), agreement.width(state)), state.weights.dtype)
        whole[:, :columns] = own
        live.task.backend.round(whole, live.task.precision.weights)
        agreement.put_whole(state, whole)


def best_constant(live: AssembledRun) -> Array:
    """(K,): the link of the mean target; zero for families that have no such link."""
    shard, family = live.task.shard, live.task.family
    y = shard.targets.astype(np.float64)
    c = np.ones_like(y) if shard.weights is None else shard.weights.astype(np.float64)
    c = c[:, :1]
    o = np.zeros_like(y) if shard.offsets is None else shard.offsets.astype(np.float64)
    kind = family.targets
    if kind in ("signed",) or family.name == "probit":
        return np.zeros(live.task.columns)
    own = _sums(kind, c, y, o, live.task.columns)
    grid = live.grid
    total = sum(grid.world.exchange_objects(own * (grid.member == 0)))
    return _link(kind, np.asarray(total))


def _sums(kind: str, c: Array, y: Array, o: Array, columns: int) -> Array:
    """What the mean target is made of, over the local rows."""
    if kind == "classes":
        return _by_class(c, y, columns)
    if kind == "real":
        return np.array([c.sum(), (c * (y - o)).sum()])
    exposed = np.exp(o) if kind in ("counts", "positive") else np.ones_like(o)
    return np.array([(c * exposed).sum(), (c * y).sum()])


def _by_class(c: Array, y: Array, columns: int) -> Array:
    labels = y[:, 0].astype(np.intp)
    found: Array = np.bincount(labels, weights=c[:, 0], minlength=columns)
    return found


def _link(kind: str, total: Array) -> Array:
    """Of the mean; of classes less their mean score. Nobody of a class: as if one."""
    found: Array
    if kind == "real":
        found = total[1:] / total[0]
    elif kind == "binary":
        some = max(1.0, 1e-9 * total[0])
        none = max(total[0] - total[1], some)
        found = np.log(np.maximum(total[1:], some) / none)
    elif kind == "classes":
        logs = np.log(np.maximum(total, 1.0))
        found = logs - logs.mean()
    else:
        # Targets may be of any size; where all are 0 no intercept is best.
        mean = total[1:] / total[0]
        found = np.log(np.where(mean > 0.0, mean, 1e-9))
    return found


# What all ranks of a run must have been told alike: it decides what is sent.

OWN = (
    "data.path",
    "run.out",
    "run.memory",
    "agreement.store",
)  # where a rank reads and writes


def check_settings(config: RunConfig, world: Communicator) -> None:
    """Refuse ranks that were given different settings; two words, before all else."""
    check_same(world, settings_of(config))


def check_live(live: AssembledRun) -> None:
    """Refuse replicas whose agreements were planned unlike; before the first."""
    check_plan(live.grid, live.agreement.plan_in_words(live.state))


def settings_of(config: RunConfig) -> dict[str, str]:
    """The settings that decide what is sent, by name."""
    said = {
        f"{section}.{key}": repr(value)
        for section, table in config.tables().items()
        for key, value in table.items()
    }
    # Whoever has a folder takes part in what is written there.
    kept = "no folder" if config.run.out is None else "a folder"
    return {n: v for n, v in said.items() if n not in OWN} | {"run.out": kept}


# One run on the ranks of a world, from a configuration to a result.

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would say it alike


class Session:
    """The run of one call, which may outlive some of its ranks."""

    def __init__(
        self,
        config: RunConfig,
        world: Communicator,
        reader: Callable[[Communicator], RowReader],
        callbacks: list[Callback],
        began: float,
        setup: Clock,
        notes: Mapping[str, Any] | None = None,
        start: Start | None = None,
    ) -> None:
        self.notes = notes or {}  # what was found before, for the report
        self.start = start  # None: at zero, or at a checkpoint
        self.config = config
        self.world = world
        self.reader = reader
        self.callbacks = callbacks
        self.began = began
        self.setup = setup
        self.live: AssembledRun | None = None
        self.last: Snapshot | None = None  # what survivors go on from
        self.lost = 0  # ranks
        self.requested_config: RunConfig | None = None  # before the first fall-back
        self.request = Request.NONE  # of callbacks, in the leg before
        self.meter: EnergyMeter | None = None  # of energy, over all legs

    def run(self) -> Result:
        """Train; a rank that leaves takes all others along."""
        try:
            with borrow_world(self.world, self.config.run.reproducible):
                return self._until_done()
        except SystemExit as leaving:
            # No hook sees this one; the others would wait for this rank for ever.
            world = self.world
            if world.size > 1:
                print(f"hpcsgd: rank {world.rank} leaves the run", file=sys.stderr)
                world.abort(leaving.code if isinstance(leaving.code, int) else 1)
            raise

    @contextmanager
    def assembled(self) -> Iterator[AssembledRun]:
        """Assemble the run where it begins, without its folder. Collective."""
        world = self.world
        with borrow_world(world, self.config.run.reproducible):
            self.config = config = restore_fallback(self.config, world)
            check_settings(config, world)
            live = build(config, world, self.reader, self.callbacks, self.setup)
            with close_on_agreed_error(live.close):
                check_live(live)
                resume(live.config, live)
                try:
                    yield live
                finally:
                    live.release()
            live.close()

    def _until_done(self) -> Result:
        while True:
            try:
                result = self._watched()
                if result is not None:
                    return result
            except DeviceLost as error:
                self._without_gpu(error)
            except (Exception, KeyboardInterrupt) as error:
                if self.live is not None:  # whoever catches this may go on from there
                    self.live.finish_saving()
                shrinks = self.config.run.on_failure == "shrink"
                if not (shrinks and self.world.has_lost_ranks(error)):
                    raise
                self._go_on_without_them()

    def _without_gpu(self, error: DeviceLost) -> NoReturn:
        """The end of this rank: weights that were on its GPU are gone."""
        own = None if error.on_all_ranks else self.world.rank
        said = device_loss_error(error, own, self.live, self.config.run)
        shrinks = self.config.run.on_failure == "shrink" and self.world.size > 1
        if shrinks and own is not None:
            log.error("%s; this rank leaves, the others may go on", said)
            self.world.exit_abruptly()
        raise said from error

    def _go_on_without_them(self) -> None:
        """Survivors become the world, with the last state that all of them know."""
        before, live = self.world.size, self.live
        self.world = self.world.survivors()
        self.lost += before - self.world.size
        self.config = smaller_grid(self.config, self.world.size)
        saver = None if live is None else live.saver
        known = [] if saver is None else list(saver.remembered)
        self.last = last_common(self.world, known) or self.last
        for callback in self.callbacks:
            if live is not None:
                callback.on_end(live.view)
        if self.world.rank == 0:
            log.warning(
                "%d of %d ranks were lost; the others go on as %d x %d %s",
                before - self.world.size,
                before,
                self.config.grid.replicas,
                self.world.size // self.config.grid.replicas,
                "from the start"
                if self.last is None
                else f"after exchange {self.last.exchanges}",
            )

    def _watched(self) -> Result | None:
        """The result; None where it goes on with more careful settings."""
        world, self.live = self.world, None
        world.watch(self.config.run.timeout)
        if self.last is None:
            self.config = restore_fallback(self.config, world)
        config = self.config
        folder = RunFolder(config.run.out if world.rank == 0 else None)
        callbacks = [History(folder.history), *self.callbacks]
        with close_on_agreed_error(world.unwatch):
            check_settings(config, world)
            self.live = build(
                config, world, self.reader, callbacks, self.setup, self.last
            )
            with close_on_agreed_error(self.live.close):
                check_live(self.live)
                world.together(folder.claim)
                try:
                    result = self._in_folder(self.live, folder)
                finally:
                    self.live.release()
                    folder.release()
        live, self.live = self.live, None
        live.close()  # an MPI has some two thousand communicators, not more
        del live
        world.unwatch()
        return result

    def _in_folder(self, live: AssembledRun, folder: RunFolder) -> Result | None:
        """Go on or begin, train, and leave everything where it belongs."""
        config, world, setup = live.config, live.grid.world, self.setup
        with world.working("preparing the run folder"):
            goes_on = resume(config, live, self.last)
            world.together(lambda: folder.begin(config, goes_on))
            # Not over what a checkpoint, or a leg before a fall-back, has put there.
            if self.start is not None and not live.view.exchanges:
                self.start.load_into(live)
        self._take_over(live)
        live.open()
        log.info(*_chosen(live), extra=ONCE)
        made_up = emulated(live.task.precision)
        if made_up:
            log.info(
                "emulated, so that times mean nothing: %s",
                ", ".join(f"{name} in {form}" for name, form in made_up.items()),
                extra=ONCE,
            )
        live.warm_up()
        world.max_flag(0)
        setup.lap("warm_up")
        log.debug("set-up: %s", setup)
        self.meter = self.meter or make_meter(_gpu(live))
        request, self.request = self.request, Request.NONE
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            state, status = live.training.run(live.state, self.meter, request)
        log.debug("training: %s", live.task.clock)
        damage = find_damage(live) if status is Status.DIVERGED else ""
        if status is Status.DIVERGED and not damage and self._falls_back(live):
            return None
        is_from_data = self.config.rate.is_open
        more = {"damage": damage, "lost_ranks": self.lost, **self.notes}
        more |= name_remedies(live, status, is_from_data) if not damage else {}
        result = report(live, state, status, self.began, setup.seconds, more)
        if config.run.defaults == FIT and live.task.models is None:
            judge_fit(result)
        total = result.report["seconds_total"]
        each = total / max(result.iterations, 1)
        note_measured(config, live.chosen, each, world.rank, total)
        with world.working("writing the result"):
            unsaved = world.exchange_objects(folder.finish(result))[0]
        if unsaved:
            # The model is there; a disk must not take it away from the caller.
            result.report["unsaved"] = unsaved
            log.error("%s", unsaved, extra=ONCE)
        return result

    def _falls_back(self, live: AssembledRun) -> bool:
        """Stand where all was well, with the next rung of settings, if there is one."""
        good_states, alarm = live.training.good_states, live.loop.alarm
        rung = next_fallback_level(live.config, live.product_name)
        if good_states is None or rung is None:
            return False
        stopped, has_gap = live.view.exchanges, alarm is not None
        if not good_states.put_back(live.state, live.view, has_gap):
            return False
        self._change(live, rung, alarm, stopped)
        return True

    def _change(
        self, live: AssembledRun, rung: FallbackLevel, cause: Cause, stopped: int
    ) -> None:
        """Go on from the state of the run with other settings."""
        if rung.config.schedule.steps != live.config.schedule.steps:
            # The number of the exchange changes, and would not say any more that
            # replicas are apart.
            live.agreement.settle(live.state, live.view.exchanges)
        taken = live.capture.take(live.state, live.view)
        self.last = convert_checkpoint(taken, live.config, rung.config)
        self.last.document["events"].append(
            fallback_event(live.view, rung, cause, stopped, self.last.exchanges)
        )
        self.requested_config = self.requested_config or self.config
        self.last.document.setdefault(REQUESTED, self.requested_config.tables())
        self.config, self.request = rung.config, live.loop.callbacks.request
        # Put back with the state: what was sent for nothing was sent, too.
        live.grid.world.ledger.entries = Ledger().entries

    def _take_over(self, live: AssembledRun) -> None:
        """What a leg after a fall-back has from the one before it."""
        if PRECISION_AUTO in self.notes:
            live.capture.add_fact(PRECISION_AUTO, self.notes[PRECISION_AUTO])
        if live.chosen.rival is not None and self.world.rank == 0:
            keeps = product_facts(live.product_name).keeps_batches
            live.loop.callbacks.add(SlowerThanExpected(live.chosen, keeps))
        if self.requested_config is not None:
            # At once: what is on disk was made with the settings that failed.
            live.save()


def _gpu(live: AssembledRun) -> str:
    """Where on its bus the GPU is that this rank uses, or nothing."""
    gpu = on_gpu(live.product)
    return str(gpu.device.layer.place).split()[1] if gpu else ""


@contextmanager
def borrow_world(world: Communicator, reproducible: bool) -> Iterator[None]:
    """Reset the ledger of the world and set its order of sums for one run; restore both
    afterwards.

    The ledger stays the same object: groups and wrappers of the world share it.
    """
    ledger, counted = world.ledger, world.ledger.as_dict()
    ledger.entries = Ledger().entries
    try:
        with world.ordered_sums(reproducible):
            yield
    finally:
        ledger.add(counted)


def _chosen(live: AssembledRun) -> tuple[Any, ...]:
    """What runs, for the log: a format and its values."""
    config, grid, shard = live.config, live.grid, live.loaded.shard
    return (
        "%d x %d on %d rank%s as %d x %d, %s: %s by %s%s, batch %d, steps %d, %s",
        *(shard.total_rows, shard.total_columns, grid.world.size),
        "" if grid.world.size == 1 else "s",
        *(grid.replicas.size, grid.members.size, grid.world.transport),
        *(config.problem.family, live.product_name),
        " with look-ahead" if live.look_ahead else "",
        *(config.schedule.batch, config.schedule.steps, config.precision.recipe),
    )

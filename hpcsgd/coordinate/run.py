"""The run of a coordinate form: what `train` does where the update is "coordinate"."""

import logging
from time import perf_counter
from typing import Any

import numpy as np

from hpcsgd.assembly.alike import check_settings
from hpcsgd.callbacks import Callback, History
from hpcsgd.callbacks.base import View, Wish, wish_of
from hpcsgd.comm.grid import let_go
from hpcsgd.coordinate.descent import Descent
from hpcsgd.coordinate.exchange import Point
from hpcsgd.coordinate.opening import Ready, open_form
from hpcsgd.coordinate.report import result_of
from hpcsgd.energy import make_meter
from hpcsgd.engine import ENDINGS
from hpcsgd.errors import ConfigError
from hpcsgd.looks import Looks
from hpcsgd.result import Result, Status
from hpcsgd.run_folder import RunFolder
from hpcsgd.session import Session

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would say it alike


class CoordinateRun(Session):
    """A session without replicas that agree, checkpoints and fall-backs."""

    def _until_done(self) -> Result:
        world, config = self.world, self.config
        world.watch(config.run.timeout)
        with let_go(world.unwatch):
            check_settings(config, world)
            ready = open_form(config, world, self.reader, self.setup)
            folder = RunFolder(config.run.out if world.rank == 0 else None)
            with let_go(ready.close):
                world.together(folder.claim)
                try:
                    result = self._in_the(folder, ready)
                finally:
                    folder.release()
        ready.close()
        world.unwatch()
        return result

    def _in_the(self, folder: RunFolder, ready: Ready) -> Result:
        world = ready.opened.grid.world
        with world.working("preparing the run folder"):
            world.together(lambda: folder.begin(ready.config, False))
        callbacks = [History(folder.history), *self.callbacks]
        training = Training(ready, callbacks, self._start(ready))
        status = training.run()
        result = result_of(training, status, self.began, self.setup.seconds)
        with world.working("writing the result"):
            unsaved = world.exchange_objects(folder.finish(result))[0]
        if unsaved:
            result.report["unsaved"] = unsaved
            log.error("%s", unsaved, extra=ONCE)
        return result

    def _start(self, ready: Ready) -> Point:
        """The null model, or what stands for the weights that were given."""
        if self.start is None or not self.start.weights.size:
            return ready.form.begin()
        given, loaded = self.start.weights, ready.opened.loaded
        needed = (loaded.shard.total_columns, loaded.columns)
        if given.shape != needed:
            raise ConfigError(
                f"start has weights of shape {given.shape} and these data need"
                f" {needed}; give the model of the same columns"
            )
        own = given[loaded.shard.columns].astype(np.float64)
        return ready.form.begin(ready.nonempty.narrow(own))


class Training:
    """Epochs, evaluations and callbacks around a descent."""

    def __init__(self, ready: Ready, callbacks: list[Callback], point: Point) -> None:
        self.ready = ready
        self.callbacks = callbacks
        self.descent = Descent(ready, point)
        self.wish = Wish.NONE  # of callbacks of this rank
        self.granted = Wish.NONE  # of all
        self.ended = "epochs used up"
        config, world = ready.config, ready.opened.grid.world
        self.looks = Looks(world, config.run.check_every)
        self.meter = make_meter("")
        planned = ready.exchanges_planned * config.schedule.epochs
        self.view = View(
            epochs=config.schedule.epochs,
            exchanges_planned=planned,
            total_rows=ready.opened.loaded.shard.total_rows,
            words=lambda: world.ledger.words("products"),
            phases=lambda: dict(ready.clock.seconds),
            evaluations_planned=1 + config.schedule.epochs,
        )

    def run(self) -> Status:
        """Train; how it ended."""
        view = self.view
        self._tell("on_start")
        self._evaluate()
        self.looks.begin(0, 0.0)
        status = self._train()
        if view.history[-1]["exchanges"] != view.exchanges:
            self._evaluate()
        self._say()
        view.status = status.value
        self._tell("on_end")
        return status

    def _train(self) -> Status:
        config = self.ready.config
        every, tol = config.run.evaluate_every, config.coordinate.tol
        while self.descent.epoch < config.schedule.epochs:
            if self.descent.is_done(tol):
                self.ended = "converged"
                break
            self._count()
            self.meter.resume()
            went_on = self.descent.run_epoch(self._after)
            self.meter.pause()
            self.view.epoch = self.descent.epoch
            if not went_on:
                self.ended = "asked to stop"
                return ENDINGS[self.granted]
            if every and self.descent.epoch % every == 0:
                self._evaluate()
        if self.ended != "converged" and not self.descent.is_done(tol):
            return Status.COMPLETED
        self.ended = "converged"
        return Status.CONVERGED

    def _count(self) -> None:
        """The time of training begins, or goes on."""
        self.ready.clock.start()
        self._began = perf_counter()

    def _after(self) -> bool:
        """After every exchange: where it stands, and whether all go on."""
        view, done = self.view, self.descent.exchanges
        view.exchanges, view.steps = done, self.descent.steps
        done_in_epoch, in_epoch = self.descent.progress
        view.rows = view.total_rows * self.descent.epoch
        view.rows += view.total_rows * done_in_epoch // in_epoch
        now = perf_counter()
        view.seconds += now - self._began
        self._tell("on_exchange")
        if self.looks.is_due(done):
            self.granted = Wish(self.looks.ask(self.wish, done, view.seconds))
        self._began = perf_counter()
        return self.granted < Wish.STOP

    def _evaluate(self) -> None:
        """Loss, gradient and gap, as a record of the history."""
        view, clock = self.view, self.ready.clock
        clock.start()
        with np.errstate(all="ignore"):  # a figure that is not finite is reported
            seen = self.descent.look()
        clock.lap("evaluate")
        view.loss = seen.loss
        ledger = self.ready.opened.grid.world.ledger
        view.history.append(
            {
                "epoch": view.epoch,
                "exchanges": view.exchanges,
                "iterations": view.steps,
                "rows": view.rows,
                "loss": seen.loss,
                "gradient": seen.gradient,
                "gap": seen.gap,
                "seconds": view.seconds,
                **ledger.sent(),
            }
        )
        self._tell("on_evaluate")

    def _say(self) -> None:
        """How far it came, where that is not as far as was asked for."""
        seen, tol = self.descent.seen, self.ready.config.coordinate.tol
        if seen is None or self.ended != "epochs used up" or not tol:
            return
        what = "gap unknown" if seen.gap is None else f"gap {seen.gap:.2g}"
        if not np.isfinite(seen.loss):
            what = "the loss is not finite"
        log.warning(
            "%d epochs were not enough (%s, gradient %.2g); raise --epochs or"
            " coordinate.tol%s",
            *(self.view.epoch, what, seen.gradient, self._advice()),
            extra=ONCE,
        )

    def _advice(self) -> str:
        """One order for all epochs may be a bad one."""
        fixed = self.ready.config.sampling.mode == "shuffle-once"
        return ", or use --sampling reshuffle" if fixed else ""

    def _tell(self, event: str) -> None:
        for callback in self.callbacks:
            answer: Any = getattr(callback, event)(self.view)
            if answer:
                self.wish = max(self.wish, wish_of(answer))

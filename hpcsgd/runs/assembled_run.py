"""An assembled run, which is ready to train, and its parts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.agreements.base import Agreement
from hpcsgd.backends import compiled_calls
from hpcsgd.backends.compiled_calls import FAMILIES
from hpcsgd.backends.task import Group, Snapshot, State, Task
from hpcsgd.comm.gpu import DeviceCommunicator as CarriesArrays
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.matrix import DenseMatrix
from hpcsgd.products.base import Product
from hpcsgd.products.direct import TiledProduct
from hpcsgd.runs.checkpoint import Capture, Saver
from hpcsgd.runs.feed import Feed
from hpcsgd.runs.load import LoadedRows
from hpcsgd.runs.loop import Training, TrainingLoop
from hpcsgd.runs.opened_run import OpenedRun, ResolvedNames
from hpcsgd.runs.settle import Plan, RunChoice
from hpcsgd.solvers.callbacks import View
from hpcsgd.solvers.evaluation import Columns, Evaluation
from hpcsgd.solvers.sgd import RunLength, SgdSolver


class PlannedRun:
    """Base class with properties for the parts of a planned and opened run."""

    plan: Plan
    opened: OpenedRun

    @property
    def config(self) -> RunConfig:
        """Return the settings of the run, in which automatic values are replaced."""
        return self.plan.config

    @property
    def words(self) -> ResolvedNames:
        """Return the objects that the names in the settings stand for."""
        return self.opened.words

    @property
    def grid(self) -> Grid:
        """Return the grid of ranks."""
        return self.opened.grid

    @property
    def loaded(self) -> LoadedRows:
        """Return the rows of this rank."""
        return self.opened.loaded

    @property
    def chosen(self) -> RunChoice:
        """Return the choice of product and steps, with the expected time of a step."""
        return self.plan.choice

    @property
    def product_name(self) -> str:
        """Return the name of the product that runs."""
        return self.config.products.kind

    @property
    def look_ahead(self) -> bool:
        """Return whether the Gram matrix of the next exchange is sent ahead."""
        return self.config.products.look_ahead == "on"


def poll_every(config: RunConfig, task: Task) -> int:
    """Return the number of exchanges between two polls of all ranks.

    Polls notice the alarms of a monitor, so they are at least as frequent as its
    checks.
    """
    run = config.run
    return (
        run.check_every if task.monitor is None else min(run.check_every, run.gap_every)
    )


@dataclass(frozen=True)
class Parts(PlannedRun):
    """The parts of a run from which its training loop is made."""

    plan: Plan
    opened: OpenedRun
    task: Task
    product: Product
    feed: Feed
    columns: Columns
    undo: list[Callable[[], None]]  # close the opened communicators

    @property
    def is_watched(self) -> bool:
        """Return whether a monitor checks the recurrence."""
        return self.task.monitor is not None


@dataclass(frozen=True)
class AssembledRun(PlannedRun):
    """A run that is ready to train."""

    plan: Plan
    opened: OpenedRun
    task: Task
    solver: SgdSolver
    feed: Feed
    columns: Columns
    capture: Capture
    training: Training[State]
    state: State

    @property
    def loop(self) -> TrainingLoop[State]:
        """Return the training loop, which runs the exchanges."""
        return self.training.loop

    @property
    def view(self) -> View:
        """Return the view of the progress of the run."""
        return self.loop.view

    @property
    def agreement(self) -> Agreement:
        """Return the agreement by which replicas synchronise."""
        return self.solver.agreement

    @property
    def product(self) -> Product:
        """Return the product that runs."""
        return self.solver.product

    @property
    def evaluation(self) -> Evaluation:
        """Return the object that evaluates the objective of the model."""
        return self.capture.evaluation

    @property
    def saver(self) -> Saver[State] | None:
        """Return the object that writes checkpoints; None if the run writes none."""
        return self.loop.saver

    def restore(self, checkpoint: Snapshot) -> None:
        """Restore state, history and monitor of the run from a checkpoint."""
        self.capture.restore(checkpoint, self.state, self.view, self.feed.progress)
        trains = self.agreement.trains
        done = self.view.exchanges
        if self.task.monitor is not None:
            self.task.monitor.begin(done, self.feed.plans, trains)

    def close(self) -> None:
        """Close the data file and all communicators but the world. Collective."""
        self.loaded.shard.matrix.close()
        self.agreement.close()
        self.grid.close()
        if isinstance(self.grid.world, CarriesArrays):
            self.grid.world.carrier.close()  # the world below it stays open

    def open(self) -> None:
        """Create the states of a run that stores them on disk, if they are not open.

        Then also write a checkpoint, from which the run can resume before its first
        regular one. Do nothing for other runs. Collective.
        """
        agreement: Any = self.agreement
        if self.config.agreement.on_disk and not agreement.is_open:
            agreement.open()
            self.save()
            self.finish_saving()  # without it no run could resume the first steps

    def run_exchanges(self, groups: Iterator[Group | None], more: int) -> None:
        """Run `more` exchanges to time them, without any evaluation.

        The run cannot continue as planned afterwards: its length becomes one epoch that
        ends with these exchanges.
        """
        length = RunLength(1, self.view.exchanges + more, evaluate_every=0)
        self.solver.feed(groups, length)
        self.loop.train(self.state)
        self.agreement.arrive(self.state)

    def save(self) -> None:
        """Write a checkpoint, if the run writes any. Collective."""
        if self.saver is not None:
            self.saver.save(self.state, self.view)

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on disk; a local call."""
        if self.saver is not None:
            self.saver.finish()

    def release(self) -> None:
        """Release files and threads after the run, even if it failed; a local call."""
        self.agreement.release()

    def warm_up(self) -> None:
        """Compute scores and residuals of one batch with weights 0; a local call.

        It loads libraries, so that later timings do not include the time to load them.
        A run without a step of SGD, or whose weights are on disk, computes nothing.
        """
        if not self.config.schedule.epochs:
            return
        task = self.task
        shard = self.task.shard
        height = min(shard.height, self.config.schedule.batch)
        numbers = np.arange(height, dtype=np.int64)
        out = None
        matrix = shard.matrix
        if isinstance(self.product, TiledProduct):
            return  # its weights are never in memory as a whole
        if not matrix.is_sparse:
            out = np.zeros((height, shard.width), dtype=task.precision.working)
            if not matrix.is_in_memory:
                matrix = DenseMatrix(task.backend.store(np.zeros_like(out)))
        rows = matrix.gather(task.backend, numbers, out)
        weights = task.backend.zeros((shard.width, task.columns))
        margins = np.empty((height, task.columns), dtype=task.margin_dtype)
        task.backend.scores(rows, weights, margins)
        # Kernels compute those of most families: SciPy is then not loaded for them.
        if not compiled_calls.instructions() or task.family.name not in FAMILIES:
            task.family.residual(margins, shard.targets[:height])

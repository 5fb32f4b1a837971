"""What an engine is put together from."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcsgd.agreement.infinity import Infinity
from hpcsgd.assembly.feed import Feed
from hpcsgd.backends.base import Backend
from hpcsgd.capture import Capture
from hpcsgd.checkpoint import Checkpoint
from hpcsgd.columns import Columns
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.on_device import OnDevice as CarriesArrays
from hpcsgd.config import RunConfig
from hpcsgd.cost import Choice
from hpcsgd.data.unheld import Unheld
from hpcsgd.engine import Engine
from hpcsgd.families.base import Family
from hpcsgd.loading import Loaded
from hpcsgd.precision import Precision
from hpcsgd.products.base import Product, State, Task
from hpcsgd.products.tiled import Tiled
from hpcsgd.products.watcher import UNWATCHED
from hpcsgd.updates import LinearUpdate


@dataclass(frozen=True)
class Vocabulary:
    """The concrete things behind the names."""

    world: Communicator  # behind the network that was asked for
    members: int
    family: Family
    precision: Precision
    backend: Backend
    update: LinearUpdate
    agreement: str
    latency: float  # seconds a message takes at least, as far as is known


@dataclass(frozen=True)
class Earlier:
    """What the run that goes on had chosen."""

    product: str
    steps: int
    look_ahead: bool
    members: int


@dataclass(frozen=True)
class Chosen:
    """What will run, and what a step of it is expected to take."""

    product: str
    steps: int
    look_ahead: bool
    seconds: float = 0.0  # of a step, by the model; 0 = it was not asked
    key: str = ""  # under which the machine file knows this kind of run
    rival: Choice | None = None  # the best of the other products


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

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks at the recurrence."""
        return self.task.monitor is not UNWATCHED


@dataclass(frozen=True)
class Live:
    """A run ready to go."""

    config: RunConfig
    grid: Grid
    loaded: Loaded
    task: Task
    product: Product
    chosen: Chosen
    feed: Feed
    columns: Columns
    capture: Capture
    engine: Engine
    state: State

    @property
    def product_name(self) -> str:
        """Of the product that runs."""
        return self.chosen.product

    @property
    def look_ahead(self) -> bool:
        """Whether its Gram travels ahead of use."""
        return self.chosen.look_ahead

    def put_back(self, checkpoint: Checkpoint) -> None:
        """Stand where the checkpoint stood."""
        self.capture.put_back(
            checkpoint, self.state, self.engine.view, self.feed.progress
        )
        trains, done = self.engine.agreement.trains, self.engine.view.exchanges
        self.task.monitor.begin(done, self.feed.plans, trains)

    def close(self) -> None:
        """Let go of the file and of the groups, with all ranks; the world stays."""
        if isinstance(self.loaded.shard.matrix, Unheld):
            self.loaded.shard.matrix.close()
        self.engine.agreement.close()
        self.grid.close()
        if isinstance(self.grid.world, CarriesArrays):
            self.grid.world.carrier.close()  # the world below it goes on

    def open(self) -> None:
        """Make what a run that begins keeps on disk, if anything; it is gone on from
        there even before the first checkpoint that is due.
        """
        agreement, engine = self.engine.agreement, self.engine
        if isinstance(agreement, Infinity) and not agreement.is_open:
            agreement.open()
            engine.saver.save(self.state, engine.view)
            engine.saver.finish()  # a first step without it could not be found

    def release(self) -> None:
        """Let go of files and threads, however the run ended; a local call."""
        self.engine.agreement.release()

    def warm_up(self) -> None:
        """Touch the arrays and wake the libraries once, on copies, in silence."""
        task, shard = self.task, self.task.shard
        height = min(shard.height, self.config.schedule.batch)
        numbers = np.arange(height, dtype=np.int64)
        out = None
        if isinstance(self.product, Tiled):
            return  # nothing of it is there at a time
        if not shard.is_sparse:
            out = np.zeros((height, shard.width), dtype=task.precision.working)
        if isinstance(shard.matrix, Unheld):
            rows = out  # nothing of it is there yet
        else:
            rows = task.backend.gather(shard.matrix, numbers, out)
        weights = task.backend.zeros((shard.width, task.columns))
        margins = np.empty((height, task.columns), dtype=task.margin_dtype)
        task.backend.scores(rows, weights, margins)
        task.family.residual(margins, shard.targets[:height])

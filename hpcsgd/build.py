"""RunConfig to live objects: the only place that names concrete classes.

Everything that can be wrong is found here, on all ranks together, before the
first exchange.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hpcsgd.agreement.kinds import is_on_disk
from hpcsgd.assembly.engine_parts import Earlier, Live, Vocabulary
from hpcsgd.assembly.gpu import open_gpu
from hpcsgd.assembly.live import assemble
from hpcsgd.assembly.vocabulary import resolve
from hpcsgd.auto_rate import settle_rate
from hpcsgd.backends import cpu, threads
from hpcsgd.backends.device import Device
from hpcsgd.callbacks.base import Callback
from hpcsgd.checkpoint import Checkpoint
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid, let_go
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.data.sampling import make_sampler
from hpcsgd.data.stream import Route
from hpcsgd.loading import Loaded, load
from hpcsgd.memory import check_memory
from hpcsgd.resume import earlier_choice
from hpcsgd.sweeps.settings import split_of
from hpcsgd.timing import Clock


@dataclass(frozen=True)
class Opened:
    """What is there before anything is chosen: names looked up, ranks, data."""

    words: Vocabulary
    grid: Grid
    loaded: Loaded
    device: Device | None


def build(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    callbacks: list[Callback],
    setup: Clock,
    known: Checkpoint | None = None,
) -> Live:
    """Everything a run needs; errors are raised on all ranks alike.

    `known` is the checkpoint that survivors of a failure go on from.
    """
    opened = open_all(config, world, reader, setup)
    with let_go(opened.grid.close):
        config = settle_rate(config, opened.grid, opened.loaded, opened.words.family)
        earlier = earlier_choice(config, opened.grid.world, known)
        live = put_together(config, opened, callbacks, earlier)
    setup.lap("build")
    return live


def put_together(
    config: RunConfig,
    opened: Opened,
    callbacks: list[Callback],
    earlier: Earlier | None = None,
) -> Live:
    """A run on what was opened, on all ranks together."""
    found = opened.words, opened.grid, opened.loaded
    undo: list[Callable[[], None]] = []
    device = opened.device

    def close() -> None:
        for one in undo:
            one()

    with let_go(close):
        return opened.grid.world.together(
            lambda: assemble(config, *found, callbacks, earlier, device, undo)
        )


def open_all(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    setup: Clock,
) -> Opened:
    """The grid of ranks, each with its block of the data."""
    own = world.together(cpu.instructions)
    cpu.settle(world.exchange_objects(own))
    _use_threads(config.run.threads, world)
    device, world = open_gpu(config, world)
    words = world.together(lambda: resolve(config, world))
    grid = Grid(words.world, config.grid.replicas, words.members)
    with let_go(grid.close):
        loaded = _loaded(config, words, grid, reader, setup)
    return Opened(words, grid, loaded, device)


def _loaded(
    config: RunConfig,
    words: Vocabulary,
    grid: Grid,
    reader: Callable[[Communicator], RowReader],
    setup: Clock,
) -> Loaded:
    """This rank's block of what the reader opens."""
    opened = grid.world.together(lambda: reader(grid.world))
    streams = check_memory(
        grid, opened, config, words.precision, words.update.states * config.sweep.count
    )
    setup.lap("open")
    stays = streams or getattr(opened, "is_there", False)
    route = _router(config, grid.replica) if stays else None
    loaded = load(
        grid,
        opened,
        words.family,
        words.backend,
        words.precision,
        route,
        config.data.partition,
        config.precision.scale,
        split_of(config.sweep, config.sampling),
        is_on_disk(words.agreement),
    )
    setup.lap("read")
    return loaded


def _router(config: RunConfig, replica: int) -> Callable[[int], Route | None]:
    """The way through the rows of a replica, once their number is known.

    None where a GPU holds them all, or where they are read by tiles.
    """
    if config.run.device == "cuda" or is_on_disk(config.agreement.kind):
        return lambda rows: None
    return lambda rows: Route(
        make_sampler(config.sampling, rows, replica), config.schedule.epochs
    )


def _use_threads(count: int, world: Communicator) -> None:
    """In the kernels that all ranks have settled on."""
    threads.use(count)
    if count > 1:
        threads.warn(count, world.exchange_objects(threads.place()), world.rank)

"""RunConfig to live objects: the only place that names concrete classes.

Everything that can be wrong is found here, on all ranks together, before the
first exchange.
"""

from collections.abc import Callable

from hpcsgd.assembly.live import Live, assemble
from hpcsgd.assembly.vocabulary import resolve
from hpcsgd.callbacks.base import Callback
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.load import load
from hpcsgd.memory import check_memory
from hpcsgd.timing import Clock


def build(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[], RowReader],
    callbacks: list[Callback],
    setup: Clock,
) -> Live:
    """Everything a run needs; errors are raised on all ranks alike."""
    words = world.together(lambda: resolve(config, world))
    grid = Grid(words.world, config.grid.replicas, words.members)
    opened = grid.world.together(reader)
    check_memory(grid, opened, config, words.precision, words.update.states)
    setup.lap("open")
    loaded = load(grid, opened, words.family, words.backend, words.precision)
    setup.lap("read")
    live = world.together(lambda: assemble(config, words, grid, loaded, callbacks))
    setup.lap("build")
    return live

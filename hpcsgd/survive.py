"""Going on with the ranks that are left: their grid, and the state they all know."""

from collections.abc import Sequence
from dataclasses import replace

from hpcsgd.checkpoint import Checkpoint
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig


def smaller_grid(config: RunConfig, ranks: int) -> RunConfig:
    """As many replicas as before if the ranks can be dealt to them, else fewer."""
    replicas = config.grid.replicas
    while ranks % replicas:
        replicas -= 1
    grid = replace(config.grid, replicas=replicas, members=ranks // replicas)
    return replace(config, grid=grid)


def last_common(world: Communicator, known: Sequence[Checkpoint]) -> Checkpoint | None:
    """The newest state that every rank has kept: some may have missed the last one."""
    said = world.exchange_objects([checkpoint.exchanges for checkpoint in known])
    common = set(said[0]).intersection(*said[1:])
    if not common:
        return None
    return next(c for c in known if c.exchanges == max(common))

"""Going on with the ranks that are left: their grid, and the state they all know."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpcsgd.assembly.engine_parts import Live
from hpcsgd.checkpoint import Checkpoint, Store
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.errors import DeviceLost, HpcsgdError
from hpcsgd.sections import RunSection


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


def ended_by(
    error: DeviceLost, rank: int | None, live: Live | None, run: RunSection
) -> DeviceLost:
    """A GPU's end as the end of a run: how far it was, what is saved, how to go on.

    Nothing is asked of the GPU. `rank` is None where another one has said so.
    """
    where = "before the first exchange"
    if live is not None:
        live.engine.saver.finish()
        where = f"after exchange {live.engine.view.exchanges}"
    who = "" if rank is None else f" by rank {rank}"
    said = DeviceLost(f"{error}, noticed{who} {where}; {_way_on(run)}")
    said.on_all_ranks = error.on_all_ranks
    return said


def _way_on(run: RunSection) -> str:
    if not run.out:
        return "nothing was saved: start again, with --out DIR to keep what is done"
    try:
        found = Store(Path(run.out), 1).newest()
    except (HpcsgdError, OSError):
        found = None
    if found is None:
        # Another rank may be writing the first one: what it saves is to be taken.
        return (
            f"no checkpoint is in {run.out} yet: start the same command again with"
            " --resume auto"
        )
    return (
        f"{found[0]} has the state after exchange {found[1].exchanges}: start the same"
        " command again with --resume auto"
    )

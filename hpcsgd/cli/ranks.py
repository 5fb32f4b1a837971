"""What a command does on all ranks: open the world, work, let rank 0 speak."""

import sys
from collections.abc import Callable
from typing import TypeVar

from hpcsgd.cli import logs
from hpcsgd.comm import open_world
from hpcsgd.comm.base import Communicator
from hpcsgd.errors import HpcsgdError

T = TypeVar("T")


def on_all_ranks(
    comm: str,
    action: Callable[[Communicator], T],
    show: Callable[[T], None],
    code: Callable[[T], int],
) -> int:
    """Work on the world of `comm`, show the result on rank 0; the exit code.

    `code` judges what all ranks hold alike, so that none has to be told: rank 0 may
    have left already, its reader gone.
    """
    world = open_world(comm)
    logs.set_rank(world.rank, world.size)
    result = _or_abort(world, lambda: action(world))
    if world.rank == 0:
        _or_abort(world, lambda: show(result))
    world.close()
    return code(result)


def _or_abort(world: Communicator, action: Callable[[], T]) -> T:
    """Run `action`; an error that only this rank knows ends them all."""
    try:
        return action()
    except HpcsgdError as error:
        if world.size > 1 and not error.on_all_ranks:
            # The others wait in a collective.
            print(f"hpcsgd: rank {world.rank}: error: {error}", file=sys.stderr)
            world.abort(error.exit_code)
        raise

"""What a command does on all ranks: open the world, work, let rank 0 speak."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hpcsgd.cli import logs
from hpcsgd.comm import open_world
from hpcsgd.comm.start_limit import TIMEOUT
from hpcsgd.errors import HpcsgdError
from hpcsgd.retired import why_retired

if TYPE_CHECKING:  # it needs NumPy, which `hpcsgd --help` does not wait for
    from hpcsgd.comm.base import Communicator

T = TypeVar("T")
COMM_HELP = (
    "how ranks communicate: auto (what the launcher's variables say), serial or mpi"
)


def add_comm(parser: Any, default: str | None = "auto") -> None:
    """Add --comm to a command whose configuration does not hold it."""
    parser.add_argument(
        "--comm", type=_comm, default=default, metavar="KIND", help=COMM_HELP
    )


def _comm(text: str) -> str:
    """Return `text`, or refuse what earlier versions took."""
    refusal = why_retired("run", "comm", text)
    if refusal is not None:
        raise ArgumentTypeError(refusal)
    return text


_met: list[bool] = []  # whether this process has been in a world


def has_met() -> bool:
    """Whether the ranks have met, so that an error of one can reach the others."""
    return bool(_met)


def on_all_ranks(
    comm: str,
    action: Callable[["Communicator"], T],
    show: Callable[[T], None],
    code: Callable[[T], int],
    timeout: float = TIMEOUT,
) -> int:
    """Work on the world of `comm`, show the result on rank 0; the exit code.

    From the start on no rank waits longer than `timeout` seconds for one that does
    nothing; 0 = for ever.

    `code` judges what all ranks hold alike, so that none has to be told: rank 0 may
    have left already, its reader gone.
    """
    world = open_world(comm, timeout=timeout)
    _met.append(True)
    world.watch(timeout)
    logs.set_rank(world.rank, world.size)
    result = _or_abort(world, lambda: action(world))
    if world.rank == 0:
        _or_abort(world, lambda: show(result))
    world.close()
    return code(result)


def _or_abort(world: "Communicator", action: Callable[[], T]) -> T:
    """Run `action`; an error that only this rank knows ends them all."""
    try:
        return action()
    except HpcsgdError as error:
        if world.size > 1 and not error.on_all_ranks:
            # The others wait in a collective.
            print(f"hpcsgd: rank {world.rank}: error: {error}", file=sys.stderr)
            world.abort(error.exit_code)
        raise

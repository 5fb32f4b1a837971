"""R replicas of C members each."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpcsgd.comm.communicator import Communicator
from hpcsgd.errors import ConfigError, DataError

# Rank to index arithmetic: pure functions.


def place_on_grid(rank: int, members: int) -> tuple[int, int]:
    """(replica, member) of a rank; the members of a replica are neighbours.

    Neighbours usually share a node, and members speak far more often than replicas.
    """
    return divmod(rank, members)


class Grid:
    """The world as a grid, with the two groups that a rank speaks to."""

    def __init__(self, world: Communicator, replicas: int, members: int) -> None:
        check_size(world.size, replicas, members)
        self.world = world
        self.replica, self.member = place_on_grid(world.rank, members)
        self.members = world.split(self.replica, self.member)  # one replica's columns
        self.replicas = world.split(self.member, self.replica)  # one column block

    def meet(self) -> None:
        """All ranks are here, or all hear why one of them is not coming.

        Before groups are opened where ranks are put `together`: who waits in a split
        for a rank that has refused waits for ever.
        """
        self.world.together(lambda: None)

    def close(self) -> None:
        """Let go of both groups, with all ranks; the world stays."""
        self.members.close()
        self.replicas.close()


def duplicate(group: Communicator) -> Communicator:  # after `Grid.meet`
    """The same ranks in the same order, who may say other things at the same time."""
    return group if group.size == 1 else group.split(0, group.rank)


@contextmanager
def close_on_agreed_error(close: Callable[[], None]) -> Iterator[None]:
    """Call `close` when all ranks raise the same error: no rank is inside a collective
    then.

    After other errors it is left open: closing waits for all ranks.
    """
    try:
        yield
    except (ConfigError, DataError) as error:
        if error.on_all_ranks:
            close()
        raise


def check_size(ranks: int, replicas: int, members: int) -> None:
    """Refuse a grid that does not take all ranks."""
    if replicas < 1 or members < 1:
        raise ConfigError(
            f"grid {replicas}x{members}: replicas and members must be at least 1"
        )
    needed = replicas * members
    if needed != ranks:
        raise ConfigError(
            f"grid {replicas}x{members} needs {needed} ranks and this run has {ranks};"
            f" add --ranks {needed} (or mpiexec -n {needed}), or choose another --grid"
        )


def parse_grid(text: str) -> tuple[int, int]:
    """(replicas, members) of "1x2"."""
    match = re.fullmatch(r"(\d+)[xX×](\d+)", text.strip())
    if match is None:
        raise ConfigError(f"--grid {text}: write RxC, for example 1x2 or 4x2")
    replicas, members = int(match[1]), int(match[2])
    if replicas < 1 or members < 1:
        raise ConfigError(f"--grid {text}: replicas and members must be at least 1")
    return replicas, members

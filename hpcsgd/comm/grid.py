"""The grid of ranks: R replicas of C members each."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpcsgd.comm.communicator import Communicator
from hpcsgd.errors import ConfigError, DataError

# Rank to index arithmetic: pure functions.


def place_on_grid(rank: int, members: int) -> tuple[int, int]:
    """Return (replica, member) of a rank; consecutive ranks are members of one replica.

    Consecutive ranks usually share a node, and members exchange far more messages than
    replicas.
    """
    return divmod(rank, members)


class Grid:
    """The ranks of the world as a grid, with this rank's two communicators.

    The attribute `members` is the communicator of the ranks of the same replica, and
    `replicas` that of the ranks with the same columns. The parameters `replicas` and
    `members` are the numbers of ranks of these two.
    """

    def __init__(self, world: Communicator, replicas: int, members: int) -> None:
        check_size(world.size, replicas, members)
        self.world = world
        self.replica, self.member = place_on_grid(world.rank, members)
        self.members = world.split(self.replica, self.member)  # one replica's columns
        self.replicas = world.split(self.member, self.replica)  # one column block

    def meet(self) -> None:
        """Wait for all ranks; raise the error of a rank that has failed before.

        Collective. A rank that fails on the way to this call reports its error by
        `Communicator.together`, in which it runs. Called before communicators are
        opened: a rank that has raised an error would not take part in the split, and
        all others would wait for it for ever.
        """
        self.world.together(lambda: None)

    def close(self) -> None:
        """Close both communicators, `members` and `replicas`; the world stays open.

        Collective.
        """
        self.members.close()
        self.replicas.close()


def duplicate(group: Communicator) -> Communicator:  # after `Grid.meet`
    """Return a second communicator of the same ranks. Collective.

    It keeps messages apart from those of `group`. A group of one rank is returned
    itself.
    """
    return group if group.size == 1 else group.split(0, group.rank)


@contextmanager
def close_on_agreed_error(close: Callable[[], None]) -> Iterator[None]:
    """Call `close` if the body raises a ConfigError or DataError that all ranks raise.

    No rank is inside a collective then. After other errors `close` is not called, since
    it waits for all ranks. The error is raised again.
    """
    try:
        yield
    except (ConfigError, DataError) as error:
        if error.on_all_ranks:
            close()
        raise


def check_size(ranks: int, replicas: int, members: int) -> None:
    """Raise ConfigError unless replicas × members is the number of ranks."""
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
    """Return (replicas, members) of a text such as "1x2".

    Raise ConfigError for other texts.
    """
    match = re.fullmatch(r"(\d+)[xX×](\d+)", text.strip())
    if match is None:
        raise ConfigError(f"--grid {text}: write RxC, for example 1x2 or 4x2")
    replicas = int(match[1])
    members = int(match[2])
    if replicas < 1 or members < 1:
        raise ConfigError(f"--grid {text}: replicas and members must be at least 1")
    return replicas, members

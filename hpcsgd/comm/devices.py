"""Rank to index arithmetic: pure functions."""


def place_on_grid(rank: int, members: int) -> tuple[int, int]:
    """(replica, member) of a rank; the members of a replica are neighbours.

    Neighbours usually share a node, and members speak far more often than replicas.
    """
    return divmod(rank, members)

"""Names of columns that all ranks of a fit must have alike."""

from collections.abc import Sequence
from typing import Any

from hpcsgd.agreement.plan_check import alike
from hpcsgd.comm.base import Communicator


def agree_on_names(
    world: Communicator, names: Sequence[Any] | None, layout: str
) -> list[Any] | None:
    """Names of columns that all ranks have; of one that gave none, those of others."""
    own = None if names is None else [str(name) for name in names]
    if world.size == 1 or layout == "columns":
        return own
    everybody = world.exchange_objects(own)
    said = [rank for rank, found in enumerate(everybody) if found is not None]
    for rank in said:
        first, other = everybody[said[0]], everybody[rank]
        if first != other:
            place = next((k for k, n in enumerate(first) if [n] != other[k : k + 1]), 0)
            raise alike(
                f"column {place} is {first[place]!r} on rank {said[0]} and not on rank"
                f" {rank}; give all ranks the same columns in the same order"
            )
    found: list[Any] | None = everybody[said[0]] if said else None
    return found

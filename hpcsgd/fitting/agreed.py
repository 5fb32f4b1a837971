"""What all ranks of a fit must have said alike: another argument is another algorithm.

Ranks that differ would wait for each other in different messages, for ever.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError

OWN = ("data", "run", "checkpoint")  # sections that say where a rank reads and writes


def check_agreed(world: Communicator, said: Mapping[str, Any]) -> None:
    """Refused alike by all ranks where one says something else; one exchange."""
    if world.size == 1:
        return
    everybody = world.exchange_objects(dict(said))
    for rank, other in enumerate(everybody):
        for name, first in everybody[0].items():
            if other.get(name) != first:
                raise _alike(
                    f"{name} is {first} on rank 0 and {other.get(name)} on rank {rank};"
                    " give all ranks the same"
                )


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
            raise _alike(
                f"column {place} is {first[place]!r} on rank {said[0]} and not on rank"
                f" {rank}; give all ranks the same columns in the same order"
            )
    found: list[Any] | None = everybody[said[0]] if said else None
    return found


def settings_of(config: RunConfig) -> dict[str, str]:
    """The settings that decide what is sent, by name."""
    return {
        f"{section}.{key}": repr(value)
        for section, table in config.tables().items()
        if section not in OWN
        for key, value in table.items()
    }


def _alike(sentence: str) -> ConfigError:
    error = ConfigError(sentence)
    error.on_all_ranks = True
    return error

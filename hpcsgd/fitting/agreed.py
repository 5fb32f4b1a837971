"""What all ranks of a fit must have said alike: another argument is another algorithm.

Ranks that differ would wait for each other in different messages, for ever.
"""

from collections.abc import Mapping
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
                error = ConfigError(
                    f"{name} is {first} on rank 0 and {other.get(name)} on rank {rank};"
                    " give all ranks the same"
                )
                error.on_all_ranks = True
                raise error


def settings_of(config: RunConfig) -> dict[str, str]:
    """The settings that decide what is sent, by name."""
    return {
        f"{section}.{key}": repr(value)
        for section, table in config.tables().items()
        if section not in OWN
        for key, value in table.items()
    }

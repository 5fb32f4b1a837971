"""All ranks hold the same plan, or none of them begins.

Ranks that were told different things wait for each other in different messages, for
ever. So what decides the messages is said once, before the first of them, as a hash:
its MIN and MAX over all ranks are equal where all are alike, at two words of control.
Only where they differ is the plan itself exchanged, and what differs is named.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.errors import ConfigError

Plan = Mapping[str, str]  # what is said -> how it is said to people


def check_same(world: Communicator, said: Plan) -> None:
    """Refused alike by all ranks where one says something else."""
    if differs(world, said):
        everybody = world.exchange_objects(dict(said))
        raise alike(_difference(everybody, "rank"))


def check_plan(grid: Grid, said: Plan) -> None:
    """The same for replicas, whose members hold columns of their own."""
    if grid.replicas.size == 1:
        return
    if not grid.world.max_flag(int(differs(grid.replicas, said))):
        return
    everybody = grid.world.exchange_objects((grid.member, dict(said)))
    columns = [[s for m, s in everybody if m == own] for own, _ in everybody]
    found = next(same for same in columns if any(s != same[0] for s in same))
    raise alike(_difference(found, "replica"))


def differs(group: Communicator, said: Plan) -> bool:
    """Whether the hash has two values in this group."""
    if group.size == 1:
        return False
    own = hash_of(said)
    largest, least = group.max_flag(own), -group.max_flag(-own)
    return largest != least


def hash_of(said: Plan) -> int:
    """The same in every process, whatever the order in which things are said."""
    return zlib.crc32(json.dumps(dict(said), sort_keys=True).encode())


def alike(sentence: str) -> ConfigError:
    """An error that all ranks raise."""
    error = ConfigError(sentence)
    error.on_all_ranks = True
    return error


def _difference(everybody: list[dict[str, Any]], who: str) -> str:
    """The first thing that somebody says otherwise than the first of them."""
    first = everybody[0]
    for rank, other in enumerate(everybody):
        for name in (*first, *other):
            if other.get(name) != first.get(name):
                return (
                    f"{name} is {first.get(name)} on {who} 0 and {other.get(name)} on"
                    f" {who} {rank}; give all ranks the same"
                )
    raise AssertionError("unlike hashes of what is alike")  # pragma: no cover

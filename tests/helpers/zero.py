"""Runs with sharded state (ZeRO), and their words."""

from hpcsgd.data.shard import split_range
from tests.helpers.gradients import agreed

STAGES = 1, 2, 3


def sliced(drawn, stage, replicas, members=1, /, **sections):
    """Stage 0 is DDP; two columns a tile, so that three replicas have none of some."""
    how = {"kind": "sharded", "stage": stage} if stage else {"kind": "gradient"}
    tables = {
        "agreement": {**how, "bucket": 8 * drawn.classes * 2 * 2.0**-20},
        "problem": {"l2": 0.05, "intercept": True},
        "rate": {"value": 0.05},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return agreed(drawn, replicas, members, **tables)


def offloaded(drawn, replicas, members=1, /, delay=-1, **sections):
    """Stage 2 whose steps the host takes."""
    how = {"kind": "offload", "stage": 1, "delay_after": delay}
    asked = {**sections, "agreement": {**how, **sections.get("agreement", {})}}
    return sliced(drawn, 2, replicas, members, **asked)


def own_words(columns, width, tiles, replicas, replica):
    """Of the slices of one replica: columns go round, and nothing is padded."""
    found = turn = 0
    for number in range(tiles):
        part = split_range(columns, tiles, number)
        each, over = divmod(part.stop - part.start, replicas)
        found += each + (replica in [(turn + k) % replicas for k in range(over)])
        turn += over
    own = split_range(columns, replicas, 0)
    assert 0 <= own.stop - found <= 1
    return found * width

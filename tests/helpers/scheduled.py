"""Runs whose messages are scheduled in tiles."""

from tests.helpers.gradients import agreed
from tests.helpers.harness import what_is_read

MIB = 2.0**-20
TILE = 8 * 4 * 2 * MIB  # two columns of four classes in fp64
WAYS = {
    "one at a time": {"partition": 8 * MIB, "credit": 8 * MIB},
    "uneven pieces": {"partition": 8 * 3 * MIB, "credit": 8 * 5 * MIB},
    "everything at once": {"partition": 4.0, "credit": float("inf")},
}
ORDERS = ("forward", "backward", "shuffled")


def scheduled(problem, replicas, members=1, /, **sections):
    """With tiles of two columns, unless it says otherwise."""
    asked = {"kind": "scheduled", "bucket": TILE, **sections.pop("agreement", {})}
    asked = what_is_read({"agreement": asked}, "agreement")["agreement"]
    return agreed(problem, replicas, members, agreement=asked, **sections)

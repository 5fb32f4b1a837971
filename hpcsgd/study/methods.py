"""What studies compare: each method is a row of one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from hpcsgd.errors import ConfigError

Grid = tuple[int, int]  # replicas, members
# Of a sum in every step: no messages are saved, the loop around them is lighter.
LOOP = 32


@dataclass(frozen=True)
class Method:
    """How p ranks train under a name.

    `sums_each` methods end every step in a sum, so that s is 1 whatever is asked.
    """

    says: str
    grids: Callable[[int], list[Grid]]  # of p ranks, the usual one first
    over: Mapping[str, Mapping[str, Any]]  # tables that lie over what all share
    product: str = ""  # where none is asked for; "" = `over` says which
    sums_each: bool = False


def columns(ranks: int) -> list[Grid]:
    """One replica: all ranks share the columns."""
    return [(1, ranks)]


def rows(ranks: int) -> list[Grid]:
    """As many replicas as ranks."""
    return [(ranks, 1)]


def both(ranks: int) -> list[Grid]:
    """R x C with both above 1, the squarest first, of two the one with more members."""
    found = [(r, ranks // r) for r in range(2, ranks // 2 + 1) if ranks % r == 0]
    return sorted(found, key=lambda grid: (abs(grid[0] - grid[1]), grid[0]))


def every_grid(ranks: int) -> list[Grid]:
    """All R x C = p, from one replica on."""
    small = [r for r in range(1, isqrt(ranks) + 1) if ranks % r == 0]
    divisors = sorted({*small, *(ranks // r for r in small)})
    return [(r, ranks // r) for r in divisors]


DIRECT = {"kind": "direct", "look_ahead": "off"}
METHODS: dict[str, Method] = {
    "sgd": Method(
        "mini-batch SGD, a sum in every step",
        columns,
        {"products": DIRECT, "schedule": {"steps": LOOP, "period": 1}},
        sums_each=True,
    ),
    "casgd": Method(
        "CA-SGD: the iterates of sgd, one sum in s steps",
        columns,
        {"schedule": {"period": 1}},
        product="gram",
    ),
    "local": Method(
        "local SGD: every rank a replica, averaged every s x period steps",
        rows,
        {"products": DIRECT},
    ),
    "hybrid": Method(
        "replicas that take s steps a sum as CA-SGD, averaged every s x period steps",
        both,
        {},
        product="gram",
    ),
}
PLACED = ("hybrid",)  # methods whose grid can be chosen


def get_method(name: str) -> Method:
    """The row of this name."""
    if name not in METHODS:
        raise ConfigError(
            f"--methods {name}: known: {', '.join(METHODS)}; separate them by commas"
        )
    return METHODS[name]

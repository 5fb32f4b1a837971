"""What was measured here as a machine file, for predictions."""

import os
from collections.abc import Sequence
from math import ceil, log2
from typing import Any

from hpcsgd.backends import cpu
from hpcsgd.cost import Machine
from hpcsgd.formats import get_format
from hpcsgd.hardware import RANK, Hardware, Level, Number
from hpcsgd.precision import make_precision
from hpcsgd.tuner.network import Direction

NARROW = 4  # bytes of a value; fewer have a rate of their own
Rooms = dict[tuple[Any, ...], tuple[Machine, tuple[Direction, ...]]]


def machine_toml(rooms: Rooms, grid: tuple[int, int], ranks: int) -> str:
    """Of this grid: the Gram's rate in wide rows and in narrow ones, where measured."""
    own = {recipe: found for (place, recipe), found in rooms.items() if place == grid}
    wide = [r for r in own if _size(r) >= NARROW] or list(own)
    narrow = [r for r in own if _size(r) < NARROW] or wide
    machine, directions = own[wide[0]]
    return hardware_of(machine, own[narrow[0]][0].gram, directions, ranks).toml()


def hardware_of(
    machine: Machine, narrow: float, directions: Sequence[Direction], ranks: int
) -> Hardware:
    """One rank with its fitted figures; what joins ranks here is one level."""
    cores = os.cpu_count()
    source = (
        f"hpcsgd tune, {ranks} ranks, {cores} cores, {cpu.instructions() or 'numpy'}"
    )

    def number(value: float) -> Number:
        return Number(value, "measured", source)

    figures = machine.as_dict() | {"gram_narrow": narrow}
    between = [d for d in directions if d.ranks > 1][:1]
    return Hardware(
        name="measured here",
        about=source,
        rank={name: number(figures[name]) for name in RANK},
        levels=tuple(
            Level(
                "between ranks",
                0,
                # What a sum takes is a tree of hops.
                number(d.latency / ceil(log2(d.ranks))),
                number(1.0 / max(d.per_byte, LEAST)),
            )
            for d in between
        ),
    )


def _size(recipe: str) -> int:
    return int(get_format(make_precision(recipe).matrix).dtype.itemsize)


LEAST = 1e-13  # seconds a byte: what is less was not seen

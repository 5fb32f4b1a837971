"""What was measured here as a machine file, for predictions."""

import os
from typing import Any

from hpcsgd.cost import Machine
from hpcsgd.hardware import RANK, Hardware, Level, Number


def hardware_of(
    machine: Machine, directions: Any, recipe: str, ranks: int
) -> Hardware:
    """One rank with its fitted figures; what joins ranks here is one level.

    In a narrow recipe the Gram's rate is that of narrow rows, and stands for both.
    """
    source = f"hpcsgd tune on {ranks} ranks of {os.cpu_count()} cores, {recipe}"

    def number(value: float) -> Number:
        return Number(value, "measured", source)

    figures = machine.as_dict() | {"gram_narrow": machine.gram}
    levels = [d for d in directions if d.ranks > 1]
    return Hardware(
        name="measured here",
        about=source,
        rank={name: number(figures[name]) for name in RANK},
        levels=tuple(
            # A sum among two is one hop; more take a tree of them.
            Level(
                d.name,
                0,
                number(d.latency / max((d.ranks - 1).bit_length(), 1)),
                number(1.0 / max(d.per_byte, 1e-15)),
            )
            for d in levels[:1]
        ),
    )


def machine_toml(found: Any) -> str:
    """Of the grid and the recipe that were chosen."""
    figures = found.rooms[(found.chosen.grid, found.chosen.recipe)]
    fitted, directions = figures
    return hardware_of(fitted, directions, found.chosen.recipe, found.ranks).toml()

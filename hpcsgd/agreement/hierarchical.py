"""Nested groups of replicas, each with a period of its own: node, rack, all.

After exchange k the group of the largest period that divides k averages, and no other:
w ← Σ_{r in group} (n_r / Σ_{q in group} n_q) w_r.
"""

from dataclasses import dataclass
from typing import Any

from hpcsgd.agreement.average import Average
from hpcsgd.agreement.nested import Labels, label, plan_levels
from hpcsgd.agreement.terms import Terms
from hpcsgd.comm.address import Address, own_address
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import State


@dataclass(frozen=True)
class Circle:
    """Those that this replica averages with, and how often."""

    period: int
    group: Communicator  # one column block of them
    share: float  # of the rows of the circle
    size: int


class Hierarchical(Average):
    """Averages in the widest circle that is due; the last one is all replicas."""

    def __init__(
        self,
        grid: Grid,
        share: float,
        circles: list[Circle],
        momentum: str = "average",
        classes: int = 0,
    ) -> None:
        super().__init__(grid, share, circles[-1].period, momentum, classes)
        self.circles = circles

    @classmethod
    def of(cls, terms: Terms) -> "Hierarchical":
        """Groups are split off once, here, by all ranks together."""
        asked, grid = terms.settings, terms.grid
        levels = plan_levels(
            asked.groups, asked.periods, terms.period, grid.replicas.size
        )
        grid.meet()
        labels = label(levels, places(grid))
        circles = [
            open_circle(grid, terms.rows, level.period, groups)
            for level, groups in zip(levels, labels, strict=True)
        ]
        return cls(grid, terms.share, circles, *cls.buffers(terms))

    @property
    def circle_sizes(self) -> list[int]:
        """From the smallest to all."""
        return [circle.size for circle in self.circles]

    def facts(self) -> dict[str, Any]:
        """The groups that rank 0 was in."""
        return {"circles": self.circle_sizes}

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Average in one circle at most; alone in it there is nobody to agree with."""
        due = [c for c in self.circles if exchanges % c.period == 0]
        if due and due[-1].size > 1:
            self.average(state, due[-1].share, due[-1].group, "agreement")

    def close(self) -> None:
        """The groups that were split off."""
        for circle in self.circles:
            if circle.group is not self.grid.replicas:
                circle.group.close()


def places(grid: Grid) -> list[Address]:
    """Of every replica: that of its first member."""
    known = grid.world.exchange_objects(grid.world.address or own_address())
    return [known[r * grid.members.size] for r in range(grid.replicas.size)]


def open_circle(
    grid: Grid, rows: tuple[int, ...], period: int, groups: Labels
) -> Circle:
    """The circle of this replica; the group of all replicas is there already."""
    own = [r for r, first in enumerate(groups) if first == groups[grid.replica]]
    share = rows[grid.replica] / sum(rows[r] for r in own)
    group = grid.replicas
    if len(set(groups)) > 1:
        group = grid.replicas.split(groups[grid.replica], grid.replica)
    return Circle(period, group, share, len(own))

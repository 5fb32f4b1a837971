"""One exchange: one sum over ranks, then s proximal block steps on every rank.

With m sampled items Y, before the loop and over ranks:

    G = Y Yᵀ  (the lower triangle, m(m + 1)/2 words)      z = Y v  (m words)

then for blocks j = 0..s−1, with L_j = σ λ_max(G_jj):

    g_j = z_j + σ Σ_{i<j} G_ji δ_i        δ_j = prox(x_j, g_j, L_j) − x_j

and locally v ← v + σ Yᵀδ. In exact arithmetic these are the steps that one rank takes
one after the other. G depends on the items alone: groups that come again keep it, and
send m words.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from hpcsgd.comm.base import Communicator
from hpcsgd.coordinate.items import Array, Items, Sampled
from hpcsgd.products.base import Scratch
from hpcsgd.schedule import Blocks
from hpcsgd.timing import Clock


@dataclass
class Point:
    """What evolves: x on all ranks alike, and each rank's part of v."""

    x: Array
    v: Array


class Quadratic(Protocol):
    """What is descended on."""

    items: Items
    scale: float  # σ
    separable: Any  # ψ


@dataclass(frozen=True)
class Known:
    """What does not depend on the point."""

    gram: Array  # (m, m), its lower triangle
    curvatures: list[float]  # L_j / σ of every block


@dataclass
class Exchanges:
    """Takes the groups of one form, over the ranks that share its items."""

    members: Communicator
    form: str  # of a word on the wire: fp32 or fp64
    keeps: bool  # G of groups that come again
    clock: Clock
    scratch: Scratch = field(default_factory=Scratch)
    known: dict[int, Known] = field(default_factory=dict)

    def advance(
        self,
        point: Point,
        group: int,
        numbers: Array,
        blocks: Blocks,
        task: Quadratic,
    ) -> None:
        """The steps of group number `group` of an epoch, which takes these items."""
        sampled = task.items.take(numbers)
        self.clock.lap("gather")
        known, z = self._sum(group, sampled, point.v, blocks)
        one_by_one = len(blocks.sizes) == blocks.rows
        steps = _single_steps if one_by_one else _steps
        moved = steps(point.x, numbers, blocks, known, z, task)
        self.clock.lap("inner")
        point.v += task.scale * sampled.combined(moved)
        self.clock.lap("update")

    def _sum(
        self, group: int, sampled: Sampled, v: Array, blocks: Blocks
    ) -> tuple[Known, Array]:
        """G and z of all ranks; z alone where G is known."""
        known, m = self.known.get(group), blocks.rows
        words = m if known is not None else m + m * (m + 1) // 2
        message = self.scratch.message(self.members, "coordinate", words, self.form)
        message.array[:m] = sampled.products(v)
        self.clock.lap("scores")
        if known is None:
            message.array[m:] = sampled.gram()[_triangle(m)]
            self.clock.lap("gram")
        total = message.sum("products")
        self.clock.lap("communicate")
        if known is None:
            known = _known(total[m:], blocks)
            if self.keeps:
                self.known[group] = known
        return known, total[:m].astype(np.float64)


def _known(packed: Array, blocks: Blocks) -> Known:
    """G from its lower triangle, and the largest eigenvalue of every diagonal block."""
    m = blocks.rows
    gram = np.zeros((m, m))
    gram[_triangle(m)] = packed
    edges = zip(blocks.starts, blocks.starts[1:], strict=False)
    return Known(gram, [_largest(gram[a:b, a:b]) for a, b in edges])


@lru_cache(maxsize=4)
def _triangle(m: int) -> tuple[Array, ...]:
    """Rows and columns of the lower triangle, in the order in which it travels."""
    return np.tril_indices(m)


def _largest(block: Array) -> float:
    """λ_max of a symmetric block of which the lower triangle is there."""
    if len(block) == 1:
        return float(block[0, 0])
    return max(float(np.linalg.eigvalsh(block)[-1]), 0.0)


def _steps(
    x: Array,
    numbers: Array,
    blocks: Blocks,
    known: Known,
    z: Array,
    task: Quadratic,
) -> Array:
    """x after all blocks, in place; how far every item of the group went."""
    moved, scale = np.zeros(blocks.rows), task.scale
    for j, curvature in enumerate(known.curvatures):
        first, last = blocks.starts[j], blocks.starts[j + 1]
        own, before = numbers[first:last], x[numbers[first:last]]
        slope = z[first:last] + scale * (known.gram[first:last, :first] @ moved[:first])
        end = task.separable.step(own, before, slope, scale * curvature)
        moved[first:last] = end - before
        x[own] = end
    return moved


def _single_steps(
    x: Array,
    numbers: Array,
    blocks: Blocks,
    known: Known,
    z: Array,
    task: Quadratic,
) -> Array:
    """The same for blocks of one item: numbers in the place of arrays of one."""
    moved, scale, gram = np.zeros(blocks.rows), task.scale, known.gram
    step, slopes = task.separable.step_one, z.tolist()
    for j, item in enumerate(numbers.tolist()):
        before = float(x[item])
        slope = slopes[j] + scale * float(gram[j, :j] @ moved[:j])
        end = step(item, before, slope, scale * known.curvatures[j])
        moved[j] = end - before
        x[item] = end
    return moved

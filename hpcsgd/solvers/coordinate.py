"""Coordinate descent in exchanges of several items."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from hpcsgd.backends.exchange import Scratch
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import Clock
from hpcsgd.formats import Array
from hpcsgd.glm.unrolling import Blocks
from hpcsgd.settings import Settings, setting

# The items of a coordinate form, as far as one rank holds them.

AT_ONCE = 2**20  # values that are widened together


@dataclass(frozen=True)
class SampledItems:
    """Some items: what products with them take."""

    rows: Any  # (m, width): an array or a SciPy CSR array
    wide: Any  # the same in float64: gradients decide where it all ends
    shift: Array | None  # (m,), how much of `along` is taken off each
    along: Array  # (width,)

    def gram(self) -> Array:
        """This rank's part of the inner products of all pairs, (m, m).

        In the dtype of the data: it says how far a step goes, not where it ends.
        """
        product = self.rows @ self.rows.T
        gram = np.asarray(product.toarray() if hasattr(product, "tocsr") else product)
        if self.shift is None:
            return gram
        crossed = np.multiply.outer(self.shift, self.wide @ self.along)
        square = np.multiply.outer(self.shift, self.shift) * (self.along @ self.along)
        gram -= (crossed + crossed.T - square).astype(gram.dtype)
        return gram

    def products(self, vector: Array) -> Array:
        """This rank's part of the inner products with `vector`, (m,)."""
        found: Array = self.wide @ vector
        if self.shift is not None:
            found = found - self.shift * (self.along @ vector)
        return found

    def combined(self, factors: Array) -> Array:
        """Σ_i factors_i item_i, (width,)."""
        found: Array = self.wide.T @ factors
        if self.shift is not None:
            found = found - self.along * (self.shift @ factors)
        return found


@dataclass(frozen=True)
class Items:
    """M: an array, or a SciPy CSR array, of which a shift and factors may be meant.

    Item i is `factors · (matrix[i] − shift[i])`, and nobody makes all of them: sparse
    items that are centred would be dense, and factors may change all the time.
    """

    matrix: Any
    shift: Array | None = None
    factors: Array | None = None  # (width,)

    @property
    def count(self) -> int:
        """N."""
        return int(self.matrix.shape[0])

    @property
    def width(self) -> int:
        """Of the part that this rank holds."""
        return int(self.matrix.shape[1])

    def take(self, numbers: Any) -> SampledItems:
        """The items of these numbers, or of a slice."""
        rows = self.matrix[numbers]
        if self.factors is not None:
            rows = rows * self.factors.astype(rows.dtype)[None, :]
        if hasattr(rows, "tocsr"):
            rows = rows.tocsr()
        wide = rows.astype(np.float64, copy=False)
        shift = None if self.shift is None else self.shift[numbers]
        return SampledItems(rows, wide, shift, self._along)

    def products(self, vector: Array) -> Array:
        """This rank's part of the inner products of all items with `vector`, (N,)."""
        if self.count == 0:
            return np.zeros((0, *vector.shape[1:]))
        return np.concatenate([self.take(p).products(vector) for p in self._parts()])

    def combined(self, factors: Array) -> Array:
        """Σ_i factors_i item_i over all items, (width,) or (width, K)."""
        total = np.zeros((self.width, *factors.shape[1:]))
        for part in self._parts():
            total += self.take(part).combined(factors[part])
        return total

    @property
    def _along(self) -> Array:
        """What a shift is taken off along."""
        return np.ones(self.width) if self.factors is None else self.factors

    def _parts(self) -> Iterator[slice]:
        step = max(AT_ONCE // max(self.width, 1), 1)
        for first in range(0, self.count, step):
            yield slice(first, min(first + step, self.count))


# One exchange: one sum over ranks, then s proximal block steps on every rank.
#
# With m sampled items Y, before the loop and over ranks:
#
#     G = Y Yᵀ  (the lower triangle, m(m + 1)/2 words)      z = Y v  (m words)
#
# then for blocks j = 0..s−1, with L_j = σ λ_max(G_jj):
#
#     g_j = z_j + σ Σ_{i<j} G_ji δ_i        δ_j = prox(x_j, g_j, L_j) − x_j
#
# and locally v ← v + σ Yᵀδ. In exact arithmetic these are the steps that one rank takes
# one after the other. G depends on the items alone: groups that come again keep it, and
# send m words.


@dataclass
class CoordinatePoint:
    """What evolves: x on all ranks alike, and each rank's part of v."""

    x: Array
    v: Array


class Quadratic(Protocol):
    """What is descended on."""

    items: Items
    scale: float  # σ
    separable: Any  # ψ


@dataclass(frozen=True)
class FormFacts:
    """What does not depend on the point."""

    gram: Array  # (m, m), its lower triangle
    curvatures: list[float]  # L_j / σ of every block


@dataclass
class Exchanges:
    """Takes the groups of one form, over the ranks that share its items."""

    members: Communicator
    form: str  # of a word on the wire: fp32 or fp64
    caches_grams: bool  # G of groups that come again
    clock: Clock
    scratch: Scratch = field(default_factory=Scratch)
    known: dict[int, FormFacts] = field(default_factory=dict)

    def advance(
        self,
        point: CoordinatePoint,
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
        self, group: int, sampled: SampledItems, v: Array, blocks: Blocks
    ) -> tuple[FormFacts, Array]:
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
            if self.caches_grams:
                self.known[group] = known
        return known, total[:m].astype(np.float64)


def _known(packed: Array, blocks: Blocks) -> FormFacts:
    """G from its lower triangle, and the largest eigenvalue of every diagonal block."""
    m = blocks.rows
    gram = np.zeros((m, m))
    gram[_triangle(m)] = packed
    edges = zip(blocks.starts, blocks.starts[1:], strict=False)
    return FormFacts(gram, [_largest(gram[a:b, a:b]) for a, b in edges])


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
    known: FormFacts,
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
    known: FormFacts,
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


# What is asked of a coordinate form.

COORDINATE = "coordinate"  # [update] kind
FORMS = ("auto", "primal", "dual", "newton")


@dataclass(frozen=True)
class CoordinateConfig(Settings, section="coordinate"):
    """Coordinate descent, [update] kind = "coordinate"."""

    tol: float = setting(
        1e-6,
        "tolerance of the duality gap, relative to max(|F|, 1e-3 F₀); a smaller one"
        " stops closer to the optimum",
        at_least=0,
        below=1,
        remedy="1e-6 is usual, 0 takes all epochs",
        read_if={"update.kind": (COORDINATE,)},
    )
    form: str = setting(
        "auto",
        "problem that is solved: primal, dual, or Newton models (newton); auto takes"
        " the fastest",
        choices=FORMS,
        read_if={"update.kind": (COORDINATE,)},
    )

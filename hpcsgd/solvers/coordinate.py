"""Coordinate descent in exchanges of several items.

Each coordinate has an item: a column of the data, or a row in the dual form.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from hpcsgd.backends.exchange import Scratch
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import Clock
from hpcsgd.formats import Array
from hpcsgd.glm.penalties import ProblemConfig
from hpcsgd.glm.unrolling import Blocks
from hpcsgd.settings import Settings, setting

# The items of a coordinate form: the part on one rank.

AT_ONCE = 2**20  # values that are widened together


@dataclass(frozen=True)
class SampledItems:
    """A selection of the items, as arrays with which products are computed."""

    rows: Any  # (m, width): an array or a SciPy CSR array
    wide: Any  # the same in float64, for gradients
    shift: Array | None  # (m,), the multiple of `along` to subtract
    along: Array  # (width,)

    def gram(self) -> Array:
        """Return this rank's part of the Gram matrix of the items, (m, m).

        It has the dtype of the data, since it determines the length of steps, not their
        limit.
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
        """Return this rank's part of the inner products with `vector`, (m,)."""
        products: Array = self.wide @ vector
        if self.shift is not None:
            products = products - self.shift * (self.along @ vector)
        return products

    def combined(self, factors: Array) -> Array:
        """Return Σ_i factors_i item_i, (width,)."""
        combination: Array = self.wide.T @ factors
        if self.shift is not None:
            combination = combination - self.along * (self.shift @ factors)
        return combination


@dataclass(frozen=True)
class Items:
    """All items of a problem: a matrix, with optional shift and factors.

    The matrix is dense or a SciPy CSR matrix. Item i is `factors · (matrix[i] −
    shift[i])`. Items are computed when they are taken, and never all at once: centred
    sparse items would be dense, and factors may change in every epoch.
    """

    matrix: Any
    shift: Array | None = None
    factors: Array | None = None  # (width,)

    @property
    def count(self) -> int:
        """Return the number of items, N."""
        return int(self.matrix.shape[0])

    @property
    def width(self) -> int:
        """Return the number of elements of an item that this rank stores."""
        return int(self.matrix.shape[1])

    def take(self, numbers: Any) -> SampledItems:
        """Return the items with these numbers, which are an array or a slice."""
        rows = self.matrix[numbers]
        if self.factors is not None:
            rows = rows * self.factors.astype(rows.dtype)[None, :]
        if hasattr(rows, "tocsr"):
            rows = rows.tocsr()
        wide = rows.astype(np.float64, copy=False)
        shift = None if self.shift is None else self.shift[numbers]
        return SampledItems(rows, wide, shift, self._along)

    def products(self, vector: Array) -> Array:
        """Return this rank's part of the inner products of all items with `vector`.

        The shape is (N,), for N items.
        """
        if self.count == 0:
            return np.zeros((0, *vector.shape[1:]))
        if self._is_plain:
            plain: Array = self.matrix @ vector
            return plain
        return np.concatenate([self.take(p).products(vector) for p in self._parts()])

    def combined(self, factors: Array) -> Array:
        """Return Σ_i factors_i item_i over all items, (width,) or (width, K)."""
        total = np.zeros((self.width, *factors.shape[1:]))
        if self._is_plain and self.count:
            total += self.matrix.T @ factors
            return total
        for part in self._parts():
            total += self.take(part).combined(factors[part])
        return total

    @property
    def _is_plain(self) -> bool:
        """Return whether the matrix, as it is stored, contains the items in float64.

        All items can then be multiplied at once.
        """
        is_bare = self.shift is None and self.factors is None
        return is_bare and self.matrix.dtype == np.float64

    @property
    def _along(self) -> Array:
        """Return the vector that item i subtracts `shift[i]` times, (width,)."""
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
# one after the other. G depends on the items alone: a group reuses it in later epochs,
# and sends m words.


@dataclass
class CoordinatePoint:
    """The present point: x, equal on all ranks, and this rank's part of v.

    x has one number for each item, and v changes by σ times an item if x changes by 1.
    """

    x: Array
    v: Array


class Quadratic(Protocol):
    """Protocol of the problem that coordinate descent minimises.

    It has items, a scale σ, and a separable function ψ with a proximal step.
    """

    items: Items
    scale: float  # σ
    separable: Any  # ψ


@dataclass(frozen=True)
class FormFacts:
    """The Gram matrix of a group of items, and the curvatures of its blocks.

    They are the same at every point.
    """

    gram: Array  # (m, m), its lower triangle
    curvatures: list[float]  # L_j / σ of every block


@dataclass
class Exchanges:
    """The exchanges of coordinate descent, over members that share the items."""

    members: Communicator
    form: str  # of a word on the wire: fp32 or fp64
    caches_grams: bool  # whether later epochs reuse G of a group
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
        """Take the steps of group number `group` of an epoch over the items `numbers`.

        x and v of `point` change in place. Collective over the members.
        """
        sampled = task.items.take(numbers)
        self.clock.lap("gather")
        facts, z = self._sum(group, sampled, point.v, blocks)
        one_by_one = len(blocks.sizes) == blocks.rows
        steps = _single_steps if one_by_one else _steps
        moved = steps(point.x, numbers, blocks, facts, z, task)
        self.clock.lap("inner")
        point.v += task.scale * sampled.combined(moved)
        self.clock.lap("update")

    def _sum(
        self, group: int, sampled: SampledItems, v: Array, blocks: Blocks
    ) -> tuple[FormFacts, Array]:
        """Return the Gram matrix and curvatures of a group, and z = Y v. Collective.

        If the first two are stored from an earlier epoch, only z is summed.
        """
        facts = self.known.get(group)
        m = blocks.rows
        words = m if facts is not None else m + m * (m + 1) // 2
        message = self.scratch.message(self.members, "coordinate", words, self.form)
        message.array[:m] = sampled.products(v)
        self.clock.lap("scores")
        if facts is None:
            message.array[m:] = sampled.gram()[_triangle(m)]
            self.clock.lap("gram")
        total = message.sum("products")
        self.clock.lap("communicate")
        if facts is None:
            facts = _known(total[m:], blocks)
            if self.caches_grams:
                self.known[group] = facts
        return facts, total[:m].astype(np.float64)


def _known(packed: Array, blocks: Blocks) -> FormFacts:
    """Return the Gram matrix from its packed lower triangle, with the curvatures.

    A curvature is the largest eigenvalue of a diagonal block.
    """
    m = blocks.rows
    gram = np.zeros((m, m))
    gram[_triangle(m)] = packed
    edges = zip(blocks.starts, blocks.starts[1:], strict=False)
    return FormFacts(gram, [_largest(gram[a:b, a:b]) for a, b in edges])


@lru_cache(maxsize=4)
def _triangle(m: int) -> tuple[Array, ...]:
    """Return rows and columns of the lower triangle of an (m, m) matrix.

    They are in the order of the message.
    """
    return np.tril_indices(m)


def _largest(block: Array) -> float:
    """Return the largest eigenvalue of a symmetric block, at least 0.

    Only the lower triangle of the block is set.
    """
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
    """Take the steps of all blocks on x, in place.

    Return the change of x for every item of the group, (m,).
    """
    moved = np.zeros(blocks.rows)
    scale = task.scale
    for j, curvature in enumerate(known.curvatures):
        first = blocks.starts[j]
        last = blocks.starts[j + 1]
        items = numbers[first:last]
        before = x[numbers[first:last]]
        slope = z[first:last] + scale * (known.gram[first:last, :first] @ moved[:first])
        end = task.separable.step(items, before, slope, scale * curvature)
        moved[first:last] = end - before
        x[items] = end
    return moved


def _single_steps(
    x: Array,
    numbers: Array,
    blocks: Blocks,
    known: FormFacts,
    z: Array,
    task: Quadratic,
) -> Array:
    """Take the steps of all blocks as `_steps` does, if each block has one item.

    It computes with numbers instead of arrays.
    """
    moved = np.zeros(blocks.rows)
    scale = task.scale
    gram = known.gram
    step = task.separable.step_one
    slopes = z.tolist()
    for j, item in enumerate(numbers.tolist()):
        before = float(x[item])
        slope = slopes[j] + scale * float(gram[j, :j] @ moved[:j])
        end = step(item, before, slope, scale * known.curvatures[j])
        moved[j] = end - before
        x[item] = end
    return moved


# The settings of coordinate descent.

COORDINATE = "coordinate"  # [update] kind
FORMS = ("auto", "primal", "dual", "newton")
FAMILY_OF = {"primal": "gaussian", "dual": "squared-hinge"}  # the only one of a form


@dataclass(frozen=True)
class CoordinateConfig(Settings, section="coordinate"):
    """The settings of coordinate descent, [update] kind = "coordinate"."""

    tol: float = setting(
        1e-6,
        "tolerance of the duality gap, relative to max(|F|, 1e-3 F₀) with F₀ the excess"
        " of F at the null model; where no gap is known, of the gradient, relative to"
        " that at the start, or in the form newton at the null model; a smaller one"
        " stops closer to the optimum",
        at_least=0,
        below=1,
        remedy="1e-6 is usual, 0 takes all epochs",
        read_if={"update.kind": (COORDINATE,)},
    )
    form: str = setting(
        "auto",
        "problem that is solved: primal, dual, or Newton models (newton); auto takes"
        " primal for gaussian, dual for squared-hinge with a ridge alone and without"
        " intercept, and newton for all others",
        choices=FORMS,
        read_if={"update.kind": (COORDINATE,)},
    )

    def best_form(self, problem: ProblemConfig) -> str:
        """Return the requested form, or for "auto" the one that suits the problem.

        That is primal for gaussian; dual for squared-hinge with a ridge and without l1,
        bounds and intercept; and newton for all other problems.
        """
        if self.form != "auto":
            return self.form
        if problem.family == FAMILY_OF["primal"]:
            return "primal"
        is_dual = problem.is_smooth and problem.l2 > 0.0 and not problem.intercept
        return "dual" if problem.family == FAMILY_OF["dual"] and is_dual else "newton"


def grid_of_form(form: str, ranks: int) -> tuple[int, int]:
    """Return (replicas, members) of coordinate descent on `ranks` ranks.

    Ranks divide the columns in the dual form, and the rows in the others.
    """
    return (1, ranks) if form == "dual" else (ranks, 1)

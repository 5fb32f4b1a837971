"""Newton's method on all rows, and the refinement after the last step."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.task import State
from hpcsgd.comm.ledger import Clock, Entry
from hpcsgd.data.matrix import Csr, DenseMatrix
from hpcsgd.data.shard import split_range, take
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array
from hpcsgd.glm.families import SQUARED
from hpcsgd.solvers.callbacks import Callbacks, Request, View
from hpcsgd.solvers.evaluation import Columns, Evaluation
from hpcsgd.solvers.full_passes import (
    EPS,
    NO_MINIMUM,
    TINY,
    AllRows,
    VariableScaling,
    bends,
    gap_above,
    gap_at,
    is_separated,
    may_lack_minimum,
    open_rows,
)
from hpcsgd.solvers.lbfgs import (
    GapCertificate,
    Landscape,
    Lbfgs,
    PolishConfig,
    RefinementPoint,
    StopReason,
)

# ∇²F in the scaled variables, of few columns: each rank adds up some of the rows.
#
# With ã = (a − m)/√D, and 1/√e in the intercept's place, F'' = Σ_i ã_i B_i ã_iᵀ + λ/D
# where B_i is ∂r/∂t of row i, K × K, times its share. Members hold columns, so they
# exchange pieces of each block of rows: each then has all columns of its part of them.
# One sum over all ranks has P² + P words for P variables, the gradient's among them.


@dataclass(frozen=True)
class WholeScaling:
    """The scaling of the variables of all columns, on every rank."""

    roots: Array  # (d, K)
    centers: Array
    level: Array  # (K,)


class Hessian:
    """The Hessian of a landscape in the variables (u, ν), flattened like gradients."""

    def __init__(
        self, land: Landscape, scaling: VariableScaling, scales_rows: bool = False
    ) -> None:
        self.landscape = land
        self.rows = land.rows
        parts = self.rows.objective.shard.parts
        self.parts = parts
        self.columns = self.rows.columns
        self.variables = (parts[-1].stop + land.has_intercept) * self.columns
        self.scaling = WholeScaling(
            self._joined(scaling.roots), self._joined(scaling.centers), scaling.level
        )
        # A rank alone multiplies rows with one score as they are and scales the result:
        # far columns would lose digits by that, and are centred first. Several ranks
        # centre all columns, and so does a rank whose result is ill conditioned.
        distance = np.abs(self.scaling.centers) * self.scaling.level
        far = distance > NEAR * self.scaling.roots
        is_simple = self.columns == 1 and land.world.size == 1 and not far.any()
        self.scales_rows = scales_rows or not is_simple

    def take(self, point: RefinementPoint, gradient: Array) -> tuple[Array, Array]:
        """Return the Hessian F'' and the gradient at a point. Collective.

        They are of all variables, on every rank. `gradient` is this member's, flat.
        """
        P = self.variables
        words = np.zeros(P * P + P)
        whole = words[: P * P].reshape(P, P)
        family = self.landscape.family
        targets = self.rows.targets
        h = bends(family, point.scores, targets, point.terms)
        h = h * self.rows.share[:, :, None]
        for rows, values in self.rows.read_blocks():
            block, own_rows = self.own_rows(values)
            if block.shape[0]:
                self.add(whole, block, h[rows][own_rows])
        if not self.scales_rows:
            self._scale(whole)
        words[P * P :] = self._own_part(gradient, point.weights.size)
        self.landscape.world.sum(words, "evaluate")
        ridge = self.landscape.l2 / np.square(self.scaling.roots).reshape(-1)
        whole[np.arange(len(ridge)), np.arange(len(ridge))] += ridge
        return whole, words[P * P :]

    def gradient(self, point: RefinementPoint, gradient: Array) -> Array:
        """Return the gradient of all variables at a point. Collective.

        `gradient` is this member's, flat.
        """
        words = self._own_part(gradient, point.weights.size)
        self.landscape.world.sum(words, "evaluate")
        return words

    def rounding(self, whole: Array) -> Array:
        """Return how much of the diagonal of F'' may be rounding, for each variable.

        The values of a constant column, less its center, are rounding. A diagonal entry
        counts as such below `CENTRED` EPS of the squares before centring, which add up
        to e m² / D: e is the current sum of curvatures, m the center of the column and
        √D its scale.
        """
        errors = np.zeros(self.variables)
        if not self.landscape.has_intercept:
            return errors
        level = self.scaling.level
        total = np.diagonal(whole)[-self.columns :] * np.square(level)
        squares = self._centre_squares * total
        errors[: squares.size] = CENTRED * EPS * squares.reshape(-1)
        return errors

    @cached_property
    def _centre_squares(self) -> Array:
        """m² / D of every column, (d, K)."""
        centre_squares: Array = np.square(self.scaling.centers / self.scaling.roots)
        return centre_squares

    def _own_part(self, gradient: Array, width: int) -> Array:
        """Return this rank's part of the gradient among zeros for all other variables.

        Replica 0 alone has a part.
        """
        if self.landscape.world.size == 1:
            return gradient[: self.variables].copy()
        padded_gradient = np.zeros(self.variables)
        grid = self.rows.grid
        if grid.replica == 0:
            first = self.parts[grid.member].start * self.columns
            padded_gradient[first : first + width] = gradient[:width]
        if self.landscape.is_first and self.landscape.has_intercept:
            padded_gradient[-self.columns :] = gradient[width:]
        return padded_gradient

    def add(self, whole: Array, block: Any, h: Array) -> None:
        """Add the products of some rows to the Hessian `whole`.

        They are Σ ã B ãᵀ, class by class, for scaled rows ã; or Σ (a, 1) h (a, 1)ᵀ
        where the sum is scaled in the end.
        """
        K = self.columns
        if K == 1:
            # A curvature is never negative; a difference quotient may be, by rounding.
            curvatures = np.maximum(h[:, 0, 0], 0.0)
            if isinstance(block, np.ndarray):
                self._add_dense(whole, block, np.sqrt(curvatures))
            else:
                self._add_sparse(whole, block, curvatures)
            return
        sides = [self.scaled(block, k) for k in range(K)]
        for k in range(K):
            for q in range(k + 1):  # B is symmetric, and so is the whole
                part = (sides[k] * h[:, k, q, None]).T @ sides[q]
                whole[k::K, q::K] += part
                if q < k:
                    whole[q::K, k::K] += part.T

    def _add_dense(self, whole: Array, block: Array, roots: Array) -> None:
        """Add the products of dense rows times √h, by parts that stay in the cache."""
        if compiled_calls.takes_squares(block, self.variables):
            how = self._row_scaling if self.scales_rows else self._plain_rows
            compiled_calls.add_squares(block, roots, *how, whole)
            return
        width = block.shape[1]
        room, product = self._workspace
        height = len(room)
        for first in range(0, len(block), height):
            rows = slice(first, first + height)
            row_roots = roots[rows, None]
            if self.scales_rows:
                side = self.scaled(block[rows], 0, room)
                side *= row_roots
            else:
                side = room[: len(row_roots)]
                np.multiply(block[rows], row_roots, out=side[:, :width])
                side[:, width:] = row_roots
            # Half of a symmetric product, which BLAS then mirrors.
            whole += np.dot(side.T, side, out=product)

    @cached_property
    def _workspace(self) -> tuple[Array, Array]:
        """Memory for rows that stay in the cache, and for their product."""
        height = max(CACHED_VALUES // self.variables, LEAST_ROWS)
        rows = np.empty((height, self.variables))
        return rows, np.empty((self.variables, self.variables))

    @cached_property
    def _plain_rows(self) -> tuple[Array, Array, float]:
        """Centers, factors and the intercept's entry of rows that are not scaled."""
        width = self.parts[-1].stop
        return np.zeros(width), np.ones(width), 1.0

    @cached_property
    def _row_scaling(self) -> tuple[Array, Array, float]:
        """Center and factor of every column, and the intercept's entry."""
        scaling = self.scaling
        centers = np.ascontiguousarray(scaling.centers[:, 0], dtype=np.float64)
        return centers, 1.0 / scaling.roots[:, 0], 1.0 / float(scaling.level[0])

    def _add_sparse(self, whole: Array, block: Any, h: Array) -> None:
        """Add the products of CSR rows to the lower triangle of `whole`."""
        compiled_calls.add_outer(block, h, whole)
        if self.landscape.has_intercept:
            whole[-1, :-1] += block.T @ h
            whole[-1, -1] += h.sum()

    def _scale(self, whole: Array) -> None:
        """Turn Σ (a, 1) h (a, 1)ᵀ into Σ ã h ãᵀ of scaled rows ã, in place.

        Of sparse rows the lower triangle of the first sum is enough.
        """
        scaling = self.scaling
        width = self.parts[-1].stop
        inverse = 1.0 / scaling.roots[:, 0]
        centers = scaling.centers[:, 0]
        if self.rows.objective.shard.is_sparse:
            np.copyto(whole, whole.T.copy(), where=~np.tri(len(whole), dtype=bool))
        inner = whole[:width, :width]
        if self.landscape.has_intercept:
            first = whole[-1, :width]
            total = whole[-1, -1]
            inner -= centers[:, None] * first
            first -= total * centers
            inner -= first[:, None] * centers
            first *= inverse / scaling.level[0]
            whole[:width, -1] = first
            whole[-1, -1] = total / scaling.level[0] ** 2
        inner *= inverse[:, None]
        inner *= inverse

    def scaled(self, block: Array, k: int, room: Array | None = None) -> Array:
        """Return the scaled rows ã for class k, (m, P / K), in float64.

        `room` is memory for them, if given.
        """
        scaling = self.scaling
        width = block.shape[1]
        if room is None:
            room = np.empty((len(block), width + self.landscape.has_intercept))
        scaled_rows: Array = room[: len(block)]
        columns = scaled_rows[:, :width]
        np.subtract(block, scaling.centers[:, k], out=columns)
        columns *= 1.0 / scaling.roots[:, k]
        scaled_rows[:, width:] = 1.0 / scaling.level[k]
        return scaled_rows

    def own_rows(self, stored: Any) -> tuple[Any, slice]:
        """Return this member's share of some rows with all columns, and its slice.

        `stored` are this member's columns of the rows. Sparse rows stay sparse where a
        kernel multiplies them. Collective over members.
        """
        members = self.rows.grid.members
        stays = (
            members.size == 1 and not self.scales_rows and compiled_calls.available()
        )
        block = stored if stays else dense(stored)
        if members.size == 1:
            return block, slice(0, block.shape[0])
        shares = [split_range(len(block), members.size, r) for r in range(members.size)]
        own_rows = shares[members.rank]
        widths = [part.stop - part.start for part in self.parts]
        buffer = np.zeros((len(block), max(widths)))  # pieces are of one width
        buffer[:, : block.shape[1]] = block
        counts = [(part.stop - part.start) * max(widths) for part in shares]
        out = np.empty(members.size * counts[members.rank])
        members.exchange_pieces(buffer.reshape(-1), counts, out, "evaluate")
        pieces = out.reshape(members.size, own_rows.stop - own_rows.start, max(widths))
        sides = [piece[:, :w] for piece, w in zip(pieces, widths, strict=True)]
        return np.hstack(sides), own_rows

    def _joined(self, own: Array) -> Array:
        """Return the columns of all members, (d, K), from this member's `own`.

        Collective over members.
        """
        members = self.rows.grid.members
        K = self.columns
        counts = [(part.stop - part.start) * K for part in self.parts]
        out = np.empty(sum(counts))
        members.gather(np.ascontiguousarray(own).reshape(-1), counts, out, "evaluate")
        return out.reshape(-1, K)


def dense(block: Any) -> Array:
    """Return rows as a dense array; sparse rows, of few columns, become float64."""
    if isinstance(block, np.ndarray):
        return block
    array: Array = block.astype(np.float64).toarray()
    return array


# Newton's steps for few columns: where L-BFGS would take long, ten passes do.
#
# Columns that are nearly combinations of others make L-BFGS slow, whatever their scale.
# The Hessian of P variables costs n P² operations and P² words; the system is solved by
# one rank, by eigenvalues, so that what is flat stays where it is.
#
# Without a ridge no gap bounds F − F*, and a small gradient may hide a large one: a row
# 1e7 times as long as the others scales their part of the gradient away. The fall that
# a step of Newton expects, g·H⁺g/2, does not depend on any scale, and has to
# meet the limit of a gap. It is an estimate, exact for least squares, and certifies
# nothing; it counts only where that step changes no score by much.

CACHED_VALUES, LEAST_ROWS = 2**15, 256  # of rows that are multiplied together
NEAR = 30.0  # deviations of a column from 0; its square times EPS is lost
MOST = 1024  # variables of which a Hessian is taken
DOUBT = 16.0  # times the curvature that is rounding: what sums over rows add to it
NOISE = 100.0  # roundings of a gradient's size that its sums may leave
CENTRED = 16.0  # roundings of the squares of a column that centring may leave
WELL_CONDITIONED = 1e-8  # reciprocal condition number above which Cholesky solves
FAR = 0.5  # change of a score, beyond which a quadratic model of F means little
KEPT_FALL = 0.1  # of the gradient in a step, by which a Hessian is used again
# Multiply-adds of a Hessian, over all rows, from which it is used again. A cheaper one
# is taken for each step, and one step more squares what is left of the gradient.
KEPT_WORK = 1e8
CLOSER = 1e-3
# Passes of L-BFGS before: most problems are done by then. A Hessian of P variables
# costs as much as P/4 passes, of which it has to save more.
PATIENCE = 30
PATIENCE_SHARE = 0.5


def is_small(columns: int, scores: int) -> bool:
    """Return whether the variables are few enough for a Hessian.

    The variables are the weights and intercepts of `columns` columns, with `scores`
    scores a row.
    """
    return (columns + 1) * scores <= MOST


class NewtonSystem:
    """The system H p = −g on the rank that solves it.

    Parameters
    ----------
    whole : ndarray, (P, P)
        H in the scaled variables.
    rounding : ndarray, (P,)
        What centring leaves of the diagonal by rounding alone.
    scores : int
        The scores of a row.
    """

    def __init__(self, whole: Array, rounding: Array, scores: int) -> None:
        self.is_finite = bool(np.isfinite(whole).all())
        if not self.is_finite:
            return
        # The variables have the units of the start. A row that is much longer than the
        # others may have made those, and may have lost its curvature since: what is
        # rounding is then judged in units of the curvatures of now. The classes of a
        # column have one unit: a change of all of them together, which no probability
        # sees, stays apart from other changes.
        diagonal = np.diagonal(whole)
        diagonal = np.where(diagonal > rounding, diagonal, 1.0)
        if scores > 1:
            each = diagonal.reshape(-1, scores).mean(axis=1)
            diagonal = np.repeat(each, scores)
        self.units = 1.0 / np.sqrt(diagonal)
        self.whole = self.units[:, None] * whole * self.units

    @property
    def is_ill_conditioned(self) -> bool:
        """Return whether some directions may be nothing but rounding."""
        return self.is_finite and self._factor is None

    def step(self, gradient: Array) -> Array:
        """Return −H⁺ g, without the directions in which H is nothing but rounding.

        A Hessian that is well conditioned is factored by Cholesky, in a tenth of the
        time. The step is 0 if H is not finite.
        """
        if not self.is_finite:
            return np.zeros_like(gradient)
        gradient = self.units * gradient
        if self._factor is not None:
            solve = _lapack().dpotrs
            solved: Array = -self.units * solve(self._factor, gradient, lower=1)[0]
            return solved
        values, vectors = self._eigen
        floor = least_curvature(values)
        inverse = np.where(values > floor, 1.0 / np.maximum(values, floor), 0.0)
        step: Array = -self.units * (vectors @ (inverse * (vectors.T @ gradient)))
        return step

    def expected_fall(self, gradient: Array, noise: float) -> float:
        """Return g·H⁺g/2: how much Newton's step lowers F by the quadratic model.

        A direction in which H is nothing but rounding counts with the least curvature
        that is more than rounding. If the gradient along such directions is larger than
        `noise`, the fall is unknown, and the result is inf. It is NaN if H is not
        finite.
        """
        if not self.is_finite:
            return float("nan")
        values, vectors = self._eigen
        along = np.square(vectors.T @ (self.units * gradient))
        least = max(DOUBT * least_curvature(values), TINY)
        flat = values <= least
        noises = noise * np.linalg.norm(self.units[:, None] * vectors[:, flat], axis=0)
        if along[flat].sum() > np.square(noises).sum():
            return float("inf")
        return float(np.sum(along / np.maximum(values, least))) / 2.0

    @cached_property
    def _factor(self) -> Array | None:
        """Return the Cholesky factor; None if the Hessian is ill conditioned."""
        lapack = _lapack()
        factor, failed = lapack.dpotrf(self.whole, lower=1, clean=0)
        size = float(np.abs(self.whole).sum(axis=0).max(initial=0.0))
        if failed or lapack.dpocon(factor, size, uplo="L")[0] <= WELL_CONDITIONED:
            return None
        cholesky: Array = factor
        return cholesky

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(self.whole)
        return values, vectors


@cache
def _lapack() -> Any:
    """Return LAPACK, imported where it is used: 10 MB that SGD does not need."""
    return import_module("scipy.linalg.lapack")


def least_curvature(values: Array) -> float:
    """Return the curvature below which eigenvalues of H are rounding."""
    return len(values) * EPS * abs(float(values[-1]))


class NewtonSolver(Lbfgs):
    """L-BFGS that tries Newton's direction first, after the first `after` passes."""

    hessian: Hessian | None = None
    system: NewtonSystem | None = None  # of the last Hessian, on rank 0
    hessians: int = 0
    has_hessian = False  # whether there is one in the variables of now
    relative_then = np.inf  # size of the gradient at the step before

    def __init__(
        self,
        land: Landscape,
        settings: PolishConfig,
        start: RefinementPoint,
        certificate: GapCertificate | None,
    ) -> None:
        variables = (land.rows.objective.shard.total_columns + 1) * land.rows.columns
        patience = max(PATIENCE, int(PATIENCE_SHARE * variables))
        self.after = 0 if settings.kind == "newton" else patience
        work = land.rows.objective.shard.total_rows * variables**2
        self.keeps_hessians = work >= KEPT_WORK
        super().__init__(land, settings, start, certificate)
        if self.after == 0 and not self.keeps_hessians:
            self.tol *= CLOSER

    def _ending(self) -> StopReason | None:
        """Return why no further iteration is needed, or allowed; None: one is.

        A run that ends by the limit of passes has converged if it meets the tolerance
        of its settings: the closer tolerance of a cheap Hessian is optional.
        """
        ending = super()._ending()
        is_met = self.status.relative <= self.settings.tol and not self.refined_at
        if ending is StopReason.PASSES and is_met:
            return StopReason.CONVERGED
        return ending

    def _rescale(self, at_least: float = 1.0, keeps_pairs: bool = False) -> None:
        """Change the scaling as `Lbfgs` does; discard the Hessian in any case."""
        super()._rescale(at_least, keeps_pairs)
        self.hessian = None
        self.has_hessian = False
        if self.refined_at:
            self.after = self.passes

    def _certified(self, ending: StopReason) -> StopReason | None:
        """Return how a run ends by its gap, or by the fall that Newton's step expects.

        Return None if the run is to continue.
        """
        ended = super()._certified(ending)
        has_rule = self.landscape.l2 == 0.0 and self.settings.gap
        if ended is None or not (ended.is_good and has_rule):
            return ended
        self.fall = GapCertificate(self.settings.tol_of_gap)
        gradient, system = self._system_at_point()
        fall = self._expected_fall(gradient, system)
        is_met = self.fall.meets(self.landscape, fall, self.status.loss)
        if is_met is not False and not self._goes_far(gradient, system):
            return ended
        if not self._goes_on(self.fall.gap):
            return StopReason.HIDDEN if is_met is False else ended
        self.after = self.passes
        return None

    def _goes_far(self, gradient: Array, system: NewtonSystem | None) -> bool:
        """Return whether Newton's step changes a score by more than `FAR`. Collective.

        A score that changes by 1 changes the curvature of a loss with an exponential by
        a factor of e: for a longer step, the fall that the quadratic model promises
        means nothing. One pass over the rows.
        """
        land = self.landscape
        point = self.point
        if land.family.name in SQUARED:
            return False
        move, _ = self._shared_step(gradient, system)
        width = point.weights.size
        weights = self.scaling.weights(move[:width].reshape(point.weights.shape))
        intercept = move[width:] / self.scaling.level
        direction = land.along(point, weights, intercept, self.scaling.pull(weights))
        change = float(np.abs(direction.scores).max(initial=0.0))
        return bool(land.world.max_flag(int(not change <= FAR)))

    def _expected_fall(
        self, gradient: Array, system: NewtonSystem | None
    ) -> float | None:
        """Return g·H⁺g/2, the same on all ranks; None: H is not finite. Collective."""
        word = np.zeros(1)
        if system is not None:
            size = float(np.linalg.norm(gradient)) / max(self.status.relative, TINY)
            word[0] = system.expected_fall(gradient, NOISE * EPS * size)
        self.landscape.world.broadcast(word, 0, "evaluate")
        return None if np.isnan(word[0]) else float(word[0])

    def _system_at_point(self) -> tuple[Array, NewtonSystem | None]:
        """Return the gradient of all variables, and on rank 0 Newton's system.

        Both are of the current point. Collective.
        """
        if self.hessian is None:
            self.hessian = Hessian(self.landscape, self.scaling)
        self.hessians += 1
        whole, gradient = self.hessian.take(self.point, self.memory.gradient)
        if self.landscape.world.rank:
            return gradient, None
        rounding = self.hessian.rounding(whole)
        system = NewtonSystem(whole, rounding, self.landscape.rows.columns)
        if system.is_ill_conditioned and not self.hessian.scales_rows:
            # Flat directions are told from rounding, which has to be the least then.
            self.hessian.scales_rows = True
            self.hessians -= 1
            return self._system_at_point()
        return gradient, system

    def _directions(self) -> Iterator[tuple[Array, float]]:
        """Yield Newton's direction, then as a fallback those of L-BFGS."""
        if self.passes > self.after:
            yield self._newton()
        yield from super()._directions()

    def _newton(self) -> tuple[Array, float]:
        """Return Newton's direction and its slope. Collective.

        A costly Hessian of an earlier step is used again while such steps still bring
        the gradient down.
        """
        falls = self.status.relative <= KEPT_FALL * self.relative_then
        falls &= self.keeps_hessians
        self.relative_then = self.status.relative
        if falls and self.has_hessian and self.hessian is not None:
            gradient = self.hessian.gradient(self.point, self.memory.gradient)
        else:
            gradient, self.system = self._system_at_point()
            self.has_hessian = True
        return self._shared_step(gradient, self.system)

    def _shared_step(
        self, gradient: Array, system: NewtonSystem | None
    ) -> tuple[Array, float]:
        """Return this rank's part of Newton's step, and its slope. Collective.

        Rank 0 solves for the step and broadcasts it.
        """
        world = self.landscape.world
        words = np.zeros(len(gradient) + 1)
        if system is not None:
            words[:-1] = system.step(gradient)
            words[-1] = words[:-1] @ gradient
        world.broadcast(words, 0, "evaluate")
        if world.size == 1 and self.landscape.has_intercept:
            return words[:-1], float(words[-1])
        columns = self.landscape.rows.columns
        own_columns = self.landscape.rows.objective.shard.columns
        parts = [words[own_columns.start * columns : own_columns.stop * columns]]
        if self.landscape.has_intercept:
            parts.append(words[-1 - columns : -1])
        else:
            parts.append(np.zeros(columns))
        return np.concatenate(parts), float(words[-1])


# A start near the optimum, from a few of the rows.
#
# The optimum of m rows is about sqrt(P/m) away from that of all n rows, in units in
# which a step of Newton is 1 long: where a pass over m rows is cheap beside one over n,
# passes over m rows save half of the others. The rows are read in pieces at random
# places, since their order may follow the targets.

SAMPLED = 20  # rows for each variable
LEAST_SAMPLE = 2000  # rows of all replicas
PIECES = 64  # of neighbouring rows in the sample of a replica
WORTH = 8  # times the sample: fewer rows are all taken at once
MOST_VALUES = 2**22  # of the dense sample of a rank: no larger one is taken
SAMPLE_PASSES = 12
SAMPLE_TOL = 1e-3


def piece_rows(rows: int, variables: int, width: int, replicas: int) -> int:
    """Return the number of rows of a piece of a replica's sample; 0: none is taken.

    Parameters
    ----------
    rows : int
        Rows of the data.
    variables : int
        P, weights and intercepts of all columns.
    width : int
        The most columns of a member.
    replicas : int
        The replicas, which sample their own rows.
    """
    sample_size = max(SAMPLED * variables, LEAST_SAMPLE)
    piece = -(-sample_size // (replicas * PIECES))
    replica_sample = piece * PIECES
    is_worth = (
        rows >= WORTH * sample_size and rows // replicas >= WORTH * replica_sample
    )
    return piece if is_worth and replica_sample * width <= MOST_VALUES else 0


def bytes_of_sample(rows: int, columns: int, width: int, replicas: int) -> int:
    """Return the bytes of a rank's sample in float64, with one score a row.

    `width` is the largest number of columns of a member.
    """
    return 8 * width * PIECES * piece_rows(rows, columns + 1, width, replicas)


def sample_rows(rows: AllRows) -> AllRows | None:
    """Return a sample of the rows of all replicas; None: it would save little.

    The members of a replica sample the same rows. Collective: one word is summed.
    """
    objective = rows.objective
    grid = rows.grid
    shard = objective.shard
    variables = (shard.total_columns + 1) * rows.columns
    width = shard.widest
    piece = piece_rows(shard.total_rows, variables, width, grid.replicas.size)
    if not piece:
        return None
    draw = np.random.default_rng(grid.replica)
    first = np.sort(draw.choice(rows.height // piece, PIECES, replace=False)) * piece
    pieces = [slice(int(start), int(start) + piece) for start in first]
    values = [objective.read(part) for part in pieces]
    if shard.is_sparse:
        from scipy.sparse import vstack

        joined = vstack(values, format="csr")
        edges = joined.indptr.astype(np.int64)
        matrix: Any = Csr(edges, joined.indices, joined.data, joined.shape[1])
    else:
        matrix = DenseMatrix(np.concatenate(values))
    numbers = np.concatenate([np.arange(part.start, part.stop) for part in pieces])
    part = replace(
        shard,
        matrix=matrix,
        targets=shard.targets[numbers],
        weights=take(shard.weights, numbers),
        offsets=take(shard.offsets, numbers),
        held=take(shard.held, numbers),
    )
    return open_rows(replace(objective, shard=part, read=part.matrix.operand, block=0))


def start_on_sample(
    land: Landscape, settings: PolishConfig, begin: RefinementPoint
) -> RefinementPoint:
    """Return the point at the optimum of a sample of rows, if F is lower there.

    Otherwise return `begin`, the point of zero weights, evaluated. Collective.
    """
    sample = sample_rows(land.rows)
    if sample is None:
        return land.evaluated(begin)
    part = Landscape(sample, land.l2, land.has_intercept)
    intercept = begin.intercept if land.has_intercept else None
    rough = replace(settings, tol=SAMPLE_TOL, passes=SAMPLE_PASSES, gap=False)
    found = minimise(part, rough, part.start_at(begin.weights, intercept))
    candidate = land.start_at(
        found.weights, found.intercept if land.has_intercept else None
    )
    before = land.at(begin)
    after = land.at(candidate)
    is_lower = after.is_finite and after.value < before.value
    return candidate if is_lower else land.evaluated(begin)


def minimise(
    land: Landscape, settings: PolishConfig, start: RefinementPoint
) -> RefinementPoint:
    """Return the point at which a refinement from `start` ends. Collective.

    It is the minimum of F, unless the passes of `settings` are used up before, or no
    step lowers F. The gap decides if `settings` ask for it and F has a ridge.
    """
    has_gap = settings.gap and land.l2 > 0.0
    certificate = GapCertificate(settings.tol_of_gap) if has_gap else None
    steps = make_steps(land, settings, start, certificate)
    while steps.ending is None:
        steps.advance(Request.NONE)
    if steps.centers is None:
        return steps.point
    moved = steps.centers.moved(land.rows.objective, steps.point.weights)
    return replace(steps.point, intercept=steps.point.intercept - moved)


# The refinement to the optimum after the last step, if one is requested.

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # the message is the same on all ranks

REMEDY = {
    StopReason.PASSES: (
        "%d passes were not enough (gradient %.2g of the residuals, not %.2g); raise"
        " polish.passes, or set a ridge penalty (--l2)"
    ),
    StopReason.UNCERTIFIED: (
        "after %d passes the gradient is small (%.2g of the residuals, tol %.2g), but F"
        " may be %.2g above its optimum, and %.2g is allowed; rows or columns may"
        " differ much in size: scale them, or raise the ridge penalty (--l2)"
    ),
    StopReason.HIDDEN: (
        "after %d passes the gradient is small (%.2g of the residuals, tol %.2g), but a"
        " step of Newton would lower F by %s, and %.2g is allowed; rows or columns may"
        " differ much in size: scale them, or set a ridge penalty (--l2)"
    ),
    StopReason.STUCK: (
        "after %d passes no lower loss was found (gradient %.2g of the residuals, not"
        " %.2g); scores may lie beyond the range of exp: scale the columns, or lower"
        " the rate"
    ),
}


class Refinement:
    """L-BFGS or Newton from the weights of the last step, in float64 on exact values.

    It is the solver, the length and the evaluation of a training loop. A step of it is
    a pass over all rows, which no poll follows: requests of callbacks are sent with its
    sums. It ends by a rule of its own, and returns the weights of the last pass.
    """

    is_resumable = False  # passes write no checkpoints
    steps: Lbfgs  # since `begin`
    sent: Entry  # for evaluations ahead of `begin`
    ending: StopReason  # by the weights that are returned, since these are evaluated

    def __init__(
        self,
        settings: PolishConfig,
        evaluation: Evaluation,
        columns: Columns,
        callbacks: Callbacks,
        clock: Clock,
        bounds_passes: bool = False,
    ) -> None:
        self.settings = settings
        self.evaluation = evaluation
        self.columns = columns
        self.callbacks = callbacks
        self.clock = clock
        self.bounds_passes = bounds_passes  # every pass has a gap, and costs one more
        has_ridge = evaluation.objective.penalty.l2 > 0.0
        has_gap = (settings.gap and has_ridge) or bounds_passes
        self.certificate = GapCertificate(settings.tol_of_gap) if has_gap else None
        self.ledger = evaluation.objective.grid.world.ledger
        self.request = Request.NONE  # that ended the refinement
        self.has_minimum = True  # False: F falls without end
        self.facts: dict[str, Any] | None = None  # of what was done, for the report

    @property
    def length(self) -> "Refinement":
        """Return the refinement itself, which knows when it is over."""
        return self

    def begin(self, state: State, view: View) -> None:
        """Evaluate the start at the weights of `state`, by a few passes. Collective.

        If all weights are zero, the start may be the optimum of a sample of the rows.
        """
        self.clock.start()
        began = perf_counter()
        self.sent = replace(self.ledger.entries["evaluate"])
        objective = self.evaluation.objective
        rows = open_rows(objective)
        weights, intercept = _begin(state, self.evaluation)
        land = Landscape(rows, objective.penalty.l2, intercept is not None)
        if self._has_start(weights):
            start = land.start_at(weights, intercept)
        else:
            begin = land.zero_point(weights, intercept)
            start = start_on_sample(land, self.settings, begin)
        self.steps = make_steps(land, self.settings, start, self.certificate)
        view.seconds += perf_counter() - began
        self.clock.lap("polish")

    def _has_start(self, weights: Array) -> bool:
        """Return whether any weight is not zero. Collective."""
        world = self.evaluation.objective.grid.world
        return bool(world.max_flag(int(weights.any())))

    def advance(self, state: State, view: View) -> State:
        """Take a pass, or find that none is to follow; `state` does not change."""
        self.clock.start()
        # Requests are granted after the first pass at the earliest.
        request = self.callbacks.request if self.steps.passes else Request.NONE
        self.steps.advance(request)
        if self.steps.ending is StopReason.ASKED:
            self.request = self.steps.status.request
        self.clock.lap("polish")
        return state

    def finish(self, state: State, view: View) -> State:
        """Return the final point as a state. Collective.

        The intercept has the same bits on all ranks.
        """
        steps = self.steps
        grid = self.columns.grid
        weights = steps.point.weights
        own_intercept = steps.point.intercept
        if steps.centers is not None:
            own_intercept = own_intercept - steps.centers.moved(
                self.evaluation.objective, weights
            )
        if self.columns.whole:
            weights = Columns(grid, self.columns.parts, whole=False).join(weights)
        intercept = grid.world.broadcast(own_intercept, 0, "evaluate")
        return State(
            weights, intercept[None, :] if steps.landscape.has_intercept else None
        )

    def is_over(self, done: int) -> bool:
        """Return whether no pass is to follow."""
        return self.steps.ending is not None

    def epochs_done_after(self, number: int) -> int | None:
        """Return None: no epoch of steps ends with a pass."""
        return None

    def is_evaluated_after(self, number: int) -> bool:
        """Return whether a pass was taken and the end is not reached."""
        return self.steps.ending is None and self.steps.passes > 0

    def measure(self, state: State, view: View) -> bool:
        """Put loss, gradient and gap into the view. Collective.

        They are those of the last pass, or at the end those of the weights that are
        returned.
        """
        if self.steps.ending is None:
            self._measure_pass(view)
        else:
            self._measure_end(self.steps.ending, state, view)
        return True

    def _measure_pass(self, view: View) -> None:
        """Write the figures of the last pass into the view.

        The gap, if `bounds_passes` is set, costs one pass more.
        """
        steps = self.steps
        point = self.steps.point
        view.loss = steps.status.loss
        view.more = {"gradient": steps.status.gradient}
        if self.bounds_passes:
            land = steps.landscape
            intercept = point.intercept if land.has_intercept else None
            optimality = gap_at(land.rows, point.weights, intercept, point.scores)
            view.more["gap"] = optimality.gap
        view.more["passes"] = steps.status.passes

    def _measure_end(self, ending: StopReason, final: State, view: View) -> None:
        """Evaluate F, ‖∇F‖ and the gap at the final weights, and judge the end by them.

        The gap of these weights uses the tangents of the losses at the point's scores.
        """
        steps = self.steps
        certificate = self.certificate
        rows = steps.landscape.rows
        scores = steps.point.scores
        objective = rows.objective
        weights = final.weights[self.evaluation.own]
        intercept = None if final.intercept is None else final.intercept[0]
        if intercept is not None and steps.centers is not None:
            intercept = intercept + steps.centers.moved(objective, weights)
        if certificate is None:
            slope = objective.slope(weights, intercept)
            view.loss = slope.loss
            view.more = {"gradient": objective.norm(slope)}
            self.evaluation.clipped = slope.clips
        else:
            exact = rows.start(weights, intercept)
            terms = rows.terms(exact)
            view.loss, self.evaluation.clipped = rows.value(exact, weights, terms)
            tangents = certificate.tangents(steps.landscape, steps.point)
            optimality = gap_above(rows, weights, intercept, (exact, terms), tangents)
            view.more = {"gradient": optimality.gradient, "gap": optimality.gap}
            if ending.is_good:
                is_met = certificate.meets(steps.landscape, optimality.gap, view.loss)
                ending = StopReason.UNCERTIFIED if is_met is False else ending
        view.more["passes"] = steps.passes
        family = objective.family.name
        penalty = objective.penalty
        self.has_minimum = not (
            may_lack_minimum(family, penalty) and is_separated(rows, scores)
        )
        self.ending = ending
        self.facts = self._facts_of_end(view)

    def _facts_of_end(self, view: View) -> dict[str, Any]:
        steps = self.steps
        sent = self.ledger.entries["evaluate"]
        facts = {
            "kind": self.settings.kind,
            "ended": self.ending.value,
            "passes": steps.passes,
            "trials": steps.trials,
            "loss_before": steps.first.loss,
            "loss_after": view.loss,
            "gradient_before": steps.first.gradient,
            "gradient_after": view.more["gradient"],
            "relative_before": steps.first.relative,
            "relative_after": steps.status.relative,
            "tol": self.settings.tol,
            "messages": sent.calls - self.sent.calls,
            "words": sent.words - self.sent.words,
        }
        if steps.hessians is not None:
            facts["hessians"] = steps.hessians
        if self.certificate is not None:
            facts |= {"gap": view.more["gap"], "gap_limit": self.certificate.limit}
        if steps.fall is not None and steps.fall.gap is not None:
            facts["expected_fall"] = _fall_of(steps)
            facts["fall_limit"] = steps.fall.limit
        return facts

    def has_broken_weights(self, state: State) -> bool:
        """Return False: every pass lowers F."""
        return False

    def is_fresh(self, view: View) -> bool:
        """Return False: the weights that are returned are always evaluated."""
        return False

    def has_reached_goal(self, view: View) -> bool:
        """Return False: the refinement ends by its own rule."""
        return False

    def warn_of_goal(self, state: State, view: View, has_converged: bool) -> None:
        """Log a warning if F has no minimum, or if its optimum is not reached."""
        if not self.has_minimum:
            log.warning("polish: %s (--l2)", NO_MINIMUM, extra=ONCE)
            return
        steps = self.steps
        ending = self.ending
        if ending not in REMEDY:
            message = ("polish: %s after %d passes", ending.value, steps.status.passes)
            log.info(*message, extra=ONCE)
            return
        passes = steps.status.passes
        relative = steps.status.relative
        figures: tuple[Any, ...] = (passes, relative, self.settings.tol)
        if self.certificate is not None and ending is StopReason.UNCERTIFIED:
            figures += view.more["gap"], self.certificate.limit
        elif steps.fall is not None and ending is StopReason.HIDDEN:
            figures += amount(_fall_of(steps)), steps.fall.limit
        log.warning(f"polish: {REMEDY[ending]}", *figures, extra=ONCE)

    def restore(self, state: State) -> float:
        """Return the last loss: no weights are better than the last ones."""
        return self.callbacks.view.loss


def make_steps(
    land: Landscape,
    settings: PolishConfig,
    start: RefinementPoint,
    certificate: GapCertificate | None,
) -> Lbfgs:
    """Return L-BFGS if its kind is set or variables are many, else Newton's method.

    ConfigError is raised if kind = "newton" and there are more than `MOST` variables.
    """
    columns = land.rows.objective.shard.total_columns
    scores = land.rows.columns
    small = is_small(columns, scores)
    if settings.kind == "newton" and not small:
        raise ConfigError(
            f"[polish] kind = 'newton' takes at most {MOST} variables, and this model"
            f" has {(columns + 1) * scores}; use polish.kind = 'lbfgs'"
        )
    kind = NewtonSolver if small and settings.kind != "lbfgs" else Lbfgs
    return kind(land, settings, start, certificate)


def _begin(state: State, evaluation: Evaluation) -> tuple[Array, Array | None]:
    """Return this member's weights and the intercept or None, in float64.

    The mean over classes is subtracted: equal shifts of all scores change nothing, and
    rounding errors of that kind would have to be removed along a flat direction.
    """
    weights = state.weights[evaluation.own, : evaluation.objective.columns].astype(
        np.float64
    )
    intercept = None if state.intercept is None else state.intercept[0].copy()
    if evaluation.objective.columns > 1:
        weights -= weights.mean(axis=1, keepdims=True)
        if intercept is not None:
            intercept -= intercept.mean()
    return weights, intercept


def amount(fall: float | None) -> str:
    """Return in words how much F is expected to fall; None: the fall is unknown."""
    return "an unknown amount" if fall is None else f"{fall:.2g}"


def _fall_of(steps: Lbfgs) -> float | None:
    """Return the fall of F that Newton expected at the end; None: it is unknown."""
    fall = None if steps.fall is None else steps.fall.gap
    return fall if fall is not None and np.isfinite(fall) else None

"""∇²F in the scaled variables, of few columns: each rank adds up some of the rows.

With ã = (a − m)/√D, and 1/√e in the intercept's place, F'' = Σ_i ã_i B_i ã_iᵀ + λ/D
where B_i is ∂r/∂t of row i, K × K, times its share. Members hold columns, so they
exchange pieces of each block of rows: each then has all columns of its part of them.
One sum over all ranks has P² + P words for P variables, the gradient's among them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.partition import split_range
from hpcsgd.polish.point import Landscape, Point
from hpcsgd.polish.scaling import Scaling, bends

Array = NDArray[Any]


@dataclass(frozen=True)
class Whole:
    """The scaling of all columns, on every rank."""

    roots: Array  # (d, K)
    centers: Array
    level: Array  # (K,)


class Hessian:
    """Of a landscape, in the variables (u, ν) flattened as gradients are."""

    def __init__(self, land: Landscape, scaling: Scaling) -> None:
        self.land = land
        self.rows = land.rows
        parts = self.rows.objective.shard.parts
        self.parts = parts
        self.columns = self.rows.columns
        self.variables = (parts[-1].stop + land.has_intercept) * self.columns
        self.scaling = Whole(
            self._joined(scaling.roots), self._joined(scaling.centers), scaling.level
        )

    def take(self, point: Point, gradient: Array) -> tuple[Array, Array]:
        """(F'', g) of the whole at a point; `gradient` is this member's, flat."""
        P = self.variables
        words = np.zeros(P * P + P)
        whole = words[: P * P].reshape(P, P)
        h = bends(self.land.family, point.scores, self.rows.targets)
        h *= self.rows.share[:, :, None]
        for rows in self.rows.blocks():
            block, own = self._own_rows(rows)
            if len(block):
                self._add(whole, block, h[rows][own])
        words[P * P :] = self._own_part(gradient, point.weights.size)
        self.land.world.sum(words, "evaluate")
        ridge = self.land.l2 / np.square(self.scaling.roots).reshape(-1)
        whole[np.arange(len(ridge)), np.arange(len(ridge))] += ridge
        return whole, words[P * P :]

    def _own_part(self, gradient: Array, width: int) -> Array:
        """This rank's part of the whole gradient, zero elsewhere."""
        found, grid = np.zeros(self.variables), self.rows.grid
        if grid.replica == 0:
            first = self.parts[grid.member].start * self.columns
            found[first : first + width] = gradient[:width]
        if self.land.is_first and self.land.has_intercept:
            found[-self.columns :] = gradient[width:]
        return found

    def _add(self, whole: Array, block: Array, h: Array) -> None:
        """whole ← whole + Σ ã B ãᵀ over some rows, class by class."""
        K = self.columns
        sides = [self._scaled(block, k) for k in range(K)]
        for k in range(K):
            for q in range(K):
                whole[k::K, q::K] += (sides[k] * h[:, k, q, None]).T @ sides[q]

    def _scaled(self, block: Array, k: int) -> Array:
        """Return ã of some rows for class k, (m, P / K), in float64."""
        scaling, width = self.scaling, block.shape[1]
        found = np.empty((len(block), width + self.land.has_intercept))
        columns = found[:, :width]
        np.subtract(block, scaling.centers[:, k], out=columns)
        columns /= scaling.roots[:, k]
        found[:, width:] = 1.0 / scaling.level[k]
        return found

    def _own_rows(self, rows: slice) -> tuple[Array, slice]:
        """All columns of this member's part of these rows, and which part that is."""
        members = self.rows.grid.members
        block = dense(self.rows.objective.read(rows))
        shares = [split_range(len(block), members.size, r) for r in range(members.size)]
        own = shares[members.rank]
        if members.size == 1:
            return block, own
        widths = [part.stop - part.start for part in self.parts]
        room = np.zeros((len(block), max(widths)))  # pieces are of one width
        room[:, : block.shape[1]] = block
        counts = [(part.stop - part.start) * max(widths) for part in shares]
        out = np.empty(members.size * counts[members.rank])
        members.exchange_pieces(room.reshape(-1), counts, out, "evaluate")
        pieces = out.reshape(members.size, own.stop - own.start, max(widths))
        sides = [piece[:, :w] for piece, w in zip(pieces, widths, strict=True)]
        return np.hstack(sides), own

    def _joined(self, own: Array) -> Array:
        """(d, K) from the members' (d_c, K)."""
        members, K = self.rows.grid.members, self.columns
        counts = [(part.stop - part.start) * K for part in self.parts]
        out = np.empty(sum(counts))
        members.gather(np.ascontiguousarray(own).reshape(-1), counts, out, "evaluate")
        return out.reshape(-1, K)


def dense(block: Any) -> Array:
    """Return rows as an array, sparse ones in float64: their columns are few."""
    if isinstance(block, np.ndarray):
        return block
    found: Array = block.astype(np.float64).toarray()
    return found

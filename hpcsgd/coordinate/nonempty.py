"""Columns of sparse rows that hold a value somewhere: all that a form is about.

A column without values adds nothing to any score, so its weight is what its penalty
and bounds alone make least: 0, where the bounds allow it. Such columns are left out
before a form is made, so that no array of it is as long as there are columns.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.comm.base import Communicator
from hpcsgd.csr import Csr, index_dtype
from hpcsgd.data.shard import Shard
from hpcsgd.loading import Loaded
from hpcsgd.penalties import Penalty

Array = NDArray[Any]


@dataclass(frozen=True)
class Nonempty:
    """The columns of this rank that a form is about.

    Parameters
    ----------
    kept : ndarray of int64, (kept,), ascending; None: all of them
    width : int, columns that this rank holds
    """

    kept: Array | None
    width: int

    def narrow(self, values: Array) -> Array:
        """Return the rows of `values`, (width, ...), that belong to kept columns."""
        return values if self.kept is None else values[self.kept]

    def widen(self, values: Array) -> Array:
        """Return (width, ...) from (kept, ...), with zeros for the other columns."""
        if self.kept is None:
            return values
        whole = np.zeros((self.width, *values.shape[1:]), dtype=values.dtype)
        whole[self.kept] = values
        return whole

    def penalty(self, penalty: Penalty) -> Penalty:
        """Return the penalty of the kept columns."""
        return penalty if self.kept is None else penalty.of(self.kept)

    def shard(self, shard: Shard, members: Communicator) -> Shard:
        """Return the shard without the other columns. Collective over `members`."""
        matrix, kept = shard.matrix, self.kept
        if not isinstance(matrix, Csr):
            return shard
        # A member that keeps all of its columns takes part: others may not.
        widths = members.exchange_objects(self.width if kept is None else len(kept))
        edges = np.cumsum([0, *widths]).tolist()
        parts = tuple(slice(a, b) for a, b in zip(edges, edges[1:], strict=False))
        if kept is not None:
            indices = self._numbers(matrix.indices)
            matrix = Csr(matrix.indptr, indices, matrix.data, len(kept))
        return replace(shard, matrix=matrix, columns=parts[members.rank], parts=parts)

    def reader(self, loaded: Loaded, shard: Shard) -> Callable[[slice], Any]:
        """Return what reads the exact values of local rows in the kept columns."""
        if self.kept is None:
            return loaded.read_exact
        matrix, read = shard.matrix, loaded.read_exact
        if isinstance(matrix, Csr) and read(slice(0, 0)).dtype == matrix.dtype:
            whole = matrix.to_scipy()  # the values that are stored are exact
            height = shard.height
            return lambda rows: (
                whole
                if (rows.start, rows.stop) == (0, height)
                else matrix[rows].to_scipy()
            )
        return lambda rows: self._narrowed(read(rows))

    def _narrowed(self, rows: Any) -> Any:
        """Return sparse rows of SciPy without the other columns."""
        kept = self.kept
        assert kept is not None
        indices = self._numbers(rows.indices)
        edges = rows.indptr.astype(np.int64)
        return Csr(edges, indices, rows.data, len(kept)).to_scipy()

    def _numbers(self, columns: Array) -> Array:
        """Return the places of these columns among the kept ones."""
        kept = self.kept
        assert kept is not None
        return np.searchsorted(kept, columns).astype(index_dtype(len(kept)))


def find_nonempty(shard: Shard, penalty: Penalty, replicas: Communicator) -> Nonempty:
    """Return the columns with a value on some rank. Collective over `replicas`.

    Where columns are left out, each rank sends the numbers of those it has values in.
    A column whose bounds do not allow 0 is kept, and so is one column at least.
    """
    width = shard.width
    if not isinstance(shard.matrix, Csr):
        return Nonempty(None, width)
    kept = np.unique(shard.matrix.indices).astype(np.int64)
    if replicas.size > 1:
        counts = list(replicas.exchange_objects(len(kept)))
        numbers = np.empty(sum(counts))
        replicas.gather(kept.astype(np.float64), counts, numbers, "control")
        kept = np.unique(numbers).astype(np.int64)
    bounds = (penalty.lower, penalty.upper)
    if any(np.ndim(bound) for bound in bounds):
        outside = np.less(0.0, penalty.lower) | np.greater(0.0, penalty.upper)
        kept = np.union1d(kept, np.flatnonzero(np.broadcast_to(outside, width)))
    elif penalty.lower > 0.0 or penalty.upper < 0.0:
        return Nonempty(None, width)
    if len(kept) == width:
        return Nonempty(None, width)
    return Nonempty(kept if len(kept) else np.zeros(1, dtype=np.int64), width)

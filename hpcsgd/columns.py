"""Arrays with one row a column of the data: from members' slices to whole, and back."""

from dataclasses import dataclass

import numpy as np

from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import Array


@dataclass(frozen=True)
class Columns:
    """How the columns are held on this grid."""

    grid: Grid
    parts: tuple[slice, ...]  # of all members
    whole: bool  # every member holds all of them, not a slice each

    @property
    def total(self) -> int:
        """Columns of the data."""
        return int(self.parts[-1].stop)

    @property
    def own(self) -> slice:
        """The columns that this member's arrays hold."""
        if self.whole:
            return slice(0, self.total)
        return self.parts[self.grid.member]

    def join(self, own: Array) -> Array:
        """(total, k) of this replica from the (columns held, k) of its members."""
        own = np.ascontiguousarray(own)
        members, width = self.grid.members, own.shape[1]
        if self.whole or members.size == 1:
            return own.copy()
        counts = [(part.stop - part.start) * width for part in self.parts]
        out = np.empty(self.total * width, dtype=own.dtype)
        members.gather(own.reshape(-1), counts, out, "control")
        return out.reshape(self.total, width)

    def of_all_replicas(self, own: Array) -> Array:
        """(R, ...) from the equal-shaped arrays of all replicas."""
        replicas = self.grid.replicas
        out = np.empty((replicas.size, *own.shape), dtype=own.dtype)
        flat, counts = out.reshape(-1), [own.size] * replicas.size
        replicas.gather(np.ascontiguousarray(own).reshape(-1), counts, flat, "control")
        return out

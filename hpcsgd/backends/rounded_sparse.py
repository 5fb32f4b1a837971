"""Emulated formats for rows held as CSR: the columns that occur, as a dense array."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.rounded import RoundedBackend
from hpcsgd.backends.sparse import Marks
from hpcsgd.csr import Csr
from hpcsgd.schedule import Blocks
from hpcsgd.storage import decode

Array = NDArray[Any]


@dataclass(frozen=True)
class Compact:
    """Sampled rows without the columns in which none of them has a value.

    Zeros change no sum, and leaving them out changes no bound.
    """

    dense: Array  # (m, touched)
    touched: Array  # their numbers in the shard

    def __len__(self) -> int:
        return len(self.dense)

    def __getitem__(self, part: slice) -> "Compact":
        return Compact(self.dense[part], self.touched)


class RoundedSparseBackend(RoundedBackend):
    """The emulation on `Csr` where that one takes arrays."""

    marks: Marks

    def pick(self, matrix: Csr, rows: Array) -> Csr:  # type: ignore[override]
        """The sampled rows as they are stored."""
        return matrix.take(rows)

    def widen(self, stored: Csr, out: Array | None) -> Compact:  # type: ignore[override]
        """Stored rows for the products; `out` is for dense ones."""
        data = decode(stored.data, self.precision.matrix, self.working)
        if self.scaling is not None:
            self.scaling.down(data)
        if not hasattr(self, "marks"):
            self.marks = Marks()
        touched, indices = self.marks.compact(stored.indices, stored.width)
        parts = stored.indptr, indices, data, len(touched)
        return Compact(Csr(*parts).to_scipy().toarray(), touched)

    def gather(self, matrix: Csr, rows: Array, out: Array | None) -> Compact:  # type: ignore[override]
        """The sampled rows, widened."""
        return self.widen(self.pick(matrix, rows), out)

    def some_columns(self, rows: Compact, part: slice) -> Compact:
        """Those of them that occur."""
        first, last = np.searchsorted(rows.touched, (part.start, part.stop))
        touched = rows.touched[first:last] - part.start
        return Compact(rows.dense[:, first:last], touched)

    def scores(self, rows: Compact, weights: Array, out: Array) -> Array:  # type: ignore[override]
        """out ← Y W."""
        return super().scores(rows.dense, weights[rows.touched], out)

    def strict_gram(self, rows: Compact, blocks: Blocks, out: Array) -> Array:  # type: ignore[override]
        """Packed G."""
        return super().strict_gram(rows.dense, blocks, out)

    def _add_gradient(self, weights: Array, rows: Compact, scaled: Array) -> None:  # type: ignore[override]
        part = weights[rows.touched]
        super()._add_gradient(part, rows.dense, scaled)
        weights[rows.touched] = part

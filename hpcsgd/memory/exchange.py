"""What one exchange holds: sampled rows, their Gram, the messages, and workspaces.

Buffers are made once for each number of rows. An epoch has two of them, m = b·s and
what remains of its rows; both stay, and multiplying rows takes more for a moment:

    bytes = max(held(m) + workspace(m), held(m) + held(rest) + workspace(rest))
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcsgd.backends import cpu
from hpcsgd.backends.sparse import HEAVY
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.narrow import bytes_of_word
from hpcsgd.config import RunConfig
from hpcsgd.formats import get_format
from hpcsgd.memory.agreed import at_once
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS, RECURS

COLUMN = 4  # bytes of a column number
COPIES = 8  # of sampled sparse values, with their columns and places, in words
VECTORS = 4  # margins, residuals, scaled ones, targets: words of a row and state
# Arrays of m x m words while a Gram is rounded sum by sum, and with a kernel that
# rounds in place.
ROUNDED, ROUNDED_IN_PLACE = 6, 3


@dataclass(frozen=True)
class Exchange:
    """The sizes of an exchange of one rank."""

    config: RunConfig
    precision: Precision
    members: int
    rows: int  # m, of all batches that are taken together
    rows_of_gram: int  # m, of the batches of one recurrence
    rest: int  # rows of the last exchange of an epoch, where they are fewer
    count: int  # exchanges of all epochs
    cols: int  # of this member
    columns: int  # of all members
    states: int

    @classmethod
    def of(
        cls,
        config: RunConfig,
        precision: Precision,
        grid: Grid,
        rows: int,
        cols: int,
        columns: int,
        states: int,
    ) -> "Exchange":
        """The exchange of a rank that has so many local rows and columns."""
        schedule = config.schedule
        of_gram = max(min(schedule.batch * schedule.most_steps, rows), 1)
        m = max(min(of_gram * at_once(config), rows), 1)
        return cls(
            config=config,
            precision=precision,
            members=grid.members.size,
            rows=m,
            rows_of_gram=of_gram,
            rest=rows % m,
            count=schedule.epochs * -(-rows // m),
            cols=cols,
            columns=columns,
            states=states,
        )

    @property
    def looks(self) -> bool:
        """True where a run is long enough that the recurrence is checked."""
        every = self.config.run.gap_every
        return self._has_gram and 0 < every <= self.count

    @property
    def gram(self) -> int:
        """Bytes of one packed Gram."""
        word = get_format(self.precision.gram_wire).carrier.itemsize
        return self._words(self.rows_of_gram) * word

    def of_dense(self) -> int:
        """Bytes of an exchange of dense rows."""
        return self._of_both(self._dense_rows, self._workspace)

    def of_sparse(self, density: float, marked: int) -> int:
        """Bytes of an exchange of sparse rows that touch some of `marked` columns."""
        # A mark for each column and its place among those that are touched.
        marks = marked * (1 + COLUMN)
        return marks + self._of_both(
            lambda m: self._sparse_rows(m, density),
            lambda m: self._sparse_workspace(m, density),
        )

    def sampled(self, density: float) -> int:
        """Stored values of the sampled rows."""
        return self._stored(self.rows, density)

    @property
    def _gathers(self) -> bool:
        """True where every member receives all columns of the sampled rows."""
        return self.config.products.kind in GATHERS

    @property
    def _is_open(self) -> bool:
        """True where members may gather rows or sum a Gram, as is chosen later."""
        return self.config.products.kind == "auto" and self.members > 1

    @property
    def _has_gram(self) -> bool:
        """True where there is a Gram, or may be one.

        A member alone has nothing to sum; on a GPU a Gram pays there too.
        """
        kind, on_gpu = self.config.products.kind, self.config.run.device == "cuda"
        return kind in RECURS or self._is_open or (kind == "auto" and on_gpu)

    @property
    def _looks_ahead(self) -> bool:
        """True where the next exchange may be prepared while one is under way."""
        products = self.config.products
        is_open = self._is_open and products.look_ahead == "auto"
        return products.look_ahead == "on" or is_open

    @property
    def _has_sparse_kernels(self) -> bool:
        """True where kernels make the Gram of sparse rows where they are stored."""
        form = self.precision
        is_narrow = form.working == np.float32 and form.is_uniform
        fits = is_narrow and form.matrix in ("fp32", "bf16")
        return fits and cpu.available()

    def _of_both(
        self, rows_of: Callable[[int], int], workspace: Callable[[int], int]
    ) -> int:
        """Bytes of the exchanges of an epoch, of m rows and of those that remain."""

        def held(m: int) -> int:
            return rows_of(m) + self._messages(m) + self._vectors(m)

        first = held(self.rows)
        peak = first + workspace(self.rows)
        if self.rest:
            peak = max(peak, first + held(self.rest) + workspace(self.rest))
        # A look repeats the recurrence in float64, a block row of the Gram at a time.
        return peak + self.looks * self.gram * 3 // 2

    def _words(self, m: int) -> int:
        """Words of the packed Gram of m rows."""
        if not self._has_gram:
            return 0
        return m * max(m - self.config.schedule.batch, 0) // 2

    def _messages(self, m: int) -> int:
        """Bytes of what members sum, as far as this rank touches them."""
        wire = self.precision.gram_wire
        word = float(bytes_of_word(wire, self.members))
        ahead = 2 * word if self._looks_ahead else 0.0
        if self.members > 1 and word == get_format(wire).carrier.itemsize:
            # In memory that ranks of a node share: this rank's slot, the total, and a
            # slice of the slots of all others.
            word *= 3 - 1 / self.members
        return int(self._words(min(m, self.rows_of_gram)) * max(word, ahead))

    def _vectors(self, m: int) -> int:
        return VECTORS * m * self.states * self.precision.working.itemsize

    def _dense_rows(self, m: int) -> int:
        """Bytes of m sampled rows: as they are stored, as received, and widened."""
        stored = get_format(self.precision.matrix).dtype.itemsize
        wide = self.precision.working.itemsize
        own = self.cols * (wide + (stored if stored < wide else 0))
        own *= 2 if self._looks_ahead else 1
        gathered = self.cols * stored + self.columns * (2 * stored + wide)
        if self._gathers:
            return m * gathered
        return m * (max(own, gathered) if self._is_open else own)

    def _workspace(self, m: int) -> int:
        """Bytes that a Gram of m dense rows takes beside its own.

        It is made by halves, squares of m/2, m/4, ... rows; an emulated accumulator
        goes through all m x m words at once, and G is then rounded in a copy.
        """
        form = self.precision
        m = min(m, self.rows_of_gram)
        words, wide = self._words(m), form.working.itemsize
        if not words:
            return 0
        if form.is_uniform:
            return m * m * wide // 3
        in_place = form.gram_sum == "bf16" and cpu.available()
        arrays = ROUNDED_IN_PLACE if in_place else ROUNDED
        return max(arrays * m * m, words) * wide

    def _sparse_rows(self, m: int, density: float) -> int:
        """Bytes of the stored values of m sampled rows, their columns and places."""
        stored = self._stored(m, density)
        return 2 * COPIES * stored * self.precision.working.itemsize

    def _sparse_workspace(self, m: int, density: float) -> int:
        """Bytes that a Gram of m sparse rows takes beside its own.

        Columns that many rows share become a dense panel. The others are multiplied
        as sparse rows: one square of m x m words where they share little, else halves,
        each as a sparse array and as a dense one.
        """
        wide = self.precision.working.itemsize
        m = min(m, self.rows_of_gram)
        if not self._words(m) or self._has_sparse_kernels:
            return 0
        # A heavy column has at least HEAVY·m values, which bounds how many there are.
        panel = min(int(self._stored(m, density) / HEAVY), m * self.cols) * wide
        light = max(m * m * wide, m * m * (2 * wide + COLUMN) // 3)
        return panel + max(self._workspace(m), light)

    def _stored(self, m: int, density: float) -> int:
        """Stored values of m sampled rows."""
        return int(m * (self.columns if self._gathers else self.cols) * density)

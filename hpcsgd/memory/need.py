"""What one rank will hold at most: predicted from sizes, and what it holds already.

    total = process + matrix + columns + weights + max(loading, training)
    loading = reading
    training = exchange + kept + max(losses, finisher)

The process is measured: its interpreter, libraries and the arrays given to it. The
rest follows from sizes. While the matrix is read there is no exchange yet, and when
training begins the pieces that were read are gone: only the larger of the two counts.
"""

from dataclasses import dataclass, replace

from hpcsgd.agreement.kinds import is_on_disk
from hpcsgd.backends.uploads import PIECE
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import lengths
from hpcsgd.data.readers import RowReader, is_sparse, stored_in
from hpcsgd.data.stream import WINDOWS
from hpcsgd.formats import get_format
from hpcsgd.limits import MIB, resident_bytes
from hpcsgd.loading import SCANNED
from hpcsgd.memory.agreed import (
    of_codec,
    of_gradients,
    of_slow,
    of_state,
    tile_of,
)
from hpcsgd.memory.exchange import COPIES, Exchange
from hpcsgd.memory.reading import (
    is_shared,
    losses_of,
    reading_of_dense,
    reading_of_sparse,
)
from hpcsgd.polish.lbfgs import depth_for
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS
from hpcsgd.products.choose import CACHE_BUDGET

COLUMN = 4  # bytes of a column number
# Bytes of a process that come after the check: modules that a run imports then, the
# workspace of BLAS, and small objects.
LATER = 8 * MIB
LOADING = ("reading",)
TRAINING = ("exchange", "kept", "losses", "finisher")
EITHER = ("losses", "finisher")  # of which one is there at a time


@dataclass(frozen=True)
class Need:
    """Bytes of one rank, by what they are for."""

    process: int  # interpreter, libraries and arrays of the caller: there already
    matrix: int  # 0 where rows of the caller are taken where they lie
    columns: int  # targets, weights, offsets, row order
    exchange: int  # gathered rows, Gram, margins, and what multiplying them takes
    kept: int
    weights: int  # the state, its copies, a checkpoint on its way
    reading: int  # pieces beside the matrix, while it is read
    losses: int = 0  # rows that are looked at together for a loss
    finisher: int = 0  # scores and pairs of vectors, after the last step

    @property
    def total(self) -> int:
        """Bytes of the process at its peak."""
        return sum(self.counted.values())

    @property
    def claim(self) -> int:
        """Bytes that the process does not hold yet."""
        return self.total - self.process

    @property
    def counted(self) -> dict[str, int]:
        """The parts that make the total: of loading and training the larger one."""
        parts = vars(self)
        largest = max(EITHER, key=lambda name: parts[name])
        training = [n for n in TRAINING if n not in EITHER or n == largest]
        phases = (LOADING, tuple(training))
        peak = max(phases, key=lambda names: sum(parts[name] for name in names))
        absent = {*LOADING, *TRAINING} - {*peak}
        return {name: size for name, size in parts.items() if name not in absent}


def process_bytes() -> int:
    """Bytes that this process holds, and what it takes whatever the sizes are."""
    return resident_bytes() + LATER


def predict(
    grid: Grid, reader: RowReader, config: RunConfig, precision: Precision, states: int
) -> Need:
    """What this rank will hold at most, from sizes and what its process holds now.

    Stored values of a sparse matrix are taken to lie evenly over its rows and columns.
    """
    schedule = config.schedule
    rows = lengths(reader.rows, grid.replicas.size)[grid.replica]
    cols = lengths(reader.cols, grid.members.size)[grid.member]
    working, word = precision.working.itemsize, _bytes(precision.matrix)
    exchange = Exchange.of(config, precision, grid, rows, cols, reader.cols, states)
    kind = config.products.kind
    held = reader.cols if kind in GATHERS else cols
    again = config.sampling.mode == "shuffle-once" and schedule.epochs > 1
    keeps = {
        "cached": exchange.gram * -(-rows // exchange.rows_of_gram),
        "gather-once": rows * reader.cols * word,
    }
    kept = keeps.get(kind, 0)
    if kind == "auto" and again and grid.members.size > 1:
        kept = min(max(keeps.values()), CACHE_BUDGET)
    # Good states, the one that a checkpoint is made of, and the walk of a look.
    copies = 2 + 4 * config.run.fall_back + 3 * exchange.looks
    copies += of_gradients(config)
    need = Need(
        process=process_bytes(),
        matrix=0 if is_shared(reader, cols, precision) else rows * cols * word,
        columns=rows * (3 * working + 8),
        exchange=0,
        kept=kept,
        weights=of_state(config, held, states, copies, precision)
        + 2 * reader.cols * states * 8
        + of_slow(config, held, precision)
        + of_codec(config, grid, held, precision, is_sparse(reader)),
        reading=reading_of_dense(reader, rows, cols, precision),
        losses=losses_of(reader, rows, cols, precision),
        finisher=_of_finisher(config, rows, cols, reader.cols),
    )
    if not is_sparse(reader):
        return _by_tiles(replace(need, exchange=exchange.of_dense()), config, 0)
    density = stored_in(reader) / (reader.rows * reader.cols)
    own = int(rows * cols * density)
    matrix = own * (word + COLUMN) + 8 * rows
    marked = tile_of(config, held, precision)
    need = replace(
        need,
        matrix=matrix,
        exchange=exchange.of_sparse(density, marked),
        reading=reading_of_sparse(matrix, own, rows),
        losses=int(losses_of(reader, rows, cols, precision) * density),
    )
    return _by_tiles(need, config, exchange.sampled(density) * working)


def streamed(
    need: Need, grid: Grid, reader: RowReader, config: RunConfig, precision: Precision
) -> Need:
    """The same where only windows of the matrix are held.

    A window is read beside the others while steps are taken: it counts with losses.
    """
    if is_on_disk(config.agreement.kind):  # of rows no more than a tile is there
        return replace(need, matrix=0, reading=SCANNED // 2, losses=SCANNED // 2)
    rows = lengths(reader.rows, grid.replicas.size)[grid.replica]
    cols = lengths(reader.cols, grid.members.size)[grid.member]
    sampling, word = config.sampling, _bytes(precision.matrix)
    losses = losses_of(reader, rows, cols, precision, is_held=False)
    reading = 3 * SCANNED
    if config.run.device == "cuda":  # all of it is there, two pieces of it here
        matrix = 2 * max(PIECE, cols * word)
        reading = max(reading, PIECE * (1 + 8 // word))
    else:
        matrix = WINDOWS * sampling.block * sampling.window * cols * word
        losses += sampling.block * cols * (8 + word)
    return replace(need, matrix=matrix, reading=reading, losses=losses)


def _by_tiles(need: Need, config: RunConfig, sampled: int) -> Need:
    """The same where weights are on disk, and `sampled` bytes of stored values here."""
    if not is_on_disk(config.agreement.kind):
        return need
    tile = int(config.agreement.tile * MIB)
    return replace(need, weights=tile, exchange=2 * COPIES * sampled)


def _of_finisher(config: RunConfig, rows: int, cols: int, columns: int) -> int:
    """Scores, residuals and what a pass makes of them; pairs of vectors, and more."""
    if config.polish.kind == "none":
        return 0
    return 8 * (8 * rows + (2 * depth_for(columns) + 8) * cols)


def _bytes(name: str) -> int:
    return int(get_format(name).dtype.itemsize)

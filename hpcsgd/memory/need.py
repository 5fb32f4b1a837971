"""What one rank will hold at most, from sizes alone."""

from dataclasses import dataclass, replace

from hpcsgd.agreement.buckets import MIB
from hpcsgd.agreement.kinds import is_on_disk
from hpcsgd.backends.sparse import HEAVY
from hpcsgd.backends.uploads import PIECE
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.narrow import bytes_of_word
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import lengths
from hpcsgd.data.readers import CHUNK_BYTES, RowReader, is_sparse, stored_in
from hpcsgd.data.stream import WINDOWS
from hpcsgd.formats import get_format
from hpcsgd.load import SCANNED
from hpcsgd.memory.agreed import (
    at_once,
    of_codec,
    of_gradients,
    of_slow,
    of_state,
    tile_of,
)
from hpcsgd.objective import block_rows
from hpcsgd.polish.lbfgs import depth_for
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS
from hpcsgd.products.choose import CACHE_BUDGET

COLUMN = 4  # bytes of a column number
COPIES = 8  # of sampled sparse values, with their columns and places, in words


@dataclass(frozen=True)
class Need:
    """Bytes of one rank, by what they are for."""

    matrix: int
    columns: int  # targets, weights, offsets, row order
    exchange: int  # gathered rows, Gram, margins
    kept: int
    weights: int  # the state, its copies, a checkpoint on its way
    reading: int  # blocks beside the matrix, while it is read or its loss is taken
    finisher: int = 0  # scores and pairs of vectors, after the last step

    @property
    def total(self) -> int:
        """All of them."""
        return sum(vars(self).values())


def predict(
    grid: Grid, reader: RowReader, config: RunConfig, precision: Precision, states: int
) -> Need:
    """What this rank will hold at most, from sizes alone.

    Stored values of a sparse matrix are taken to lie evenly over its rows and columns.
    """
    schedule = config.schedule
    rows = lengths(reader.rows, grid.replicas.size)[grid.replica]
    cols = lengths(reader.cols, grid.members.size)[grid.member]
    m = max(min(schedule.batch * schedule.most_steps, rows), 1)
    working = precision.working.itemsize
    words = m * max(m - schedule.batch, 0) // 2
    m = max(min(m * at_once(config), rows), 1)
    gram = words * get_format(precision.gram_wire).carrier.itemsize
    # What is sent and received lies beside a Gram that travels in narrow words.
    travelling = words * bytes_of_word(precision.gram_wire, grid.members.size)
    kind = config.products.kind
    held = reader.cols if kind in GATHERS else cols
    again = config.sampling.mode == "shuffle-once" and schedule.epochs > 1
    keeps = {
        "cached": gram * -(-rows // m),
        "gather-once": rows * reader.cols * _bytes(precision.matrix),
    }
    kept = keeps.get(kind, 0)
    if kind == "auto" and again and grid.members.size > 1:
        kept = min(max(keeps.values()), CACHE_BUDGET)
    looks = kind not in ("direct", *GATHERS) and config.run.gap_every > 0
    # Good states, the one that a checkpoint is made of, and the walk of a look.
    copies = 2 + 4 * config.run.fall_back + 3 * looks
    copies += of_gradients(config)
    need = Need(
        matrix=rows * cols * _bytes(precision.matrix),
        columns=rows * (3 * working + 8),
        exchange=2 * (m * held * working + travelling) + looks * gram,
        kept=kept,
        weights=of_state(config, held, states, copies, precision)
        + 2 * reader.cols * states * 8
        + of_slow(config, held, precision)
        + of_codec(config, grid, held, precision, is_sparse(reader)),
        reading=max(3 * CHUNK_BYTES, block_rows(reader.cols) * cols * 16)
        if rows * cols * 8 > CHUNK_BYTES
        else 3 * rows * cols * 8,
        finisher=_of_finisher(config, rows, cols, reader.cols),
    )
    sampled = 0
    if is_sparse(reader):
        density = stored_in(reader) / (reader.rows * reader.cols)
        sampled, own = int(m * held * density), int(rows * cols * density)
        marked = tile_of(config, held, precision)
        need = _sparse(need, own, sampled, rows, m, held, marked, precision)
    return _by_tiles(need, config, sampled * working)


def streamed(
    need: Need, grid: Grid, reader: RowReader, config: RunConfig, precision: Precision
) -> Need:
    """The same where only windows of the matrix are held."""
    if is_on_disk(config.agreement.kind):  # of rows no more than a tile is there
        return replace(need, matrix=0, reading=SCANNED // 2)
    cols = lengths(reader.cols, grid.members.size)[grid.member]
    sampling = config.sampling
    held = WINDOWS * sampling.block * sampling.window
    block = sampling.block * cols * (8 + _bytes(precision.matrix))
    matrix = held * cols * _bytes(precision.matrix)
    if config.run.device == "cuda":  # all of it is there, two pieces of it here
        block = PIECE * (1 + 8 // _bytes(precision.matrix))
        matrix = 2 * max(PIECE, cols * _bytes(precision.matrix))
    return replace(
        need,
        matrix=matrix,
        reading=max(
            3 * SCANNED, min(need.reading, block_rows(reader.cols) * cols * 16), block
        ),
    )


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


def _sparse(
    need: Need,
    own: int,
    sampled: int,
    rows: int,
    m: int,
    held: int,
    marked: int,
    form: Precision,
) -> Need:
    """The same where `own` values are stored here and `sampled` in an exchange."""
    matrix = own * (_bytes(form.matrix) + COLUMN) + 8 * rows
    working = form.working.itemsize
    # A heavy column has at least HEAVY·m values, which bounds how many there are.
    panel = min(int(sampled / HEAVY), m * held)
    square = m * m * (2 * working + COLUMN)
    dense = 2 * m * held * working  # what an exchange of dense rows would take
    return replace(
        need,
        matrix=matrix,
        exchange=need.exchange
        - dense
        + (2 * COPIES * sampled + panel) * working
        # which columns are touched, and the part of the Gram of light columns
        + marked * (1 + COLUMN)
        + square,
        # Pieces lie beside the whole while they are put together.
        reading=matrix + 3 * min(CHUNK_BYTES, 16 * (own + rows)),
    )


def _bytes(name: str) -> int:
    return int(get_format(name).dtype.itemsize)

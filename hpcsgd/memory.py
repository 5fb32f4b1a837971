"""Whether a run fits into memory, predicted from sizes before anything is allocated."""

import os
import socket
from dataclasses import dataclass, replace

from hpcsgd.agreement.buckets import MIB, bucket_count
from hpcsgd.agreement.kinds import SHARDED, is_on_disk, takes_gradients
from hpcsgd.backends.sparse import HEAVY
from hpcsgd.backends.uploads import PIECE
from hpcsgd.codecs import Bucket, kept_bytes
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.narrow import bytes_of_word
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.data.readers import CHUNK_BYTES, RowReader, is_sparse, stored_in
from hpcsgd.data.stream import WINDOWS
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.limits import Budget, Claim, Limit, system_limits, tightest
from hpcsgd.load import SCANNED
from hpcsgd.objective import block_rows
from hpcsgd.polish.lbfgs import depth_for
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS
from hpcsgd.products.choose import CACHE_BUDGET
from hpcsgd.updates import ADAPTIVE

GIB = 2**30
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


def check_memory(
    grid: Grid, reader: RowReader, config: RunConfig, precision: Precision, states: int
) -> bool:
    """True where blocks have to be streamed because they do not fit on some node.

    Where they cannot be, or not even a window of them fits, the run is refused; the
    same answer on every rank.
    """
    schedule, sampling = config.schedule, config.sampling
    need = predict(grid, reader, config, precision, states)
    on_gpu = config.run.device == "cuda"
    on_disk = is_on_disk(config.agreement.kind)
    by_blocks = sampling.mode == "blocks" and not (on_gpu or on_disk)
    may_stream = (by_blocks or on_gpu or on_disk) and not is_sparse(reader)
    # What is streamed leaves room for the file in the system's own memory.
    share = 0.5 if may_stream and by_blocks else 1.0
    budget = _tightest(grid, need, config, share)
    if not grid.world.max_flag(int(budget.lacks > 0)):
        return False
    if may_stream:
        need = streamed(need, grid, reader, config, precision)
        budget = _tightest(grid, need, config, share)

    def refuse() -> None:
        if budget.lacks > 0:
            raise ConfigError(_sentence(need, budget, config))
        m, held = schedule.batch * schedule.most_steps, sampling.block * sampling.window
        if m > held and by_blocks:
            raise ConfigError(
                f"an exchange of {m} rows needs a window of as many, and sampling.block"
                f" x sampling.window is {held}; use a larger window or fewer --steps"
            )

    grid.world.together(refuse)
    return True


def _tightest(grid: Grid, need: Need, config: RunConfig, share: float) -> Budget:
    """The limit that this rank meets first, with what it and its like need."""
    limits = system_limits()
    if config.run.memory:
        by_hand = int(config.run.memory * GIB)
        limits, share = [Limit("run", by_hand, "under run.memory")], 1.0
    own = Claim(socket.gethostname(), os.getpid(), need.total, limits)
    return tightest(own, grid.world.exchange_objects(own), share)


def streamed(
    need: Need, grid: Grid, reader: RowReader, config: RunConfig, precision: Precision
) -> Need:
    """The same where only windows of the matrix are held."""
    if is_on_disk(config.agreement.kind):  # of rows no more than a tile is there
        return replace(need, matrix=0, reading=SCANNED // 2)
    cols = _length(reader.cols, grid.members.size, grid.member)
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


def predict(
    grid: Grid, reader: RowReader, config: RunConfig, precision: Precision, states: int
) -> Need:
    """What this rank will hold at most, from sizes alone.

    Stored values of a sparse matrix are taken to lie evenly over its rows and columns.
    """
    schedule = config.schedule
    rows = _length(reader.rows, grid.replicas.size, grid.replica)
    cols = _length(reader.cols, grid.members.size, grid.member)
    m = max(min(schedule.batch * schedule.most_steps * _at_once(config), rows), 1)
    working = precision.working.itemsize
    words = m * max(m - schedule.batch, 0) // 2
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
    copies += _of_gradients(config)
    need = Need(
        matrix=rows * cols * _bytes(precision.matrix),
        columns=rows * (3 * working + 8),
        exchange=2 * (m * held * working + travelling) + looks * gram,
        kept=kept,
        weights=_state(config, held, states, copies, precision)
        + 2 * reader.cols * states * 8
        + _slow(config, held, precision)
        + _of_codec(config, grid, held, precision, is_sparse(reader)),
        reading=max(3 * CHUNK_BYTES, block_rows(reader.cols) * cols * 16)
        if rows * cols * 8 > CHUNK_BYTES
        else 3 * rows * cols * 8,
        finisher=_of_finisher(config, rows, cols, reader.cols),
    )
    sampled = 0
    if is_sparse(reader):
        density = stored_in(reader) / (reader.rows * reader.cols)
        sampled, own = int(m * held * density), int(rows * cols * density)
        marked = _tile_of(config, held, precision)
        need = _sparse(need, own, sampled, rows, m, held, marked, precision)
    return _by_tiles(need, config, sampled * working)


def _at_once(config: RunConfig) -> int:
    """Batches that are one where replicas hold slices of their gradient."""
    asked = config.agreement
    is_whole = asked.kind == "sharded" and asked.stage == 1
    return asked.accumulate if asked.kind in SHARDED and not is_whole else 1


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


def _state(
    config: RunConfig, held: int, states: int, copies: int, precision: Precision
) -> int:
    """Weights with what steps keep beside them, copies of both, and the gradient."""
    word = get_format(precision.weights).carrier.itemsize
    if config.agreement.kind not in SHARDED:
        return held * states * word * copies
    is_offload = config.agreement.kind == "offload"
    stage, replicas = config.agreement.stage, max(config.grid.replicas, 1)
    stage = 2 if is_offload else stage
    own = -(-held // replicas)
    tile = min(int(config.agreement.bucket * MIB), held * word)
    weights = own if stage == 3 else held
    kept = own * (states - 1 + ADAPTIVE.get(config.update.kind, 0))
    # The host's weights and the gradient there, and one that is late.
    kept += is_offload * own * (2 + (config.agreement.delay_after >= 0))
    gradient = held if stage == 1 else own
    # The last good weights; good states that a run falls back to.
    beside = weights + 4 * config.run.fall_back * (weights + kept)
    return word * (weights + kept + gradient + beside) + 4 * tile


def _slow(config: RunConfig, held: int, precision: Precision) -> int:
    """Slow momentum's x_old and u with their copies; averages that come late."""
    asked = config.agreement
    each = held * get_format(precision.weights).carrier.itemsize
    if asked.kind == "async-average":
        return ASIDE * each
    if asked.kind != "slowmo":
        return 0
    parts = config.grid.replicas if asked.slow_sharded else 1
    # Parts are put together where a checkpoint is made.
    return 2 * (each * (1 + 4 * config.run.fall_back) // parts + each)


# Words a weight of what is sent, what comes, and what neighbours are.
MIXED = {"decentralized": 2, "decentralized-low": 8}
ASIDE = 6  # of an average that comes late: what was said, the sum, and both saved


def _of_gradients(config: RunConfig) -> int:
    """The buffer that gradients are summed in; with a codec what is said and heard.

    Rules that keep moments have them beside it.
    """
    if not takes_gradients(config.agreement.kind):
        return 0
    if config.agreement.kind == "anybatch":
        return _of_mixing(config)
    codec, moments = config.agreement.codec, ADAPTIVE.get(config.update.kind, 0)
    if config.update.bits == 8:  # a quarter of a word each, momentum too
        moments = 1
    moments += MIXED.get(config.agreement.kind, 0)
    if config.agreement.kind == "ticktock":
        return moments + 2 + (config.agreement.mode == "delayed")
    return moments + (1 if codec == "identity" else 3)


def _of_codec(
    config: RunConfig, grid: Grid, held: int, precision: Precision, sparse: bool
) -> int:
    """What codecs keep, in all buckets, and its copies in states and checkpoints."""
    asked, copies = config.agreement, 2 + 4 * config.run.fall_back
    if not takes_gradients(asked.kind) or grid.replicas.size == 1:
        return 0
    dtype = get_format(precision.weights).carrier
    count = 1 if sparse else bucket_count(held, 1, dtype.itemsize, asked.bucket)
    kept = 0
    for number in range(count):
        bucket = Bucket(number, _length(held, count, number), 1, dtype)
        kept += kept_bytes(asked.codec, bucket, config.codec, config.accordion)
    if asked.kind == "growing":
        kept += held * dtype.itemsize
    return kept * copies


def _of_mixing(config: RunConfig) -> int:
    """What a map keeps, the gradient, and words of neighbours, mixed in float64."""
    travels = {"entropy": 1, "eg": 2}.get(config.mirror.kind, 0)
    kept = 2 if config.mirror.kind == "diagonal" else travels
    few = {"ring": 2, "rings": 2, "matching": 1, "full": 0}
    peers = config.grid.replicas - 1
    if travels:  # logarithms have no sum: all peers of a full graph
        del few["full"]
    peers = min(peers, few.get(config.agreement.graph, peers))
    return 1 + kept + max(travels, 1) * (3 * peers + 5)


def _tile_of(config: RunConfig, held: int, precision: Precision) -> int:
    """Columns of sparse rows that are worked on together."""
    asked, word = config.agreement, get_format(precision.weights).carrier.itemsize
    if asked.kind not in SHARDED or config.grid.replicas < 2:
        return held
    return -(-held // bucket_count(held, 1, word, asked.bucket))


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


def _sentence(need: Need, budget: Budget, config: RunConfig) -> str:
    parts = sorted(vars(need).items(), key=lambda item: -item[1])[:3]
    shown = ", ".join(f"{name.replace('_', ' ')} {_gib(size)}" for name, size in parts)
    count, limit = len(budget.needs), budget.limit
    who = f"{count} ranks of this node need" if count > 1 else "this rank needs"
    more = f"{limit.raise_it}, or " if limit.raise_it else ""
    return (
        f"out of memory before anything was allocated: {who} {_gib(sum(budget.needs))}"
        f" and {_gib(budget.free)} are free {limit.where} (one rank: {shown});"
        f" {more}{_remedy(need, config, limit.shared)}"
    )


def _remedy(need: Need, config: RunConfig, shared: bool) -> str:
    """The knob that turns the largest part."""
    largest = max(vars(need), key=lambda name: getattr(need, name))
    steps = config.schedule.most_steps
    apart = " on more nodes" if shared else ""  # from others under the same limit
    return {
        "matrix": (
            "use a smaller sampling.window"
            if config.sampling.mode == "blocks"
            else f"use more ranks{apart}, halve it with --precision c, or"
            " stream it with --sampling blocks"
        ),
        "columns": f"use more replicas{apart} (--grid)",
        "exchange": f"use a smaller --steps than {steps}, or a smaller --batch",
        "kept": "use --products gram, or gather for narrow data, which keep nothing",
        "weights": f"use more members{apart} (--grid)",
        "finisher": f"use more ranks{apart}, or set polish.kind = 'none'",
        "reading": "put fewer ranks on a node" if shared else "use more ranks",
    }[largest]


def _length(total: int, parts: int, index: int) -> int:
    part = split_range(total, parts, index)
    return int(part.stop - part.start)


def _bytes(name: str) -> int:
    return int(get_format(name).dtype.itemsize)


def _gib(size: int) -> str:
    return f"{size / GIB:.3g} GiB"

"""Whether a run fits into memory, predicted from sizes before anything is allocated."""

import os
import resource
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcsgd.backends.sparse import HEAVY
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.data.readers import CHUNK_BYTES, RowReader, is_sparse, stored_in
from hpcsgd.data.stream import WINDOWS
from hpcsgd.errors import ConfigError
from hpcsgd.load import SCANNED
from hpcsgd.objective import block_rows
from hpcsgd.precision import Precision, get_format
from hpcsgd.products.choose import CACHE_BUDGET

GIB = 2**30
NO_LIMIT = 2**60  # what control groups say where there is none, and more
COLUMN = 4  # bytes of a column number
COPIES = 8  # of sampled sparse values, with their columns and places, in words
GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")


@dataclass(frozen=True)
class Need:
    """Bytes of one rank, by what they are for."""

    matrix: int
    columns: int  # targets, weights, offsets, row order
    exchange: int  # gathered rows, Gram, margins
    kept_grams: int
    weights: int  # the state, its copies, a checkpoint on its way
    reading: int  # blocks beside the matrix, while it is read or its loss is taken

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
    may_stream = sampling.mode == "blocks" and not is_sparse(reader)
    # What is streamed leaves room for the file in the system's own memory.
    share = 0.5 if may_stream else 1.0
    totals, limit = _on_this_node(grid, need, config, share)
    if not grid.world.max_flag(int(sum(totals) > limit)):
        return False
    if may_stream:
        need = streamed(need, grid, reader, config, precision)
        totals, limit = _on_this_node(grid, need, config, share)

    def refuse() -> None:
        if sum(totals) > limit:
            raise ConfigError(_sentence(need, totals, limit, config))
        m, held = schedule.batch * schedule.steps, sampling.block * sampling.window
        if m > held:
            raise ConfigError(
                f"an exchange of {m} rows needs a window of as many, and sampling.block"
                f" x sampling.window is {held}; use a larger window or fewer --steps"
            )

    grid.world.together(refuse)
    return True


def _on_this_node(
    grid: Grid, need: Need, config: RunConfig, share: float
) -> tuple[list[int], int]:
    """What each rank of this node needs, and what they may have together."""
    node = socket.gethostname()
    said = grid.world.exchange_objects((node, need.total, available()))
    totals = [total for name, total, _ in said if name == node]
    if config.run.memory:
        return totals, int(config.run.memory * GIB)
    return totals, int(share * min(free for name, _, free in said if name == node))


def streamed(
    need: Need, grid: Grid, reader: RowReader, config: RunConfig, precision: Precision
) -> Need:
    """The same where only windows of the matrix are held."""
    cols = _length(reader.cols, grid.members.size, grid.member)
    sampling = config.sampling
    held = WINDOWS * sampling.block * sampling.window
    block = sampling.block * cols * (8 + _bytes(precision.matrix))
    return replace(
        need,
        matrix=held * cols * _bytes(precision.matrix),
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
    m = min(schedule.batch * schedule.steps, rows)
    inner, working = _bytes(precision.inner), precision.working.itemsize
    gram = m * max(m - schedule.batch, 0) // 2 * _bytes(precision.gram_wire)
    held = reader.cols if config.products.kind == "gather" else cols
    again = config.sampling.mode == "shuffle-once" and schedule.epochs > 1
    caches = config.products.kind == "cached" or (
        config.products.kind == "auto" and again and grid.members.size > 1
    )
    kept = gram * -(-rows // m) if caches else 0
    if config.products.kind == "auto":
        kept = min(kept, CACHE_BUDGET)
    need = Need(
        matrix=rows * cols * _bytes(precision.matrix),
        columns=rows * (3 * inner + 8),
        exchange=2 * (m * held * working + gram),
        kept_grams=kept,
        weights=held * states * _bytes(precision.weights) * 2
        + 2 * reader.cols * states * 8,
        reading=max(3 * CHUNK_BYTES, block_rows(reader.cols) * cols * 16)
        if rows * cols * 8 > CHUNK_BYTES
        else 3 * rows * cols * 8,
    )
    if not is_sparse(reader):
        return need
    density = stored_in(reader) / (reader.rows * reader.cols)
    sampled = int(m * held * density)
    return _sparse(need, int(rows * cols * density), sampled, rows, m, held, precision)


def _sparse(
    need: Need, own: int, sampled: int, rows: int, m: int, held: int, form: Precision
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
        + held * (1 + COLUMN)
        + square,
        # Pieces lie beside the whole while they are put together.
        reading=matrix + 3 * min(CHUNK_BYTES, 16 * (own + rows)),
    )


def available() -> int:
    """Bytes that this process may still take: of the machine, its group, its limits."""
    return min(_of_machine(), _of_group(), _of_process())


def _sentence(need: Need, totals: list[int], limit: int, config: RunConfig) -> str:
    parts = sorted(vars(need).items(), key=lambda item: -item[1])[:3]
    shown = ", ".join(f"{name.replace('_', ' ')} {_gib(size)}" for name, size in parts)
    return (
        f"out of memory before anything was allocated: {len(totals)} ranks of this node"
        f" need {_gib(sum(totals))} and {_gib(limit)} are free (one rank: {shown});"
        f" {_remedy(need, config)}"
    )


def _remedy(need: Need, config: RunConfig) -> str:
    """The knob that turns the largest part."""
    largest = max(vars(need), key=lambda name: getattr(need, name))
    steps = config.schedule.steps
    return {
        "matrix": (
            "use a smaller sampling.window"
            if config.sampling.mode == "blocks"
            else "spread the ranks over more nodes, halve it with --precision c, or"
            " stream it with --sampling blocks"
        ),
        "columns": "use more replicas on more nodes (--grid)",
        "exchange": f"use a smaller --steps than {steps}, or a smaller --batch",
        "kept_grams": "use --products gram, which keeps none",
        "weights": "use more members on more nodes (--grid)",
        "reading": "put fewer ranks on a node",
    }[largest]


def _length(total: int, parts: int, index: int) -> int:
    part = split_range(total, parts, index)
    return int(part.stop - part.start)


def _bytes(name: str) -> int:
    return int(get_format(name).dtype.itemsize)


def _gib(size: int) -> str:
    return f"{size / GIB:.3g} GiB"


def _of_machine() -> int:
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return NO_LIMIT


def _of_group() -> int:
    """What the control group of a job or container leaves."""
    for root in GROUPS:
        for most, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with suppress(OSError, ValueError):
                limit = int(Path(root, most).read_text())
                if limit < NO_LIMIT:
                    return max(limit - int(Path(root, used).read_text()), 0)
    return NO_LIMIT


def _of_process() -> int:
    """What `ulimit -v` leaves."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return NO_LIMIT
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return max(soft - pages * os.sysconf("SC_PAGE_SIZE"), 0)
    return soft

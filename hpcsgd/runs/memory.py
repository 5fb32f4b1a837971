"""The memory that a run needs, and the limits of the system on it."""

import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import Any, TypeVar

from hpcsgd.agreements.base import (
    MIB,
    StateShape,
    agreement_name,
    bucket_count,
    get_agreement,
)
from hpcsgd.backends.numpy_rows import dense_gram_workspace, sparse_gram_workspace
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.matrix import COLUMN
from hpcsgd.data.readers import RowReader, bytes_of_block, is_sparse, stored_in
from hpcsgd.data.shard import bytes_of_csr, bytes_of_sides, lengths
from hpcsgd.data.stream import bytes_of_windows
from hpcsgd.errors import ConfigError
from hpcsgd.files import format_bytes
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.products import get_product
from hpcsgd.products.base import GramSize, MemoryShape, ReplicaSize, product_facts
from hpcsgd.products.cost import CACHE_BUDGET, OF_SEVERAL, ProductsConfig
from hpcsgd.runs.load import SCAN_BYTES, TILE_BYTES, bytes_of_filling
from hpcsgd.settings import remembered
from hpcsgd.solvers.lbfgs import bytes_of_lbfgs
from hpcsgd.solvers.newton import bytes_of_sample
from hpcsgd.solvers.objective import bytes_of_losses

T = TypeVar("T")

# What agreements and their codecs hold: states, and what lies beside them.


def tile_of(config: RunConfig, held: int, precision: Precision) -> int:
    """Return the number of columns of sparse rows that are used at a time.

    It is a bucket of the `held` columns if replicas store slices, else `held`.
    """
    agreement = config.agreement
    word = get_format(precision.weights).carrier.itemsize
    if not agreement.slices or config.grid.replicas < 2:
        return held
    return -(-held // bucket_count(held, 1, word, agreement.bucket))


def batches_at_once(config: RunConfig) -> int:
    """Return how many accumulated batches an exchange takes together as one.

    It is `accumulate` if replicas store slices of the gradient, else 1.
    """
    agreement: Any = config.agreement
    return agreement.accumulate if agreement.slices and agreement.zero_stage > 1 else 1


# What the system leaves of memory, and which ranks have to share it.
#
# The machine, control groups and Slurm limit all ranks of a node that they hold,
# together; `ulimit -v` limits each process by itself.

ROOT = Path("/")
NO_LIMIT = 2**60  # control groups without a limit contain this or more
AT_ONCE = 2**16  # bytes of a file
# If the groups are unknown: the one group of a container.
UNKNOWN = "0::/\n0:memory:/"
# Limits, what is used, and the part of that which the kernel drops when asked to.
GROUP_FILES = (
    (("memory.max", "memory.high"), "memory.current", "inactive_file"),
    (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class Limit:
    """A limit: `free` bytes, less those `held` by its processes, may still be taken.

    With `whole`, `free` is instead what all processes may have together, from their
    start. All processes of a node that name the same `holder` share these bytes.
    """

    holder: str
    free: int
    where: str  # for a sentence: "1 GiB are free" and this
    held: int = 0  # of this process, not yet taken off `free`
    raise_it: str = ""  # how to get more
    shared: bool = True  # by all ranks of a node and the files the system keeps
    whole: bool = False  # `free` is for whole processes, and what they hold counts


@dataclass(frozen=True)
class Claim:
    """Bytes that one rank needs beyond those of its process, and its limits."""

    node: str
    process: int
    need: int
    limits: Sequence[Limit]
    holds: int = 0  # bytes of the process before the run


@dataclass(frozen=True)
class MemoryBudget:
    """The free bytes under one limit, and the bytes that each rank under it needs."""

    limit: Limit
    free: int
    needs: Sequence[int]

    @property
    def lacks(self) -> int:
        """Bytes that are missing; negative where some would be left."""
        return sum(self.needs) - self.free


def tightest(own: Claim, claims: Sequence[Claim], share: float = 1.0) -> MemoryBudget:
    """Return the budget of the limit of `own` that lacks most, or leaves least.

    `claims` are those of all ranks; the ones on the node of `own` count. Of memory that
    ranks share with cached files, they may use the part `share`.
    """
    near = [claim for claim in claims if claim.node == own.node]
    budgets = [_budget(limit, near, share) for limit in own.limits]
    return max(budgets, key=lambda budget: budget.lacks)


def _budget(limit: Limit, claims: Sequence[Claim], share: float) -> MemoryBudget:
    sharers = [
        (c, bound) for c in claims for bound in c.limits if bound.holder == limit.holder
    ]
    stored_bytes = {claim.process: bound.held for claim, bound in sharers}
    # Ranks may be threads of one process: what that holds counts once, for the first.
    holds = {claim.process: claim.holds for claim, bound in sharers if bound.whole}
    free = max(min(bound.free for _, bound in sharers) - sum(stored_bytes.values()), 0)
    return MemoryBudget(
        limit=limit,
        free=int(free * share) if limit.shared else free,
        needs=[claim.need + holds.pop(claim.process, 0) for claim, _ in sharers],
    )


def system_limits(
    root: Path = ROOT, environ: Mapping[str, str] = os.environ
) -> list[Limit]:
    """Return all memory limits of this process, with the bytes that are free now."""
    return [
        *_of_machine(root),
        *_of_groups(root),
        *_of_slurm(root, environ),
        *_of_process(root),
    ]


def resident_bytes(root: Path = ROOT) -> int:
    """Return the resident bytes of this process now, or their peak if unknown."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _pages(root, 1) or peak * (1 if sys.platform == "darwin" else 1024)


def _of_machine(root: Path) -> Iterator[Limit]:
    free = _field(root / "proc/meminfo", "MemAvailable:")
    if free is not None:
        yield Limit("machine", free * 1024, "on this machine")
        return
    size = NO_LIMIT
    with suppress(OSError, ValueError, AttributeError):
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Limit("machine", size, "on this machine")


def _of_groups(root: Path) -> Iterator[Limit]:
    """Yield the limits of this process's control groups and of those around them."""
    for folder, name in _groups(root):
        free = _left_in(folder)
        if free is not None:
            yield Limit(f"group {folder}", free, f"in control group {name}")


def _groups(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield folder and name of every control group that this process is in."""
    mount = root / "sys/fs/cgroup"
    for line in (_text(root / "proc/self/cgroup") or UNKNOWN).splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if not controllers:
            yield from _upwards(mount, path)
            yield from _upwards(mount / "unified", path)  # beside version 1
        elif "memory" in controllers.split(","):
            yield from _upwards(mount / "memory", path)


def _upwards(mount: Path, path: str) -> Iterator[tuple[Path, str]]:
    """Yield folder and name of a group, and of all groups up to the root of its tree.

    In a container the path may be that of the host, while the container's own group is
    mounted: then only this group can be read.
    """
    parts = PurePosixPath(path).parts[1:]
    folder = mount.joinpath(*parts)
    if ".." in parts or not folder.is_dir():
        folder = mount
        parts = ()
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth]), "/" + "/".join(parts[:depth])


def _left_in(folder: Path) -> int | None:
    """Return the bytes free in a control group; None if it has no limit.

    Cached files that the kernel can drop count as free.
    """
    for names, used, droppable in GROUP_FILES:
        limits = [_number(folder / name) for name in names]
        limit = min((n for n in limits if n is not None), default=NO_LIMIT)
        if limit < NO_LIMIT:
            taken = _number(folder / used) or 0
            cached = _field(folder / "memory.stat", droppable) or 0
            return min(max(limit - taken + cached, 0), limit)
    return None


def _of_slurm(root: Path, environ: Mapping[str, str]) -> Iterator[Limit]:
    """Yield the memory that the job requested as limits.

    Slurm may enforce them without a control group.
    """
    per_node = _megabytes(environ, "SLURM_MEM_PER_NODE")
    per_cpu = _megabytes(environ, "SLURM_MEM_PER_CPU")
    cpus = _count(environ, "SLURM_CPUS_ON_NODE")
    for size, name, flag in (
        (per_node, "SLURM_MEM_PER_NODE", "--mem"),
        (per_cpu * cpus, "SLURM_MEM_PER_CPU x SLURM_CPUS_ON_NODE", "--mem-per-cpu"),
    ):
        if size:
            yield Limit(
                holder=f"{name} of job {environ.get('SLURM_JOB_ID', '')}",
                free=size,
                where=f"under {name}",
                held=_pages(root, 1),
                raise_it=f"ask Slurm for more ({flag})",
            )


def _of_process(root: Path) -> Iterator[Limit]:
    """Yield the limit of `ulimit -v` on mapped memory, whether it is used or not.

    Cached files do not count under this limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield Limit(
            holder=f"process {os.getpid()}",
            free=max(soft - _pages(root, 0), 0),
            where="under ulimit -v",
            raise_it="raise ulimit -v",
            shared=False,
        )


def _pages(root: Path, field: int) -> int:
    """Return the mapped (`field` 0) or resident (`field` 1) bytes of this process.

    Return 0 if the system does not show them.
    """
    with suppress(IndexError, ValueError):
        pages = int(_text(root / "proc/self/statm").split()[field])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _megabytes(environ: Mapping[str, str], name: str) -> int:
    """Return a Slurm variable, which is in MiB, in bytes; 0 if unset or no limit."""
    return _count(environ, name) * MIB


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def _text(path: Path) -> str:
    """Return the text of a file, "" on failure.

    It is written for speed, because a run reads twenty files.
    """
    with suppress(OSError, ValueError):
        number = os.open(path, os.O_RDONLY)
        parts = [b""]
        try:
            while part := os.read(number, AT_ONCE):
                parts.append(part)
        finally:
            os.close(number)
        return b"".join(parts).decode()
    return ""


def _number(path: Path) -> int | None:
    """Return the number in a file; None without a file, or if it contains "max"."""
    with suppress(ValueError):
        return int(_text(path))
    return None


def _field(path: Path, name: str) -> int | None:
    """Return the number after `name` in a file of names and numbers, or None."""
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


# What one exchange holds: sampled rows, their Gram, the messages, and workspaces.
#
# Buffers are made once for each number of rows. An epoch has two of them, m = b·s and
# what remains of its rows; both stay, and multiplying rows takes more for a moment:
#
#     peak = buffers(m) + max(workspace(m), buffers(rest) + workspace(rest))


@dataclass(frozen=True)
class ExchangeSizes:
    """The sizes of the exchanges of one rank."""

    config: RunConfig
    precision: Precision
    epoch: MemoryShape  # without what depends on the rows of an exchange

    @property
    def products(self) -> ProductsConfig:
        """Return the settings of products; "auto" counts the largest of all."""
        return self.config.products

    @property
    def rows_of_gram(self) -> int:
        """Rows m of the batches of one recurrence, at most those of the replica."""
        schedule = self.config.schedule
        most = schedule.batch * schedule.most_steps
        return max(min(most, self.epoch.replica.rows), 1)

    @property
    def rows(self) -> int:
        """Rows m of an exchange with all accumulated batches, at most the replica's."""
        most = self.rows_of_gram * batches_at_once(self.config)
        return max(min(most, self.epoch.replica.rows), 1)

    @property
    def is_monitored(self) -> bool:
        """True if the run has, or may choose, a recurrence that will be checked."""
        each = -(-self.epoch.replica.rows // self.rows)
        count = self.config.schedule.most_epochs * each
        kind = self.products.kind
        checks = product_facts(kind).is_monitored or (kind == "auto" and self._has_gram)
        return checks and 0 < self.config.run.gap_every <= count

    def peak(self, marked: int) -> int:
        """Return the peak bytes of the exchanges of an epoch, the short last one too.

        Sparse rows touch some of `marked` columns, each of which has a mark.
        """
        peak = self._workspace(self.rows)
        rest = self.epoch.replica.rows % self.rows
        if rest:
            peak = max(peak, self._buffers(rest) + self._workspace(rest))
        if self.is_monitored:
            # A check repeats the recurrence in float64, a block row at a time. The
            # products are multiplied by then.
            words = self._words(self.rows_of_gram)
            peak = max(peak, words * self.epoch.gram.itemsize * 3 // 2)
        peak += self._buffers(self.rows)
        # A mark for each column and its place among those that are touched.
        return peak + (0 if self.epoch.density is None else marked * (1 + COLUMN))

    def kept(self, product: str) -> int:
        """Return the bytes that a product keeps from the first epoch on."""
        buffers = dict(get_product(product).holds(self.shape(self.rows)))
        return int(buffers.get("kept", 0))

    def shape(self, m: int) -> MemoryShape:
        """Return the sizes of an exchange of m rows, and of an epoch."""
        of_gram = self.rows_of_gram
        all_rows = self.epoch.replica.rows
        return replace(
            self.epoch,
            rows=m,
            gram=replace(
                self.epoch.gram,
                words=self._words(min(m, of_gram)),
                all_words=self._words(of_gram) * -(-all_rows // of_gram),
            ),
        )

    @property
    def _is_open(self) -> bool:
        """True if it is chosen later whether members gather rows or sum a Gram."""
        return self.products.kind == "auto" and self.epoch.replica.members > 1

    @property
    def _has_gram(self) -> bool:
        """True if the run computes a Gram, or may choose to.

        A member alone has no Gram to sum, but on a GPU a Gram pays for one member, too.
        """
        kind = self.products.kind
        on_gpu = self.config.run.device == "cuda"
        recurs = product_facts(kind).has_recurrence
        return recurs or self._is_open or (kind == "auto" and on_gpu)

    @property
    def _products(self) -> Iterator[Any]:
        """Yield the product of the settings; if it is open, those whose buffers count.

        For sparse rows `gather` is left out: its bytes count as those of the local
        columns.
        """
        kind = self.products.kind
        ahead = self.products.look_ahead
        if kind != "auto":
            yield get_product(kind, kind == "gram" and ahead == "on")
        elif not self._has_gram:
            yield get_product("direct")
        else:
            yield get_product(
                "gram", ahead == "on" or self._is_open and ahead == "auto"
            )
            if self._is_open and self.epoch.density is None:
                yield get_product("gather")

    def _words(self, m: int) -> int:
        """Return the number of words of the packed Gram of m rows; 0 without a Gram."""
        if not self._has_gram:
            return 0
        return m * max(m - self.config.schedule.batch, 0) // 2

    def _buffers(self, m: int) -> int:
        """Return the bytes of the buffers of an exchange of m rows.

        Each kind of buffer counts as large as the largest of all products that may run.
        """
        parts = [dict(kind.holds(self.shape(m))) for kind in self._products]
        names = ("rows", "messages", "vectors")
        return sum(max(part.get(name, 0) for part in parts) for name in names)

    def _workspace(self, m: int) -> int:
        """Return the bytes that are needed only while m rows are multiplied."""
        m = min(m, self.rows_of_gram)
        on_gpu = self.config.run.device == "cuda"
        shape = self.epoch
        if not self._words(m):
            return 0
        if shape.density is None:
            return dense_gram_workspace(m, self.precision, on_gpu)
        columns = shape.replica.local_columns
        density = shape.density
        return sparse_gram_workspace(m, columns, density, self.precision, on_gpu)


# What one rank will hold at most: predicted from sizes, and what it holds already.
#
#     total = process + matrix + columns + weights + max(loading, training)
#     loading = reading
#     training = exchange + kept + max(losses, finisher)
#
# The process is measured: its interpreter, libraries and the arrays given to it. The
# rest follows from sizes. While the matrix is read there is no exchange yet, and when
# training begins the pieces that were read are gone: only the larger of the two counts.

# Bytes of a process that come after the check: modules that a run imports then, the
# workspace of BLAS, and small objects.
LATER = 8 * MIB
LOADING = ("reading",)
TRAINING = ("exchange", "kept", "losses", "finisher")
EITHER = ("losses", "finisher")  # never at the same time


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of one rank, by what they are for."""

    process: int  # interpreter, libraries and arrays of the caller: there already
    matrix: int  # 0 where rows of the caller are taken where they lie
    columns: int  # targets, weights, offsets, row order
    exchange: int  # gathered rows, Gram, margins, and what multiplying them takes
    kept: int
    weights: int  # the state, its copies, the model, a checkpoint on its writer
    reading: int  # pieces beside the matrix, while it is read
    losses: int = 0  # rows that are looked at together for a loss
    finisher: int = 0  # scores and pairs of vectors, after the last step

    @property
    def total(self) -> int:
        """Bytes of the process at its peak."""
        return sum(self.counted.values())

    @property
    def claim(self) -> int:
        """Bytes of the peak beyond those of `process`."""
        return self.total - self.process

    @property
    def counted(self) -> dict[str, int]:
        """Bytes by use, for all uses that make the total.

        Of loading and training only the larger phase is included.
        """
        parts = vars(self)
        largest = max(EITHER, key=lambda name: parts[name])
        training = [n for n in TRAINING if n not in EITHER or n == largest]
        phases = (LOADING, tuple(training))
        peak = max(phases, key=lambda names: sum(parts[name] for name in names))
        absent = {*LOADING, *TRAINING} - {*peak}
        return {name: size for name, size in parts.items() if name not in absent}


# The rank that writes a checkpoint has its arrays, the image of the file that HDF5
# makes of them, and a copy of this image.
COPIES_OF_WRITER = 3
# Checkpoints in the memory of every rank, if ranks continue after a loss of others: the
# last two, and the next one.
COPIES_OF_SURVIVOR = 3


def process_bytes() -> int:
    """Return the bytes that this process holds, plus `LATER`.

    `LATER` is what every run takes after the check, whatever the sizes of its data.
    """
    return resident_bytes() + LATER


def predict(
    grid: Grid,
    reader: RowReader,
    config: RunConfig,
    precision: Precision,
    states: int,
    process: int | None = None,
) -> MemoryNeed:
    """Return the most memory that this rank will need, from sizes and its process now.

    Product and steps of `config` may be open. The stored values of a sparse matrix are
    assumed to be spread evenly over its rows and columns. `states` is the number of
    words of weights and optimizer state of a column. `process` are the
    `process_bytes`; None: they are read.
    """
    form = get_format(precision.matrix)
    rows, cols = _block(grid, reader)
    if is_sparse(reader):
        density = stored_in(reader) / (reader.rows * reader.cols)
        losses = bytes_of_losses(reader, rows, cols, form, density=density)
        matrix, reading = bytes_of_csr(rows, int(rows * cols * density), form)
    else:
        density = None
        losses = bytes_of_losses(reader, rows, cols, form)
        matrix, reading = bytes_of_block(reader, rows, cols, form)
    training = _training_bytes(
        config,
        precision,
        ReplicaSize(rows, reader.cols, cols, grid.members.size),
        states,
        density,
        (grid.replicas.size, reader.rows),
        bool(config.run.out) and grid.world.rank == 0,
    )
    return MemoryNeed(
        process=process_bytes() if process is None else process,
        matrix=matrix,
        columns=bytes_of_sides(rows, precision.working.itemsize),
        reading=reading,
        losses=losses,
        **training,
    )


@remembered
def _training_bytes(
    config: RunConfig,
    precision: Precision,
    replica: ReplicaSize,
    states: int,
    density: float | None,
    replicas_and_rows: tuple[int, int],
    writes: bool,
) -> dict[str, int]:
    """Return the bytes of a rank in training, by use; `reading` and data are apart.

    `replica` has the sizes of this rank, `replicas_and_rows` the number of replicas and
    of all rows; `writes`: this rank writes the checkpoints. The other arguments are
    those of `predict`, and the density of sparse rows.
    """
    replicas, total_rows = replicas_and_rows
    cols = replica.local_columns
    epoch = MemoryShape(
        replica=replica,
        gram=GramSize(
            itemsize=get_format(precision.gram_wire).carrier.itemsize,
            wire=precision.gram_wire,
        ),
        states=states,
        working=precision.working.itemsize,
        matrix=get_format(precision.matrix).dtype.itemsize,
        density=density,
    )
    exchanges = ExchangeSizes(config, precision, epoch)
    kind = config.products.kind
    on_disk = config.agreement.on_disk
    gathers = product_facts(kind).holds_all_columns
    width = replica.columns if gathers else cols  # of the weights
    again = config.sampling.mode == "shuffle-once" and config.schedule.most_epochs > 1
    cache = 0 if kind == "auto" else exchanges.kept(kind)
    if kind == "auto" and again and replica.members > 1:
        cache = min(max(map(exchanges.kept, OF_SEVERAL)), CACHE_BUDGET)
    shape = StateShape(
        config,
        precision,
        columns=width,
        states=states,
        sparse=density is not None,
        # Good states, the one that a checkpoint is made of, and the walk of a check.
        copies=2 + 4 * config.run.fall_back + 3 * exchanges.is_monitored,
    )
    agreement = get_agreement(agreement_name(config))
    weights = sum(size for _, size in agreement.holds(shape))
    if not on_disk:  # beside states in memory there is the model
        weights += replica.columns * states * 8
        whole = replace(shape, columns=replica.columns)
        # The states, and the model with the last good loss.
        checkpoint = agreement.saves(whole) + whole.state
        survives = config.run.on_failure == "shrink"
        copies = COPIES_OF_SURVIVOR * survives
        # The arrays that are written are one of those copies.
        copies += (COPIES_OF_WRITER - survives) * writes
        weights += copies * checkpoint
    of_tile = exchanges.shape(exchanges.rows).sampled(width)  # of sparse rows
    of_epoch = exchanges.peak(tile_of(config, width, precision))
    finisher = 0
    if config.polish.kind != "none":
        finisher = bytes_of_lbfgs(replica.rows, cols, replica.columns)
        finisher += bytes_of_sample(total_rows, replica.columns, cols, replicas)
    return {
        "exchange": of_tile if on_disk else of_epoch,
        "kept": cache,
        "weights": weights,
        "finisher": finisher,
    }


def _block(grid: Grid, reader: RowReader) -> tuple[int, int]:
    """Return how many rows and columns this rank has, where all have equal parts."""
    rows = lengths(reader.rows, grid.replicas.size)[grid.replica]
    return rows, lengths(reader.cols, grid.members.size)[grid.member]


def streamed(
    need: MemoryNeed,
    grid: Grid,
    reader: RowReader,
    config: RunConfig,
    precision: Precision,
) -> MemoryNeed:
    """Return `need` for a run whose matrix is streamed.

    On a CPU, windows of the matrix are in host memory, and what reading the next one
    takes is added to `losses`. On a GPU, two pieces on their way to the device are. If
    the weights are on disk, at most one tile of the matrix is in memory.
    """
    if config.agreement.on_disk:  # at most a tile of rows is in memory
        return replace(need, matrix=0, reading=TILE_BYTES, losses=TILE_BYTES)
    rows, cols = _block(grid, reader)
    sampling = config.sampling
    form = get_format(precision.matrix)
    word = form.dtype.itemsize
    losses = bytes_of_losses(reader, rows, cols, form, is_stored=False)
    if config.run.device == "cuda":  # all on the device, two pieces on the host
        from hpcsgd.backends.cuda.device import PIECE, bytes_of_uploads

        matrix = bytes_of_uploads(cols * word)
        reading = max(SCAN_BYTES, bytes_of_filling(PIECE // word, word))
    else:
        matrix = bytes_of_windows(sampling.block, sampling.window, cols * word)
        reading = SCAN_BYTES
        losses += bytes_of_filling(sampling.block * cols, word)
    return replace(need, matrix=matrix, reading=reading, losses=losses)


# The predicted memory of a run, compared with every limit of every node.

GIB = 2**30


def check_memory(
    grid: Grid, reader: RowReader, config: RunConfig, precision: Precision, states: int
) -> bool:
    """Return whether the matrix is streamed, as it does not fit on some node.

    Collective. If it cannot be streamed, if not even a window of it fits, or if an
    exchange takes more rows than a window, ConfigError is raised. All ranks return the
    same. `states` is the number of words of weights and optimizer state of a column.
    """
    schedule = config.schedule
    sampling = config.sampling
    is_alone = grid.world.size == 1 and not config.run.memory
    need = grid.world.together(
        lambda: predict(
            grid,
            reader,
            config,
            precision,
            states,
            process=_in_this_second(process_bytes) if is_alone else None,
        )
    )
    on_gpu = config.run.device == "cuda"
    on_disk = config.agreement.on_disk
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
        m = schedule.batch * schedule.most_steps
        window = sampling.block * sampling.window
        if m > window and by_blocks:
            raise ConfigError(
                f"an exchange of {m} rows needs a window of as many rows, and"
                f" sampling.block x sampling.window is {window}; use a larger"
                " sampling.window or fewer --steps"
            )

    grid.world.together(refuse)
    return True


# Bytes of a rank alone, for which limits that were read in this second will do.
SMALL = 64 * 2**20


@lru_cache(maxsize=2)
def _read_in(second: int, read: Callable[[], T]) -> T:
    return read()


def _in_this_second(read: Callable[[], T]) -> T:
    """Return what `read` returned when it was first called in this second."""
    value: T = _read_in(int(monotonic()), read)
    return value


def _tightest(
    grid: Grid, need: MemoryNeed, config: RunConfig, share: float
) -> MemoryBudget:
    """Return the budget of the limit under which this rank lacks most. Collective."""
    claimed = need.claim
    if grid.world.size == 1 and claimed < SMALL:
        limits = _in_this_second(system_limits)
    else:
        limits = system_limits()
    if config.run.memory:
        by_hand = int(config.run.memory * GIB)
        limits = [Limit("run", by_hand, "under run.memory", whole=True)]
        share = 1.0
    claim = Claim(
        node=socket.gethostname(),
        process=os.getpid(),
        need=claimed,
        limits=limits,
        holds=need.process,
    )
    return tightest(claim, grid.world.exchange_objects(claim), share)


def _sentence(need: MemoryNeed, budget: MemoryBudget, config: RunConfig) -> str:
    count = len(budget.needs)
    limit = budget.limit
    parts = _parts(need, limit)
    largest = sorted(parts.items(), key=lambda item: -item[1])[:3]
    shown = ", ".join(f"{name} {_gib(size)}" for name, size in largest)
    who = f"{count} ranks of this node need" if count > 1 else "this rank needs"
    more = f"{limit.raise_it}, or " if limit.raise_it else ""
    return (
        f"out of memory before anything was allocated: {who} {_gib(sum(budget.needs))}"
        f" and {_gib(budget.free)} are free {limit.where} (one rank: {shown});"
        f" {more}{_remedy(parts, config, limit.shared)}"
    )


def _parts(need: MemoryNeed, limit: Limit) -> dict[str, int]:
    """Return the bytes by use that count under a limit.

    Most limits do not count what the process already holds.
    """
    return {
        name: size
        for name, size in need.counted.items()
        if limit.whole or name != "process"
    }


def _remedy(parts: dict[str, int], config: RunConfig, shared: bool) -> str:
    """Return the remedy that makes the largest part smaller."""
    largest = max(parts, key=lambda name: parts[name])
    steps = config.schedule.most_steps
    apart = " on more nodes" if shared else ""  # from others under the same limit
    fewer = f"a smaller --steps than {steps}, or " if steps > 1 else ""
    in_c = replace(config.precision, recipe="c")
    now, then = (
        get_format(precision.resolve().matrix).dtype.itemsize
        for precision in (config.precision, in_c)
    )
    halve = " halve it with --precision c," if then < now else ""
    return {
        "process": "put fewer ranks on a node, or set a larger run.memory",
        "matrix": (
            f"use a smaller sampling.window, or more ranks{apart} if X is sparse"
            if config.sampling.mode == "blocks"
            else f"use more ranks{apart},{halve} or stream it with --sampling blocks"
            " if X is dense"
        ),
        "columns": f"use more replicas{apart} (--grid)",
        "exchange": f"use {fewer}a smaller --batch",
        "kept": "use --products gram, or gather for narrow data, which keep nothing",
        "weights": f"use more members{apart} (--grid)",
        "losses": f"use more members{apart} (--grid)",
        "finisher": f"use more ranks{apart}, or set polish.kind = 'none'",
        "reading": "put fewer ranks on a node" if shared else "use more ranks",
    }[largest]


def _gib(size: int) -> str:
    return format_bytes(size, ("GiB",))

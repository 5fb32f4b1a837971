"""Launches of the size of a target, as they are counted: on a processor, from PTX.

A launch whose blocks all do the same is counted for some of them and multiplied.
"""

from ctypes import c_longlong, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import build_of
from tests.helpers.kernels.emulator import empty, on_device
from tests.helpers.kernels.exchanges import exchange, in_tiles, results, setting_of
from tests.helpers.kernels.problems import numbers, stored
from tests.helpers.kernels.ptx.chain import FREE, Interval, intervals
from tests.helpers.kernels.ptx.counts import SECTOR, CountedKernel, Counts
from tests.helpers.kernels.walks import walk_of

ARCH, PROCESSORS = "90", 132
FLOPS = 2 * 16 * 8 * 16  # of an mma of 16-bit values


@dataclass
class Asked:
    """What a launch asks of a GPU, whole blocks and all of them."""

    blocks: int
    issued: float  # instructions of warps
    passes: float  # over the banks of shared memory or of L1
    from_l2: float  # bytes
    memory: float  # bytes, each once
    flops: float = 0.0  # of tensor cores
    useful: float = 1.0  # bytes that were asked for, of those of their sectors
    conflicts: float = 1.0  # passes for each that is needed
    chain: list[Interval] = field(default_factory=list)

    def times(self, count: float) -> "Asked":
        """So many launches side by side."""
        blocks = round(self.blocks * count)
        each = (self.issued, self.passes, self.from_l2, self.memory, self.flops)
        scaled = [one * count for one in each]
        return Asked(blocks, *scaled, self.useful, self.conflicts, self.chain)

    def beside(self, other: "Asked") -> "Asked":
        """Both in one launch."""
        return Asked(
            self.blocks + other.blocks,
            self.issued + other.issued,
            self.passes + other.passes,
            self.from_l2 + other.from_l2,
            max(self.memory, other.memory),  # they read the same rows
            self.flops + other.flops,
            min(self.useful, other.useful),
            max(self.conflicts, other.conflicts),
            self.chain,
        )


def asked(counts: Counts, blocks: int, memory: float) -> Asked:
    """Of a launch as it was counted."""
    table = zip(counts.instructions, counts.table, strict=True)
    issued = sum(int(row[0]) for one, row in table if not FREE.match(one.opcode))
    passes = counts.sum("passes") + counts.sum("passes", copied=True)
    return Asked(
        *(blocks, issued, passes, SECTOR * counts.sum("from_l2"), memory),
        flops=FLOPS * counts.sum("issued", "mma"),
        useful=counts.useful_share("matrix") if "matrix" in counts.arrays else 1.0,
        conflicts=max(
            counts.conflicts(r"(ld|st)\.shared"),
            counts.conflicts("ldmatrix"),
            counts.conflicts(r"cp\.async", copied=True),
        ),
    )


def rows_of(count: int, cols: int, seed: int = 0) -> tuple[Any, ...]:
    """(matrix, stride, row numbers, rows, columns) in bf16, every row once."""
    rng = np.random.default_rng(seed)
    matrix, stride, _ = stored(rng, count, cols)
    rows = numbers(rng, count, count)
    rows[:] = rng.permutation(count)
    return matrix, c_longlong(stride), rows, count, cols


HEAD = ("matrix", "stride", "rows", "count", "cols")


def margin(count: int, cols: int) -> Asked:
    """z = Y w, from some of its rows."""
    some = min(count, 64 if cols < 10_000 else 16)
    found = asked(margin_counts(cols, None, some), some // 8, 2.0 * some * cols)
    return found.times(count / some)


def margin_counts(cols: int, text: Any, count: int) -> Counts:
    """Of a launch for so many rows."""
    kernel = CountedKernel("margin", "ELEMENT=1", text=text, arch=ARCH)
    weights = on_device(np.ones(cols), np.float32)
    # Numbers of the first half: a fault may read beyond a row.
    head = (*rows_of(2 * count, cols)[:2], on_device(np.arange(count), np.int64))
    given = (*head, count, cols, weights, empty(count))
    kernel(-(-count // 8), 256, given, names=[*HEAD, "w", "z"])
    return kernel.counts


def update(count: int, cols: int) -> Asked:
    """w = carry w + Yᵀ f, from some of its columns and parts of its rows."""
    plan = kernels.update(count, cols, 2)
    strips, splits = plan.grid
    each = kernels.update_rows(count, splits)
    wide, tall = min(256, cols), min(splits, 2) * each
    # As many parts as there are, of as many rows: the columns are fewer.
    found = asked(update_counts(tall, wide, None, each), 1, 2.0 * tall * wide)
    scaled = found.times(count * cols / (tall * wide))
    scaled.blocks = strips * splits
    return scaled


def update_counts(count: int, cols: int, text: Any = None, each: int = 0) -> Counts:
    """Of a launch for so many rows, `each` a part."""
    plan = kernels.update(count, cols, 2)
    each = each or kernels.update_rows(count, plan.grid[1])
    strips, splits = plan.grid[0], -(-count // each)
    kernel = CountedKernel("update", "ELEMENT=1", text=text, arch=ARCH)
    given = (
        *(*rows_of(count, cols), on_device(np.ones(count), np.float32)),
        *(on_device(np.ones(1), np.float32), on_device(np.ones(cols), np.float32)),
        *(each, empty(splits * cols), on_device(np.zeros(strips), np.uint32)),
    )
    names = [*HEAD, "factors", "carry", "w", "each", "parts", "tickets"]
    kernel((strips, splits), 256, given, shared=plan.shared, names=names)
    return kernel.counts


def tile(side: int, cols: int, diagonal: bool) -> Asked:
    """One tile of a Gram and one part of its columns."""
    return asked(tile_counts(side, cols, diagonal), 1, 0.0)


def tile_counts(side: int, cols: int, diagonal: bool, text: Any = None) -> Counts:
    """Of its launch."""
    build = build_of(f"gram-{side}", "bf16", ARCH)
    kernel = CountedKernel("gram", *build.defines, text=text, arch=ARCH)
    plan = kernels.launch_of(
        *(1, 2 * side, cols), tile=side, itemsize=2, splits=1, margins=False
    )
    numbers = on_device([0 if diagonal else 1 << 16], np.uint32)
    given = (
        *(*rows_of(2 * side, cols), numbers, 1, 1, plan.per_split, None),
        *(empty(side * side), c_void_p(0), empty(1), on_device([0], np.uint32)),
    )
    names = [*HEAD, "tiles", "n", "s", "p", "w", "G", "z", "room", "tickets"]
    kernel(1, plan.block, given, shared=plan.shared, names=names)
    return kernel.counts


def gram(count: int, cols: int, batch: int, sms: int) -> tuple[Asked, int, int]:
    """(tiles and margins of an exchange, parts of the columns, stages of a part)."""
    side = kernels.tile_for(count, cols)
    starts = np.arange(0, count + 1, batch)
    tiles = kernels.tiles_of(starts, side)[0]
    splits = kernels.splits_of(len(tiles), cols, side, 2, sms)
    each = kernels.per_split_of(splits, cols, side, 2)
    diagonal = int(np.sum(tiles >> 16 == tiles & 0xFFFF))
    parts = cols / each  # the last may be shorter
    own = tile(side, each, True).times(diagonal * parts)
    found = own.beside(tile(side, each, False).times((len(tiles) - diagonal) * parts))
    found.memory = 2.0 * count * cols
    if splits > 1:  # sums are written, and read again
        found.from_l2 += 4.0 * side * side * len(tiles) * splits
    found = found.beside(margin(count, cols))
    found.blocks = len(tiles) * splits
    return found, splits, each // kernels.step_of(side, 2)


def recurrence(sizes: tuple[int, ...], cluster: int = 1) -> Asked:
    """The steps of an exchange, without an intercept; with their chain."""
    counts = recurrence_counts(sizes, cluster, trace=True)
    found = asked(counts, cluster, 4.0 * sum(sizes) ** 2 / 2)
    threads = kernels.RECURRENCE_THREADS[cluster]
    found.chain = intervals(counts, threads, hits=served(counts))
    return found


def recurrence_counts(
    sizes: tuple[int, ...], cluster: int = 1, text: Any = None, trace: bool = False
) -> Counts:
    """Of its launch, for plain SGD and logistic regression."""
    given = exchange(np.random.default_rng(0), sizes, sides=frozenset())
    build = build_of(kernels.kernel_for("logistic", cluster), "fp32", ARCH)
    kernel = CountedKernel(
        build.source, *build.defines, text=text, arch=ARCH, trace=trace
    )
    shape = kernels.recurrence_launch(
        given.rows, max(sizes), given.states, cluster, ARCH
    )
    residuals, factors, intercept = results(given)
    side = kernels.tile_for(given.rows, 2000)
    arguments = (
        *(*in_tiles(given, side), given.z, given.targets, None, None, intercept),
        *(given.starts, len(sizes), given.states, given.read, *given.given.arrays),
        *(setting_of("logistic"), residuals, factors),
        kernels.recurrence_pitch_of(max(sizes)),
    )
    kernel(
        *(shape.grid, shape.block, arguments),
        **{"shared": shape.shared, "cluster": cluster},
    )
    return kernel.counts


def served(counts: Counts) -> list[int]:
    """Loads that mostly find what a warp of the block has read before."""
    rows = zip(counts.instructions, counts.table, strict=True)
    return [
        one.number
        for one, row in rows
        if one.opcode.startswith("ld.global") and row[5] and 8 * row[8] < row[5]
    ]


def direct_step(batch: int, cols: int, steps: int = 2) -> Asked:
    """One step of direct_steps in FP32, of some that are taken in one launch."""
    walk = walk_of(2 * batch, cols, (batch,) * steps, "fp32", bare=True)
    kernel = CountedKernel(
        *("direct_steps", *build_of("direct-steps-logistic", "fp32", ARCH).defines),
        arch=ARCH,
    )
    plan = kernels.direct_steps(cols, 4, batch, PROCESSORS)
    kernel(
        *(plan.grid, plan.block),
        (
            *(walk.matrix, c_longlong(walk.stride), walk.rows, *walk.given),
            *(*walk.state(), empty(kernels.direct_partials(plan, batch)), batch),
            *(kernels.direct_room(plan, 4, batch), 1),
            on_device([0, 0], np.uint32),
        ),
        **{"shared": plan.shared, "cluster": plan.grid[0]},
    )
    found = asked(kernel.counts, plan.grid[0] * steps, 4.0 * steps * batch * cols)
    one = found.times(1 / steps)
    one.blocks = plan.grid[0]
    return one

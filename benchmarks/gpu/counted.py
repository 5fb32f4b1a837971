"""Launches of the size of a target, as they are counted: on a processor, from PTX.

A launch whose blocks all do the same is counted for some of them and multiplied.
"""

from ctypes import c_longlong, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcsgd.backends import launch_gram, launch_recurrence, launch_steps
from hpcsgd.backends.kernel_table import build_of
from tests.kernels.emulator import empty, on_device
from tests.kernels.exchanges import exchange, in_tiles, results, setting_of
from tests.kernels.problems import numbers, stored
from tests.kernels.ptx.chain import FREE, Interval, intervals
from tests.kernels.ptx.counts import SECTOR, CountedKernel, Counts
from tests.kernels.walks import walk_of

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


def asked(counts: Counts, blocks: int, memory: float, *names: str) -> Asked:
    """Of a launch as it was counted; `names` are the arrays that matter."""
    table = zip(counts.instructions, counts.table, strict=True)
    issued = sum(int(row[0]) for one, row in table if not FREE.match(one.opcode))
    passes = counts.sum("passes") + counts.sum("passes", copied=True)
    return Asked(
        *(blocks, issued, passes, SECTOR * counts.sum("from_l2"), memory),
        flops=FLOPS * counts.sum("issued", "mma"),
        useful=counts.useful_share(*names) if names else 1.0,
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


def margin(count: int, cols: int, text: Any = None, some: int = 64) -> Asked:
    """z = Y w, from some of its rows."""
    some = min(some, count)
    kernel = CountedKernel("margin", "ELEMENT=1", text=text, arch=ARCH)
    weights = on_device(np.ones(cols), np.float32)
    given = (*rows_of(some, cols), weights, empty(some))
    kernel(-(-some // 8), 256, given, names=[*HEAD, "w", "z"])
    found = asked(kernel.counts, some // 8, 2.0 * some * cols, "matrix")
    return found.times(count / some)


def update(count: int, cols: int, text: Any = None, some: int = 256) -> Asked:
    """w = carry w + Yᵀ f, from one strip of columns, or some."""
    plan = launch_steps.update(count, cols, 2)
    strips, splits = plan.grid
    each = launch_steps.update_rows(count, splits)
    wide, tall = min(64 * some // 256 * 4, cols), min(each, 4096)
    kernel = CountedKernel("update", "ELEMENT=1", text=text, arch=ARCH)
    parts = min(splits, 2)
    given = (
        *(*rows_of(parts * tall, wide), on_device(np.ones(parts * tall), np.float32)),
        *(on_device(np.ones(1), np.float32), on_device(np.ones(wide), np.float32)),
        *(tall, empty(parts * wide), on_device(np.zeros(-(-wide // 64)), np.uint32)),
    )
    grid = (-(-wide // 64), parts)
    kernel(grid, 256, given, shared=plan.shared, names=[*HEAD, *"fcw", "n", "p", "t"])
    memory = 2.0 * parts * tall * wide
    found = asked(kernel.counts, grid[0] * parts, memory, "matrix")
    scaled = found.times(count * cols / (parts * tall * wide))
    scaled.blocks = strips * splits
    return scaled


def tile(side: int, cols: int, diagonal: bool, text: Any = None) -> Asked:
    """One tile of a Gram and one part of its columns."""
    build = build_of(f"gram-{side}", "bf16", ARCH)
    kernel = CountedKernel("gram", *build.defines, text=text, arch=ARCH)
    plan = launch_gram.launch_of(
        *(1, 2 * side, cols), tile=side, itemsize=2, splits=1, margins=False
    )
    numbers = on_device([0 if diagonal else 1 << 16], np.uint32)
    given = (
        *(*rows_of(2 * side, cols), numbers, 1, 1, plan.per_split, None),
        *(empty(side * side), c_void_p(0), empty(1), on_device([0], np.uint32)),
    )
    names = [*HEAD, "tiles", "n", "s", "p", "w", "G", "z", "room", "tickets"]
    kernel(1, plan.block, given, shared=plan.shared, names=names)
    return asked(kernel.counts, 1, 0.0, "matrix")


def gram(count: int, cols: int, batch: int, sms: int) -> tuple[Asked, int, int]:
    """(tiles and margins of an exchange, parts of the columns, stages of a part)."""
    side = launch_gram.tile_for(count, cols)
    starts = np.arange(0, count + 1, batch)
    tiles = launch_gram.tiles_of(starts, side)[0]
    splits = launch_gram.splits_of(len(tiles), cols, side, 2, sms)
    each = launch_gram.per_split_of(splits, cols, side, 2)
    diagonal = int(np.sum(tiles >> 16 == tiles & 0xFFFF))
    parts = cols / each  # the last may be shorter
    own = tile(side, each, True).times(diagonal * parts)
    found = own.beside(tile(side, each, False).times((len(tiles) - diagonal) * parts))
    found.memory = 2.0 * count * cols
    if splits > 1:  # sums are written, and read again
        found.from_l2 += 4.0 * side * side * len(tiles) * splits
    found = found.beside(margin(count, cols))
    found.blocks = len(tiles) * splits
    return found, splits, each // launch_gram.step_of(side, 2)


def recurrence(
    sizes: tuple[int, ...], cluster: int = 1, text: Any = None, states: str = "sgd"
) -> Asked:
    """The steps of an exchange, without an intercept; with their chain."""
    given = exchange(np.random.default_rng(0), sizes, states, sides=frozenset())
    build = build_of(launch_recurrence.kernel_for("logistic", cluster), "fp32", ARCH)
    kernel = CountedKernel(
        build.source, *build.defines, text=text, arch=ARCH, trace=True
    )
    shape = launch_recurrence.recurrence_launch(
        given.rows, max(sizes), given.states, cluster, ARCH
    )
    residuals, factors, intercept = results(given)
    side = launch_gram.tile_for(given.rows, 2000)
    arguments = (
        *(*in_tiles(given, side), given.z, given.targets, None, None, intercept),
        *(given.starts, len(sizes), given.states, given.read, *given.given.arrays),
        *(setting_of("logistic"), residuals, factors),
        launch_recurrence.pitch_of(max(sizes)),
    )
    kernel(
        *(shape.grid, shape.block, arguments),
        **{"shared": shape.shared, "cluster": cluster},
    )
    found = asked(kernel.counts, shape.grid, 4.0 * given.gram.size / 2, "0")
    found.chain = intervals(kernel.counts, shape.block, hits=served(kernel.counts))
    return found


def served(counts: Counts) -> list[int]:
    """Loads that mostly find what a warp of the block has read before."""
    rows = zip(counts.instructions, counts.table, strict=True)
    return [
        one.number
        for one, row in rows
        if one.opcode.startswith("ld.global") and row[5] and 8 * row[8] < row[5]
    ]


def direct_step(batch: int, cols: int, text: Any = None, steps: int = 2) -> Asked:
    """One step of direct_steps in FP32, of some that are taken in one launch."""
    walk = walk_of(2 * batch, cols, (batch,) * steps, "fp32", bare=True)
    kernel = CountedKernel(
        *("direct_steps", *build_of("direct-steps-logistic", "fp32", ARCH).defines),
        **{"text": text, "arch": ARCH},
    )
    plan = launch_steps.direct_steps(cols, 4, batch, PROCESSORS)
    kernel(
        *(plan.grid, plan.block),
        (
            *(walk.matrix, c_longlong(walk.stride), walk.rows, *walk.given),
            *(*walk.state(), empty(launch_steps.direct_partials(plan, batch)), batch),
            *(launch_steps.direct_room(plan, 4, batch), 1),
            on_device([0, 0], np.uint32),
        ),
        **{"shared": plan.shared, "cluster": plan.grid[0]},
    )
    found = asked(kernel.counts, plan.grid[0] * steps, 4.0 * steps * batch * cols)
    one = found.times(1 / steps)
    one.blocks = plan.grid[0]
    return one

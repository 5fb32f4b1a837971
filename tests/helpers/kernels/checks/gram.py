"""The gram kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong, c_void_p
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcsgd.backends.cuda.kernels import STAGES, launch_of, tiles_of
from tests.helpers.kernels.emulator import (
    SEEDS,
    Kernel,
    build,
    empty,
    library,
    on_device,
)
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.problems import numbers, stored

# (starts of batches and number of rows, columns, parts of the columns)
CASES = [
    ((0, 1), 1, 1),
    ((0, 7, 20), 37, 1),
    ((0, 33, 34, 100), 100, 2),
    ((0, 20, 20, 90, 170, 257), 520, 3),
    ((0, 50, 100), 520, 4),
]
FEW = (0, 3)  # seeds for what takes longer
FAULTS = {
    "no barrier before a stage": ("2>();\n        __syncthreads();", "2>();"),
    "a wait for one batch less": ("copy_wait<STAGES - 2>", "copy_wait<STAGES - 1>"),
    "a stage that is still read": ("step + STAGES - 1;", "step + STAGES;"),
    "lanes of the right fragment": (
        "across + (lane & 7) + (lane >> 4) * 8",
        "across + (lane & 15)",
    ),
    "halves of the right fragment": ("* 8, lane >> 3 & 1)", "* 8, lane >> 4)"),
    "halves of the left one swapped": ("15), lane >> 4)", "15), lane >> 4 ^ 1)"),
    "the first chunks of the left one": ("a_at ^ k * 16", "a_at"),
    "rows of the left one": ("+ i * 16 * CHUNKS * 16", "+ i * 8 * CHUNKS * 16"),
    "pieces of the right one": ("b[j / 2][j % 2 * 2]", "b[j % 2][j / 2 * 2]"),
    "a store without the XOR": (
        "chunk, place_of(first, chunk)}",
        "chunk, (first * CHUNKS + chunk) * 16}",
    ),
    "no XOR at all": ("chunk ^ (row * CHUNKS / 8 & (CHUNKS - 1))", "chunk"),
    "rows behind the last": ("row >= m && stage < STAGES", "false"),
    "rows behind the last, in one stage": ("stage < STAGES; stage", "stage < 1; stage"),
    "one row too many": ("is_there = row < m &&", "is_there = row <= m &&"),
    "columns behind the last": ("max(0, min(16, left))", "(left > 0 ? 16 : 0)"),
    "a whole stage too many": ("k + STEP <= end", "k + IN_CHUNK <= end"),
    "rows of the next stage": ("from[i] += CHUNKS", "from[i] += 2 * CHUNKS"),
    "the other side's rows on the diagonal": ("|| I != J)", "|| I == J)"),
    "margins: columns behind the last": ("if (k + i < cols)", "if (true)"),
    "margins: one row too many": ("if (row < m)", "if (row <= m)"),
    "one block too early": ("(u32)splits - 1u", "(u32)splits - 2u"),
    "a ticket that is kept": ("tickets[number] = 0;", "tickets[number] = splits;"),
    "a ticket before all have stored": (
        "    __threadfence();\n    __syncthreads();\n    if",
        "    __threadfence();\n    if",
    ),
    "a flag without a barrier": ("1u);\n    __syncthreads();", "1u);"),
    "the last part adds, not the last block": (
        "!is_last(tickets + number, splits, (u32 *)memory)",
        "(is_last(tickets + number, splits, (u32 *)memory), split != splits - 1)",
    ),
    "parts from the last to the first": ("part * apart", "(splits - part) * apart"),
    "one part is left out": ("part < splits; part++", "part < splits; part += 2"),
    "a part in another tile's place": ("split * apart + at", "split * TILE + at"),
    "rows of the sums swapped": ("half * 8) * TB", "(half ^ 1) * 8) * TB"),
    "columns of the sums": ("lane % 4 * 2;", "lane % 4;"),
    "the tile's mirror image": (
        "(i < EACH / 2 ? I : J - 1)",
        "(i < EACH / 2 ? J : I - 1)",
    ),
    "one side for all tiles": ("diagonal ? left :", "true ? left :"),
    "an old part of a stage": ("    clear(part);\n", "    part = sums;\n"),
    "tf32 cut off": ("to[q] = tf32_of_float(to[q]);", "to[q] &= 0xffffe000u;"),
}
PLAINLY = {
    "one by one: factors crossed": ("b[q], sums", "b[3 - q], sums"),
    "one by one: rows of a thread": ("(down + i * DOWN) * TB", "(down * 8 + i) * TB"),
    "one by one: a quarter of a chunk": ("chunk) + inside, b)", "chunk), b)"),
}
FAULTS |= PLAINLY
MUTANTS = [Mutant("gram", name, *change) for name, change in FAULTS.items()]


@dataclass
class Problem:
    """Rows of a matrix, on the device and exact."""

    matrix: Any
    item: int  # bytes
    stride: int
    rows: np.ndarray
    exact: np.ndarray
    weights: np.ndarray
    tiles: np.ndarray
    cols: int


def problem(name, tile, starts, cols):
    """One of some size, with the tiles that are read."""
    rng = np.random.default_rng(starts[-1] + cols)
    matrix, stride, exact = stored(rng, 60, cols, name, spare=3)
    rows, w = numbers(rng, 60, starts[-1]), on_device(rng.normal(size=cols), np.float32)
    tiles, _ = tiles_of(np.array(starts), tile)
    if starts[-1] == 1:
        tiles = np.zeros(1, np.uint32)  # read by nobody, and yet right
    item = matrix.dtype.itemsize
    return Problem(matrix, item, stride, rows, exact[rows], w, on_device(tiles), cols)


def multiply(
    kernel, given, tile, splits, seed=0, *, margins=True, times=1, workers=1, stages=3
):
    """(tiles, margins) of a launch; the tickets are as they were."""
    count, m = len(given.tiles), len(given.rows)
    sizes = {"tile": tile, "itemsize": given.item, "splits": splits}
    shape = launch_of(count, m, given.cols, **sizes, margins=margins)
    out = empty(shape.result + m)
    room, tickets = empty(max(1, shape.workspace)), on_device(np.zeros(count), "u4")
    arguments = (
        *(given.matrix, c_longlong(given.stride), given.rows, m, given.cols),
        *(given.tiles, count, splits, shape.per_split),
        *(given.weights if margins else None, out),
        *(c_void_p(out.ctypes.data + 4 * shape.result), room, tickets),
    )
    how = {"shared": shape.shared * stages // STAGES, "seed": seed, "workers": workers}
    for _ in range(times):
        kernel(shape.grid, shape.block, arguments, **how)
    assert not tickets.any(), "tickets are not ready for the next launch"
    return out[: shape.result].reshape(count, tile, tile), out[shape.result :]


def tf32(values):
    """To 11 bits, halves away from zero."""
    part, exponent = np.frexp(values)
    part = np.copysign(np.floor(np.abs(part) * 2048 + 0.5), part)
    return np.ldexp(part, exponent - 11)


def products(exact, tiles, tile):
    """The same tiles in float64, zeros behind the last row."""
    padded = np.zeros((-(-len(exact) // tile) * tile, exact.shape[1]))
    padded[: len(exact)] = exact
    parts = padded.reshape(-1, tile, exact.shape[1])
    return np.stack([parts[t >> 16] @ parts[t & 0xFFFF].T for t in map(int, tiles)])


def allowed(kernel, defines, given):
    """Of the sum of absolute values.

    Tensor cores of a GPU cut off what is rounded here, for each 32 bytes of a row.
    """
    products = 0 if "FFMA=1" in defines else -(-given.cols * given.item // 32)
    return 4e-7 + getattr(kernel, "cut_off", 0.0) * products


def agrees(name, tile, defines, case, text=None, seeds=SEEDS):
    """With float64, and with itself under any order of warps."""
    starts, cols, splits = case
    kernel = Kernel("gram", *defines, text=text)
    given = problem(name, tile, starts, cols)
    found = [multiply(kernel, given, tile, splits, seed) for seed in seeds]
    exact = tf32(given.exact) if "TF32=1" in defines else given.exact
    wanted = products(exact, given.tiles, tile)
    size = products(np.abs(exact), given.tiles, tile)
    G, z = found[0]
    within = allowed(kernel, defines, given)
    assert (np.abs(G - wanted) <= within * size).all(), "tiles"
    w = given.weights.astype(np.float64)
    size = np.abs(given.exact) @ np.abs(w)
    assert (np.abs(z - given.exact @ w) <= 4e-7 * size + 1e-30).all(), "margins"
    for other in found[1:]:
        np.testing.assert_array_equal(other[0], G)
        np.testing.assert_array_equal(other[1], z)


PLAIN = ("ELEMENT=1", "TB=64")
PARTS = ("bf16", 64, (0, 30, 80), 250)  # four parts of one stage each


def in_order(text=None):
    """The sum of parts that were made alone, in ascending order, whoever comes last."""
    kernel, given = Kernel("gram", *PLAIN, text=text), problem(*PARTS)
    total = 0.0
    for first in range(0, 250, 64):
        at = c_void_p(given.matrix.ctypes.data + 2 * first)
        part = replace(given, matrix=at, cols=min(64, 250 - first))
        total = total + multiply(kernel, part, 64, 1, margins=False)[0]
    backwards = Kernel("gram", *PLAIN, "LAST_BLOCK_FIRST", text=text)
    for one in (kernel, backwards):
        for seed in SEEDS:
            np.testing.assert_array_equal(multiply(one, given, 64, 4, seed)[0], total)


def without_conflicts(*defines, text=None):
    """No bank of shared memory is asked twice by the rows of one ldmatrix."""
    kernel = Kernel("gram", *defines, text=text)
    count = library(build("gram", defines, text)).bank_conflicts
    count()
    tile = int(defines[1].removeprefix("TB="))
    multiply(kernel, problem("bf16", tile, *CASES[2][:2]), tile, 1)
    assert count() == 0


def check(text):
    """What mutants have to fail."""
    for case in CASES[1:4]:
        agrees("bf16", 64, PLAIN, case, text)
    agrees("bf16", 128, ("ELEMENT=1", "TB=128"), CASES[2], text, FEW)
    agrees("bf16", 64, (*PLAIN, "FFMA=1"), CASES[2], text, FEW)
    agrees("fp32", 64, ("ELEMENT=3", "TB=64", "TF32=1"), CASES[2], text, FEW)
    agrees("fp8-e4m3", 64, ("ELEMENT=4", "TB=64"), CASES[4], text, FEW)
    in_order(text)
    without_conflicts(*PLAIN, text=text)


def repeated_launches_agree():
    kernel, given = Kernel("gram", *PLAIN), problem(*PARTS)
    once = multiply(kernel, given, 64, 4)
    again = multiply(kernel, given, 64, 4, seed=5, times=3, workers=3)
    for before, after in zip(once, again, strict=True):
        np.testing.assert_array_equal(before, after)


def margins_need_no_tiles():
    given = problem("bf16", 64, (0, 50), 100)
    tiles, margins = multiply(Kernel("gram", *PLAIN), given, 64, 1)
    assert len(tiles) == 0 and not np.isnan(margins).any()


def any_number_of_stages_agrees(stages):
    given = problem("bf16", 64, (0, 30, 80), 520)
    before = multiply(Kernel("gram", *PLAIN), given, 64, 1)[0]
    kernel = Kernel("gram", *PLAIN, f"STAGES={stages}")
    for seed in FEW:
        found = multiply(kernel, given, 64, 1, seed, stages=stages)[0]
        np.testing.assert_array_equal(found, before)

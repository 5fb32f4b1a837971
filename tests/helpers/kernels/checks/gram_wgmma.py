"""The gram wgmma kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_char_p, c_longlong, c_void_p
from dataclasses import replace

import numpy as np

from hpcsgd.backends.cuda.kernels import ELEMENTS, wgmma_launch_of
from tests.helpers.kernels.checks.gram import problem, products
from tests.helpers.kernels.emulator import (
    SEEDS,
    Kernel,
    build,
    empty,
    library,
    on_device,
)
from tests.helpers.kernels.gram_wgmma_faults import FAULTS
from tests.helpers.kernels.mutants import Mutant

TILE = 128
# (starts of batches and number of rows, columns, processors); pairs with a diagonal and
# without, tiles alone, lines that are cut within pairs, at odd places, and nowhere.
CASES = [
    ((0, 1), 1, 1),
    ((0, 60, 150, 200), 100, 1),
    ((0, 100, 200, 300), 520, 7),
    ((0, 150, 290, 400), 200, 5),
    ((0, 200, 257), 130, 2),
]
FEW = (0, 3)
MUTANTS = [Mutant("gram_wgmma", name, *change) for name, change in FAULTS.items()]


def said(*defines, text=None):
    """The first rule of wgmma that was broken since somebody asked."""
    ask = library(build("gram_wgmma", defines, text)).wgmma_said
    ask.restype = c_char_p
    return ask()


def multiply(
    kernel,
    given,
    sms,
    seed=0,
    *,
    margins=True,
    times=1,
    workers=1,
    each=0,
    beside=False,
):
    """(tiles, margins) of a launch; the tickets are as they were.

    `each` tile-stages by each of `sms` blocks; `beside`: they take turns.
    """
    count, m = len(given.tiles), len(given.rows)
    sizes = {"itemsize": given.item, "sms": sms, "margins": margins}
    shape = wgmma_launch_of(count, m, given.cols, **sizes)
    if each:
        shape = cut(shape, each, sms)
    out = empty(shape.result + m)
    room, tickets = empty(max(1, shape.workspace)), on_device(np.zeros(count), "u4")
    arguments = (
        *(given.matrix, c_longlong(given.stride), given.rows, m, given.cols),
        *(given.tiles, count, shape.splits, shape.per_split),
        *(given.weights if margins else None, out),
        *(c_void_p(out.ctypes.data + 4 * shape.result), room, tickets),
    )
    how = {"shared": shape.shared, "seed": seed, "workers": workers}
    how["cluster"] = shape.grid if beside else 1
    for _ in range(times):
        kernel(shape.grid, shape.block, arguments, **how)
    assert not tickets.any(), "tickets are not ready for the next launch"
    return out[: shape.result].reshape(count, TILE, TILE), out[shape.result :]


def cut(shape, each, workers):
    """The same work by so many blocks."""
    grid, words = shape.grid - shape.splits + workers, 2 * TILE * TILE
    room = {"grid": grid, "workspace": workers * words}
    return replace(shape, splits=workers, per_split=each, **room)


def agrees(name, case, text=None, seeds=SEEDS):
    """With float64, and with itself under any order of warps."""
    starts, cols, sms = case
    defines = (f"ELEMENT={ELEMENTS[name]}",)
    kernel = Kernel("gram_wgmma", *defines, text=text)
    given = problem(name, TILE, starts, cols)
    found = [multiply(kernel, given, sms, seed) for seed in seeds]
    wanted = products(given.exact, given.tiles, TILE)
    size = products(np.abs(given.exact), given.tiles, TILE)
    G, z = found[0]
    assert (np.abs(G - wanted) <= 2e-6 * size).all(), "tiles"
    w = given.weights.astype(np.float64)
    size = np.abs(given.exact) @ np.abs(w)
    assert (np.abs(z - given.exact @ w) <= 4e-7 * size + 1e-30).all(), "margins"
    for other in found[1:]:
        np.testing.assert_array_equal(other[0], G)
        np.testing.assert_array_equal(other[1], z)


def breaks_no_rule(text=None):
    """Where a wrong order would give right sums by chance, it is said all the same."""
    assert said("ELEMENT=1", text=text) is None


LINE = ("bf16", TILE, (0, 60, 150, 200), 500)  # a tile and a pair, of 8 stages each


def in_order(text=None):
    """The sum of parts that were made alone, in ascending order, whoever comes last."""
    kernel, given = Kernel("gram_wgmma", "ELEMENT=1", text=text), problem(*LINE)
    each, item = 5, given.item  # 5 and 3 stages of the tile, 1, 3, 2, 2 of the pair
    total = {}
    for tiles, cuts in ((slice(0, 1), (0, 5, 8)), (slice(1, 3), (0, 1, 4, 6, 8))):
        total[tiles.start] = 0.0
        for first, last in zip(cuts, cuts[1:], strict=False):
            at = c_void_p(given.matrix.ctypes.data + item * 64 * first)
            cols = min(64 * last, given.cols) - 64 * first
            some = on_device(given.tiles[tiles])
            alone = replace(given, matrix=at, cols=cols, tiles=some)
            part = multiply(kernel, alone, 1, margins=False, each=99)[0]
            total[tiles.start] = total[tiles.start] + part
    wanted = np.concatenate([total[0], total[1]])
    backwards = Kernel("gram_wgmma", "ELEMENT=1", "LAST_BLOCK_FIRST", text=text)
    for one in (kernel, backwards):
        for seed in FEW:
            found = multiply(one, given, 5, seed, margins=False, each=each)[0]
            np.testing.assert_array_equal(found, wanted)


SIDE_BY_SIDE = (1, 13)  # 13: a block comes last while warps of another have not stored


def whoever_comes_last(text=None):
    """Finds what all others have left, where blocks take turns."""
    kernel, given = Kernel("gram_wgmma", "ELEMENT=1", text=text), problem(*LINE)
    how = {"margins": False, "each": 2}
    wanted = multiply(kernel, given, 12, **how)[0]
    for seed in SIDE_BY_SIDE:
        found = multiply(kernel, given, 12, seed, beside=True, **how)[0]
        np.testing.assert_array_equal(found, wanted)


def nothing_left(text=None):
    """A block may begin with half a stage of a pair, which the one before has made."""
    kernel = Kernel("gram_wgmma", "ELEMENT=1", text=text)
    given = problem("bf16", TILE, (0, 60, 150, 200), 320)  # 5 stages: 5 and 10
    whole = multiply(kernel, given, 1, margins=False)[0]
    found = multiply(kernel, given, 3, margins=False, each=7)[0]
    assert np.abs(found - whole).max() <= 1e-5 * np.abs(whole).max()


def check(text):
    """What mutants have to fail."""
    for case in CASES[1:]:
        agrees("bf16", case, text, FEW)
    in_order(text)
    whoever_comes_last(text)
    nothing_left(text)
    breaks_no_rule(text)


def repeated_launches_agree():
    kernel, given = Kernel("gram_wgmma", "ELEMENT=1"), problem(*LINE)
    once = multiply(kernel, given, 5)
    again = multiply(kernel, given, 5, seed=5, times=3, workers=3)
    for before, after in zip(once, again, strict=True):
        np.testing.assert_array_equal(before, after)

"""The recurrence kernel beside float64: sizes, checks and planted faults."""

import numpy as np

from hpcsgd.backends.cuda import kernels as launch
from hpcsgd.backends.cuda.kernels import CLUSTER, build_of
from tests.helpers.kernels.emulator import SEEDS, Kernel
from tests.helpers.kernels.exchanges import (
    SIDES,
    TILE,
    agree,
    exchange,
    in_tiles,
    results,
    setting_of,
)
from tests.helpers.kernels.mutants import Mutant

ARCH = "90"
RAGGED = (5, 32, 1, 7, 0, 30, 13, 2, 11)
LONG = (1100, 20)  # a batch of more rows than a block has threads
# More rows in a batch than are under way at once, and behind it.
TALL = {1: (5, 150, 3, 530), CLUSTER: (6, 270, 40)}
NO_START = SIDES - {"intercept"}  # residuals without a barrier before them
SIZES = [(1,), (1,) * 9, (5,) * 4, (32,) * 5, RAGGED, (150, 40), LONG]
MUTANTS = [
    Mutant("recurrence", name, before, after)
    for name, before, after in (
        (
            "no barrier after the next batch's part",
            "            __syncthreads();\n        }\n        if (j == steps)",
            "        }\n        if (j == steps)",
        ),
        ("two buffers for three", "#define BUFFERS 3", "#define BUFFERS 2"),
        ("nothing waits for the cluster", "    cluster_wait();\n", ""),
        (
            "no wait for what others tell",
            "        wait();\n        before",
            "#if NC == 1\n        wait();\n#endif\n        before",
        ),
        ("no barrier at the end of a step", "#else\n    __syncthreads();", "#else"),
        (
            "the last block is not told",
            "    cluster_store(at, (u32)part",
            "    if (part < 7) cluster_store(at, (u32)part",
        ),
        ("couple of step 0", "ahead.own + from)", "ahead.own)"),
        (
            "couple of step 0 behind the first rows",
            "batch_of[kept], from)",
            "batch_of[kept], 0)",
        ),
        ("couple of another row", "in.batch_of[own], 0", "in.batch_of[base], 0"),
        ("lead of another state", "lead[j * read + a]", "lead[j * read]"),
        ("lead of another step", "lead[j * read + a]", "lead[a]"),
        ("gain of another step", "gain[j * states + a]", "gain[a]"),
        ("the intercept stays", "if (is_last_warp)", "if (false)"),
        ("free of the next step", "carry + (j - 1) * states", "carry + j * states"),
        ("push of the first step", "push + (j - 1) * states", "push"),
        ("the intercept's sum begins late", "place_in(before, before)", "0"),
        ("no offset", "offsets ? offsets[row] : 0.0f", "0.0f"),
        ("no sample weight", "            r *= at.weight;\n", ""),
        (
            "a batch's last row",
            "first && col + c < last",
            "first && col + c + 1 < last",
        ),
        ("columns behind a batch", "col + 4 <= last", "col + 3 <= last"),
        ("what is beside a batch", "(col + c >= first &&", "("),
        ("the row below", "(u32)(i * APART) <<", "(u32)(i * APART + 1) <<"),
        (
            "the first of the later rows",
            "known, end, own_rows",
            "known, end + 1, own_rows",
        ),
        ("four lanes of eight", "left = AT_ONCE; mask;", "left = AT_ONCE; mask > 1;"),
        ("every other 32 columns", "col < last; col += 32", "col < last; col += 64"),
        (
            "sides of the first rows",
            "row_of(max(following, end), rank)",
            "row_of(low, rank)",
        ),
        (
            "rows of block 0",
            "own_below(starts[steps], rank)",
            "own_below(starts[steps], 7)",
        ),
    )
]


def check(text):
    """What mutants have to fail."""
    for cluster in (1, CLUSTER):
        for sizes in (RAGGED, (33,) * 6):
            agrees("logistic", sizes, "three", SIDES, cluster, text=text)
    agrees("logistic", LONG, "sgd", SIDES, seeds=(1,), text=text)
    for cluster, sizes in TALL.items():
        agrees("logistic", sizes, "sgd", NO_START, cluster, seeds=(1,), text=text)
    for seeds in ((1, 2, 3), (4, 5, 6)):
        agrees("logistic", (33,) * 6, "sgd", NO_START, CLUSTER, seeds, text)


def agrees(
    family,
    sizes,
    update,
    sides,
    cluster=1,
    seeds=SEEDS,
    text=None,
    tile=TILE,
    read=None,
):
    """With float64, and with itself under any order of warps."""
    rng = np.random.default_rng(sum(sizes))
    given = exchange(rng, sizes, update, family, sides, read=read)
    found = [run(given, family, cluster, seed, text, tile) for seed in seeds]
    for one in found:
        agree(one, given, family)
        for left, right in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(left, right)
    return found[0]


def run(given, family, cluster, seed, text=None, tile=TILE):
    """(residuals, factors, intercept) of one launch."""
    build = build_of(launch.kernel_for(family, cluster), "fp32", ARCH)
    kernel = Kernel(build.source, *build.defines, text=text)
    batch = int(np.diff(given.starts).max())
    shape = launch.recurrence_launch(given.rows, batch, given.states, cluster, ARCH)
    residuals, factors, intercept = found = results(given)
    arguments = (
        *(*in_tiles(given, tile), given.z, given.targets, given.weights, given.offsets),
        *(intercept, given.starts, len(given.starts) - 1, given.states, given.read),
        *(*given.given.arrays, setting_of(family)),
        *(residuals, factors, launch.recurrence_pitch_of(batch)),
    )
    kernel(
        *(shape.grid, shape.block, arguments),
        **{"shared": shape.shared, "cluster": cluster, "seed": seed},
    )
    return found

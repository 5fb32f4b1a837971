"""The s steps of an exchange: every family and update, batches that do not divide."""

import numpy as np
import pytest

from hpcsgd.backends import launch_recurrence as launch
from hpcsgd.backends.kernel_table import CLUSTER, FAMILIES, build_of
from hpcsgd.errors import ConfigError
from hpcsgd.families import get_family
from tests.kernels.emulator import SEEDS, Kernel, empty, on_device
from tests.kernels.exchanges import (
    SIDES,
    TILE,
    UPDATES,
    agree,
    exchange,
    in_tiles,
    results,
    setting_of,
)
from tests.kernels.mutants import Mutant

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
TARGETS = {
    **{"binary": (0, 1), "signed": (-1, 1), "counts": (0, 3)},
    **{"positive": (0.5, 2), "real": (-1.5, 0.25)},
}
# Every family's residual in one text.
RESIDUALS = """
#include "families.cuh"
extern "C" __global__ void
residuals(int family, int count, const float *t, const float *y, float bound, float *r)
{
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        switch (family) {
#define CASE(NUMBER) case NUMBER: r[i] = residual_of<NUMBER>(t[i], y[i], bound); break;
            CASE(0) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
        }
}
LAUNCHABLE(residuals)
"""


def test_updates_sizes_and_sides():
    """Every size with every update, and each side left out once."""
    sides = [SIDES, SIDES - {"weights"}, SIDES - {"offsets"}, NO_START, ()]
    for case, sizes in enumerate(SIZES):
        for turn, update in enumerate(UPDATES):
            agrees("logistic", sizes, update, sides[(case + turn) % 5], seeds=(3,))


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family):
    agrees(family, RAGGED, "momentum", SIDES, seeds=(1,))


def test_margins_of_one_point_of_all_states():
    agrees("logistic", (7, 9), "nesterov", SIDES, seeds=(1,), read=1)


def test_a_cluster_has_the_bits_of_one_block():
    for sizes, update in ((RAGGED, "momentum"), ((40, 3, 64, 9), "sgd")):
        one = agrees("logistic", sizes, update, SIDES, seeds=(2,))
        many = agrees("logistic", sizes, update, SIDES, CLUSTER, seeds=(0, 1, 2))
        for left, right in zip(one, many, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("cluster", [1, CLUSTER])
@pytest.mark.parametrize("sides", [SIDES, NO_START], ids=len)
def test_later_batches_of_more_rows_than_are_under_way(sides, cluster):
    agrees("logistic", TALL[cluster], "sgd", sides, cluster, seeds=(1, 2))


def test_larger_tiles():
    agrees("logistic", (70, 70, 70), "nesterov", SIDES, CLUSTER, seeds=(1,), tile=128)


def test_any_order_of_warps_has_the_same_bits():
    agrees("logistic", (40,) * 4, "nesterov", SIDES, seeds=SEEDS)


def test_residuals_of_every_family_in_both_tails():
    """Those of the NumPy twins, in float64 with the bounds of float32."""
    t = on_device(np.linspace(-30, 30, 1537), np.float32)
    for family, number in FAMILIES.items():
        for target in TARGETS[get_family(family).targets]:
            y, r = on_device(np.full(t.shape, target), np.float32), empty(t.shape)
            kernel = Kernel("residuals", text=RESIDUALS)
            kernel(1, 64, (number, len(t), t, y, setting_of(family), r))
            exact = get_family(family).residual(t.astype("f8"), y.astype("f8"))
            np.testing.assert_allclose(r, exact, rtol=2e-6, atol=2e-7, err_msg=family)


def test_residuals_that_are_no_numbers_or_beyond_all_bounds():
    """Scores that are none stay none; infinite ones have the residual of their side."""
    t = on_device([np.nan, -np.inf, np.inf, 50.0, -50.0], np.float32)
    kernel, y = Kernel("residuals", text=RESIDUALS), on_device(np.ones(5), np.float32)
    for family, number in FAMILIES.items():
        r = empty(5)
        kernel(1, 64, (number, 5, t, y, setting_of(family), r))
        with np.errstate(all="ignore"):
            wanted = get_family(family).residual(t.copy(), y)
        assert np.isnan(r[0]), family
        np.testing.assert_allclose(r[1:], wanted[1:], rtol=2e-5, atol=1e-7)


def test_shapes_of_launches():
    one = launch.recurrence_launch(8192, 256, 4, 1, "75")
    assert (one.grid, one.block) == (1, 512) and one.shared <= 64 * 1024
    many = launch.recurrence_launch(8192, 256, 4, CLUSTER, "90a")
    assert (many.grid, many.block) == (CLUSTER, 256) and many.shared < one.shared
    assert launch.softmax_launch(512, 2) == launch.Launch(1, 1024, 1024)
    assert [launch.cluster_for(1024, arch) for arch in ("89", "90a", "120")] == [
        1,
        8,
        8,
    ]
    assert launch.cluster_for(1023, "90") == 1
    assert [launch.pitch_of(batch) for batch in (0, 1, 2, 5, 32)] == [4, 4, 8, 8, 36]


@pytest.mark.parametrize(
    "rows, batch, states, remedy",
    [
        (8193, 32, 1, "lower .schedule. batch or steps"),
        (8192, 8192, 1, "shared memory of 65536 on sm_75; lower .schedule. batch"),
        (64, 32, 5, "1 to 4; use --device cpu"),
    ],
)
def test_what_does_not_fit_is_refused(rows, batch, states, remedy):
    with pytest.raises(ConfigError, match=remedy):
        launch.recurrence_launch(rows, batch, states, 1, "75")


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
        *(residuals, factors, launch.pitch_of(batch)),
    )
    kernel(
        *(shape.grid, shape.block, arguments),
        **{"shared": shape.shared, "cluster": cluster, "seed": seed},
    )
    return found


@pytest.mark.parametrize(
    "arch, kib", [("90", 227), ("87", 99), ("103", 227), ("60", 96)]
)
def test_a_gpu_that_is_not_listed_has_the_shared_memory_of_an_older_one(arch, kib):
    assert launch.shared_of(arch) == 1024 * kib

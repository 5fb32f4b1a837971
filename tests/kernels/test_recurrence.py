"""The s steps of an exchange: every family and update, batches that do not divide."""

import numpy as np
import pytest

from hpcsgd.backends.cuda import kernels as launch
from hpcsgd.backends.cuda.kernels import CLUSTER, FAMILIES
from hpcsgd.errors import ConfigError
from hpcsgd.glm import get_family
from tests.helpers.kernels.checks.recurrence import (
    NO_START,
    RAGGED,
    SIZES,
    TALL,
    agrees,
)
from tests.helpers.kernels.emulator import SEEDS, Kernel, empty, on_device
from tests.helpers.kernels.exchanges import (
    SIDES,
    UPDATES,
    setting_of,
)

TARGETS = {
    **{"binary": (0, 1), "signed": (-1, 1), "counts": (0, 3)},
    **{"positive": (0.5, 2), "real": (-1.5, 0.25)},
    **{"nonnegative": (0, 2.5), "proportions": (0, 0.4, 1)},
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
            CASE(7) CASE(8)
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


@pytest.mark.cases(2)
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
    assert launch.softmax_launch(512, 2) == launch.RecurrenceLaunch(1, 1024, 1024)
    assert [launch.cluster_for(1024, arch) for arch in ("89", "90a", "120")] == [
        1,
        8,
        8,
    ]
    assert launch.cluster_for(1023, "90") == 1
    assert [launch.recurrence_pitch_of(batch) for batch in (0, 1, 2, 5, 32)] == [
        4,
        4,
        8,
        8,
        36,
    ]


@pytest.mark.parametrize(
    "rows, batch, states, remedy",
    [
        (8193, 32, 1, "lower .schedule. batch or steps"),
        (8192, 8192, 1, "a GPU of sm_75 has 65536; lower .schedule. batch"),
        (64, 32, 5, "1 to 4; use --device cpu"),
    ],
)
def test_what_does_not_fit_is_refused(rows, batch, states, remedy):
    with pytest.raises(ConfigError, match=remedy):
        launch.recurrence_launch(rows, batch, states, 1, "75")


@pytest.mark.parametrize(
    "arch, kib", [("90", 227), ("87", 99), ("103", 227), ("60", 96)]
)
def test_a_gpu_that_is_not_listed_has_the_shared_memory_of_an_older_one(arch, kib):
    assert launch.shared_of(arch) == 1024 * kib

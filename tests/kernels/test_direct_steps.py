"""Plain steps in one launch: blocks that meet, every family, a launch again."""

import numpy as np
import pytest

from hpcsgd.backends.cuda import kernels
from tests.helpers.kernels.checks.direct_steps import (
    SIZES,
    check,
    kept_rows_agree,
    launched,
    launches_agree,
)
from tests.helpers.kernels.emulator import source_of
from tests.helpers.kernels.walks import PAIRS, walk_of


@pytest.mark.cases(2)
@pytest.mark.parametrize("name, family", PAIRS)
@pytest.mark.parametrize("sizes", SIZES)
def test_steps_are_those_of_float64(name, family, sizes):
    launches_agree(walk_of(*sizes, name, family), name)


@pytest.mark.cases(2)
@pytest.mark.parametrize("name, family", PAIRS)
def test_nothing_more_has_to_be_given(name, family):
    walk = walk_of(40, 100, (5, 8, 8), name, family, bare=True)
    launches_agree(walk, name, seeds=(1,))


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("room", [0, 1, 3])
def test_what_is_kept_is_what_is_in_memory(room, ahead):
    kept_rows_agree(room, ahead)


def test_margins_may_be_rounded():
    walk = walk_of(40, 100, (5,), "fp32", "gaussian", bare=True)
    (found,) = launched(walk, "fp32", seeds=(0,), rounds=1)
    t = (found[2] + walk.extras[0]).view(np.float32)
    exact = walk.exact @ walk.before
    assert np.abs(t - exact).max() > 1e-4
    assert (np.abs(t - exact) <= 2.0**-8 * np.abs(exact)).all()


def test_blocks_are_as_many_as_there_is_work_for():
    assert kernels.direct_steps(100, 2, 8, 132).grid == (2,)
    assert kernels.direct_steps(10**6, 2, 8, 132).grid == (132,)


def test_faults_are_told_from_the_kernel():
    """What mutants have to fail, the kernel passes."""
    check(source_of("direct_steps"))

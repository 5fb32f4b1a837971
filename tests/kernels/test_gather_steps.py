"""Plain steps on gathered rows by one block: every format and family."""

import pytest

from tests.helpers.kernels.checks.gather_steps import SIZES, check, launches_agree
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


def test_faults_are_told_from_the_kernel():
    """What mutants have to fail, the kernel passes."""
    check(source_of("gather_steps"))

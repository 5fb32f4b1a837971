"""Z = Y W and W = W carryᵀ + Yᵀ F: every format, any number of columns, one order."""

import pytest

from hpcsgd.backends.cuda.kernels import ELEMENTS
from tests.helpers.kernels.checks.columns import MOST, SIZES, agrees, check
from tests.helpers.kernels.emulator import source_of


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("sizes", [*SIZES, MOST])
def test_columns_are_those_of_float64(name, sizes):
    agrees(name, *sizes)


def test_faults_are_told_from_the_kernel():
    """What mutants have to fail, the kernel passes."""
    check(source_of("columns"))

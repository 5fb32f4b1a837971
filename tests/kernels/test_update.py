"""w = carry w + Yᵀ f: every format, sizes that do not divide, one order."""

import pytest

from hpcsgd.backends.cuda import kernels
from tests.helpers.kernels.checks.update import SIZES, agrees
from tests.helpers.kernels.problems import ELEMENTS


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("n, d, m", SIZES)
def test_updates_are_those_of_float64(name, n, d, m):
    agrees(name, n, d, m)


@pytest.mark.parametrize(
    "count, cols, strips, splits",
    [(512, 2000, 32, 4), (65536, 2000, 32, 16), (4096, 65536, 1024, 1), (1, 9, 1, 1)],
)
def test_there_are_blocks_enough_for_all_processors(count, cols, strips, splits):
    assert kernels.update(count, cols, 2).grid == (strips, splits)
    each = kernels.update_rows(count, splits)
    assert (splits - 1) * each < count <= splits * each

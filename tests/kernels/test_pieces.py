"""Rows between members: without gaps to be sent, then side by side with all others'."""

import pytest

from hpcsgd.backends.cuda.kernels import ELEMENTS
from tests.helpers.kernels.checks.pieces import SIZES, check, rows_agree
from tests.helpers.kernels.emulator import source_of


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("sizes", SIZES)
def test_rows_are_those_of_all_members(name, sizes):
    rows_agree(*sizes, name)


def test_faults_are_told_from_the_kernel():
    """What mutants have to fail, the kernel passes."""
    check(source_of("pieces"))

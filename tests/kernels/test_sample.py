"""The rows of one exchange after another, from one order."""

import pytest

from tests.helpers.kernels.checks.sample import agrees


@pytest.mark.parametrize("sides", [True, False])
def test_rows_follow_one_another(sides):
    agrees(sides)

"""Values rounded in place: bit for bit what a format stores."""

import pytest

from tests.helpers.kernels.checks.round import agrees


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_rounding_is_that_of_the_host(name):
    agrees(name)

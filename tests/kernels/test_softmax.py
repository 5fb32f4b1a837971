"""The s steps of softmax: K scores a row, every update, batches that do not divide."""

import pytest

from tests.helpers.kernels.checks.softmax import SIZES, agrees
from tests.helpers.kernels.exchanges import (
    SIDES,
    UPDATES,
)

CLASSES = (3, 10, 2, 40, 1)


@pytest.mark.parametrize("classes, sizes", list(zip(CLASSES, SIZES, strict=True)))
def test_residuals_are_those_of_float64(classes, sizes):
    """Every size with every update, and each side left out once."""
    sides = [SIDES, SIDES - {"weights"}, SIDES - {"offsets"}, SIDES - {"intercept"}, ()]
    for turn, update in enumerate(UPDATES):
        agrees(sizes, classes, update, sides[(classes + turn) % 5], seeds=(turn,))


def test_any_order_of_warps_has_the_same_bits():
    agrees((33,) * 3, 5, "nesterov", SIDES)


def test_margins_of_one_point_of_all_states():
    agrees((7, 9), 3, "nesterov", SIDES, seeds=(1,), read=1)


def test_scores_beyond_what_an_exponential_holds():
    agrees((7, 8, 9), 4, "sgd", SIDES, scale=200.0)

"""Tiles by warpgroups: against float64, themselves, and parts made alone."""

from ctypes import c_longlong

import numpy as np
import pytest

from tests.helpers.kernels.checks.gram import problem
from tests.helpers.kernels.checks.gram_wgmma import (
    CASES,
    FEW,
    LINE,
    TILE,
    agrees,
    breaks_no_rule,
    in_order,
    multiply,
    nothing_left,
    repeated_launches_agree,
    whoever_comes_last,
)
from tests.helpers.kernels.emulator import (
    SEEDS,
    Kernel,
    empty,
)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_products_are_those_of_float64(name, case):
    agrees(name, case, seeds=SEEDS if name == "bf16" else FEW)
    breaks_no_rule()


def test_parts_are_added_in_ascending_order():
    in_order()


def test_the_last_block_finds_what_all_have_left():
    whoever_comes_last()


def test_a_part_may_have_no_stages():
    nothing_left()


def test_a_launch_can_be_repeated():
    repeated_launches_agree()


@pytest.mark.parametrize("each", [2, 3, 7, 24, 100])
def test_a_line_is_cut_anywhere(each):
    """Every stage has one part: blocks of any length give the tiles of one block."""
    kernel, given = Kernel("gram_wgmma", "ELEMENT=1"), problem(*LINE)
    whole = multiply(kernel, given, 1, margins=False)[0]
    workers = -(-3 * 8 // each)
    found = multiply(kernel, given, workers, margins=False, each=each)[0]
    assert np.abs(found - whole).max() <= 1e-5 * np.abs(whole).max()


@pytest.mark.parametrize("cols", [8, 300, 1100, 2500])
def test_margins_are_those_of_their_own_kernel(cols):
    """Bit for bit: less than a chunk of a warp, some, and whole rounds of them."""
    given = problem("bf16", TILE, (0, 7, 20), cols)
    kernel = Kernel("gram_wgmma", "ELEMENT=1")
    other, z = Kernel("margin", "ELEMENT=1"), empty(20)
    arguments = (given.matrix, c_longlong(given.stride), given.rows, 20, cols)
    other(3, 256, (*arguments, given.weights, z))
    np.testing.assert_array_equal(multiply(kernel, given, 1)[1], z)


def test_margins_are_left_out():
    kernel, given = Kernel("gram_wgmma", "ELEMENT=1"), problem(*LINE)
    tiles, margins = multiply(kernel, given, 2, margins=False)
    assert not np.isnan(tiles).any() and np.isnan(margins).all()

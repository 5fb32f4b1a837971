"""Tiles of Y Yᵀ, and z = Y w: every format, way and size of tiles, ragged batches."""

from ctypes import c_longlong

import numpy as np
import pytest

from hpcsgd.backends.cuda.kernels import build_of
from tests.helpers.kernels.checks.gram import (
    CASES,
    FEW,
    PARTS,
    PLAIN,
    agrees,
    any_number_of_stages_agrees,
    in_order,
    margins_need_no_tiles,
    multiply,
    problem,
    repeated_launches_agree,
    without_conflicts,
)
from tests.helpers.kernels.emulator import (
    SEEDS,
    Kernel,
    empty,
)
from tests.helpers.kernels.problems import ELEMENTS


def ways():
    """(name of the matrix's format, tile, defines) of what the table has.

    Large tiles without tensor cores differ by format in `load_four` alone, which small
    tiles show: two formats of them are enough.
    """
    wanted = [(f"gram-{tile}", name, "90") for tile in (64, 128) for name in ELEMENTS]
    wanted += [("gram-64", name, "75") for name in ELEMENTS]
    wanted += [("gram-128", "bf16", "75"), ("gram-128", "fp32", "75")]
    wanted += [(f"gram-tf32-{tile}", "fp32", "90") for tile in (64, 128)]
    found = {build_of(*one).defines: one for one in wanted}
    return [(one[1], int(one[0].split("-")[-1]), d) for d, one in found.items()]


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("way", ways(), ids=lambda way: " ".join(way[2]))
def test_products_are_those_of_float64(way, case):
    agrees(*way, case, seeds=SEEDS if case[0][-1] <= 20 else FEW)


def test_parts_are_added_in_ascending_order():
    in_order()


@pytest.mark.parametrize("tile", [64, 128])
def test_no_bank_is_asked_twice(tile):
    without_conflicts("ELEMENT=1", f"TB={tile}")


def test_a_launch_can_be_repeated():
    repeated_launches_agree()


@pytest.mark.parametrize("stages", [2, 5])
def test_any_number_of_stages_gives_the_same(stages):
    any_number_of_stages_agrees(stages)


def test_margins_are_left_out():
    kernel, given = Kernel("gram", *PLAIN), problem(*PARTS)
    tiles, margins = multiply(kernel, given, 64, 2, margins=False)
    assert not np.isnan(tiles).any() and np.isnan(margins).all()


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_margins_are_those_of_their_own_kernel(name):
    given = problem(name, 64, (0, 7, 20), 300)
    kernel = Kernel("gram", *build_of("gram-64", name, "90").defines)
    other, z = Kernel("margin", f"ELEMENT={ELEMENTS[name]}"), empty(20)
    arguments = (given.matrix, c_longlong(given.stride), given.rows, 20, 300)
    other(3, 256, (*arguments, given.weights, z))
    np.testing.assert_array_equal(multiply(kernel, given, 64, 1)[1], z)


def test_margins_alone_have_no_tiles():
    margins_need_no_tiles()

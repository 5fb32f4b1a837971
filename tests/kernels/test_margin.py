"""z = Y w: every format, sizes that do not divide, rows in any order, guards intact."""

from ctypes import c_longlong, c_void_p

import numpy as np
import pytest

from tests.helpers.kernels.checks.margin import SIZES, agrees
from tests.helpers.kernels.emulator import Kernel, empty, on_device
from tests.helpers.kernels.problems import ELEMENTS, numbers, stored


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("n, d, m", SIZES)
def test_margins_are_those_of_float64(name, n, d, m):
    agrees(name, n, d, m)


def test_weights_may_begin_anywhere():
    """One by one then, with the same bits."""
    rng = np.random.default_rng(0)
    matrix, stride, _ = stored(rng, 20, 700)
    rows, kernel, found = numbers(rng, 20, 9), Kernel("margin", "ELEMENT=1"), []
    held = on_device(rng.normal(size=701), np.float32)
    for w in (on_device(held[1:]), c_void_p(held.ctypes.data + 4)):
        found.append(empty(9))
        kernel(2, 256, (matrix, c_longlong(stride), rows, 9, 700, w, found[-1]))
    np.testing.assert_array_equal(*found)

"""Casts bit for bit as storage has them, and rows copied to a dense block."""

from ctypes import c_longlong

import numpy as np
import pytest

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import ELEMENTS, LOW
from tests.helpers.kernels.checks.cast import SIZES, casts_agree, check, gather_agrees
from tests.helpers.kernels.emulator import Kernel, empty, on_device, source_of


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", LOW)
def test_casts_are_those_of_storage(name):
    casts_agree(name)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "name, wide",
    [*((name, False) for name in ELEMENTS), ("bf16", True), ("fp8-e5m2", True)],
)
def test_rows_are_copied(name, wide):
    for sizes in SIZES:
        gather_agrees(name, *sizes, wide)


def test_casts_take_a_factor():
    values = on_device([1.0, 3.0, -1000.0], np.float32)
    held, back, half = empty(3, np.uint8), empty(3), on_device([0.25], np.float32)
    count, shape = c_longlong(3), kernels.cast(3, 1)
    narrow = Kernel("cast", "ELEMENT=4", entry="narrow")
    widen = Kernel("cast", "ELEMENT=4", entry="widen")
    narrow(shape.grid, shape.block, (values, count, half, held))
    widen(shape.grid, shape.block, (held, count, half, back))
    np.testing.assert_array_equal(back, np.array([1, 3, -1024]) / 16)


def test_faults_are_told_from_the_kernel():
    """What mutants have to fail, the kernel passes."""
    check(source_of("cast"))

"""w = carry w + Yᵀ f: every format, sizes that do not divide, one order."""

from ctypes import c_longlong

import numpy as np
import pytest

from tests.kernels.emulator import SEEDS, Kernel, on_device
from tests.kernels.mutants import Mutant
from tests.kernels.problems import ELEMENTS, numbers, stored

SIZES = [(1, 1, 1), (40, 100, 37), (300, 257, 64), (50, 700, 9)]
MUTANTS = [
    Mutant("update", "no barrier", "    __syncthreads();\n", ""),
    Mutant("update", "columns behind the last", "&& place < cols", ""),
    Mutant("update", "a pitch that collides", "(WIDE + 1)", "(WIDE - 1)"),
]


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("n, d, m", SIZES)
def test_updates_are_those_of_float64(name, n, d, m):
    agrees(name, n, d, m)


def check(text):
    """What mutants have to fail."""
    for sizes in SIZES:
        agrees("bf16", *sizes, text=text)


def agrees(name, n, d, m, text=None):
    """With float64, and with itself under any order of warps."""
    rng = np.random.default_rng(n + d)
    matrix, stride, exact = stored(rng, n, d, name, spare=3)
    rows, before = numbers(rng, n, m), rng.normal(size=d).astype(np.float32)
    factors, carry = on_device(rng.normal(size=m), np.float32), on_device([0.75], "f4")
    kernel = Kernel("update", f"ELEMENT={ELEMENTS[name]}", text=text)
    wide, found = 8 * 16 // matrix.dtype.itemsize, []
    for seed in SEEDS:
        w = on_device(before)
        arguments = (matrix, c_longlong(stride), rows, m, d, factors, carry, w)
        kernel(-(-d // wide), 256, arguments, shared=4 * 32 * (wide + 1), seed=seed)
        found.append(w)
    wide = factors.astype(np.float64)
    wanted = 0.75 * before.astype(np.float64) + exact[rows].T @ wide
    size = np.abs(before) + np.abs(exact[rows]).T @ np.abs(wide)
    assert (np.abs(found[0] - wanted) <= 4e-7 * size).all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])

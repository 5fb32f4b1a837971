"""The margin kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong

import numpy as np

from tests.helpers.kernels.emulator import SEEDS, Kernel, empty, on_device
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.problems import ELEMENTS, numbers, stored

SIZES = [(1, 1, 1), (40, 100, 37), (300, 257, 64), (50, 2000, 9)]
MUTANTS = [
    Mutant("margin", "columns behind the last", "if (k + i < cols)", "if (true)"),
    Mutant("margin", "rows behind the last", "if (row >= count)", "if (row > count)"),
    Mutant(
        "margin",
        "every other chunk",
        "+= AT_A_TIME * apart",
        "+= 2 * AT_A_TIME * apart",
    ),
    Mutant(
        "margin", "a chunk too many", "< whole)\n                add", "< 9999) add"
    ),
    Mutant("margin", "the last chunk", "k = after; k < cols", "k = after; k < whole"),
]


def check(text):
    """What mutants have to fail."""
    for sizes in SIZES:
        agrees("bf16", *sizes, text=text)


def agrees(name, n, d, m, text=None):
    """With float64, and with itself under any order of warps."""
    rng = np.random.default_rng(n + d)
    matrix, stride, exact = stored(rng, n, d, name, spare=3)
    rows, w = numbers(rng, n, m), on_device(rng.normal(size=d), np.float32)
    kernel = Kernel("margin", f"ELEMENT={ELEMENTS[name]}", text=text)
    found = []
    for seed in SEEDS:
        z = empty(m)
        arguments = (matrix, c_longlong(stride), rows, m, d, w, z)
        kernel(-(-m // 8), 256, arguments, seed=seed)
        found.append(z)
    wanted = exact[rows] @ w.astype(np.float64)
    size = np.abs(exact[rows]) @ np.abs(w.astype(np.float64))
    assert (np.abs(found[0] - wanted) <= 4e-7 * size + 1e-30).all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])

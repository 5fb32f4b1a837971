"""The update kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong

import numpy as np

from hpcsgd.backends.cuda import kernels
from tests.helpers.kernels.emulator import SEEDS, Kernel, empty, on_device
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.problems import ELEMENTS, numbers, stored

SIZES = [(1, 1, 1), (40, 100, 37), (300, 257, 64), (50, 700, 9), (60, 130, 300)]
MUTANTS = [
    Mutant("update", "no barrier", "sums[i];\n    __syncthreads();\n", "sums[i];\n"),
    Mutant("update", "columns behind the last", "&& place < cols", ""),
    Mutant("update", "the next part's rows", "min(first + per_split, count)", "count"),
    Mutant(
        "update", "rows behind the last", "< end) {\n                fl", "< 999) {fl"
    ),
    Mutant("update", "a part is left out", "part < splits; part++", "part < 1; part++"),
    Mutant("update", "a ticket that is kept", "tickets[blockIdx.x] = 0;", ";"),
    Mutant("update", "one block too early", "(u32)splits - 1u", "(u32)splits - 2u"),
    Mutant("update", "a pitch that collides", "(WIDE + 1)", "(WIDE - 1)"),
]


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
    plan, found = kernels.update(m, d, matrix.dtype.itemsize), []
    each = kernels.update_rows(m, plan.grid[1])
    tickets = on_device(np.zeros(plan.grid[0]), np.uint32)
    for seed in SEEDS:
        w, room = on_device(before), empty(kernels.update_room(d, plan))
        arguments = (matrix, c_longlong(stride), rows, m, d, factors, carry, w)
        given = (*arguments, each, room, tickets)
        kernel(plan.grid, plan.block, given, shared=plan.shared, seed=seed)
        assert not tickets.any(), "tickets are not ready for the next launch"
        found.append(w)
    wide = factors.astype(np.float64)
    wanted = 0.75 * before.astype(np.float64) + exact[rows].T @ wide
    size = np.abs(before) + np.abs(exact[rows]).T @ np.abs(wide)
    assert (np.abs(found[0] - wanted) <= 4e-7 * size).all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])

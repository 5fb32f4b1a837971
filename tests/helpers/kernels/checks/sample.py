"""The sample kernel beside float64: sizes, checks and planted faults."""

import numpy as np

from tests.helpers.kernels.emulator import SEEDS, Kernel, empty, on_device
from tests.helpers.kernels.mutants import Mutant

MUTANTS = [
    Mutant("sample", "no barrier", "    __syncthreads(); /* all have read it */\n", ""),
    Mutant("sample", "rows behind the last", "i < count; i", "i <= count; i"),
    Mutant("sample", "the position stands", "= first + count", "= first"),
]


def check(text):
    """What mutants have to fail."""
    agrees(True, text)


def agrees(sides, text=None):
    rng, n, sizes = np.random.default_rng(0), 3000, (1, 40, 1500, 1459)
    order = on_device(rng.permutation(n), np.int64)
    columns = [on_device(rng.normal(size=n), np.float32) for _ in range(3)]
    if not sides:
        columns[1:] = [None, None]
    kernel = Kernel("sample", "ELEMENT=3", text=text)
    for seed in SEEDS:
        position, first = on_device([0], np.int64), 0
        for size in sizes:
            numbers, found = empty(size, np.int64), [empty(size) for _ in range(3)]
            arguments = (order, position, size, *columns, numbers, *found)
            kernel(1, 1024, arguments, seed=seed)
            rows = order[first : first + size]
            np.testing.assert_array_equal(numbers, rows)
            for column, own in zip(columns, found, strict=True):
                if column is not None:
                    np.testing.assert_array_equal(own, column[rows])
            first += size
            assert position[0] == first

"""The parts kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong

import numpy as np

from hpcsgd.backends.cuda import kernels
from tests.helpers.bits import add_bits, narrow_bits
from tests.helpers.kernels.emulator import Kernel, empty
from tests.helpers.kernels.mutants import Mutant

SIZES = [(1, 5), (2, 16), (3, 8), (4, 2056), (3, 2049), (2, 31)]
MUTANTS = [
    Mutant("parts", "another rank first", "parts + first, sum",
           "parts + first + 8, sum"),
    Mutant("parts", "the last rank forgotten", "int rank = 1; rank < ranks; rank++)\n",
           "int rank = 1; rank < ranks - 1; rank++)\n"),
    Mutant("parts", "small sums are zeros", "sum[i] = exact_sum(sum[i], part[i])",
           "sum[i] += part[i]"),
    Mutant("parts", "any length is aligned", "count % IN_CHUNK == 0 && ", ""),
    Mutant("parts", "no tail", "k < count && k <", "k < count - 1 && k <"),
    Mutant("parts", "two sums in one word", "<< 16;", "<< 15;"),
]  # fmt: skip


def check(text):
    """What mutants have to fail."""
    for ranks, count in SIZES:
        adds_as_the_host(ranks, count, 0, text)
        adds_as_the_host(ranks, count, 1, text)


def adds_as_the_host(ranks, count, late, text):
    """`late`: how many elements the arrays begin behind what is aligned."""
    rng = np.random.default_rng(count)
    values = rng.normal(size=ranks * count).astype(np.float32)
    values[::3] *= np.float32(1e-38)
    parts = empty(ranks * count + late, np.uint16)[late:]
    narrow_bits(np, values, parts)
    total = empty(count + late, np.uint16)[late:]
    kernel = Kernel("parts", "ELEMENT=1", text=text, entry="add_parts")
    shape = kernels.cast(count, 2)
    kernel(shape.grid, shape.block, (parts, ranks, c_longlong(count), total))
    expected = add_bits(np, parts, ranks, np.empty(count, np.uint16))
    np.testing.assert_array_equal(total, expected)

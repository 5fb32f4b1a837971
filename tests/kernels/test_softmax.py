"""The s steps of softmax: K scores a row, every update, batches that do not divide."""

import numpy as np
import pytest

from hpcsgd.backends import launch_recurrence as launch
from hpcsgd.backends.kernel_table import build_of
from tests.kernels.emulator import SEEDS, Kernel
from tests.kernels.exchanges import SIDES, UPDATES, agree, exchange, in_tiles, results
from tests.kernels.mutants import Mutant

RAGGED = (5, 32, 1, 7, 0, 30, 13, 2)
SIZES = [(1,), (1,) * 9, (5,) * 4, (32,) * 4, RAGGED]
CLASSES = (3, 10, 2, 40, 1)
MUTANTS = [
    Mutant(
        *("softmax", "no barrier after the residuals"),
        "        __syncthreads();\n#pragma unroll 1\n        for (int e = first",
        "#pragma unroll 1\n        for (int e = first",
    ),
    Mutant(
        *("softmax", "no barrier after the products"),
        "        __syncthreads();\n    }\n}\nLAUNCHABLE",
        "    }\n}\nLAUNCHABLE",
    ),
    Mutant("softmax", "the largest is not taken out", "expf(t[c] - top)", "expf(t[c])"),
    Mutant("softmax", "another label", "c == label", "c == label + 1"),
    Mutant("softmax", "no sample weight", "sample_weights[row] : 1.0f", "1.0f : 1.0f"),
    Mutant(
        "softmax", "the start of class 0", "intercept + c, probe", "intercept, probe"
    ),
    Mutant("softmax", "states class by class", "from[a * classes]", "from[a]"),
    Mutant("softmax", "gain of the first step", "gain[j * states + a]", "gain[a]"),
    Mutant(
        "softmax", "one class's intercept", "(intercept + c, carry", "(intercept, carry"
    ),
    Mutant("softmax", "couple of step 0", "(batch_of[row], j)", "(batch_of[row], 0)"),
    Mutant(
        "softmax", "a batch's last row", "col < last; col++", "col < last - 1; col++"
    ),
]


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


def check(text):
    """What mutants have to fail."""
    agrees(RAGGED, 5, "three", SIDES, text=text)
    agrees((7, 8, 9), 4, "sgd", SIDES, text=text, scale=200.0)


def agrees(sizes, classes, update, sides, seeds=SEEDS, text=None, scale=1.0, read=None):
    """With float64, and with itself under any order of warps."""
    rng = np.random.default_rng(sum(sizes))
    given = exchange(rng, sizes, update, "softmax", sides, classes, read)
    given.z[...] *= scale
    found = [run(given, seed, text) for seed in seeds]
    for one in found:
        agree(one, given, "softmax", within=1e-6 * max(1.0, scale / 10))
        for left, right in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(left, right)


def run(given, seed, text=None):
    """(residuals, factors, intercept) of one launch."""
    build = build_of("softmax", "fp32", "90")
    kernel = Kernel(build.source, *build.defines, text=text)
    shape = launch.softmax_launch(given.rows, given.states)
    residuals, factors, intercept = found = results(given)
    arguments = (
        *(*in_tiles(given), given.z, given.targets, given.weights, given.offsets),
        *(intercept, given.starts, len(given.starts) - 1, given.states, given.read),
        given.classes,
        *(*given.given.arrays, residuals, factors),
    )
    kernel(shape.grid, shape.block, arguments, shared=shape.shared, seed=seed)
    return found

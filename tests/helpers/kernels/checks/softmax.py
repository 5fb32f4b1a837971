"""The softmax kernel beside float64: sizes, checks and planted faults."""

import numpy as np

from hpcsgd.backends.cuda import kernels as launch
from hpcsgd.backends.cuda.kernels import build_of
from tests.helpers.kernels.emulator import SEEDS, Kernel
from tests.helpers.kernels.exchanges import SIDES, agree, exchange, in_tiles, results
from tests.helpers.kernels.mutants import Mutant

RAGGED = (5, 32, 1, 7, 0, 30, 13, 2)
SIZES = [(1,), (1,) * 9, (5,) * 4, (32,) * 4, RAGGED]
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

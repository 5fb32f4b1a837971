"""The gather steps kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import ELEMENTS
from tests.helpers.kernels.emulator import Kernel, on_device
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.walks import FAMILIES, agree, walk_of

# rows, columns, batches
SIZES = [(1, 1, (1,)), (40, 100, (5, 8, 8)), (60, 300, (33, 40, 7)),
         (12, 5001, (3, 4))]  # fmt: skip
MUTANTS = [
    Mutant("gather_steps", "columns behind the last",
           "if (k + i < cols)\n                sums", "if (true)\n"
           "                sums"),
    Mutant("gather_steps", "weights behind the last",
           "if (k + i < cols)\n                weights", "if (true)\n"
           "                weights"),
    Mutant("gather_steps", "residuals read early",
           "(float)*own_intercept, own);\n        __syncthreads();",
           "(float)*own_intercept, own);"),
    Mutant("gather_steps", "weights read early",
           "             weights);\n        __syncthreads();",
           "             weights);"),
    Mutant("gather_steps", "the first batch again", "take(block + start * stride",
           "take(block + 0 * stride"),
    Mutant("gather_steps", "the first rows", "row < count; row += THREADS / 32",
           "row < min(count, 16); row += THREADS / 32"),
    Mutant("gather_steps", "the intercept moves as weights do", "free[j], push[j]",
           "free[j], gain[j]"),
    Mutant("gather_steps", "no carry", "fmaf(carry, weights", "fmaf(1.0f, weights"),
]  # fmt: skip


def check(text):
    """What mutants have to fail."""
    for sizes in SIZES:
        launches_agree(walk_of(*sizes, "bf16"), "bf16", text, seeds=range(4))


def launches_agree(walk, name, text=None, seeds=(0, 1)):
    """With float64, and with itself under any order of warps."""
    defines = f"ELEMENT={ELEMENTS[name]}", f"FAMILY={FAMILIES.index(walk.family)}"
    kernel, found = Kernel("gather_steps", *defines, text=text), []
    block, shape = (
        on_device(walk.matrix[walk.rows]),
        kernels.gather_steps(walk.tall),
    )
    for seed in seeds:
        state = walk.state()
        arguments = (block, c_longlong(walk.stride), *walk.given, *state)
        kernel(shape.grid, shape.block, arguments, shared=shape.shared, seed=seed)
        found.append(state)
    agree(found, walk)

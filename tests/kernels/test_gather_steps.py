"""Plain steps on gathered rows by one block: every format and family."""

from ctypes import c_longlong

import pytest

from hpcsgd.backends import launch_steps
from hpcsgd.backends.kernel_table import ELEMENTS
from tests.kernels.emulator import Kernel, on_device, source_of
from tests.kernels.mutants import Mutant
from tests.kernels.walks import FAMILIES, PAIRS, agree, walk_of

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


@pytest.mark.parametrize("name, family", PAIRS)
@pytest.mark.parametrize("sizes", SIZES)
def test_steps_are_those_of_float64(name, family, sizes):
    launches_agree(walk_of(*sizes, name, family), name)


@pytest.mark.parametrize("name, family", PAIRS)
def test_nothing_more_has_to_be_given(name, family):
    walk = walk_of(40, 100, (5, 8, 8), name, family, bare=True)
    launches_agree(walk, name, seeds=(1,))


def test_faults_are_told_from_the_kernel():
    """What mutants have to fail, the kernel passes."""
    check(source_of("gather_steps"))


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
        launch_steps.gather_steps(walk.tall),
    )
    for seed in seeds:
        state = walk.state()
        arguments = (block, c_longlong(walk.stride), *walk.given, *state)
        kernel(shape.grid, shape.block, arguments, shared=shape.shared, seed=seed)
        found.append(state)
    agree(found, walk)

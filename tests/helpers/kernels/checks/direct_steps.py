"""The direct steps kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import ELEMENTS
from tests.helpers.kernels.emulator import Kernel, empty, on_device
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.walks import FAMILIES, agree, walk_of

PROCESSORS = 3
# rows, columns, batches
SIZES = [(1, 1, (1,)), (40, 100, (5, 8, 8)), (60, 300, (33, 40, 7, 12)),
         (30, 600, (16,) * 5)]  # fmt: skip
MUTANTS = [
    Mutant("direct_steps", "nobody waits", "while (load_acquire(came) < wanted)",
           "while (false)"),
    Mutant("direct_steps", "one block too few", "< wanted)", "+ 1 < wanted)"),
    Mutant("direct_steps", "one room for all parts", "(s64)(j & 1) * tall",
           "(s64)0 * tall"),
    Mutant("direct_steps", "counters left as they are",
           "atomicExch(counters, 0u);", ""),
    Mutant("direct_steps", "columns behind the last",
           "if (col + i < slice.last)", "if (true)"),
    Mutant("direct_steps", "weights read early",
           "        }\n        __syncthreads();\n    }\n}", "        }\n    }\n}"),
    Mutant("direct_steps", "residuals read early",
           "sums, own);\n        __syncthreads();", "sums, own);"),
    Mutant("direct_steps", "a block left out", "b = lane; row", "b = lane + 1; row"),
    Mutant("direct_steps", "the first step's gain", "carry[j], gain[j], parts",
           "carry[j], gain[0], parts"),
    Mutant("direct_steps", "another thread's chunks",
           "kept.chunks + place * 256 + threadIdx.x\n",
           "kept.chunks + place * 256 + (threadIdx.x ^ 8)\n"),
    Mutant("direct_steps", "more is kept than there is room for",
           "at = place < kept.room", "at = place <= kept.room"),
    Mutant("direct_steps", "one place for all rows", "base / AT_ONCE * kept.wide",
           "0 * kept.wide"),
    Mutant("direct_steps", "the intercept moves as weights do", "free[j], push[j]",
           "free[j], gain[j]"),
    Mutant("direct_steps", "no intercept", "*intercept = *own_intercept;", ";"),
]  # fmt: skip


def check(text):
    """What mutants have to fail."""
    for sizes in SIZES:
        launches_agree(walk_of(*sizes, "bf16"), "bf16", text, seeds=range(8))
    walk = walk_of(80, 1000, (70, 10), "bf16")
    agree(launched(walk, "bf16", text, room=2), walk)


def launches_agree(walk, name, text=None, seeds=(0, 1, 2)):
    """With float64, and with itself under any order of warps and blocks."""
    agree(launched(walk, name, text, seeds), walk)


def launched(walk, name, text=None, seeds=(0,), rounds=0, room=None, ahead=1):
    """(intercept, weights, residuals) of launches, one after the other, as a graph has
    them: with what the first left in partial sums and counters."""
    number = FAMILIES.index(walk.family)
    defines = (f"ELEMENT={ELEMENTS[name]}", f"FAMILY={number}")
    kernel = Kernel("direct_steps", *defines, text=text)
    item, d = walk.matrix.dtype.itemsize, len(walk.before)
    shape = kernels.direct_steps(d, item, walk.tall, PROCESSORS)
    if room is None:
        room = kernels.direct_room(shape, item, walk.tall)
    else:
        base = shape.shared - 4096 * kernels.direct_room(shape, item, walk.tall)
        shape = shape._replace(shared=base + 4096 * room)
    partials = empty(kernels.direct_partials(shape, walk.tall))
    counters, found = on_device([0, 0], np.uint32), []
    given = list(walk.given)
    given[7] = rounds
    for seed in seeds:
        state = walk.state()
        head = (walk.matrix, c_longlong(walk.stride), walk.rows, *given)
        kernel(
            shape.grid,
            shape.block,
            (*head, *state, partials, walk.tall, room, ahead, counters),
            shared=shape.shared,
            cluster=shape.grid[0],
            seed=seed,
        )
        assert not counters.any()
        found.append(state)
    return found


def kept_rows_agree(room, ahead):
    """The same bits however much of a batch stays with a block, or is asked for."""
    walk = walk_of(80, 1000, (70, 10), "bf16")
    kept = launched(walk, "bf16", room=room, ahead=ahead)
    for one, other in zip(*kept, *launched(walk, "bf16"), strict=True):
        np.testing.assert_array_equal(one, other)

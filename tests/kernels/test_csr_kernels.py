"""Sparse rows: margins, update and the Gram, in every kind of values and columns."""

from ctypes import c_longlong
from dataclasses import dataclass

import numpy as np
import pytest

from hpcsgd.backends import launch_steps
from hpcsgd.backends.kernel_table import ELEMENTS
from hpcsgd.storage import decode, encode
from tests.kernels.emulator import Kernel, empty, on_device, source_of
from tests.kernels.mutants import Mutant
from tests.kernels.problems import numbers

KINDS = [(name, bits) for name in ("fp32", "bf16") for bits in (32, 64)]
# rows, columns, sampled rows, how many of the columns a row has
SIZES = [(1, 1, 1, 1.0), (30, 700, 37, 0.1), (40, 300, 64, 0.01), (9, 5000, 33, 0.05)]
MUTANTS = [
    Mutant("csr", "a row too far", "k < last; k += 32", "k <= last; k += 32"),
    Mutant("csr", "every other entry", "k < last; k += 32", "k < last; k += 64"),
    Mutant("csr", "rows behind the last", "if (row >= count)", "if (row > count)"),
    Mutant("csr", "a search that is late", "indices[middle] < wanted",
           "indices[middle] <= wanted"),
    Mutant("csr", "columns of the next warp", ", last, behind);",
           ", last, behind + 1);"),
    Mutant("csr", "sums begin with nothing", "sums[k] = 0.0f;", ";"),
    Mutant("csr", "rows at once", "        __syncwarp();\n    }", "    }"),
    Mutant("csr", "the factor of a lane", "__shfl_sync(0xffffffffu, factor, row)",
           "factor"),
    Mutant("csr", "a merge that loses", "b += right <= left", "b += right < left + 2"),
    Mutant("csr", "a sum that drifts", "lost = more - (next - sum);", "lost = 0.0f;"),
    Mutant("csr", "batches of their own", "batches[i] > batches[k]",
           "batches[i] >= batches[k]"),
    Mutant("csr", "tiles turned", "(tile >> 16)", "(tile & 0xffffu)"),
]  # fmt: skip


@dataclass
class Case:
    """Sampled sparse rows: what a kernel is given first, and their exact values."""

    head: tuple
    exact: np.ndarray
    rng: np.random.Generator
    defines: tuple[str, ...]
    text: str | None

    def kernel(self, entry, *more):
        """One of the file's."""
        return Kernel("csr", *self.defines, *more, text=self.text, entry=entry)


def case_of(kind, sizes, text=None):
    """Rows of which some are empty and one is full; the last sampled one has gaps."""
    (name, bits), (n, d, m, share) = kind, sizes
    rng = np.random.default_rng(n + d)
    there = rng.random((n, d)) < share
    there[n // 2], there[n // 3] = True, n == 1
    there[0] = rng.random(d) < (0.6 if n > 1 else 2.0)
    indptr = np.concatenate([[0], there.sum(1).cumsum()])
    indices = np.nonzero(there)[1]
    stored = encode(rng.normal(size=len(indices)).astype(np.float32), name)
    dense = np.zeros((n, d))
    dense[there] = decode(stored, name, np.float64)
    rows = numbers(rng, n, m)
    rows[m // 2], rows[-1] = n // 2, 0
    head = (
        *(on_device(indptr, np.int64), on_device(indices, f"i{bits // 8}")),
        *(on_device(stored), rows, m),
    )
    defines = (f"ELEMENT={ELEMENTS[name]}", *(["COLUMN64=1"] if bits == 64 else []))
    return Case(head, dense[rows], rng, defines, text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_products_are_those_of_float64(kind, sizes):
    case = case_of(kind, sizes)
    margins_agree(case)
    update_agrees(case)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_gram_is_that_of_float64(kind, sizes):
    gram_agrees(case_of(kind, sizes), 64)


def test_tiles_may_be_small():
    gram_agrees(case_of(KINDS[1], SIZES[1]), 16)


def test_faults_are_told_from_the_kernel():
    """What mutants have to fail, the kernel passes."""
    check(source_of("csr"))


def check(text):
    """What mutants have to fail."""
    for sizes in SIZES:
        case = case_of(("bf16", 32), sizes, text)
        margins_agree(case)
        update_agrees(case)
        gram_agrees(case, 16)


def margins_agree(case):
    """z = Y w."""
    m, d = case.exact.shape
    w = on_device(case.rng.normal(size=d), np.float32)
    kernel, shape, found = case.kernel("csr_margin"), launch_steps.csr_margin(m), []
    for seed in (0, 1):
        z = empty(m)
        kernel(shape.grid, shape.block, (*case.head, w, z), seed=seed)
        found.append(z)
    wide = w.astype(np.float64)
    close(found, case.exact @ wide, np.abs(case.exact) @ np.abs(wide))


def update_agrees(case):
    """w = 0.75 w + Yᵀ f."""
    m, d = case.exact.shape
    before, carry = case.rng.normal(size=d).astype("f4"), on_device([0.75], "f4")
    f = on_device(case.rng.normal(size=m), np.float32)
    kernel, shape, found = case.kernel("csr_update"), launch_steps.csr_update(d), []
    for seed in (0, 1, 2):
        w = on_device(before)
        rest = (c_longlong(d), launch_steps.csr_span(d), f, carry, w)
        arguments = (*case.head, *rest)
        kernel(shape.grid, shape.block, arguments, shared=shape.shared, seed=seed)
        found.append(w)
    exact = f.astype(np.float64)
    size = np.abs(before) + np.abs(case.exact).T @ np.abs(exact)
    close(found, 0.75 * before.astype(np.float64) + case.exact.T @ exact, size)


def gram_agrees(case, side):
    """Tiles on and below the diagonal, in an order of their own."""
    m = len(case.exact)
    batches = on_device(np.sort(case.rng.integers(0, 5, size=m)), np.int32)
    many = -(-m // side)
    places = [(i, j) for i in range(many) for j in range(i + 1)][::-1]
    tiles = on_device([i << 16 | j for i, j in places], np.uint32)
    kernel = case.kernel("csr_gram", *([] if side == 64 else [f"TB={side}"]))
    shape, gram = launch_steps.csr_gram(len(tiles), side), empty((len(tiles), side**2))
    kernel(shape.grid, shape.block, (*case.head, batches, tiles, gram), seed=1)
    wanted, size = np.zeros((2, many * side, many * side))
    wanted[:m, :m] = np.where(
        batches[:, None] > batches, case.exact @ case.exact.T, 0.0
    )
    size[:m, :m] = np.abs(case.exact) @ np.abs(case.exact).T
    for number, (i, j) in enumerate(places):
        at = np.ix_(range(i * side, (i + 1) * side), range(j * side, (j + 1) * side))
        close([gram[number].reshape(side, side)], wanted[at], size[at])


def close(found, wanted, size):
    """To float64's within the rounding of sums, and the same bits every time."""
    assert (np.abs(found[0] - wanted) <= 4e-7 * size).all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])

"""The kernels of sparse rows beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong
from dataclasses import dataclass, replace

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import ELEMENTS
from hpcsgd.formats import decode, encode
from tests.helpers.kernels.checks.columns import mixed
from tests.helpers.kernels.emulator import Kernel, empty, on_device
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.problems import numbers

# rows, columns, sampled rows, how many of the columns a row has
SIZES = [(1, 1, 1, 1.0), (30, 700, 37, 0.1), (40, 300, 64, 0.01), (9, 5000, 33, 0.05)]
# (columns of weights, states among them) of each
COLUMNS = [(2, 2), (10, 2), (64, 1), (33, 3), (17, 1)]
MANY_ROWS = (9, 70, 600, 0.3)  # more than one turn for every warp of a block
MUTANTS = [
    Mutant("csr", "a row too far", "k < last; k +=", "k <= last; k +="),
    Mutant("csr", "every other entry", "k < last; k += 32",
           "k < last; k += 64"),
    Mutant("csr", "rows behind the last", "if (row >= count)", "if (row > count)"),
    Mutant("csr", "a search that is late", "indices[middle] < wanted",
           "indices[middle] <= wanted"),
    Mutant("csr", "columns of the next warp", ", last, behind);",
           ", last, behind + 1);"),
    Mutant("csr", "sums begin with nothing", "sums[k] = 0.0f;", ";"),
    Mutant("csr", "the factor of a lane", "__shfl_sync(0xffffffffu, factor, row)",
           "factor"),
    Mutant("csr", "a merge that loses", "moves_b = right <= left",
           "moves_b = right < left + 2"),
    Mutant("csr", "a row that stands", "(moves_b && ++b == last_b)",
           "(moves_a && ++b == last_b)"),
    Mutant("csr", "a sum of some lanes", "mask >= across", "mask > across"),
    Mutant("csr", "lanes behind the last column", "lane < across && c < wide",
           "lane < across"),
    Mutant("csr", "the first group of columns", "blockIdx.y * across, across,",
           "0, across,"),
    Mutant("csr", "weights of another tile", "((s64)indices[k] - base) * wide",
           "(s64)indices[k] * wide"),
    Mutant("csr", "a tile that ends with the row", "begin, last, base + cols)",
           "begin, last, base + cols + 9)"),
    Mutant("csr", "a step of another tile", "(first - base + k) * wide",
           "(first + k) * wide"),
    Mutant("csr", "a tile that begins with the rows", "base + (s64)blockIdx.x * span",
           "(s64)blockIdx.x * span"),
    Mutant("csr", "factors of another row", "factors[row * wide + c]", "factors[c]"),
    Mutant("csr", "the first columns of weights", "c < wide; c += across)",
           "c < across; c += across)"),
    Mutant("csr", "entries of other lanes", "begin + lane / across; k < end",
           "begin + lane; k < end"),
    Mutant("csr", "the first turn of warps", "some < count; some += blockDim.x",
           "some < min(count, (int)blockDim.x); some += blockDim.x"),
    Mutant("csr", "warps that all have all rows", "some = threadIdx.x & ~31",
           "some = 0"),
    Mutant("csr", "sums of the first warp", "warp < warps; warp++", "warp < 1; warp++"),
    Mutant("csr", "sums of all warps in one place",
           "parts + (threadIdx.x >> 5) * words", "parts"),
    Mutant("csr", "no barrier before the sum", "__syncthreads();\n    int classes",
           "int classes"),
    Mutant("csr", "a state that is read too late", "before[b], sum)",
           "weights[b * classes + c], sum)"),
    Mutant("csr", "a carry of another state", "carry[a * states + b]",
           "carry[b * states + a]"),
    Mutant("csr", "classes of another state", "words + a * classes + c]",
           "words + a + c]"),
    Mutant("csr", "weights behind the last", "at < (int)(behind - first) * classes",
           "at < span * classes"),
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
    first: int = 0  # of the columns that are seen
    cols: int = 0  # so many; 0: all

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


def check(text):
    """What mutants have to fail."""
    for sizes, columns in zip((*SIZES, MANY_ROWS), COLUMNS, strict=True):
        case = case_of(("bf16", 32), sizes, text)
        margins_agree(case)
        margins_agree(case, columns[0])
        update_agrees(case)
        update_agrees(case, *columns)
        tiles_agree(case, *columns)
        if sizes is not MANY_ROWS:
            gram_agrees(case, 16)


def tiles_agree(case, wide, states):
    """A tile of columns, as if there were no others."""
    d = case.exact.shape[1]
    for tile in (slice(0, -(-d // 2)), slice(d // 3, d)):
        exact = case.exact[:, tile]
        part = replace(case, exact=exact, first=tile.start, cols=exact.shape[1])
        for columns in ((1, 1), (wide, states)):
            margins_agree(part, columns[0])
            update_agrees(part, *columns)


def margins_agree(case, wide=1):
    """Z = Y W, by the kernel of one column or of many."""
    m, d = case.exact.shape
    w = on_device(case.rng.normal(size=(d, wide)), np.float32)
    kernel = case.kernel("csr_margin" if wide == 1 else "csr_margins_columns")
    sizes = c_longlong(case.first), c_longlong(case.cols)
    sizes += () if wide == 1 else (wide, kernels.csr_across(wide))
    shape, found = kernels.csr_margin(m, wide), []
    for seed in (0, 1):
        z = empty((m, wide))
        kernel(shape.grid, shape.block, (*case.head, *sizes, w, z), seed=seed)
        found.append(z)
    exact = w.astype(np.float64)
    close(found, case.exact @ exact, np.abs(case.exact) @ np.abs(exact))


def update_agrees(case, wide=1, states=1):
    """W = W carryᵀ + Yᵀ F."""
    m, d = case.exact.shape
    before = case.rng.normal(size=(d, wide)).astype("f4")
    carry = on_device(case.rng.normal(size=(states, states)), np.float32)
    f = on_device(case.rng.normal(size=(m, wide)), np.float32)
    kernel = case.kernel("csr_update" if wide == 1 else "csr_update_columns")
    sizes = c_longlong(case.first), c_longlong(d), kernels.csr_span(d, wide)
    if wide > 1:
        sizes += (wide, states, kernels.csr_across(wide))
    shape, found = kernels.csr_update(d, wide), []
    for seed in (0, 1, 2):
        w = on_device(before)
        arguments = (*case.head, *sizes, f, carry, w)
        kernel(shape.grid, shape.block, arguments, shared=shape.shared, seed=seed)
        found.append(w)
    exact, mix = f.astype(np.float64), carry.astype(np.float64)
    size = mixed(np.abs(mix), np.abs(before)) + np.abs(case.exact).T @ np.abs(exact)
    close(found, mixed(mix, before) + case.exact.T @ exact, size)


def gram_agrees(case, side):
    """Tiles on and below the diagonal, in an order of their own."""
    m = len(case.exact)
    batches = on_device(np.sort(case.rng.integers(0, 5, size=m)), np.int32)
    many = -(-m // side)
    places = [(i, j) for i in range(many) for j in range(i + 1)][::-1]
    tiles = on_device([i << 16 | j for i, j in places], np.uint32)
    kernel = case.kernel("csr_gram", *([] if side == 64 else [f"TB={side}"]))
    shape, gram = kernels.csr_gram(len(tiles), side), empty((len(tiles), side**2))
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

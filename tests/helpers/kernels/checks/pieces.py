"""The pieces kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import ELEMENTS
from tests.helpers.kernels.emulator import Kernel, empty, on_device
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.problems import numbers, stored

# rows of the matrix, rows that are taken, columns of each member
SIZES = [(1, 1, (1,)), (20, 13, (5, 40)), (9, 17, (33, 1, 70)), (30, 8, (0, 9, 64))]
MUTANTS = [
    Mutant("pieces", "rows in their own order", "matrix + rows[row] * stride",
           "matrix + row * stride"),
    Mutant("pieces", "a gap behind each row", "(s64)row * cols + k",
           "(s64)row * (cols + 1) + k"),
    Mutant("pieces", "32 columns at most", "k = lane; k < cols; k += 32",
           "k = lane; k < min(cols, 32); k += 32"),
    Mutant("pieces", "all members where the first is", "to[first + k]", "to[k]"),
    Mutant("pieces", "the first member's rows", "(s64)count * first", "(s64)0 * first"),
    Mutant("pieces", "what lies behind stays", "to[k] = 0;", ";"),
    Mutant("pieces", "one row too many", "count)\n        return;\n    element *to",
           "count + 1)\n        return;\n    element *to"),
    Mutant("pieces", "where rows go is not looked at", "rows ? rows[row]",
           "rows ? (s64)row"),
]  # fmt: skip


def check(text):
    """What mutants have to fail."""
    for sizes in SIZES:
        rows_agree(*sizes, "bf16", text)


def rows_agree(n, m, widths, name, text=None):
    """Bit for bit, in a block and at their places in a whole matrix."""
    rng = np.random.default_rng(n + m)
    parts = [stored(rng, n, max(d, 1), name, spare=3) for d in widths]
    order = numbers(rng, n, m)
    packed = [
        pack(part, order, d, name, text) for part, d in zip(parts, widths, strict=True)
    ]
    wanted = np.hstack(
        [part[0][order, :d] for part, d in zip(parts, widths, strict=True)]
    )
    for part, end in zip(packed, np.cumsum(widths), strict=True):
        assert (part.reshape(m, -1) == wanted[:, end - part.size // m : end]).all()
    flat, edges = on_device(np.concatenate(packed)), np.cumsum([0, *widths])
    stride = -(-(edges[-1] + 1) * flat.dtype.itemsize // 16) * 16 // flat.dtype.itemsize
    block = joined(flat, edges, m, None, (m, stride), name, text)
    assert (block[:, : edges[-1]] == wanted).all() and not block[:, edges[-1] :].any()
    places = on_device(rng.permutation(m + 2)[:m], np.int64)
    whole = joined(flat, edges, m, places, (m + 2, stride), name, text)
    assert (whole[places] == block).all()


def pack(part, order, d, name, text):
    """The rows of one member, as they are sent."""
    kernel = Kernel("pieces", f"ELEMENT={ELEMENTS[name]}", text=text, entry="pack_rows")
    matrix, stride, _ = part
    out, shape = (
        empty(len(order) * d, matrix.dtype),
        kernels.gather_rows(len(order)),
    )
    given = (matrix, c_longlong(stride), order, len(order), d, out)
    kernel(shape.grid, shape.block, given)
    return out


def joined(flat, edges, m, rows, shape, name, text):
    """Rows of all columns."""
    kernel = Kernel("pieces", f"ELEMENT={ELEMENTS[name]}", text=text, entry="join_rows")
    out, launch = empty(shape, flat.dtype), kernels.gather_rows(m)
    head = (flat, on_device(edges, np.int32), len(edges) - 1, m, rows)
    kernel(launch.grid, launch.block, (*head, out, c_longlong(shape[1])))
    return out

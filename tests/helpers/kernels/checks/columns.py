"""The columns kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import ELEMENTS
from tests.helpers.kernels.emulator import Kernel, empty, on_device
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.problems import numbers, stored

SIZES = [(1, 1, 1, 2), (40, 100, 37, 3), (50, 257, 64, 10), (30, 600, 9, 17)]
STATES = {2: 2, 3: 3, 10: 2, 64: 4}  # by columns of weights; 1 of all others
MOST = (20, 70, 33, 64)
MUTANTS = [
    Mutant("columns", "columns behind the last", "k + i < cols ? to[i]",
           "true ? to[i]"),
    Mutant("columns", "rows behind the last", "c < many && row + t < count",
           "c < many"),
    Mutant("columns", "the first group alone", "base, cols, first, wide, tile);",
           "base, cols, 0, wide, tile);"),
    Mutant("columns", "no barrier behind weights",
           "wide, tile);\n        __syncthreads();", "wide, tile);"),
    Mutant("columns", "weights overwritten", "        __syncthreads();\n        turn",
           "        turn"),
    Mutant("columns", "no barrier before a tile",
           "        __syncthreads();\n        load_tiles", "        load_tiles"),
    Mutant("columns", "no barrier before the sum",
           "__syncthreads();\n    int classes", "int classes"),
    Mutant("columns", "a state that is read too late", "before[b], sum)",
           "weights[b * classes + c], sum)"),
    Mutant("columns", "a carry of another state", "carry[a * states + b]",
           "carry[b * states + a]"),
    Mutant("columns", "classes of another state", "a * classes + c) * STRIP",
           "a + c) * STRIP"),
    Mutant("columns", "a point of one state", "fmaf(probe[a],",
           "fmaf(probe[0],"),
    Mutant("columns", "a point of another class", "+ at % classes;", "+ 0;"),
    Mutant("columns", "splits that overlap", "row += splits", "row += 1"),
    Mutant("columns", "rows of weights behind the last",
           "if (col + k < cols)\n            step", "if (true)\n            step"),
]  # fmt: skip


def check(text):
    """What mutants have to fail."""
    for sizes in (*SIZES, MOST):
        agrees("bf16", *sizes, text=text)


def agrees(name, n, d, m, wide, text=None):
    """With float64, and with itself under any order of warps."""
    rng = np.random.default_rng(n + d)
    matrix, stride, exact = stored(rng, n, d, name, spare=3)
    rows = numbers(rng, n, m)
    head = (matrix, c_longlong(stride), rows, m, d, wide)
    case = (f"ELEMENT={ELEMENTS[name]}", text)
    margins_agree(case, head, exact[rows], on_device(rng.normal(size=(d, wide)), "f4"))
    update_agrees(case, head, exact[rows], rng, STATES.get(wide, 1))
    blend_agrees(case, d, wide, STATES.get(wide, 1), rng)


def margins_agree(case, head, Y, w):
    """Z = Y W."""
    define, text = case
    kernel = Kernel("columns", define, text=text, entry="margins_columns")
    shape = kernels.margins_columns(len(Y), w.shape[1], head[0].dtype.itemsize)
    found = []
    for seed in (0, 1, 2):
        z = empty((len(Y), w.shape[1]))
        kernel(shape.grid, shape.block, (*head, w, z), shared=shape.shared, seed=seed)
        found.append(z)
    wide = w.astype(np.float64)
    close(found, Y @ wide, np.abs(Y) @ np.abs(wide))


def update_agrees(case, head, Y, rng, states):
    """W = W carryᵀ + Yᵀ F."""
    define, text = case
    kernel = Kernel("columns", define, text=text, entry="update_columns")
    (m, d), wide, found = Y.shape, head[-1], []
    factors = on_device(rng.normal(size=(m, wide)), np.float32)
    before = rng.normal(size=(d, wide)).astype("f4")
    carry = on_device(rng.normal(size=(states, states)), np.float32)
    shape = kernels.update_columns(d)
    for seed in (0, 1, 2):
        w = on_device(before)
        arguments = (*head, states, factors, carry, w)
        kernel(shape.grid, shape.block, arguments, shared=shape.shared, seed=seed)
        found.append(w)
    exact, mix = factors.astype(np.float64), carry.astype(np.float64)
    wanted = mixed(mix, before) + Y.T @ exact
    size = mixed(np.abs(mix), np.abs(before)) + np.abs(Y).T @ np.abs(exact)
    close(found, wanted, size)


def mixed(carry, weights):
    """The states of every weight, one by another."""
    parts = weights.astype(np.float64).reshape(len(weights), len(carry), -1)
    return np.einsum("ab,dbk->dak", carry, parts).reshape(weights.shape)


def blend_agrees(case, d, wide, states, rng):
    """W q: one point of all states."""
    define, text = case
    kernel = Kernel("columns", define, text=text, entry="blend")
    weights = on_device(rng.normal(size=(d, wide)), np.float32)
    probe = on_device(rng.normal(size=states), np.float32)
    classes, shape = wide // states, kernels.blend(d * wide // states)
    out = empty((d, classes))
    arguments = (weights, out.size, states, classes, probe, out)
    kernel(shape.grid, shape.block, arguments)
    mix = probe.astype(np.float64)[None]
    parts = weights.astype(np.float64).reshape(d, states, classes)
    wanted = np.einsum("ab,dbk->dk", mix, parts)
    close([out], wanted, np.einsum("ab,dbk->dk", np.abs(mix), np.abs(parts)))


def close(found, wanted, size):
    """To float64's within the rounding of sums, and the same bits every time."""
    assert (np.abs(found[0] - wanted) <= 6e-7 * size + 1e-30).all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])

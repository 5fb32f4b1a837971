"""The cast kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong
from functools import lru_cache

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import ELEMENTS, LOW
from hpcsgd.formats import decode, encode, get_format
from tests.helpers.kernels.emulator import Kernel, empty
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.problems import numbers, stored

SIZES = [(1, 1, 1), (40, 100, 37), (30, 257, 9)]
MUTANTS = [
    Mutant("cast", "ties away from zero", "- 1 + odd) >> drop", ") >> drop"),
    Mutant("cast", "subnormals are normal", "kept < (128 - BIAS) << 23", "kept < 0"),
    Mutant("cast", "no end of the format", ", BEHIND);", ", 1 << 30);"),
    Mutant("cast", "no sign", "(u32)code | (u32)bits", "(u32)code | 0 * (u32)bits"),
    Mutant("cast", "no tail", "k < count && k < first + IN_CHUNK; k++)\n        held",
           "k < count - 1 && k < first + IN_CHUNK; k++)\n        held"),
    Mutant("cast", "aligned or not", "is_aligned(values) && is_aligned(held)) {\n"
           "        u32", "true) {\n        u32"),
    Mutant("cast", "columns behind the last", "left < IN_CHUNK ? left", "false ? left"),
    Mutant("cast", "rows behind the last", "if (row >= count)", "if (row > count)"),
]  # fmt: skip


def code_dtype(name):
    """What the kernels take the bits as."""
    return np.dtype(f"u{2 if name in ('bf16', 'fp16') else 1}")


def bits_of(values, name):
    """What storage makes of them."""
    with np.errstate(over="ignore", invalid="ignore"):
        return encode(values, name).view(code_dtype(name))


def values_of(codes, name, dtype):
    """The values of bits."""
    return decode(codes.view(get_format(name).dtype), name, dtype)


@lru_cache
def hard_values(name):
    """Every number of a format, every midpoint of two neighbours, what lies beside it,
    and what is special."""
    dtype = code_dtype(name)
    count = 1 << 8 * dtype.itemsize - 1
    codes = np.arange(count, dtype=dtype)
    with np.errstate(invalid="ignore"):
        size = values_of(codes, name, np.float64)
    size = size[np.isfinite(size)]
    behind = size[-1] + (size[-1] - size[-2]) * np.array([0.49, 0.5, 0.51, 1.0, 9.0])
    middle = np.concatenate([(size[:-1] + size[1:]) / 2, behind, size])
    middle = middle[np.isfinite(middle)]
    with np.errstate(over="ignore"):
        middle = middle.astype(np.float32)
    beside = [np.nextafter(middle, np.float32(way)) for way in (0, np.inf)]
    special = np.array([0.0, np.inf, np.nan, 1e-45, 1e-38, 3.4e38, 1.0], np.float32)
    found = np.concatenate([middle, *beside, special]).astype(np.float32)
    return np.concatenate([found, -found])


def check(text):
    """What mutants have to fail."""
    for name in LOW:
        casts_agree(name, text)
    for sizes in SIZES:
        gather_agrees("bf16", *sizes, False, text)


def casts_agree(name, text=None):
    """All hard values, and short arrays that begin anywhere."""
    given = f"ELEMENT={ELEMENTS[name]}"
    narrow = Kernel("cast", given, text=text, entry="narrow")
    widen = Kernel("cast", given, text=text, entry="widen")
    values = hard_values(name)
    one_way_and_back(narrow, widen, name, values, 0)
    for count in (1, 3, 15, 16, 17, 50):
        one_way_and_back(narrow, widen, name, values[-count:], 1)
        one_way_and_back(narrow, widen, name, values[-count:], 0)


def one_way_and_back(narrow, widen, name, values, late):
    """`late`: how many elements the arrays begin behind what is aligned."""
    count, dtype = len(values), code_dtype(name)
    source, held = empty(count + late)[late:], empty(count + late, dtype)[late:]
    source[...] = values
    shape = kernels.cast(count, dtype.itemsize)
    arguments = (source, c_longlong(count), None, held)
    narrow(shape.grid, shape.block, arguments)
    np.testing.assert_array_equal(held, bits_of(values, name))
    back = empty(count + late)[late:]
    widen(shape.grid, shape.block, (held, c_longlong(count), None, back))
    with np.errstate(invalid="ignore"):
        exact = values_of(np.ascontiguousarray(held), name, np.float32)
    np.testing.assert_array_equal(back, exact)
    np.testing.assert_array_equal(np.signbit(back), np.signbit(exact))


def gather_agrees(name, n, d, m, wide, text=None):
    """The bits of the rows, or their values, and zeros behind them."""
    rng = np.random.default_rng(n + d)
    matrix, stride, exact = stored(rng, n, d, name, spare=3)
    rows = numbers(rng, n, m)
    dtype = np.dtype(np.float32) if wide else matrix.dtype
    pitch = -(-d * dtype.itemsize // 16) * 16 // dtype.itemsize + 64
    block = empty((m, pitch), dtype)
    defines = (f"ELEMENT={ELEMENTS[name]}", *(["WIDEN=1"] if wide else []))
    kernel = Kernel("cast", *defines, text=text, entry="gather_rows")
    shape, strides = (
        kernels.gather_rows(m),
        (c_longlong(stride), c_longlong(pitch)),
    )
    arguments = (matrix, strides[0], rows, m, d, block, strides[1])
    kernel(shape.grid, shape.block, arguments, seed=1)
    wanted = exact[rows] if wide else matrix[rows, :d]
    np.testing.assert_array_equal(block[:, :d], wanted)
    assert not block[:, d:].any()

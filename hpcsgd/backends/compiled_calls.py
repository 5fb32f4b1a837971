"""Loading and calls of C kernels, for the instruction set of this processor."""

import ctypes
import logging
import os
import platform
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.backends.base import HostPlan, StepBatch, StepSequence
from hpcsgd.data.matrix import Csr
from hpcsgd.errors import ConfigError
from hpcsgd.files import declare, load_kernels
from hpcsgd.formats import Array
from hpcsgd.glm.families import Family, exp_bound, kernel_setting

# Calls of compiled kernels: arrays are passed as they are and become pointers.

Call = Callable[..., None]

try:
    from hpcsgd.backends._call import invoke
except ImportError:  # not compiled: ctypes takes five times as long
    invoke = None


def door_to(library: Any, name: str) -> Call:
    """Return the C function `name` of a library as a function without a result.

    Its arguments are arrays, integers and None.
    """
    function = getattr(library, name)
    if invoke is not None:
        return partial(invoke, ctypes.cast(function, ctypes.c_void_p).value)
    function.restype = None
    return partial(_by_ctypes, function)


def _by_ctypes(function: Any, *arguments: Any) -> None:
    function(*map(_word, arguments))


def _word(argument: Any) -> ctypes.c_int64 | None:
    """Return an argument in 64 bits, as all kernels take it; None stays None.

    An array becomes its address.
    """
    if isinstance(argument, np.ndarray):
        return ctypes.c_int64(argument.ctypes.data)
    return None if argument is None else ctypes.c_int64(argument)


# Which of the compiled objects runs here: one for each set of instructions.

# In the order of the numbers that kernels/cpu/level.c gives.
X86_SETS = ("portable", "avx2", "avx512", "avx512bf16", "amx")
ARM_SETS = ("portable", "neonbf16")
IS_ARM = platform.machine().lower() in ("aarch64", "arm64")
SETS = ARM_SETS if IS_ARM else X86_SETS
TILES = "amx"  # the set that needs a permission of the operating system
settled: list[str] = []  # sets on which runs of this process agreed
CAP = "HPCSGD_ISA"  # the best set that may be used, for comparisons and tests


@lru_cache(maxsize=1)
def best() -> tuple[Any, str, str]:
    """Return (library or None, instruction set, reason) of the best compiled object.

    The object is the best one that this processor, the environment variable HPCSGD_ISA
    and the other ranks allow. The reason is a text for the user.
    """
    if "" in settled:
        return None, "", "another rank has no compiled kernels; NumPy is used"
    library, why = load_library("portable")
    if library is None:
        return None, "", why
    level = min(library.hpcsgd_level(), _cap())
    refused = ""
    for name in reversed(SETS[1 : level + 1]):
        better, reason = load_library(name)
        if better is None:
            continue
        if name == TILES and not library.hpcsgd_ask_for_tiles():
            refused = "; the system refuses the tiles of AMX to this process"
            continue
        return better, name, reason + refused
    return library, SETS[0], why


def resolve_isa(sets: Sequence[str]) -> bool:
    """Use no better instruction set than the least of `sets` in this process.

    An empty text in `sets` stands for a rank without compiled kernels. With a rank on
    another kind of processor, the set is "portable". Return whether this changes the
    set in use.
    """
    known = ("", *SETS)
    least = min((s if s in known else SETS[0] for s in sets), key=known.index)
    if least == best()[1]:
        return False
    settled.append(least)
    best.cache_clear()
    return True


def _cap() -> int:
    cap = os.environ.get(CAP, "").lower() or SETS[-1]
    if cap not in SETS:
        raise ConfigError(f"{CAP}={cap} is unknown; known: {', '.join(SETS)}")
    return min(map(SETS.index, (cap, *settled)))


def load_library(name: str) -> tuple[Any, str]:
    """Return (library or None, reason) of the object for the instruction set `name`."""
    return load_kernels(Path(__file__).parent, f"_cpu_{name}", "the NumPy path")


# The table of kernels; NumPy does their work where they are missing.
#
# Kernels do not check their arguments: the caller ensures dtypes, shapes and row
# numbers. `rows` are int64 and contiguous, matrices float32 or bf16 bits (uint16) with
# contiguous rows, everything else is contiguous. Columns of CSR rows are int32 or
# int64; they were checked when the data were read.

# By the letter of the element type: asking for its name takes longer than a kernel.
MATRICES = {"f": "_f32", "H": "_bf16"}
REALS = {"f": "_f32", "d": "_f64"}
WORDS = {4: "_f32", 8: "_f64"}  # bytes of a number whose bits are looked at
COLUMNS = {4: "_i32", 8: "_i64"}  # bytes of a column number
_ALONE = ("",)
_DENSE = tuple(MATRICES.values())
_REAL = tuple(REALS.values())
_CSR = tuple(f"{matrix}{column}" for matrix in _DENSE for column in COLUMNS.values())
_REAL_CSR = tuple(f"{real}{column}" for real in _REAL for column in COLUMNS.values())
# Kernel -> the element types that it is compiled for. The definitions in kernels/cpu
# describe the arguments.
KERNELS = {
    "widen_rows": ("_bf16",),
    "round": ("_bf16",),
    "exact_scores": _ALONE,
    "row_moments": _REAL,
    "combine_rows": _ALONE,
    "wide_scores": _REAL,
    "wide_combine": _REAL,
    "loss_terms": _ALONE,
    "loss_terms_softmax": _ALONE,
    "csr_scores": _REAL_CSR,
    "csr_combine": _REAL_CSR,
    "csr_moments": _REAL_CSR,
    "two_loops": _ALONE,
    "csr_outer": tuple(COLUMNS.values()),
    "row_squares": _REAL,
    "find_bad": _REAL,
    "fingerprint": _REAL,
    "margins": _DENSE,
    "margins_columns": _DENSE,
    "update": _DENSE,
    "update_columns": _DENSE,
    "strict_gram": _DENSE,
    "csr_margins": _CSR,
    "csr_update": _CSR,
    "csr_shared": _CSR,
    "csr_gram": _ALONE,
    "recur": _REAL,
    "recur_softmax": _REAL,
    "recur_many": _REAL,
    "stand": _ALONE,
    "walk": _DENSE,
    "walk_softmax": _DENSE,
    "walk_csr": _CSR,
    "between": _DENSE,
    "between_softmax": _DENSE,
    "column_moments": _REAL,
    "add_columns": _REAL,
    "gather_columns": _REAL,
    "descend": _REAL,
    "set_threads": _ALONE,
}
TILE_KERNELS = ("margins_tiles", "update_tiles")  # that objects without tiles lack
# The scratch and the Gram of bf16 rows; of a set with both, the faster first.
BF16_GRAMS = (
    ("hpcsgd_tile_room", "hpcsgd_strict_gram_tiles"),
    ("hpcsgd_gram_room", "hpcsgd_strict_gram_pairs"),
)


@lru_cache(maxsize=1)
def functions() -> dict[str, Any]:
    """Return all kernels by name and element type; {} if none are compiled."""
    library = best()[0]
    return {} if library is None else kernels_of(library)


def kernels_of(library: Any) -> dict[str, Any]:
    """Return the kernels of one compiled object by name and element type."""
    bound = {
        name + kind: door_to(library, f"hpcsgd_{name}{kind}")
        for name, kinds in KERNELS.items()
        for kind in kinds
    }
    if hasattr(library, f"hpcsgd_{TILE_KERNELS[0]}"):
        bound |= {name: door_to(library, f"hpcsgd_{name}") for name in TILE_KERNELS}
    bound["columns_room"] = declare(library, "hpcsgd_columns_room", "l", "lll")
    return bound | bf16_gram(library)


def bf16_gram(library: Any) -> dict[str, Any]:
    """Return the fastest Gram kernel of a library for bf16 rows, by name.

    The entry `gram_room` is a function that returns the words of its scratch. The
    result is {} if the library has no such kernel.
    """
    for size_function, name in BF16_GRAMS:
        words = declare(library, size_function, "l", "l")
        if words(1):
            return {"strict_gram_pairs": door_to(library, name), "gram_room": words}
    return {}


def kernel(name: str, matrix: Array) -> Call:
    """Return kernel `name` for the element type of `matrix`, float32 or bf16 bits."""
    call: Call = functions()[name + MATRICES[matrix.dtype.char]]
    return call


def available() -> bool:
    """Return whether the compiled kernels are in use."""
    return bool(functions())


def why() -> str:
    """Return a text for users: which kernels are in use, or why none are."""
    return best()[2]


def instructions() -> str:
    """Return the instruction set of the kernels in use; "" if none are."""
    return best()[1]


def has_pairs() -> bool:
    """Return whether there is a Gram kernel for bf16, by pair products or AMX tiles."""
    return "strict_gram_pairs" in functions()


def has_tiles() -> bool:
    """Return whether kernels with AMX tiles are in use.

    The processor must have tiles, and the operating system must permit their use.
    """
    return instructions() == TILES


def settle(sets: Sequence[str]) -> None:
    """Use the best instruction set that all ranks have, with the same `sets` on each.

    `sets` contains what `instructions` returned on each rank. With different
    instruction sets, ranks that compute the same value would differ in its last bits.
    """
    if resolve_isa(sets):
        functions.cache_clear()


def tile_peak() -> Callable[[int], int] | None:
    """Return a function that multiplies AMX tiles in registers; None without tiles.

    The function takes the number of rounds and returns the number of multiply-adds. A
    caller that times it learns the peak speed of the tiles.
    """
    if not has_tiles():
        return None
    peak: Callable[[int], int] = declare(best()[0], "hpcsgd_tile_peak", "l", "l")
    return peak


class KernelScratch:
    """Scratch arrays of kernels, kept from call to call; a new array contains zeros.

    Every backend has its own instance, so that ranks that are threads share no scratch.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def array(self, name: str, words: int, dtype: Any) -> Array:
        """Return the scratch array called `name`, of at least `words` elements.

        It is replaced by a longer one if it is too short.
        """
        array = self._arrays.get(name)
        if array is None or len(array) < words:
            array = self._arrays[name] = np.zeros(words, dtype=dtype)
        return array


# Passes over dense rows.


def stride_of(matrix: Array) -> int:
    """Return the number of elements from one row of `matrix` to the next."""
    return matrix.strides[0] // matrix.itemsize


def widen_rows(matrix: Array, rows: Array, out: Array) -> None:
    """Compute out[i] ← matrix[rows[i]], bf16 bits to float32."""
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    call = functions()["widen_rows_bf16"]
    call(matrix, stride_of(matrix), rows, len(rows), matrix.shape[1], out)


def round_bf16(values: Array) -> None:
    """Round each float32 to the nearest bf16 number, in place."""
    functions()["round_bf16"](values, values.size)


def exact_scores(block: Array, weights: Array, out: Array) -> None:
    """Compute out ← block · weights for float32 rows, in float64."""
    call = functions()["exact_scores"]
    call(block, stride_of(block), *block.shape, weights, out)


def add_moments(block: Array, h: Array, first: Array, second: Array) -> None:
    """Add Σ h a and Σ h a² of the rows a of a block to `first` and `second`.

    The rows are float32 or float64; the others are float64 and have one column.
    """
    call = functions()["row_moments" + REALS[block.dtype.char]]
    call(block, stride_of(block), *block.shape, h, first, second)


def combine_rows(block: Array, factors: Array, out: Array) -> None:
    """Compute out ← out + Σ r a over the float32 rows a of a block.

    `factors` and `out` are float64 and have one column.
    """
    call = functions()["combine_rows"]
    call(block, stride_of(block), *block.shape, factors, out)


MOST_WIDE = 32  # columns of weights, up to which the kernels are faster than BLAS
ROOM_ROWS = 8  # of a group of rows, beside those of the columns


def takes_wide(block: Array, columns: int) -> bool:
    """Return whether `wide_scores` and `wide_combine` take dense rows.

    `columns` is the number of columns of weights. For rows of float64 without AVX2,
    BLAS is faster.
    """
    has_vectors = instructions() not in ("", SETS[0])
    is_faster = has_vectors or block.dtype == np.float32
    return is_faster and 1 < columns <= MOST_WIDE


def wide_scores(block: Array, weights: Array, out: Array) -> None:
    """Compute out ← block · weights, (m, K), in float64.

    The rows are float32 or float64.
    """
    _call_wide("wide_scores", block, weights, out)


def wide_combine(block: Array, factors: Array, out: Array) -> None:
    """Compute out ← out + blockᵀ · factors, (d, K), in float64.

    The rows are float32 or float64.
    """
    _call_wide("wide_combine", block, factors, out)


def _call_wide(name: str, block: Array, factors: Array, out: Array) -> None:
    wide = factors.shape[1]
    width = -(-wide // ROOM_ROWS) * ROOM_ROWS
    room = np.empty((block.shape[1] + ROOM_ROWS) * width)
    call = functions()[name + REALS[block.dtype.char]]
    call(block, stride_of(block), *block.shape, wide, factors, room, out)


# Passes over CSR rows of float32 or float64, in float64: SciPy arrays of format "csr".


def call_rows(name: str, rows: Any, *rest: Any) -> None:
    """Call kernel `name` with all rows of a SciPy CSR array, then `rest`."""
    kind = REALS[rows.data.dtype.char] + COLUMNS[rows.indices.itemsize]
    indptr = rows.indptr.astype(np.int64, copy=False)
    call = functions()[name + kind]
    call(indptr, rows.indices, rows.data, rows.shape[0], *rest)


def csr_scores(rows: Any, weights: Array, out: Array) -> None:
    """Compute out ← rows · weights, (m, K)."""
    call_rows("csr_scores", rows, weights.shape[1], weights, out)


def csr_combine(rows: Any, factors: Array, out: Array) -> None:
    """Compute out ← out + rowsᵀ · factors, (d, K)."""
    call_rows("csr_combine", rows, factors.shape[1], factors, out)


def csr_moments(rows: Any, h: Array, first: Array, second: Array) -> None:
    """Add Σ h a and Σ h a² of the rows a to `first` and `second`, (d, K)."""
    call_rows("csr_moments", rows, h.shape[1], h, first, second)


# The losses of all rows, in float64.

# Families with a kernel -> their numbers in it.
LOSSES = {"gaussian": 0, "logistic": 1, "binomial": 1, "poisson": 2, "gamma": 3}
MOST_CLASSES = 64  # of a softmax


def has_loss_terms(family: Family, columns: int) -> bool:
    """Return whether a kernel computes the losses of a family.

    `columns` is the number K of scores a row.
    """
    if family.name == SOFTMAX:
        return available() and columns <= MOST_CLASSES
    return available() and family.name in LOSSES and columns == 1


def loss_terms(
    family: Family, scores: Array, targets: Array, shares: Array, along: Array
) -> tuple[Array, Array, Array | None]:
    """Return the sums (Σ c ℓ, Σ c r·q, Σ c |ℓ|), the residuals r = ∂ℓ/∂t, and ∂r/∂t.

    Sums are over all rows; r and ∂r/∂t are without the factor c. ∂r/∂t is None for
    softmax, which has several scores a row.

    Parameters
    ----------
    family : Family
        One for which `has_loss_terms` is true.
    scores, along : ndarray of shape (n, K)
        t, and q, a direction of scores.
    targets, shares : ndarray of shape (n, 1)
        y, and c, the shares of the rows.
    """
    residuals = np.empty_like(scores)
    sums = np.empty(3)
    if family.name not in LOSSES:
        call = functions()["loss_terms_softmax"]
        call(*scores.shape, scores, targets, shares, along, residuals, sums)
        return sums, residuals, None
    kind = LOSSES[family.name]
    bound = np.array([exp_bound(scores.dtype)])
    bends = np.empty_like(scores)
    functions()["loss_terms"](
        kind,
        len(scores),
        scores,
        targets,
        shares,
        along,
        bound,
        residuals,
        bends,
        sums,
    )
    return sums, residuals, bends


# The inner products of L-BFGS.


def two_loops(order: Sequence[int], products: Array) -> Array:
    """Return the coefficients whose combination of the vectors is p = −H g.

    Parameters
    ----------
    order : sequence of int
        The slots of the pairs that make H, the oldest first.
    products : ndarray of shape (2M + 1, 2M + 1)
        The inner products of g, and of s and y of each of M slots.
    """
    out = np.empty(len(products))
    slots = np.array(order, dtype=np.int64)
    room = np.empty(len(slots))
    functions()["two_loops"](len(slots), slots, len(out), products, room, out)
    return out


MOST_SQUARES = 512  # variables, up to which `add_squares` is faster than BLAS


def takes_squares(block: Array, variables: int) -> bool:
    """Return whether `add_squares` takes dense rows, for that many variables.

    Without AVX2, BLAS is faster and loses less to rounding.
    """
    is_real = block.dtype.char in REALS and block.strides[1] == block.itemsize
    has_kernel = instructions() not in ("", SETS[0])
    return is_real and has_kernel and variables <= MOST_SQUARES


def add_squares(
    block: Array,
    roots: Array,
    centers: Array,
    scales: Array,
    last: float,
    out: Array,
) -> None:
    """Add Σ s sᵀ of scaled rows s = √h ((a − m) · scale, last) to the square `out`.

    Parameters
    ----------
    block : ndarray of shape (m, d), float32 or float64
        The rows a.
    roots : ndarray of shape (m,)
        √h.
    centers, scales : ndarray of shape (d,)
        m, and the factors of the columns.
    last : float
        The entry of the intercept; unused if `out` has only d variables.
    out : ndarray of shape (P, P)
        Becomes the sum; both triangles are changed.
    """
    call = functions()["row_squares" + REALS[block.dtype.char]]
    shape = (stride_of(block), *block.shape)
    width = -(-len(out) // 8) * 8  # the kernel's square has whole eights
    room = np.empty((width, width))
    call(block, *shape, roots, centers, scales, np.array([last]), len(out), room, out)


def add_outer(rows: Any, bends: Array, out: Array) -> None:
    """Compute out ← out + Σ h a aᵀ over CSR rows a, in the lower triangle of `out`.

    Parameters
    ----------
    rows : scipy CSR of shape (n, d)
        Rows with ascending columns.
    bends : ndarray of shape (n,)
        h.
    out : ndarray of shape (P, P), P >= d
        The square, in float64.
    """
    call = functions()["csr_outer" + COLUMNS[rows.indices.itemsize]]
    indptr = rows.indptr.astype(np.int64, copy=False)
    data = rows.data.astype(np.float64, copy=False)
    call(indptr, rows.indices, data, rows.shape[0], bends, out.shape[1], out)


def has_bad(block: Array) -> bool:
    """Return whether a value of the block, float32 or float64, is infinite or NaN."""
    bad = np.zeros(1, dtype=np.int64)
    functions()["find_bad" + REALS[block.dtype.char]](
        block, stride_of(block), *block.shape, bad
    )
    return bool(bad[0])


def fingerprint(bits: Array, rows: Array, columns: Array) -> np.uint64:
    """Return the checksum Σ_ij rows_i columns_j bits_ij mod 2⁶⁴ of a matrix of bits.

    Its words have 32 or 64 bits. `rows` and `columns` contain a factor for each row and
    for each column.
    """
    total = np.zeros(1, dtype=np.uint64)
    call = functions()["fingerprint" + WORDS[bits.itemsize]]
    call(bits, stride_of(bits), *bits.shape, rows, columns, total)
    word: np.uint64 = total[0]
    return word


# Products of sampled dense rows: with one column of weights, with several, and with
# many by AMX tiles.


def margins(matrix: Array, rows: Array, weights: Array, out: Array) -> None:
    """Compute out[i] ← matrix[rows[i]] · weights."""
    call = kernel("margins", matrix)
    call(matrix, stride_of(matrix), rows, len(rows), matrix.shape[1], weights, out)


def update(matrix: Array, rows: Array, residuals: Array, weights: Array) -> None:
    """Compute weights ← weights + Σ_i residuals[i] matrix[rows[i]]."""
    call = kernel("update", matrix)
    call(
        matrix, stride_of(matrix), rows, len(rows), matrix.shape[1], residuals, weights
    )


def margins_columns(
    matrix: Array,
    rows: Array,
    weights: Array,
    out: Array,
    tiles: KernelScratch | None = None,
) -> None:
    """Compute out ← Y W for the sampled rows Y and weights (d, K).

    `tiles` is the scratch of the kernel with AMX tiles, which multiplies rows in bf16;
    None selects the kernel with vector instructions.
    """
    _by_columns("margins", matrix, rows, weights, out, tiles)


def update_columns(
    matrix: Array,
    rows: Array,
    residuals: Array,
    weights: Array,
    tiles: KernelScratch | None = None,
) -> None:
    """Compute weights ← weights + Yᵀ R for the sampled rows Y and residuals (m, K).

    `tiles` is the scratch of the kernel with AMX tiles, which multiplies rows in bf16;
    None selects the kernel with vector instructions.
    """
    _by_columns("update", matrix, rows, residuals, weights, tiles)


def _by_columns(
    name: str,
    matrix: Array,
    rows: Array,
    factor: Array,
    out: Array,
    tiles: KernelScratch | None,
) -> None:
    m = len(rows)
    width = matrix.shape[1]
    K = factor.shape[1]
    if tiles is None:
        call = kernel(f"{name}_columns", matrix)
        scratch = np.empty(width * K, dtype=np.float32)
    else:
        call = functions()[f"{name}_tiles"]
        words = functions()["columns_room"]
        scratch = tiles.array("tiles", words(m, width, K), np.uint32)
    call(matrix, stride_of(matrix), rows, m, width, K, factor, out, scratch)


def strict_gram(matrix: Array, rows: Array, starts: Array, out: Array) -> None:
    """Compute out ← the strictly-lower blocks of Y Yᵀ, packed, for sampled rows Y.

    `starts` contains the first row of each batch, and the number of rows.
    """
    call = kernel("strict_gram", matrix)
    stride = stride_of(matrix)
    width = matrix.shape[1]
    call(matrix, stride, rows, width, starts, len(starts) - 1, out)


def pair_room_bytes(rows: int) -> int:
    """Return the bytes of scratch of `strict_gram_pairs`; 0 without that kernel."""
    words = int(functions()["gram_room"](rows)) if has_pairs() else 0
    return words * np.dtype(np.uint32).itemsize


def strict_gram_pairs(
    matrix: Array, rows: Array, starts: Array, out: Array, scratch: KernelScratch
) -> None:
    """Compute out ← the strictly-lower blocks of Y Yᵀ for sampled bf16 rows Y, packed.

    `starts` is that of `strict_gram`. The processor must multiply bf16 in pairs or
    tiles.
    """
    call = functions()["strict_gram_pairs"]
    batches = len(starts) - 1
    words = functions()["gram_room"](len(rows))
    call(
        matrix,
        stride_of(matrix),
        rows,
        matrix.shape[1],
        starts,
        batches,
        out,
        scratch.array("panels", words, np.uint32),
        scratch.array("panel starts", batches, np.uintp),
    )


# Products of sampled CSR rows.

ABREAST = 16  # as in kernels/cpu/csr.c


def csr_kernel(name: str, csr: Csr) -> Call:
    """Return kernel `name` for the types of the values and column numbers of `csr`."""
    kind = MATRICES[csr.data.dtype.char] + COLUMNS[csr.indices.itemsize]
    call: Call = functions()[name + kind]
    return call


def call_csr(name: str, csr: Csr, rows: Array, *rest: Any) -> None:
    """Call kernel `name` with the sampled `rows` of a CSR matrix, then `rest`."""
    call = csr_kernel(name, csr)
    call(csr.indptr, csr.indices, csr.data, rows, len(rows), *rest)


def csr_margins(csr: Csr, rows: Array, weights: Array, out: Array) -> None:
    """Compute out[i] ← row rows[i] of `csr` times the `weights`, (width, K)."""
    call_csr("csr_margins", csr, rows, weights.shape[1], weights, out)


def csr_update(csr: Csr, rows: Array, residuals: Array, weights: Array) -> None:
    """Compute weights ← weights + Yᵀ R for sampled rows Y and residuals R, (m, K)."""
    call_csr("csr_update", csr, rows, weights.shape[1], residuals, weights)


def csr_strict_gram(
    csr: Csr, rows: Array, starts: Array, out: Array, scratch: KernelScratch
) -> None:
    """Compute out ← the strictly-lower blocks of Y Yᵀ for the sampled rows Y, packed.

    `starts` is that of `strict_gram`. The kernels reset the scratch that they use to
    zeros.
    """
    stored = int((csr.indptr[rows + 1] - csr.indptr[rows]).sum())
    edges = np.empty(len(rows) + 1, dtype=np.int64)
    columns = np.empty(stored, dtype=np.int32)
    values = np.empty(stored, dtype=np.float32)
    count = np.empty(1, dtype=np.int64)
    places = scratch.array("places", csr.width, np.int32)
    call_csr("csr_shared", csr, rows, places, edges, columns, values, count)
    # Rows abreast, and padding so that they begin where a vector does.
    abreast = scratch.array("abreast", (int(count[0]) + 1) * ABREAST, np.float32)
    gram = functions()["csr_gram"]
    gram(edges, columns, values, starts, len(starts) - 1, out, abreast)


# The coefficients of an exchange and of plain steps as C structs.

MANY_VECTOR = 64  # bytes that rows of scratch of `recur_many` are rounded up to
# family -> its number in kernels/cpu/steps.c.
FAMILIES = {
    **{"logistic": 0, "gaussian": 1, "poisson": 2, "gamma": 3, "squared-hinge": 4},
    **{"huber": 5, "tweedie": 7, "negative-binomial": 8, "binomial": 0},
}
SOFTMAX = "softmax"  # K scores a row have kernels of their own


class CStruct:
    """A C struct of 64-bit words: integers, a float64 or none, and addresses of arrays.

    `setting` is the float64.
    """

    def __init__(
        self, numbers: Sequence[int], setting: float | None, arrays: Sequence[Array]
    ) -> None:
        bits = [] if setting is None else [int(np.float64(setting).view(np.int64))]
        addresses = [array.ctypes.data for array in arrays]
        self.words = np.array([*numbers, *bits, *addresses], dtype=np.int64)
        self._arrays = arrays  # keeps alive what the addresses point to


def family_number(family: Family) -> int:
    """Return the number of a family in the kernels; 0 for softmax, which needs none."""
    return 0 if family.name == SOFTMAX else FAMILIES[family.name]


class CompiledRecurrence:
    """A kernel of the s-step recurrence, with the coefficients of an exchange.

    A call computes the residuals of all steps of an exchange.

    Parameters
    ----------
    kernel : {"recur", "recur_softmax", "recur_many"}
    plan : HostPlan
    family : Family
    dtype : dtype of margins, Gram and residuals
    """

    def __init__(
        self, kernel: str, plan: HostPlan, family: Family, dtype: np.dtype[Any]
    ) -> None:
        self.kernel = kernel
        self._call: Call = functions()[kernel + REALS[dtype.char]]
        self.states = plan.states
        unrolled = plan.unrolled
        exact = np.dtype(np.float64)
        real = dtype if kernel == "recur_many" else exact
        couple = np.concatenate([np.asarray(c, dtype=real) for c in unrolled.couple])
        numbers = [len(plan.blocks.sizes), plan.states, family_number(family)]
        if kernel == "recur_many":
            numbers.append(unrolled.push.shape[2])
        arrays = [
            np.array(plan.blocks.starts, dtype=np.int64),
            np.ascontiguousarray(unrolled.lead, dtype=real),
            couple,
            np.ascontiguousarray(unrolled.free, dtype=exact),
            np.ascontiguousarray(unrolled.push, dtype=exact),
            np.ascontiguousarray(unrolled.probe, dtype=exact),
        ]
        self._plan = CStruct(numbers, kernel_setting(family, dtype), arrays)

    def __call__(
        self, margins: Array, gram: Array, batch: StepBatch, intercept: Array | None
    ) -> Array:
        """Return the residuals (m, K) of all steps; `intercept` advances in place."""
        m = len(margins)
        K = margins.shape[1] // self.states
        residuals: Array = np.empty((m, K), dtype=margins.dtype)
        words = m * K
        more: tuple[int, ...] = ()
        if self.kernel == "recur_softmax":
            more = (K,)
        elif self.kernel == "recur_many":
            more = (int(batch.weights is not None and batch.weights.shape[1] > 1),)
            each = MANY_VECTOR // margins.itemsize
            words = (m + 1) * -(-K // each) * each
        self._call(
            self._plan.words,
            *more,
            margins,
            gram,
            batch.targets,
            batch.weights,
            batch.offsets,
            intercept,
            residuals,
            np.empty(words, dtype=margins.dtype),
        )
        return residuals


class PlainStepsPlan:
    """The coefficients of plain steps, as the struct `walk` of the kernels in C.

    Plain steps are taken one after the other, without a Gram matrix. `width` is the
    number of columns of weights; if `rounds`, kernels round margins to bf16.
    """

    def __init__(self, plain: StepSequence, width: int, rounds: bool) -> None:
        steps = plain.steps
        family = plain.family
        starts = np.array(plain.blocks.starts, dtype=np.int64)
        coefficients = (steps.carry, steps.gain, steps.free, steps.gain, steps.probe)
        arrays = [
            starts,
            *(np.ascontiguousarray(a, dtype=np.float64) for a in coefficients),
        ]
        numbers = (len(starts) - 1, steps.states, family_number(family), int(rounds))
        self._plan = CStruct(numbers, kernel_setting(family, np.float32), arrays)
        self.columns = width // steps.states  # scores of a row
        self.is_turned = family.name == SOFTMAX
        # The first arguments of each call.
        self.words: tuple[Any, ...] = (self._plan.words,)
        if self.is_turned:
            self.words = (self._plan.words, self.columns)


PLACE = 11  # words of `place` in kernels/cpu/steps.c


class CompiledSteps:
    """Plain steps on sampled rows: a call of a kernel, and all arrays that it uses.

    The kernel `hpcsgd_walk` takes all steps in one call without arguments. The kernel
    `hpcsgd_between` is called once for every j from -1 on: its arguments are j, the
    summed margins of step j, and an array for the margins of step j + 1.

    Parameters
    ----------
    kernel : callable, for the family and the storage of the rows
    plan : PlainStepsPlan
    rows : tuple, the result of `place` of the sampled rows
    weights : ndarray, advances in place
    plain : StepSequence; its intercept advances in place
    """

    def __init__(
        self,
        kernel: Call,
        plan: PlainStepsPlan,
        rows: tuple[Any, int, Array, int],
        weights: Array,
        plain: StepSequence,
    ) -> None:
        batch = plain.batch
        d = len(weights)
        m = len(plain.batch.targets)
        self.residuals = np.empty((m, plan.columns), dtype=np.float32)
        # Workspace of a point, a gradient, and scaled residuals. Softmax also needs
        # transposed weights, which with one state replace point and gradient.
        many = 0 if plan.is_turned and plain.steps.states == 1 else 2
        words = (many * d + m) * plan.columns + plan.is_turned * weights.size
        fields = (
            *rows,
            weights,
            batch.targets,
            batch.weights,
            batch.offsets,
            plain.intercept,
            self.residuals,
            np.empty(words, dtype=np.float32),
        )
        place = np.empty(PLACE, dtype=np.int64)
        functions()["stand"](place, *fields)
        self._call = partial(kernel, *plan.words, place)
        self._kept = (plan, fields)

    def __call__(self, *arguments: Any) -> None:
        self._call(*arguments)


# How many threads share the work of one call of a compiled kernel.

log = logging.getLogger(__name__)


def use(count: int, grain: int = 0) -> None:
    """Let kernels use `count` threads in this process; results keep their bits.

    A call of less work than two times `grain` nanoseconds runs on the calling thread
    alone; `grain` 0 selects the usual threshold.
    """
    if available():
        functions()["set_threads"](count, grain)


def warn(count: int, places: Sequence[tuple[str, Sequence[int]]], rank: int) -> None:
    """Warn on one rank of a node if its ranks use more threads than available cores.

    Each rank uses `count` threads; `places` contains the result of `place` of each
    rank.
    """
    node = places[rank][0]
    here = [cores for name, cores in places if name == node]
    cores = len(set().union(*here))
    is_first = [name for name, _ in places].index(node) == rank
    if is_first and len(here) * count > cores:
        _say(len(here), count, cores, node)


@lru_cache
def _say(*figures: Any) -> None:
    """Log the warning of `warn`, only once in a process for the same figures.

    They are the ranks of the node, threads of a rank, cores, and the node's name.
    """
    log.warning(
        "%d ranks with %d threads each share %d cores of node %s and slow each other"
        " down; use fewer --threads or ranks",
        *figures,
    )


def place() -> tuple[str, tuple[int, ...]]:
    """Return the name of this rank's node, and the numbers of the cores it may use."""
    if hasattr(os, "sched_getaffinity"):
        return socket.gethostname(), tuple(sorted(os.sched_getaffinity(0)))
    return socket.gethostname(), tuple(range(os.cpu_count() or 1))

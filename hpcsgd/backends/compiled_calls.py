"""How C kernels are found and called, for the instruction set of this processor."""

import ctypes
import logging
import os
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.backends.base import StepBatch, StepSequence
from hpcsgd.data.sparse import Csr
from hpcsgd.errors import ConfigError
from hpcsgd.files import load_kernels
from hpcsgd.formats import Array
from hpcsgd.glm.families import exp_bound
from hpcsgd.glm.unrolling import UnrolledSteps

# Calls of compiled kernels: arrays go in as they are and become pointers there.

Call = Callable[..., None]

try:
    from hpcsgd.backends._call import invoke
except ImportError:  # not compiled: ctypes takes five times as long
    invoke = None


def door_to(library: Any, name: str) -> Call:
    """The kernel `name`, for arrays, whole numbers and None."""
    function = getattr(library, name)
    if invoke is not None:
        return partial(invoke, ctypes.cast(function, ctypes.c_void_p).value)
    function.restype = None
    return partial(_by_ctypes, function)


def _by_ctypes(function: Any, *arguments: Any) -> None:
    function(*map(_word, arguments))


def _word(argument: Any) -> ctypes.c_int64 | None:
    """An argument as all kernels take theirs: in 64 bits."""
    if isinstance(argument, np.ndarray):
        return ctypes.c_int64(argument.ctypes.data)
    return None if argument is None else ctypes.c_int64(argument)


# Which of the compiled objects runs here: one for each set of instructions.

# In the order of the numbers that kernels/cpu/level.c gives.
SETS = ("portable", "avx2", "avx512", "avx512bf16", "amx")
TILES = "amx"  # the set that the system has to be asked for
settled: list[str] = []  # what runs so far have agreed on, for as long as we live
CAP = "HPCSGD_ISA"  # the best set that may be used, for comparisons and tests


@lru_cache(maxsize=1)
def best() -> tuple[Any, str, str]:
    """(library or None, its set, why): the best object that this processor can run."""
    if "" in settled:
        return None, "", "another rank has no compiled kernels; NumPy is used"
    library, why = load_library("portable")
    if library is None:
        return None, "", why
    library.hpcsgd_level.restype = ctypes.c_int
    level, refused = min(library.hpcsgd_level(), _cap()), ""
    for name in reversed(SETS[1 : level + 1]):
        better, said = load_library(name)
        if better is None:
            continue
        if name == TILES and not library.hpcsgd_ask_for_tiles():
            refused = "; the system refuses the tiles of AMX to this process"
            continue
        return better, name, said + refused
    return library, SETS[0], why


def resolve_isa(sets: Sequence[str]) -> bool:
    """Use no better instruction set than the least of `sets`, "" for none; return True
    if that changes it.
    """
    least = min(sets, key=(("", *SETS)).index)
    if least == best()[1]:
        return False
    settled.append(least)
    best.cache_clear()
    return True


def _cap() -> int:
    asked = os.environ.get(CAP, "").lower() or SETS[-1]
    if asked not in SETS:
        raise ConfigError(f"{CAP}={asked} is unknown; known: {', '.join(SETS)}")
    return min(map(SETS.index, (asked, *settled)))


def load_library(name: str) -> tuple[Any, str]:
    return load_kernels(Path(__file__).parent, f"_cpu_{name}", "the NumPy path")


# Which of the compiled kernels multiplies bf16 rows by one another.

GRAM_INT = ctypes.c_int64
KINDS = (  # the scratch and the Gram of each; of a set with both, the faster first
    ("hpcsgd_tile_room", "hpcsgd_strict_gram_tiles"),
    ("hpcsgd_gram_room", "hpcsgd_strict_gram_pairs"),
)


def bf16_gram(library: Any) -> dict[str, Any]:
    """The Gram of this set and its scratch: by tiles, by pairs, or none."""
    for room, name in KINDS:
        words = getattr(library, room)
        words.restype, words.argtypes = GRAM_INT, (GRAM_INT,)
        if words(1):
            gram = door_to(library, name)
            return {"hpcsgd_strict_gram_pairs": gram, "hpcsgd_gram_room": words}
    return {}


def tile_peak() -> Callable[[int], int] | None:
    """Multiplies tiles in registers that many rounds, says how many products it took.

    None where there are no tiles.
    """
    library, name, _ = best()
    if name != TILES:
        return None
    peak: Callable[[int], int] = library.hpcsgd_tile_peak
    library.hpcsgd_tile_peak.restype, library.hpcsgd_tile_peak.argtypes = (
        GRAM_INT,
        (GRAM_INT,),
    )
    return peak


# Compiled CPU kernels through ctypes; NumPy does their work where they are missing.
#
# Arguments are not checked again: dtypes, shapes and row numbers are for the caller to
# know. `rows` are int64 and contiguous, matrices float32 or bf16 bits (uint16) with
# contiguous rows, everything else is contiguous.

POINTER, INT = ctypes.c_void_p, ctypes.c_int64
# What each kernel takes is said where it is defined, in kernels/cpu.
KERNELS = (
    "hpcsgd_widen_rows_bf16",
    "hpcsgd_exact_scores",
    "hpcsgd_find_bad",
    "hpcsgd_fingerprint",
    "hpcsgd_margins_f32",
    "hpcsgd_margins_bf16",
    "hpcsgd_update_f32",
    "hpcsgd_update_bf16",
    "hpcsgd_strict_gram_f32",
    "hpcsgd_strict_gram_bf16",
    "hpcsgd_recur_f32",
    "hpcsgd_recur_f64",
    "hpcsgd_round_bf16",
    "hpcsgd_stand",
    "hpcsgd_walk_f32",
    "hpcsgd_walk_bf16",
    "hpcsgd_between_f32",
    "hpcsgd_between_bf16",
    "hpcsgd_walk_softmax_f32",
    "hpcsgd_walk_softmax_bf16",
    "hpcsgd_between_softmax_f32",
    "hpcsgd_between_softmax_bf16",
)
# By the letter of the element type: asking for its name takes longer than a kernel.
MATRICES = {"f": "_f32", "H": "_bf16"}
REALS = {"f": "_f32", "d": "_f64"}


@lru_cache(maxsize=1)
def dense_functions() -> dict[str, Any]:
    """Return the dense kernels by name; an empty dict where nothing is compiled."""
    library = best()[0]
    if library is None:
        return {}
    found: dict[str, Any] = {name: door_to(library, name) for name in KERNELS}
    found.update(bf16_gram(library))
    return found


def available() -> bool:
    """True where the compiled kernels are in use."""
    return bool(dense_functions())


def why() -> str:
    """What is in use, or why nothing is."""
    return best()[2]


def instructions() -> str:
    """The set of instructions that the kernels in use are compiled for."""
    return best()[1]


def settle(sets: Sequence[str]) -> None:
    """Use what all ranks have; `sets` is what each of them said of `instructions`.

    Ranks that compute the same thing would otherwise differ in its last bits.
    """
    if resolve_isa(sets):
        dense_functions.cache_clear()


def widen_rows(matrix: Array, rows: Array, out: Array) -> None:
    """out[i] ← matrix[rows[i]], bf16 bits to float32."""
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    call = dense_functions()["hpcsgd_widen_rows_bf16"]
    call(matrix, stride_of(matrix), rows, len(rows), matrix.shape[1], out)


def margins(matrix: Array, rows: Array, weights: Array, out: Array) -> None:
    """out[i] ← matrix[rows[i]] · weights."""
    call = dense_functions()["hpcsgd_margins" + MATRICES[matrix.dtype.char]]
    call(matrix, stride_of(matrix), rows, len(rows), matrix.shape[1], weights, out)


def update(matrix: Array, rows: Array, residuals: Array, weights: Array) -> None:
    """weights += Σ_i residuals[i] matrix[rows[i]]."""
    call = dense_functions()["hpcsgd_update" + MATRICES[matrix.dtype.char]]
    call(
        matrix, stride_of(matrix), rows, len(rows), matrix.shape[1], residuals, weights
    )


def exact_scores(block: Array, weights: Array, out: Array) -> None:
    """out ← block · weights for float32 rows, in float64."""
    call = dense_functions()["hpcsgd_exact_scores"]
    call(block, stride_of(block), *block.shape, weights, out)


def has_bad(block: Array) -> bool:
    """Whether a float32 of the block is infinite or no number."""
    found = np.zeros(1, dtype=np.int64)
    dense_functions()["hpcsgd_find_bad"](block, stride_of(block), *block.shape, found)
    return bool(found[0])


def fingerprint(bits: Array, rows: Array, columns: Array) -> np.uint64:
    """Σ rows_i columns_j bits_ij mod 2⁶⁴."""
    total = np.zeros(1, dtype=np.uint64)
    call = dense_functions()["hpcsgd_fingerprint"]
    call(bits, stride_of(bits), *bits.shape, rows, columns, total)
    found: np.uint64 = total[0]
    return found


def kernel(name: str, matrix: Array) -> Call:
    """The kernel of this name for what `matrix` is stored as."""
    found: Call = dense_functions()[name + MATRICES[matrix.dtype.char]]
    return found


def stand(place: Array, *fields: Any) -> None:
    """Write what steps are taken on: `place` of kernels/cpu/steps.c."""
    dense_functions()["hpcsgd_stand"](place, *fields)


def round_bf16(values: Array) -> None:
    """Each float32 to the nearest that bf16 has, in place."""
    dense_functions()["hpcsgd_round_bf16"](values, values.size)


def stride_of(matrix: Array) -> int:
    """From row to row, in elements."""
    return matrix.strides[0] // matrix.itemsize


def has_pairs() -> bool:
    """True where bf16 is multiplied in pairs, at twice the speed of float32."""
    return "hpcsgd_strict_gram_pairs" in dense_functions()


def pair_room_bytes(rows: int) -> int:
    """Return the bytes of scratch of `strict_gram_pairs`; 0 where there is none."""
    if not (available() and has_pairs()):
        return 0
    return (
        int(dense_functions()["hpcsgd_gram_room"](rows)) * np.dtype(np.uint32).itemsize
    )


class PairRoom:
    """Scratch of `strict_gram_pairs`, kept from call to call."""

    def __init__(self, rows: int, batches: int) -> None:
        words = pair_room_bytes(rows) // np.dtype(np.uint32).itemsize
        self.panels = np.empty(words, dtype=np.uint32)
        self.starts = np.empty(batches, dtype=np.uintp)
        self.rows = rows

    def holds(self, rows: int, batches: int) -> bool:
        """Return whether there is room for so many sampled rows in so many batches."""
        return rows <= self.rows and batches <= self.starts.size


def strict_gram_pairs(
    matrix: Array, rows: Array, starts: Array, out: Array, room: PairRoom
) -> None:
    """The same for bf16 rows, on processors that multiply bf16 in pairs or tiles."""
    dense_functions()["hpcsgd_strict_gram_pairs"](
        *(matrix, stride_of(matrix), rows, matrix.shape[1]),
        *(starts, len(starts) - 1, out, room.panels, room.starts),
    )


def strict_gram(matrix: Array, rows: Array, starts: Array, out: Array) -> None:
    """out ← the strictly-lower blocks of Y Yᵀ for the sampled rows Y, packed."""
    dense_functions()["hpcsgd_strict_gram" + MATRICES[matrix.dtype.char]](
        *(matrix, stride_of(matrix), rows, matrix.shape[1]),
        *(starts, len(starts) - 1, out),
    )


class RecurrencePlan:
    """The coefficients of an exchange as `hpcsgd_recur` wants them, made once."""

    def __init__(
        self, unrolled: UnrolledSteps, starts: Array, family: int, setting: float
    ) -> None:
        couple = [np.asarray(c, dtype=np.float64) for c in unrolled.couple]
        self.kept = [  # what the addresses below point to
            starts,
            *(
                np.ascontiguousarray(values, dtype=np.float64)
                for values in (
                    unrolled.lead,
                    np.concatenate(couple),
                    unrolled.free,
                    unrolled.push,
                    unrolled.probe,
                )
            ),
        ]
        states = len(unrolled.probe)
        sizes = (len(starts) - 1, states, family)
        self.plan = _StepsPlan(*sizes, setting, *(a.ctypes.data for a in self.kept))
        self.pointer = ctypes.addressof(self.plan)

    def __call__(
        self,
        margins: Array,
        gram: Array,
        batch: StepBatch,
        intercept: Array | None,
        residuals: Array,
        scratch: Array,
    ) -> None:
        """Residuals of all steps; the intercept advances in place."""
        dense_functions()["hpcsgd_recur" + REALS[residuals.dtype.char]](
            *(self.pointer, margins, gram),
            *(batch.targets, batch.weights, batch.offsets),
            *(intercept, residuals, scratch),
        )


class _StepsPlan(ctypes.Structure):
    """`plan` of kernels/cpu/steps_body.h."""

    _fields_ = (
        *((name, INT) for name in ("batches", "states", "family")),
        ("setting", ctypes.c_double),
        *(
            (name, POINTER)
            for name in ("starts", "lead", "couple", "free", "push", "probe")
        ),
    )


# Plain steps by compiled kernels: all of a group in one call, or one at a time.

POINTER, PLAIN_INT = ctypes.c_void_p, ctypes.c_int64
PLACE = 11  # words of `place` in kernels/cpu/steps.c
# Families in the order of the numbers that kernels/cpu/steps.c gives them.
FAMILIES = ("logistic", "gaussian", "poisson", "gamma", "squared-hinge", "huber")
SOFTMAX = "softmax"  # K scores a row have kernels of their own
# The end of step j (from -1) by its summed margins, and the margins of the next one.
Between = Callable[[int, Array | None, Array | None], None]


class PlainStepsPlan:
    """The coefficients of plain steps as the kernels want them."""

    def __init__(self, plain: StepSequence, width: int, rounds: bool) -> None:
        steps, name = plain.steps, plain.family.name
        starts = np.array(plain.blocks.starts, dtype=np.int64)
        own = (steps.carry, steps.gain, steps.free, steps.gain, steps.probe)
        self.kept = [starts, *(np.ascontiguousarray(a, dtype=np.float64) for a in own)]
        number = 0 if name == SOFTMAX else FAMILIES.index(name)
        setting = getattr(plain.family, "delta", exp_bound(np.float32))
        sizes = (len(starts) - 1, steps.states, number, int(rounds))
        self.plan = _Walk(*sizes, setting, *(a.ctypes.data for a in self.kept))
        self.columns = width // steps.states  # scores of a row
        self.is_turned = name == SOFTMAX
        pointer = ctypes.addressof(self.plan)
        # What each call begins with.
        self.words = (pointer, self.columns) if self.is_turned else (pointer,)

    def all_at_once(
        self,
        walk: Call,
        rows: tuple[Any, ...],
        weights: Array,
        plain: StepSequence,
    ) -> Array:
        """The residuals of all steps; weights and intercept advance in place.

        `rows` are what they lie in, its stride, their numbers, and how many columns.
        """
        stood = self._stand(rows, weights, plain)
        walk(*self.words, stood.place)
        return stood.residuals

    def one_at_a_time(
        self,
        between: Call,
        rows: tuple[Any, ...],
        weights: Array,
        plain: StepSequence,
    ) -> tuple[Between, Array]:
        """What to call between two messages, and the residuals that it fills."""
        stood = self._stand(rows, weights, plain)
        call = _CallArguments(partial(between, *self.words, stood.place), (self, stood))
        return call, stood.residuals

    def _stand(
        self, rows: tuple[Any, ...], weights: Array, plain: StepSequence
    ) -> "_Place":
        """With room for a point, a gradient, and scaled residuals.

        Softmax also has room for weights that are turned, and one state of it reads
        those as they are.
        """
        d, m = len(weights), len(plain.batch.targets)
        many = 0 if self.is_turned and plain.steps.states == 1 else 2
        words = (many * d + m) * self.columns + self.is_turned * weights.size
        return _Place(rows, weights, plain, (m, self.columns), words)


class _CallArguments:
    """A call, and what its pointers point to."""

    def __init__(self, call: Between, kept: Any) -> None:
        self.call = call
        self.kept = kept

    def __call__(self, step: int, summed: Array | None, out: Array | None) -> None:
        self.call(step, summed, out)


class _Place:
    """Where steps are taken, with the arrays that it points to."""

    def __init__(
        self,
        rows: tuple[Any, ...],
        weights: Array,
        plain: StepSequence,
        shape: tuple[int, int],
        words: int,
    ) -> None:
        batch = plain.batch
        self.residuals = np.empty(shape, dtype=np.float32)
        scratch = np.empty(words, dtype=np.float32)
        fields = (
            *(*rows, weights, batch.targets, batch.weights, batch.offsets),
            *(plain.intercept, self.residuals, scratch),
        )
        self.kept = fields
        self.place = np.empty(PLACE, dtype=np.int64)
        stand(self.place, *fields)


class _Walk(ctypes.Structure):
    """`walk` of kernels/cpu/steps.c."""

    _fields_ = (
        *((name, PLAIN_INT) for name in ("steps", "states", "family", "rounds")),
        ("setting", ctypes.c_double),
        *(
            (name, POINTER)
            for name in ("starts", "carry", "gain", "free", "push", "probe")
        ),
    )


def for_family(name: str, plain: StepSequence) -> str:
    """The kernel of softmax has a name of its own."""
    return f"{name}_softmax" if plain.family.name == SOFTMAX else name


# Compiled kernels on sampled CSR rows.
#
# Rows are float32 or bf16 bits (uint16) under columns of int32 or int64; weights,
# scores and residuals are contiguous float32. What is stored was checked when it was
# read.

VALUES = {"float32": "f32", "uint16": "bf16"}
COLUMNS = {"int32": "i32", "int64": "i64"}
ABREAST = 16  # as in kernels/cpu/csr.c


class _Rows(ctypes.Structure):
    """`csr_rows` of kernels/cpu/csr.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("indptr", "indices", "data"))


@lru_cache(maxsize=1)
def _csr_functions(library: Any) -> dict[str, Call]:
    """The kernels of a library by name."""
    found = {"gram": door_to(library, "hpcsgd_csr_gram")}
    for value, column in product(VALUES.values(), COLUMNS.values()):
        kind = f"{value}_{column}"
        found[f"walk_{kind}"] = door_to(library, f"hpcsgd_walk_csr_{kind}")
        for name in ("margins", "update", "shared"):
            found[f"{name}_{kind}"] = door_to(library, f"hpcsgd_csr_{name}_{kind}")
    return found


def _function(name: str, csr: Csr) -> Call:
    kind = f"{VALUES[csr.dtype.name]}_{COLUMNS[csr.indices.dtype.name]}"
    return _csr_functions(best()[0])[f"{name}_{kind}"]


def call_csr(name: str, csr: Csr, rows: Array, *rest: Any) -> None:
    """Call a compiled kernel on the sampled `rows` of a CSR matrix."""
    parts = (csr.indptr, csr.indices, csr.data, rows)
    _function(name, csr)(*parts, len(rows), *rest)


def csr_margins(csr: Csr, rows: Array, weights: Array, out: Array) -> None:
    """out[i] ← row i of the sample times the weights, (width, K)."""
    call_csr("margins", csr, rows, weights.shape[1], weights, out)


def csr_update(csr: Csr, rows: Array, residuals: Array, weights: Array) -> None:
    """weights += Yᵀ residuals, (m, K)."""
    K = weights.shape[1]
    call_csr("update", csr, rows, K, residuals, weights)


def csr_fused_steps(
    steps: PlainStepsPlan,
    csr: Csr,
    rows: Array,
    weights: Array,
    plain: StepSequence,
) -> Array:
    """Take all steps and return their residuals; weights and intercept advance in
    place.
    """
    parts = (csr.indptr, csr.indices, csr.data)
    stored = _Rows(*(part.ctypes.data for part in parts))
    place = (ctypes.addressof(stored), 0, rows, csr.width)
    by = _function("walk", csr)
    return steps.all_at_once(by, place, weights, plain)


class GramRoom:
    """Scratch of `strict_gram`, zero between calls, which grows as it has to."""

    def __init__(self) -> None:
        self._place = np.zeros(0, dtype=np.int32)
        self._dense = np.zeros(0, dtype=np.float32)

    def place(self, width: int) -> Array:
        """One number for each column."""
        if len(self._place) < width:
            self._place = np.zeros(width, dtype=np.int32)
        return self._place

    def dense(self, columns: int) -> Array:
        """Rows abreast, and what they take to begin where a vector does."""
        words = (columns + 1) * ABREAST
        if len(self._dense) < words:
            self._dense = np.zeros(words, dtype=np.float32)
        return self._dense


def csr_strict_gram(
    csr: Csr, rows: Array, starts: Array, out: Array, room: GramRoom
) -> None:
    """out ← the strictly-lower blocks of Y Yᵀ for the sampled rows Y, packed."""
    stored = int((csr.indptr[rows + 1] - csr.indptr[rows]).sum())
    edges = np.empty(len(rows) + 1, dtype=np.int64)
    columns = np.empty(stored, dtype=np.int32)
    values = np.empty(stored, dtype=np.float32)
    made, count = (edges, columns, values), np.empty(1, dtype=np.int64)
    call_csr("shared", csr, rows, room.place(csr.width), *made, count)
    gram = _csr_functions(best()[0])["gram"]
    gram(*made, starts, len(starts) - 1, out, room.dense(int(count[0])))


# How many threads share the work of one call of a compiled kernel.

log = logging.getLogger(__name__)


def use(count: int, grain: int = 0) -> None:
    """From now on, in this process; the bits are the same for any number.

    A call of fewer than two times `grain` nanoseconds stays with its thread; 0 is what
    pays.
    """
    library = best()[0]
    if library is not None:
        door_to(library, "hpcsgd_set_threads")(count, grain)


def warn(count: int, places: Sequence[tuple[str, Sequence[int]]], rank: int) -> None:
    """Say on one rank of a node that its ranks want more cores than they may use.

    `places` is what each rank said of `place`.
    """
    node = places[rank][0]
    here = [cores for name, cores in places if name == node]
    cores = len(set().union(*here))
    is_first = [name for name, _ in places].index(node) == rank
    if is_first and len(here) * count > cores:
        _say(len(here), count, cores, node)


@lru_cache
def _say(*figures: Any) -> None:
    """Once a process, however many runs it makes."""
    log.warning(
        "%d x %d threads share %d cores of %s and wait for one another;"
        " use fewer --threads or ranks",
        *figures,
    )


def place() -> tuple[str, tuple[int, ...]]:
    """The node that this rank runs on, and the cores that it may use there."""
    if hasattr(os, "sched_getaffinity"):
        return socket.gethostname(), tuple(sorted(os.sched_getaffinity(0)))
    return socket.gethostname(), tuple(range(os.cpu_count() or 1))

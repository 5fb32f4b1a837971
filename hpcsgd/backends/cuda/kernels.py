"""The table of CUDA kernels, and how each is launched."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array
from hpcsgd.glm.unrolling import UnrolledSteps

# The source of each kernel for each GPU, and the options it is compiled with.
#
# Runs compile the kernels of this table, and tests compile all of them, for every
# architecture, on machines that have no GPU.

# Names of architectures in NVRTC; "90a" has instructions that no later one has.
ARCHS = ("70", "75", "80", "86", "89", "90", "90a", "100", "120")
FOLDER = "cuda"  # below kernels/

# The numbers of kernels/cuda/elements.cuh.
ELEMENTS = {"bf16": 1, "fp16": 2, "fp32": 3, "fp8-e4m3": 4, "fp8-e5m2": 5}
LOW = tuple(name for name in ELEMENTS if name != "fp32")
WIDE = ("COLUMN64=1",)  # column numbers of 64 bits
CSR = (
    *("csr_margin", "csr_margins_columns", "csr_update", "csr_update_columns"),
    "csr_gram",
)
# Steps of slices, and the sums of tiles.
RULES = ("step_plain", "step_momentum", "step_adagrad", "step_adam", "add_words")

# The numbers of kernels/cuda/families.cuh.
FAMILIES = {
    **{"logistic": 0, "gaussian": 1, "poisson": 2, "gamma": 3},
    **{"squared-hinge": 4, "huber": 5, "probit": 6, "tweedie": 7},
    **{"negative-binomial": 8, "binomial": 0},
}
CLUSTER = 8  # blocks that share the rows of a long exchange
# Texts with instructions of one architecture, which no later one has: the name under
# which NVRTC compiles them.
OF_ONE_ARCH = {"gram_wgmma": "90a"}
FALLS_BACK = {"gram-wgmma": "gram-128"}  # on every other GPU: the same tiles


@dataclass(frozen=True)
class Build:
    """A kernel to compile: its source, its entry and its defines."""

    source: str  # file name without .cu
    entry: str
    defines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A source of a kernel for some matrix formats, on GPUs from `since` on."""

    source: str
    elements: tuple[str, ...]
    since: int = 70
    defines: tuple[str, ...] = ()
    entry: str = ""  # the source's name if empty

    def serves(self, element: str, arch: str) -> bool:
        """Return whether the source serves matrices in `element` on a GPU of `arch`."""
        alone = OF_ONE_ARCH.get(self.source)
        is_here = alone in (None, f"{number_of(arch)}a")
        return is_here and element in self.elements and number_of(arch) >= self.since


def _grams(tile: int) -> tuple[Variant, ...]:
    """Return variants of the kernel `gram` with tiles of side `tile`, fastest first.

    They use tensor cores for formats that these know, else multiply-adds in fp32.
    """
    size = f"TB={tile}"
    return (
        Variant("gram", ("bf16", "fp16"), 80, defines=(size,)),
        Variant("gram", ("fp8-e4m3", "fp8-e5m2"), 89, defines=(size,)),
        Variant("gram", tuple(ELEMENTS), defines=(size, "FFMA=1")),
    )


def _tf32_grams(tile: int) -> tuple[Variant, ...]:
    """Return variants of the kernel `gram` for an fp32 matrix: in tf32, or else exact.

    `tile` is the side of its tiles.
    """
    size = f"TB={tile}"
    return (
        Variant("gram", ("fp32",), 80, defines=(size, "TF32=1")),
        Variant("gram", ("fp32",), defines=(size, "FFMA=1")),
    )


def _direct_steps(family: int) -> tuple[Variant, ...]:
    """Return variants of plain steps; fp8 values do not fit into registers of sm_70."""
    defines = (f"FAMILY={family}",)
    low = ("fp8-e4m3", "fp8-e5m2")
    return (
        Variant("direct_steps", ("bf16", "fp16", "fp32"), defines=defines),
        Variant("direct_steps", low, 75, defines=defines),
    )


# The first variant that serves is taken: fast variants precede their fallbacks.
VARIANTS: dict[str, tuple[Variant, ...]] = {
    "margin": (Variant("margin", tuple(ELEMENTS)),),
    "sample": (Variant("sample", ("fp32",)),),
    "round": (Variant("round", ("bf16", "fp16"), entry="round_values"),),
    "update": (Variant("update", tuple(ELEMENTS)),),
    "portion": (Variant("average", ("fp32",), entry="portion"),),
    "become": (Variant("average", ("fp32",), entry="become"),),
    "gram-64": _grams(64),
    "gram-128": _grams(128),
    "gram-wgmma": (Variant("gram_wgmma", ("bf16", "fp16"), 90),),
    "gram-tf32-64": _tf32_grams(64),
    "gram-tf32-128": _tf32_grams(128),
    **{
        f"recurrence-{family}": (
            Variant("recurrence", ("fp32",), defines=(f"FAMILY={number}", "NC=1")),
        )
        for family, number in FAMILIES.items()
    },
    **{
        f"recurrence-cluster-{family}": (
            Variant(
                "recurrence",
                ("fp32",),
                90,
                defines=(f"FAMILY={number}", f"NC={CLUSTER}"),
            ),
        )
        for family, number in FAMILIES.items()
    },
    "softmax": (Variant("softmax", ("fp32",)),),
    "narrow": (Variant("cast", LOW, entry="narrow"),),
    "widen": (Variant("cast", LOW, entry="widen"),),
    "add_parts": (Variant("parts", ("bf16",), entry="add_parts"),),
    "gather_rows": (Variant("cast", tuple(ELEMENTS), entry="gather_rows"),),
    "gather_rows_wide": (
        Variant("cast", LOW, defines=("WIDEN=1",), entry="gather_rows"),
    ),
    "pack_tiles": (Variant("pack", ("fp32",), entry="pack_tiles"),),
    "margins_columns": (Variant("columns", tuple(ELEMENTS), entry="margins_columns"),),
    "update_columns": (Variant("columns", tuple(ELEMENTS), entry="update_columns"),),
    "blend": (Variant("columns", ("fp32",), entry="blend"),),
    **{name: (Variant("rules", ("fp32",), entry=name),) for name in RULES},
    **{
        f"{name}{bits}": (Variant("csr", tuple(ELEMENTS), defines=wide, entry=name),)
        for name in CSR
        for bits, wide in (("", ()), ("_64", WIDE))
    },
    "pack_rows": (Variant("pieces", tuple(ELEMENTS), entry="pack_rows"),),
    "join_rows": (Variant("pieces", tuple(ELEMENTS), entry="join_rows"),),
    **{f"direct-steps-{f}": _direct_steps(n) for f, n in FAMILIES.items()},
    **{
        f"gather-steps-{family}": (
            Variant("gather_steps", tuple(ELEMENTS), defines=(f"FAMILY={number}",)),
        )
        for family, number in FAMILIES.items()
    },
}


def number_of(arch: str) -> int:
    """Return the number of an architecture: 90 of "90a"."""
    return int(arch.rstrip("af"))


def build_of(kernel: str, element: str, arch: str) -> Build:
    """Return the build of `kernel` for a matrix in `element` on a GPU of `arch`."""
    if kernel not in VARIANTS:
        raise ConfigError(f"unknown kernel: {kernel!r}; known: {sorted(VARIANTS)}")
    for variant in VARIANTS[kernel]:
        if variant.serves(element, arch):
            defines = (f"ELEMENT={ELEMENTS[element]}", *variant.defines)
            return Build(variant.source, variant.entry or variant.source, defines)
    raise ConfigError(
        f"kernel {kernel} does not support a matrix in {element} on a GPU of"
        f" sm_{arch}; use --precision c, or --device cpu"
    )


def serves(kernel: str, element: str, arch: str) -> bool:
    """Return whether `kernel` has a build for matrices in `element` on `arch`."""
    return any(v.serves(element, arch) for v in VARIANTS.get(kernel, ()))


def compiled_for(build: Build, arch: str) -> str:
    """Return the architecture for NVRTC: `arch`, or "90a" if the source needs that."""
    return OF_ONE_ARCH.get(build.source, arch)


def all_builds(arch: str) -> list[Build]:
    """Return a build of every source with every set of defines for a GPU of `arch`.

    Kernels of one source are compiled together: one of their names stands for all.
    """
    builds = {}
    for kernel, variants in VARIANTS.items():
        for element in sorted({name for v in variants for name in v.elements}):
            if serves(kernel, element, arch):
                build = build_of(kernel, element, arch)
                builds[build.source, build.defines] = build
    return list(builds.values())


def options(build: Build, folder: str) -> tuple[str, ...]:
    """Return the options for NVRTC without the architecture, which CuPy adds itself."""
    return (
        "--std=c++17",
        "--fmad=true",
        f"-I{folder}",
        *(f"-D{define}" for define in build.defines),
    )


# How the kernel `gram` is launched: which tiles, how many parts, how much workspace.
#
# Everything here depends on sizes and on the GPU's number of processors alone: the
# order of every sum, and so its bits, are those of the next run.

STAGES = 3  # as in gram.cu; more hide more latency and take more shared memory
STAGE_BYTES = 16384
RESIDENT = 2  # blocks that every processor has room for
MOST_SPLITS = 16
SMALL, LARGE = 64, 128  # rows of a tile
LARGE_ROWS, LARGE_COLS = 1024, 512  # of an exchange, from which on tiles are large


@dataclass(frozen=True)
class GramLaunch:
    """The shape of one launch of a Gram kernel.

    Gram G, margins z and workspace are counted in words of 32 bits.
    """

    grid: int
    block: int
    shared: int  # bytes
    splits: int  # parts of the columns; of gram_wgmma: blocks that share the tiles
    per_split: int  # columns of a part; of gram_wgmma: tile-stages of a block
    result: int  # of G; z follows it
    workspace: int
    tickets: int


def tiles_of(starts: Array, tile: int) -> tuple[Array, Array]:
    """Return the tiles of the Gram that a recurrence reads, and their places.

    `starts` has the first row of every batch, then the number of rows. Entry (i, k) of
    the Gram is read if row i is in a later batch than row k. Each tile is the number
    i << 16 | k of its place (i, k) among the tiles of the square; the second array has
    at (i, k) the position of that tile in the first, or -1.
    """
    rows = int(starts[-1])
    firsts = np.arange(0, rows, tile)
    lasts = np.minimum(firsts + tile, rows) - 1
    batch_of_last = np.searchsorted(starts, lasts, side="right")
    batch_of_first = np.searchsorted(starts, firsts, side="right")
    down, across = np.nonzero(batch_of_last[:, None] > batch_of_first[None, :])
    lower = across <= down
    down = down[lower]
    across = across[lower]
    places = np.full((len(firsts), len(firsts)), -1, dtype=np.int32)
    places[down, across] = np.arange(len(down))
    return (down << 16 | across).astype(np.uint32), places


def tile_for(rows: int, cols: int) -> int:
    """Return the side of a tile: its rows and columns.

    Every entry of a tile needs its two rows once: large tiles need half the reads,
    which limit the speed if there are many columns. Large tiles are fewer, too: only
    long exchanges have enough of them for all processors.
    """
    return LARGE if rows >= LARGE_ROWS and cols >= LARGE_COLS else SMALL


def shared_bytes() -> int:
    """Return the bytes of shared memory that a block of the kernel `gram` needs."""
    return STAGES * STAGE_BYTES


def step_of(tile: int, itemsize: int) -> int:
    """Return the columns of one stage, half of whose bytes contain `tile` rows."""
    return STAGE_BYTES // 2 // tile // itemsize


def splits_of(tiles: int, cols: int, tile: int, itemsize: int, sms: int) -> int:
    """Return into how many parts `gram` divides columns on a GPU of `sms` processors.

    It is the least number of least cost. The cost counts stages: those that a processor
    reads from L2 for its blocks, a start, and partial tiles, which all blocks write and
    the last one reads again. Two blocks of one processor share its reads: they hide
    each other's waits, but take no less time.
    """
    steps = max(1, -(-cols // step_of(tile, itemsize)))
    partial = 4 * tile * tile // STAGE_BYTES

    def cost(splits: int) -> int:
        blocks = -(-tiles * splits // sms)
        stages = -(-steps // splits)
        if splits == 1:
            return blocks * stages + STAGES
        joining = -(-tiles // sms) * splits * partial
        return blocks * (stages + partial) + STAGES + joining

    best = min(range(1, min(MOST_SPLITS, steps) + 1), key=cost)
    each = -(-steps // best)
    return -(-steps // each)  # none is left without columns


def per_split_of(splits: int, cols: int, tile: int, itemsize: int) -> int:
    """Return the columns of each of `splits` parts: whole stages of `gram`."""
    step = step_of(tile, itemsize)
    return max(1, -(-cols // (step * splits))) * step


def launch_of(
    tiles: int,
    rows: int,
    cols: int,
    *,
    tile: int,
    itemsize: int,
    splits: int,
    margins: bool = True,
) -> GramLaunch:
    """Return the launch of the kernel `gram` for `tiles` tiles of side `tile`.

    Columns are divided in `splits` parts. With `margins`, it has more blocks, which
    compute the margins of `rows` rows.
    """
    warps = 2 * tile // 32
    words = tiles * tile * tile
    return GramLaunch(
        grid=tiles * splits + (-(-rows // warps) if margins else 0),
        block=2 * tile,
        shared=shared_bytes(),
        splits=splits,
        per_split=per_split_of(splits, cols, tile, itemsize),
        result=words,
        workspace=words * splits if splits > 1 else 0,
        tickets=tiles,
    )


def pitch_of(rows: int, tile: int = 64) -> int:
    """Return the floats in a row of a square Gram of `rows` rows, padded to tiles."""
    return -(-rows // tile) * tile


def strips_of(rows: int, parts: int, tile: int = 64) -> list[tuple[int, int]]:
    """Return (first, last) column of each of at most `parts` strips of a square Gram.

    A strip has the columns from `first` to `last` − 1, from the diagonal down. Its
    width is a multiple of `tile`, except at the end.
    """
    wide = pitch_of(-(-rows // parts), tile)
    return [(first, min(first + wide, rows)) for first in range(0, rows, wide)]


def pack(tiles: int) -> tuple[int, int]:
    """Return the blocks and threads of pack_tiles."""
    return tiles, 256


# How the recurrence of an exchange is launched on a GPU, and with which coefficients.
#
# Shapes and coefficients alone, without a GPU: for runs and for tests.

MOST_ROWS = 8192  # of an exchange
MOST_STATES = 4  # of an update
CLUSTER_ROWS = 1024  # from so many rows on, a cluster is worth its barriers
RECURRENCE_THREADS = {1: 512, CLUSTER: 256}  # of a block, by the blocks of a cluster
FRONT, BUFFERS = 64, 3  # bytes of the intercept, residuals that are kept apart
# What a block may have of shared memory, in KiB.
SHARED = {70: 96, 75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}


@dataclass(frozen=True)
class RecurrenceLaunch:
    """The shape of one launch of a recurrence kernel."""

    grid: int  # blocks, all of one cluster
    block: int  # threads of each
    shared: int  # bytes of each


@dataclass(frozen=True)
class KernelCoefficients:
    """The coefficients of an exchange as kernels read them: float32, in this order.

    Kernels read them from device memory: other coefficients need no other launch.
    """

    lead: Array  # (s, states)
    couple: Array  # entry j (j - 1) / 2 + i
    free: Array  # (s, states, states), of the intercept
    push: Array  # (s, states)
    probe: Array  # (states,)
    gain: Array  # (s, states)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Return all arrays, in the order of the kernels' parameters."""
        return (self.lead, self.couple, self.free, self.push, self.probe, self.gain)


def coefficients(unrolled: UnrolledSteps) -> KernelCoefficients:
    """Return the coefficients of `unrolled` in float32.

    One entry is appended to couple, which is empty for s = 1.
    """
    couple = np.concatenate([*unrolled.couple, np.zeros(1)])
    values = (unrolled.lead, couple, unrolled.free, unrolled.push, unrolled.probe)
    arrays = (
        np.ascontiguousarray(each, np.float32) for each in (*values, unrolled.gain)
    )
    return KernelCoefficients(*arrays)


def cluster_for(rows: int, arch: str) -> int:
    """Return the number of blocks of an exchange of `rows` rows: one, or a cluster."""
    return CLUSTER if rows >= CLUSTER_ROWS and number_of(arch) >= 90 else 1


def kernel_for(family: str, cluster: int) -> str:
    """Return the name of a family's recurrence of `cluster` blocks in `VARIANTS`."""
    return f"recurrence-{family}" if cluster == 1 else f"recurrence-cluster-{family}"


def recurrence_pitch_of(batch: int) -> int:
    """Return the words of a buffer of a recurrence kernel for `batch` rows.

    It is a multiple of four; the rows may begin at any of the first four words.
    """
    return (batch + 6) // 4 * 4


def recurrence_launch(
    rows: int, batch: int, states: int, cluster: int, arch: str
) -> RecurrenceLaunch:
    """Return the launch of a recurrence kernel for exchanges of `rows` rows.

    `batch` is the largest number of rows of a batch, and `cluster` the number of
    blocks.
    """
    _check(rows, states)
    block_rows = -(-rows // cluster)
    shared = FRONT + 4 * BUFFERS * recurrence_pitch_of(batch) + (4 + 2) * block_rows
    most = shared_of(arch)
    if shared > most:
        raise ConfigError(
            f"[schedule] an exchange of {rows} rows in batches of {batch} needs"
            f" {shared} bytes of shared memory, and a GPU of sm_{arch} has {most};"
            " lower [schedule] batch or steps, or use --device cpu"
        )
    return RecurrenceLaunch(cluster, RECURRENCE_THREADS[cluster], shared)


def softmax_launch(rows: int, states: int) -> RecurrenceLaunch:
    """Return the launch of the kernel `softmax` for exchanges of `rows` rows.

    It has one block. Its shared memory does not depend on the number of classes.
    """
    _check(rows, states)
    return RecurrenceLaunch(1, 1024, 2 * rows)


def shared_of(arch: str) -> int:
    """Return the bytes of shared memory that a block may use on a GPU of `arch`.

    For an unknown GPU they are those of the next older one.
    """
    architectures = [number for number in SHARED if number <= number_of(arch)]
    return 1024 * SHARED[max(architectures, default=min(SHARED))]


def _check(rows: int, states: int) -> None:
    if rows > MOST_ROWS:
        raise ConfigError(
            f"[schedule] an exchange has {rows} rows and --device cuda supports at most"
            f" {MOST_ROWS}; lower [schedule] batch or steps, or use --device cpu"
        )
    if not 1 <= states <= MOST_STATES:
        raise ConfigError(
            f"[update] the update has {states} numbers for each weight and --device"
            f" cuda supports 1 to {MOST_STATES}; use --device cpu"
        )


# Launch shapes of the kernels that cast, multiply columns and take plain steps.

BLOCK = 256  # threads of a block, unless stated otherwise
CHUNK = 16  # bytes that a thread reads at once
WORD = 4  # bytes of a float
PLAIN_SHARED = 48 * 1024  # bytes of shared memory that need no request
ROWS_AT_ONCE = 32  # of direct_steps
KEPT = BLOCK * CHUNK  # bytes of a block that keeps a chunk of every thread
MOST_COLUMNS = 64  # of weights, in update_columns
ROWS_OF_A_PART, MOST_BLOCKS = 128, 512  # of update
MOST_SUMS = 1024  # of a warp of csr_update; at least 16 for each column of weights


class StepLaunch(NamedTuple):
    """The shape of a launch: grid, block, and shared memory in bytes."""

    grid: tuple[int, ...]
    block: int
    shared: int = 0


def cast(count: int, item: int) -> StepLaunch:
    """Return the launch of narrow and widen: 16 bytes of narrow words a thread."""
    return StepLaunch((_parts(count, BLOCK * CHUNK // item),), BLOCK)


def gather_rows(count: int) -> StepLaunch:
    """Return the launch of gather_rows, pack_rows and join_rows: a warp a row."""
    return StepLaunch((_parts(count, BLOCK // 32),), BLOCK)


def margins_columns(count: int, wide: int, item: int) -> StepLaunch:
    """Return the launch of margins_columns: 16 rows and 16 columns of weights a block.

    The columns are in shared memory.
    """
    tile = 32 * CHUNK // item + 4
    return StepLaunch((_parts(count, 16), _parts(wide, 16)), BLOCK, WORD * 16 * tile)


def update(count: int, cols: int, item: int) -> StepLaunch:
    """Return the launch of update: 128 bytes of a row a block, and parts of the rows.

    The rows have several parts if the blocks are few. A part has enough rows for each
    thread to read four at once, and a GPU of today runs all blocks at once. The launch
    depends on sizes alone, and so sums have one order.
    """
    strips = _pieces(cols, item)
    wide = 8 * CHUNK // item
    splits = max(min(count // ROWS_OF_A_PART, MOST_BLOCKS // strips), 1)
    return StepLaunch((strips, splits), BLOCK, WORD * 32 * (wide + 1))


def update_rows(count: int, splits: int) -> int:
    """Return the rows of each of `splits` parts of update: a multiple of 32.

    `count` is the number of all rows.
    """
    return 32 * _parts(count, 32 * splits)


def update_room(cols: int, launch: StepLaunch) -> int:
    """Return the floats of the array in which update adds parts; 0 for one part."""
    return cols * launch.grid[1] if launch.grid[1] > 1 else 0


def update_columns(cols: int) -> StepLaunch:
    """Return the launch of update_columns: 32 rows of weights a block."""
    words = 32 * 33 + 32 * MOST_COLUMNS + 8 * 32 * 8
    return StepLaunch((_parts(cols, 32),), BLOCK, WORD * words)


def blend(count: int) -> StepLaunch:
    """Return the launch of blend: a thread a weight."""
    return StepLaunch((_parts(count, BLOCK),), BLOCK)


def words(count: int) -> StepLaunch:
    """Return the launch of steps of update rules, and of add_words: a thread a word."""
    return StepLaunch((_parts(count, BLOCK),), BLOCK)


def csr_across(wide: int) -> int:
    """Return how many lanes of a warp take the same stored value of a sparse row.

    Each of them multiplies it with another column of the `wide` columns of weights.
    """
    return 1 << (min(wide, 32) - 1).bit_length()


def csr_margin(count: int, wide: int = 1) -> StepLaunch:
    """Return the launch of csr_margin: a warp for a row and `csr_across` columns."""
    parts = _parts(wide, csr_across(wide))
    grid = _parts(count, BLOCK // 32)
    return StepLaunch((grid, parts) if wide > 1 else (grid,), BLOCK)


def csr_span(cols: int, wide: int = 1) -> int:
    """Return the columns of a block of csr_update.

    They are the least multiple of 32 with which there are at most 512 blocks. They are
    fewer, in more blocks, if a warp has no room for the sums of so many.
    """
    return min(32 * _parts(cols, 32 * 512), MOST_SUMS // wide)


def csr_update(cols: int, wide: int = 1) -> StepLaunch:
    """Return the launch of csr_update: 8 or 16 warps a block, each with its sums."""
    words = csr_span(cols, wide) * wide
    warps = 16 if 2 * words <= MOST_SUMS else 8
    grid = _parts(cols, csr_span(cols, wide))
    return StepLaunch((grid,), 32 * warps, WORD * words * warps)


def csr_gram(tiles: int, side: int) -> StepLaunch:
    """Return the launch of csr_gram: a thread an entry of the tiles, side × side."""
    return StepLaunch((tiles, side * side // BLOCK), BLOCK)


def direct_steps(cols: int, item: int, tall: int, processors: int) -> StepLaunch:
    """Return the launch of direct_steps: a block for 128 bytes of a row or more.

    There are at most as many blocks as processors: all have to run at once. `tall`:
    rows of the largest batch. A block keeps the rows that it reads, as far as
    `PLAIN_SHARED` bytes of shared memory permit.
    """
    blocks = min(_pieces(cols, item), processors)
    needed = _parts(_pieces(cols, item), blocks) * _parts(tall, ROWS_AT_ONCE)
    base = _direct_base(item, tall)
    chunks = max(min(needed, (PLAIN_SHARED - base) // KEPT), 0)
    return StepLaunch((blocks,), BLOCK, base + KEPT * chunks)


def direct_room(launch: StepLaunch, item: int, tall: int) -> int:
    """Return how many 16-byte chunks of rows a thread of direct_steps keeps.

    `tall` is the number of rows of the largest batch, and `item` the bytes of a value.
    """
    return (launch.shared - _direct_base(item, tall)) // KEPT


def direct_partials(launch: StepLaunch, tall: int) -> int:
    """Return the floats of the array in which blocks of direct_steps exchange sums.

    `tall` is the number of rows of the largest batch.
    """
    return 2 * tall * launch.grid[0]


def direct_fits(item: int, tall: int) -> bool:
    """Return whether a block of direct_steps has shared memory for `tall` rows."""
    return _direct_base(item, tall) <= PLAIN_SHARED


def direct_ahead(cols: int, item: int, tall: int, cache: int) -> bool:
    """Return whether two batches of `tall` rows fit into a cache of `cache` bytes."""
    return 2 * cols * item * tall <= cache


def _direct_base(item: int, tall: int) -> int:
    """Return the bytes of shared memory of direct_steps in a block without rows."""
    return 16 + WORD * (ROWS_AT_ONCE * (8 * CHUNK // item + 1) + tall)


def _pieces(cols: int, item: int) -> int:
    return _parts(cols, 8 * CHUNK // item)


def gather_steps(tall: int) -> StepLaunch:
    """Return the launch of gather_steps: one block, for batches of `tall` rows."""
    return StepLaunch((1,), 512, 16 + WORD * tall)


def _parts(count: int, each: int) -> int:
    return max(-(-count // each), 1)


# Launch shapes of the kernels that replicas average with.


def average(held: int, more: int) -> StepLaunch:
    """Return the launch of portion and become: a thread a word.

    There are `held` words of weights, and `more` words of the intercept.
    """
    return StepLaunch((max(-(-(held + more) // BLOCK), 1),), BLOCK)


# How the kernel `gram_wgmma` is launched: how many blocks share one line of work.
#
# Everything here depends on sizes and on the GPU's number of processors alone: the
# order of every sum, and so its bits, are those of the next run.

WGMMA_STAGES = 4  # as in gram_wgmma.cu
WGMMA_STAGE_BYTES = 3 * LARGE * 128  # 128 bytes of the rows of three tiles
WGMMA_THREADS = 256
LEAST = 2  # stages of one tile that a block takes: one of a pair
PAIR = 2 * LARGE * LARGE  # words
# Tile-stages in which a part of a pair of tiles is read and added: a part has 128 KiB,
# and a tile-stage reads 24 KiB.
JOINING = 5


def stages_of(cols: int, itemsize: int) -> int:
    """Return the stages of gram_wgmma for a row: 128 bytes each."""
    return max(1, -(-cols * itemsize // 128))


def each_of(tiles: int, stages: int, sms: int) -> int:
    """Return the tile-stages of a block, for the fewest blocks of least cost.

    The tile-stages of all tiles form one line of work, which is divided at any stage.
    Each block stores its part of a pair of tiles for the last block of the pair, which
    reads all parts.
    """
    total = max(1, tiles) * stages

    def cost(blocks: int) -> int:
        each = max(LEAST, -(-total // blocks))
        return each + JOINING * -(-2 * stages // each)

    best = min(range(1, sms + 1), key=cost)
    return max(LEAST, -(-total // best))


def wgmma_launch_of(
    tiles: int, rows: int, cols: int, *, itemsize: int, sms: int, margins: bool = True
) -> GramLaunch:
    """Return the launch of the kernel `gram_wgmma` for `tiles` tiles.

    With `margins`, it has more blocks, which compute the margins of `rows` rows. `sms`
    is the number of processors of the GPU.
    """
    stages = stages_of(cols, itemsize)
    each = each_of(tiles, stages, sms)
    workers = max(1, -(-tiles * stages // each))
    return GramLaunch(
        grid=workers + (-(-rows // (WGMMA_THREADS // 32)) if margins else 0),
        block=WGMMA_THREADS,
        shared=WGMMA_STAGES * WGMMA_STAGE_BYTES + 2048,
        splits=workers,
        per_split=each,
        result=tiles * LARGE * LARGE,
        workspace=workers * PAIR,
        tickets=tiles,
    )

"""Launch shapes of the kernels that cast, multiply columns and take plain steps."""

from dataclasses import replace
from typing import NamedTuple

from hpcsgd.backends.kernel_table import FAMILIES, Build

BLOCK = 256  # threads, where nothing else is said
CHUNK = 16  # bytes that a thread reads at once
WORD = 4  # bytes of a float
MOST_COLUMNS = 64  # of weights, in update_columns
MOST_SUMS = 1024  # of a warp of csr_update; at least 16 for each column of weights


class Launch(NamedTuple):
    """What a kernel is launched with; shared memory in bytes."""

    grid: tuple[int, ...]
    block: int
    shared: int = 0


def cast(count: int, item: int) -> Launch:
    """narrow and widen: 16 bytes of the narrow format a thread."""
    return Launch((_parts(count, BLOCK * CHUNK // item),), BLOCK)


def gather_rows(count: int) -> Launch:
    """A warp a row."""
    return Launch((_parts(count, BLOCK // 32),), BLOCK)


def margins_columns(count: int, wide: int, item: int) -> Launch:
    """16 rows and 16 columns of weights a block, the columns in shared memory."""
    tile = 32 * CHUNK // item + 4
    return Launch((_parts(count, 16), _parts(wide, 16)), BLOCK, WORD * 16 * tile)


def update_columns(cols: int) -> Launch:
    """32 rows of weights a block."""
    words = 32 * 33 + 32 * MOST_COLUMNS + 8 * 32 * 8
    return Launch((_parts(cols, 32),), BLOCK, WORD * words)


def blend(count: int) -> Launch:
    """A thread a weight."""
    return Launch((_parts(count, BLOCK),), BLOCK)


def csr_across(wide: int) -> int:
    """Lanes that share an entry of a sparse row, each with columns of weights."""
    return 1 << (min(wide, 32) - 1).bit_length()


def csr_margin(count: int, wide: int = 1) -> Launch:
    """A warp a row, for as many columns of weights as share its entries."""
    parts = _parts(wide, csr_across(wide))
    grid = _parts(count, BLOCK // 32)
    return Launch((grid, parts) if wide > 1 else (grid,), BLOCK)


def csr_span(cols: int, wide: int = 1) -> int:
    """Columns of a block of csr_update: about 512 blocks, in steps of 32 columns."""
    return min(32 * _parts(cols, 32 * 512), MOST_SUMS // wide)


def csr_update(cols: int, wide: int = 1) -> Launch:
    """Eight or 16 warps a block, each with sums of its own."""
    words = csr_span(cols, wide) * wide
    warps = 16 if 2 * words <= MOST_SUMS else 8
    grid = _parts(cols, csr_span(cols, wide))
    return Launch((grid,), 32 * warps, WORD * words * warps)


def csr_gram(tiles: int, side: int) -> Launch:
    """A thread an entry of the tiles, side × side."""
    return Launch((tiles, side * side // BLOCK), BLOCK)


def direct_steps(cols: int, item: int, tall: int, processors: int) -> Launch:
    """A block for 128 bytes of a row or more, not more blocks than processors.

    All blocks have to run at once. `tall`: rows of the largest batch.
    """
    wide = 8 * CHUNK // item
    blocks = min(_parts(cols, wide), processors)
    return Launch((blocks,), BLOCK, 16 + WORD * (32 * (wide + 1) + tall))


def direct_partials(launch: Launch, tall: int) -> int:
    """Floats that the blocks of direct_steps exchange their sums through."""
    return 2 * tall * launch.grid[0]


def gather_steps(tall: int) -> Launch:
    """One block."""
    return Launch((1,), 512, 16 + WORD * tall)


def with_family(build: Build, family: str) -> Build:
    """The build of direct_steps or gather_steps that takes the steps of a family."""
    return replace(build, defines=(*build.defines, f"FAMILY={FAMILIES[family]}"))


def _parts(count: int, each: int) -> int:
    return max(-(-count // each), 1)

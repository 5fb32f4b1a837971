"""Launch shapes of the kernels that cast, multiply columns and take plain steps."""

from typing import NamedTuple

BLOCK = 256  # threads, where nothing else is said
CHUNK = 16  # bytes that a thread reads at once
WORD = 4  # bytes of a float
PLAIN_SHARED = 48 * 1024  # bytes of shared memory that need no asking
ROWS_AT_ONCE = 32  # of direct_steps
KEPT = BLOCK * CHUNK  # bytes of a block that keeps a chunk of every thread
MOST_COLUMNS = 64  # of weights, in update_columns
ROWS_OF_A_PART, MOST_BLOCKS = 128, 512  # of update
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
    """A warp a row; pack_rows and join_rows, too."""
    return Launch((_parts(count, BLOCK // 32),), BLOCK)


def margins_columns(count: int, wide: int, item: int) -> Launch:
    """16 rows and 16 columns of weights a block, the columns in shared memory."""
    tile = 32 * CHUNK // item + 4
    return Launch((_parts(count, 16), _parts(wide, 16)), BLOCK, WORD * 16 * tile)


def update(count: int, cols: int, item: int) -> Launch:
    """128 bytes of a row a block, and parts of the rows where these are few blocks.

    A part has rows enough to ask for four of each thread at once; as many blocks as
    there may be, a GPU of today has at once. Sizes alone decide, and so sums have one
    order.
    """
    strips, wide = _pieces(cols, item), 8 * CHUNK // item
    splits = max(min(count // ROWS_OF_A_PART, MOST_BLOCKS // strips), 1)
    return Launch((strips, splits), BLOCK, WORD * 32 * (wide + 1))


def update_rows(count: int, splits: int) -> int:
    """Rows of a part, whole rounds of its threads."""
    return 32 * _parts(count, 32 * splits)


def update_room(cols: int, launch: Launch) -> int:
    """Floats that parts are added through."""
    return cols * launch.grid[1] if launch.grid[1] > 1 else 0


def update_columns(cols: int) -> Launch:
    """32 rows of weights a block."""
    words = 32 * 33 + 32 * MOST_COLUMNS + 8 * 32 * 8
    return Launch((_parts(cols, 32),), BLOCK, WORD * words)


def blend(count: int) -> Launch:
    """A thread a weight."""
    return Launch((_parts(count, BLOCK),), BLOCK)


def words(count: int) -> Launch:
    """Steps of rules, and sums: a thread a word."""
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

    All blocks have to run at once. `tall`: rows of the largest batch. What a block
    reads it keeps, as far as shared memory goes that needs no asking.
    """
    blocks = min(_pieces(cols, item), processors)
    needed = _parts(_pieces(cols, item), blocks) * _parts(tall, ROWS_AT_ONCE)
    base = _direct_base(item, tall)
    room = max(min(needed, (PLAIN_SHARED - base) // KEPT), 0)
    return Launch((blocks,), BLOCK, base + KEPT * room)


def direct_room(launch: Launch, item: int, tall: int) -> int:
    """Chunks of a thread that a block of direct_steps keeps."""
    return (launch.shared - _direct_base(item, tall)) // KEPT


def direct_partials(launch: Launch, tall: int) -> int:
    """Floats that the blocks of direct_steps exchange their sums through."""
    return 2 * tall * launch.grid[0]


def direct_fits(item: int, tall: int) -> bool:
    """Whether a block can have a batch of so many rows."""
    return _direct_base(item, tall) <= PLAIN_SHARED


def direct_ahead(cols: int, item: int, tall: int, cache: int) -> bool:
    """Whether two batches have room in the cache of the GPU, or push each other out."""
    return 2 * cols * item * tall <= cache


def _direct_base(item: int, tall: int) -> int:
    """Shared memory of a block that keeps nothing."""
    return 16 + WORD * (ROWS_AT_ONCE * (8 * CHUNK // item + 1) + tall)


def _pieces(cols: int, item: int) -> int:
    return _parts(cols, 8 * CHUNK // item)


def gather_steps(tall: int) -> Launch:
    """One block."""
    return Launch((1,), 512, 16 + WORD * tall)


def _parts(count: int, each: int) -> int:
    return max(-(-count // each), 1)

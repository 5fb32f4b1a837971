"""How the kernel `gram_wgmma` is launched: how many blocks share one line of work.

Everything here depends on sizes and on the GPU's number of processors alone: the order
of every sum, and so its bits, are those of the next run.
"""

from hpcsgd.backends.launch_gram import LARGE, GramLaunch

STAGES = 4  # as in gram_wgmma.cu
STAGE_BYTES = 3 * LARGE * 128  # 128 bytes of the rows of three tiles
THREADS = 256
LEAST = 2  # stages of one tile that a block takes: one of a pair
PAIR = 2 * LARGE * LARGE  # words
# Tile-stages that a part of a pair takes to be read and added: 128 KiB, where one reads
# 24 KiB.
JOINING = 5


def stages_of(cols: int, itemsize: int) -> int:
    """Of a row: 128 bytes each."""
    return max(1, -(-cols * itemsize // 128))


def each_of(tiles: int, stages: int, sms: int) -> int:
    """Tile-stages of one block: the fewest blocks of least cost.

    A line of work is cut where it is cut; what a block took of a pair it leaves for
    whoever comes last, who reads as many parts as the pair was cut into.
    """
    total = max(1, tiles) * stages

    def cost(blocks: int) -> int:
        each = max(LEAST, -(-total // blocks))
        return each + JOINING * -(-2 * stages // each)

    best = min(range(1, sms + 1), key=cost)
    return max(LEAST, -(-total // best))


def launch_of(
    tiles: int, rows: int, cols: int, *, itemsize: int, sms: int, margins: bool = True
) -> GramLaunch:
    """The launch for `tiles` tiles, and for the margins of `rows` rows if wanted."""
    stages = stages_of(cols, itemsize)
    each = each_of(tiles, stages, sms)
    workers = max(1, -(-tiles * stages // each))
    return GramLaunch(
        grid=workers + (-(-rows // (THREADS // 32)) if margins else 0),
        block=THREADS,
        shared=STAGES * STAGE_BYTES + 2048,
        splits=workers,
        per_split=each,
        result=tiles * LARGE * LARGE,
        workspace=workers * PAIR,
        tickets=tiles,
    )

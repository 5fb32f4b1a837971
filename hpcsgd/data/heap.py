"""Memory that is freed and asked for again at once, kept instead of given back."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGEST = 32 * 2**20  # bytes, glibc's own limit of the latter


def keep_freed(size: int) -> bool:
    """Keep up to `size` bytes for this process; False where the C library cannot.

    Blocks of a megabyte that come and go cost a page fault for every 4 KiB of them each
    time, a third of the time of a conversion. For programs, not for libraries: it is
    a setting of the whole process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, min(size, LARGEST))
        and mallopt(M_TRIM_THRESHOLD, min(size, 2**31 - 1))
    )

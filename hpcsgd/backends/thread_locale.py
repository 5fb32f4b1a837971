"""The locale of a thread, as it was before a library was called.

NVRTC of CUDA 12.0 to 12.4 leaves its thread in the locale "C": files that Python opens
there later would be ASCII, whatever the user's locale says.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def kept_locale() -> Iterator[None]:
    """That of this thread is afterwards what it was; a no-op where the C library
    knows none of threads.
    """
    use = _use_locale()
    before = use(None) if use else None
    try:
        yield
    finally:
        if use:
            use(before)


def _use_locale() -> Any:
    """`uselocale`: asked for NULL it changes nothing, and always says what was."""
    try:
        found = ctypes.CDLL(None).uselocale
    except (AttributeError, OSError, TypeError):  # TypeError: Windows
        return None
    found.argtypes, found.restype = [ctypes.c_void_p], ctypes.c_void_p
    return found

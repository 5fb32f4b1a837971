"""The limit of one thread for the BLAS of NumPy while a rank works.

A pool of threads in every rank takes time from other ranks and programs, and another
number of threads changes the order of sums, and so their bits. `hpcsgd.cli` sets an
environment variable before NumPy is loaded. In a process that has loaded NumPy, the
functions of this module set the number of threads of the libraries, and restore the
number of the caller.

If the user has set the variable of a library (`OPENBLAS_NUM_THREADS`,
`MKL_NUM_THREADS`), its number of threads stays as it is.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock

# Part of the file's name -> its variable, and pairs of functions: get, set.
KNOWN = {
    "openblas": (
        "OPENBLAS_NUM_THREADS",
        [
            (
                f"{prefix}openblas_get_num_threads{suffix}",
                f"{prefix}openblas_set_num_threads{suffix}",
            )
            for prefix in ("", "scipy_")
            for suffix in ("", "64_", "_64", "64")
        ],
    ),
    "mkl_rt": ("MKL_NUM_THREADS", [("MKL_Get_Max_Threads", "MKL_Set_Num_Threads")]),
}
MAPPED = Path("/proc/self/maps")  # of Linux; other systems have no such file


@dataclass(frozen=True)
class Library:
    """A BLAS library that this process has loaded."""

    path: str
    variable: str
    get: Callable[[], int] = field(compare=False)
    set: Callable[[int], None] = field(compare=False)


class _Callers:
    """The number of current callers of `one_thread`, and the thread counts to restore.

    Several ranks of one process may call it at the same time, each in its own thread.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.count = 0
        self.before: list[tuple[Library, int]] = []


_callers = _Callers()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread in the context, and then restore its number of threads.

    The function is also a decorator. Where several callers overlap, the number is
    restored when the last of them is done.
    """
    with _callers.lock:
        _callers.count += 1
        limited_libraries = [library for library, _ in _callers.before]
        for library in libraries():
            if library not in limited_libraries and library.variable not in os.environ:
                _callers.before.append((library, library.get()))
                library.set(1)
    try:
        yield
    finally:
        with _callers.lock:
            _callers.count -= 1
            if not _callers.count:
                for library, threads in _callers.before:
                    library.set(threads)
                _callers.before.clear()


def libraries() -> list[Library]:
    """Return each OpenBLAS and MKL of this process whose thread count can be set."""
    return _loaded(len(sys.modules))


@lru_cache(maxsize=1)
def _loaded(modules: int) -> list[Library]:
    """Return the libraries of `KNOWN` that this process has loaded.

    `modules`, the number of imported modules, is the key of the cache: an import may
    have loaded a library.
    """
    try:
        lines = MAPPED.read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/") > 1}
    candidates = (_library(path) for path in sorted(paths) if ".so" in Path(path).name)
    return [library for library in candidates if library is not None]


def _library(path: str) -> Library | None:
    for part, (variable, pairs) in KNOWN.items():
        if part not in Path(path).name:
            continue
        try:
            loaded = ctypes.CDLL(path)
        except OSError:  # replaced on the disk since it was loaded
            return None
        for get, put in pairs:
            if hasattr(loaded, get) and hasattr(loaded, put):
                read = loaded[get]
                write = loaded[put]
                read.restype = ctypes.c_int
                read.argtypes = []
                write.restype = None
                write.argtypes = [ctypes.c_int]
                return Library(path, variable, read, write)
    return None

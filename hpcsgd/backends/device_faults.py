"""What CuPy raises in our words: a GPU that is full, lost, or never was to be had."""

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from hpcsgd.errors import ConfigError, DeviceLost, HpcsgdError

T = TypeVar("T")
FULL = 2  # cudaErrorMemoryAllocation, and the driver's name for the same
SMALLER = (
    "use more members (--grid), --precision c where the matrix is fp32, or a smaller"
    " --steps or --batch"
)


def shown(size: float) -> str:
    """Bytes as people read them."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size:.0f} bytes"
        size /= 1024
    return f"{size:.3g} GiB" if size < 1024 else f"{size / 1024:.3g} TiB"


class Faults:
    """Of one GPU, whose place is known before anything is wrong with it."""

    def __init__(self, cupy: Any, place: str) -> None:
        self.cupy, self.place = cupy, place
        self._of_cuda = (
            cupy.cuda.runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
        )
        self._full = cupy.cuda.memory.OutOfMemoryError

    def said(self, error: BaseException, asked: int = 0) -> BaseException:
        """The same as an error of ours; itself where CUDA has no part in it."""
        if isinstance(error, self._full):
            return self.no_room(asked)
        if not isinstance(error, self._of_cuda):
            return error
        if getattr(error, "status", None) == FULL:
            return self.no_room(asked)
        return lost(self.place, str(error))

    def no_room(self, asked: int = 0) -> ConfigError:
        """An allocation that failed, with what is there now."""
        try:
            free, total = self.cupy.cuda.runtime.memGetInfo()
        except self._of_cuda:
            free = total = 0
        return no_room(self.place, asked, free, total)


def no_room(place: str, asked: int, free: int, total: int) -> ConfigError:
    """Bytes that were asked for; 0 where that is not known."""
    more = f"{shown(asked)} more" if asked else "what it was asked for"
    there = f" ({shown(free)} of {shown(total)} are free)" if total else ""
    return ConfigError(f"the GPU {place} has no room for {more}{there}; {SMALLER}")


def lost(place: str, why: str) -> DeviceLost:
    """From here on this GPU does nothing; the run adds what is saved."""
    return DeviceLost(f"the GPU {place} failed ({' '.join(why.split())})")


def guarded(kind: type[T]) -> type[T]:
    """All public methods of a class that has `faults` raise errors of ours."""
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(kind, name, guard(method))
    return kind


def guard(method: Callable[..., Any]) -> Callable[..., Any]:
    """One method of such a class, or a function that is given it first."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        try:
            return method(self, *arguments, **more)
        except HpcsgdError:
            raise
        except Exception as error:
            found = self.faults.said(error)
            if found is error:
                raise
            raise found from error

    return call

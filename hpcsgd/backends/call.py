"""Calls of compiled kernels: arrays go in as they are and become pointers there."""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
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

"""What a kernel's text says of its parameters, beside what a launch gives it.

A launch has no types: CuPy and the emulation hand over addresses, and a kernel that
takes 64 bits where 32 were given reads what lies behind them.
"""

import ctypes
import re

import numpy as np

ENTRY = r'extern "C" __global__ void[^(]*__launch_bounds__\([^)]*\)\s*{}\(([^)]*)\)'
SIZES = {"s64": "i8", "int": "i4", "u32": "i4", "float": "f4", "double": "f8"}
GIVEN = {
    **{ctypes.c_int: "i4", ctypes.c_uint: "i4", ctypes.c_longlong: "i8"},
    **{ctypes.c_float: "f4", ctypes.c_double: "f8"},
}
ADDRESSES = (ctypes.c_void_p, ctypes.c_ulonglong, np.ndarray, type(None))


def kinds_of(text, entry):
    """Those of its parameters, in order; None where the text has no such kernel."""
    found = re.search(ENTRY.format(entry), text)
    if found is None:
        return None
    return [_kind(one) for one in found[1].split(",")]


def _kind(parameter):
    if "*" in parameter:
        return "address"
    (size,) = (SIZES[word] for word in parameter.split() if word in SIZES)
    return size


def check(name, kinds, arguments):
    """Each of its kind: NumPy's scalars, ctypes, arrays, Python's int and float."""
    given = [_given(one) for one in arguments]
    assert given == kinds, f"{name} takes {kinds} and is given {given}"


def _given(argument):
    if isinstance(argument, ADDRESSES):
        return "address"
    if isinstance(argument, bool | int | np.integer):
        return "i4"
    if isinstance(argument, float | np.floating):
        return "f4"
    return GIVEN[type(argument)]

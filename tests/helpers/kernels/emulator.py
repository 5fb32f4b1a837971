"""Kernels of CUDA on a processor: built once, launched with NumPy arrays.

Arrays that a kernel is given lie between guards, 128 bytes aligned: what is written
beyond an end is found, and what is read there is no number.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import threading
from functools import lru_cache
from pathlib import Path

import numpy as np

from tests.helpers.kernels import signatures

HERE = Path(__file__).parent
KERNELS = HERE.parents[2] / "kernels" / "cuda"
FLAGS = (
    *("-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"),
    *("-Wno-attributes", "-Wno-unknown-pragmas", "-fno-strict-aliasing"),
)
GUARD = 256  # bytes on each side
# A NaN that arithmetic changes: what is written back is not what was there.
NO_NUMBER = 0xFFBFFFFF
SEEDS = (0, 1, 2, 3)  # 0: warps in their own order


COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")


class Stuck(AssertionError):
    """A launch that got nowhere."""


def source_of(kernel):
    """The text of a kernel."""
    return (KERNELS / f"{kernel}.cu").read_text()


def inlined(text, seen=None):
    """`text` with the headers of the folder in the place of their names, once each."""
    seen = set() if seen is None else seen

    def header(match):
        if match[1] in seen:
            return ""
        seen.add(match[1])
        return inlined((KERNELS / match[1]).read_text(), seen)

    return re.sub(r'#include "(\w+\.cuh)"\n', header, text)


def cache():
    """A folder for what was built, kept between runs."""
    folder = Path(os.environ.get("HPCSGD_EMULATION", HERE / ".built"))
    folder.mkdir(exist_ok=True)
    return folder


def build(kernel, defines=(), text=None, folder=KERNELS):
    """The shared object of a kernel, or of another `text` for it."""
    text = source_of(kernel) if text is None else text
    flags = [f"-D{define}" for define in (*defines, *units_of(text))]
    said = [text, *flags, *FLAGS, *map(Path.read_text, sorted(HERE.glob("*.h")))]
    said += [path.read_text() for path in sorted(folder.glob("*.cuh"))]
    name = hashlib.sha256("\0".join(said).encode()).hexdigest()[:20]
    path = cache() / f"{kernel}-{name}.so"
    if not path.exists():
        part = part_of(path)
        header = precompiled("cuda_on_cpu.h", FLAGS, units_of(text))
        command = [COMPILER, "-x", "c++", *FLAGS, *flags, f"-I{folder}", f"-I{HERE}"]
        command += ["-include", str(header), "-o", str(part), "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[:4000])
        part.rename(path)
    return path


def part_of(path):
    """Where a file is written before it is renamed to `path`."""
    return path.with_suffix(f".{os.getpid()}-{threading.get_ident()}{path.suffix}")


def precompiled(names, flags, units, folders=(HERE,)):
    """A header of the cache that includes `names`, which the compiler has read once.

    To parse the headers takes longer than most kernels. A compiler that does not take
    what is beside the header reads the header.
    """
    names = [names] if isinstance(names, str) else names
    texts = [one.read_text() for at in folders for one in sorted(at.glob("*.h"))]
    said = "\0".join([*names, *flags, *units, *texts])
    name = f"headers-{hashlib.sha256(said.encode()).hexdigest()[:20]}.h"
    header, lines = cache() / name, "".join(f'#include "{name}"\n' for name in names)
    compiled = header.with_suffix(".h.gch")
    if not compiled.exists():
        part = part_of(header)
        part.write_text(lines)
        part.rename(header)
        part = part_of(compiled)
        command = [COMPILER, "-x", "c++-header", *flags, *(f"-D{u}" for u in units)]
        command += [*(f"-I{at}" for at in folders), "-o", str(part), str(header)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[:4000])
        part.rename(compiled)
    return header


def units_of(text):
    """What the emulation watches only where a kernel, or its PTX, has need of it."""
    return ("WGMMA",) if "wgmma" in text else ()


@lru_cache
def library(path):
    """Loaded once."""
    return ctypes.CDLL(str(path))


def launcher(loaded, entry):
    """What LAUNCHABLE made for an entry."""
    call = getattr(loaded, f"launch_{entry}")
    call.argtypes = [
        *(ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint)),
        *(ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int),
        ctypes.c_void_p,
    ]
    return call


class Kernel:
    """One kernel with its defines, ready to be launched."""

    kinds = None  # of its parameters, where a text in C++ says them

    def __init__(self, name, *defines, text=None, entry=None, folder=KERNELS):
        self.name = name
        path = build(name, defines, text, folder)
        said = source_of(name) if text is None else text
        self.kinds = signatures.kinds_of(said, entry or name)
        self.call = launcher(library(path), entry or name)

    def __call__(
        self, grid, block, arguments, *, shared=0, cluster=1, seed=0, workers=1
    ):
        """Launch with arrays, ints (32 bits), floats (32 bits), ctypes values."""
        if self.kinds:
            signatures.check(self.name, self.kinds, arguments)
        kept = [_value(argument) for argument in arguments]
        places = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
        sizes = [(ctypes.c_uint * 3)(*_three(size)) for size in (grid, block)]
        stuck = self.call(*sizes, cluster, shared, seed, workers, places)
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                check_guards(argument)
        if stuck:
            raise Stuck(f"{self.name} got nowhere: a barrier that some threads miss")


def _three(size):
    size = (size,) if isinstance(size, int) else tuple(size)
    return (*size, 1, 1)[:3]


def _value(argument):
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, bool | int | np.integer):
        return ctypes.c_int(int(argument))
    if isinstance(argument, float | np.floating):
        return ctypes.c_float(float(argument))
    return argument


def empty(shape, dtype=np.float32):
    """An array between guards, full of what is no number in any format."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    words = (size + 2 * GUARD + 128 + 3) // 4
    room = np.full(words, NO_NUMBER, dtype=np.uint32).view(np.uint8)
    first = GUARD + (-(room.ctypes.data + GUARD)) % 128
    return room[first : first + size].view(dtype).reshape(shape)


def on_device(values, dtype=None):
    """A copy between guards."""
    values = np.asarray(values, dtype)
    found = empty(values.shape, values.dtype)
    found[...] = values
    return found


def check_guards(array):
    """What lies around it is as it was."""
    room = array
    while isinstance(room.base, np.ndarray):
        room = room.base
    if room is array or room.dtype != np.uint32:
        return
    room = room.view(np.uint8)
    first = array.ctypes.data - room.ctypes.data
    behind = -(-(first + array.nbytes) // 4) * 4
    around = (room[: first // 4 * 4], room[behind:])
    same = [(part.view(np.uint32) == NO_NUMBER).all() for part in around]
    assert all(same), "written beyond an array"

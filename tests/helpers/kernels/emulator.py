"""Kernels of CUDA on a processor: built once, launched with NumPy arrays.

Arrays that a kernel is given lie between guards, 128 bytes aligned: what is written
beyond an end is found, and what is read there is no number.
"""

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
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
    units = units_of(text)
    said = [text, *defines, *units, *FLAGS, *texts_of(folder, "*.cuh")]
    path = cached(kernel, "so", *said, *texts_of(HERE))
    flags = [*FLAGS, *(f"-D{define}" for define in defines), f"-I{folder}", f"-I{HERE}"]

    def make(part):
        header, launch = run_time(["cuda_on_cpu.h"], FLAGS, units)
        link(part, text, [*flags, *(f"-D{u}" for u in units)], header, launch)

    return made(path, make)


def texts_of(folder, *patterns):
    """Return the texts of a folder that every kernel is built with."""
    paths = [path for one in patterns or ("*.h", "*.cpp") for path in folder.glob(one)]
    return [path.read_text() for path in sorted(paths)]


def cached(name, ending, *said):
    """Return the path in the cache of what is made from these texts."""
    key = hashlib.sha256("\0".join(said).encode()).hexdigest()[:20]
    return cache() / f"{name}-{key}.{ending}"


def made(path, make):
    """Return `path`, which `make` writes to the path that it is given if it is missing.

    Ranks and threads ask for one kernel at once: one makes it, the others wait.
    """
    if path.exists():
        return path
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not path.exists():
                part = path.with_suffix(f".part{path.suffix}")
                make(part)
                part.rename(path)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # what was forked meanwhile has it too
    return path


def compiler(*arguments, text=None):
    """Run the compiler on a text or on files."""
    command = [COMPILER, *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[:4000])


def link(part, text, flags, header, launch):
    """Build the shared object of a kernel's C++ text, with what launches it."""
    source = ("-x", "c++", "-include", header, "-", "-x", "none", launch)
    compiler(*flags, *source, "-o", part, text=text)


def run_time(names, flags, units, folders=(HERE,)):
    """Compile what kernels share; return a header and the object that launches them.

    To parse the headers that are called `names`, and to compile a launch, takes longer
    than most kernels: both are done once. A compiler that does not take the precompiled
    header reads the header. What a header declares may be defined in a file of the same
    name that ends in .cpp.
    """
    flags = [*flags, *(f"-D{unit}" for unit in units), *(f"-I{at}" for at in folders)]
    said = [*names, *flags, *(text for at in folders for text in texts_of(at))]
    header = cached("headers", "h", *said)
    sources = [at / Path(name).with_suffix(".cpp") for name in names for at in folders]
    sources = [HERE / "launch.cpp", *(path for path in sources if path.exists())]
    lines = "".join(f'#include "{name}"\n' for name in names)
    parts = "".join(f'#include "{path}"\n' for path in sources)

    def precompile(part):
        compiler("-x", "c++-header", *flags, "-o", part, header)

    def compile_launch(part):
        source = ("-x", "c++", "-c", "-include", header, "-")
        compiler(*flags, *source, "-o", part, text=parts)

    made(header, lambda part: part.write_text(lines))
    made(header.with_suffix(".h.gch"), precompile)
    return header, made(header.with_suffix(".o"), compile_launch)


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

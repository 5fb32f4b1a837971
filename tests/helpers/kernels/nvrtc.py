"""NVRTC from its wheels: compiles for any GPU on a machine that has none.

CUDA 13 has left sm_70 behind; the compiler of CUDA 12 still knows it.
"""

import ctypes
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hpcsgd.backends.cuda.driver import OF_CUPY
from hpcsgd.backends.cuda.kernels import compiled_for, options
from tests.helpers.kernels.emulator import KERNELS

WHEELS = {12: "nvidia/cuda_nvrtc/lib", 13: "nvidia/cu13/lib"}


@dataclass(frozen=True)
class Compiled:
    """What came out."""

    ok: bool
    log: str
    cubin: bytes = b""
    ptx: str = ""


def options_for(build, arch):
    """Those of a run, for any architecture."""
    given = (*options(build, str(KERNELS)), *OF_CUPY)
    return (*given, f"--gpu-architecture=sm_{compiled_for(build, arch)}")


def major_for(arch):
    """The CUDA whose compiler knows `arch`."""
    return 12 if int(arch.rstrip("af")) < 75 else 13


@lru_cache
def library(major):
    """The compiler, or None where its wheel is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations if spec else ():
        path = Path(place).parent / WHEELS[major] / f"libnvrtc.so.{major}"
        if path.exists():
            return ctypes.CDLL(str(path))
    return None


def compile_text(text, name, options, major):
    """A cubin, or the log that says why not."""
    nvrtc, program = library(major), ctypes.c_void_p()
    none = ctypes.c_void_p()
    code = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), f"{name}.cu".encode(), 0, none, none
    )
    assert code == 0, f"nvrtcCreateProgram: {code}"
    given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    code = nvrtc.nvrtcCompileProgram(program, len(options), given)
    log = _read(nvrtc, program, "ProgramLog").decode(errors="replace").rstrip("\0")
    cubin, ptx = (b"" if code else _read(nvrtc, program, w) for w in ("CUBIN", "PTX"))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return Compiled(code == 0, log, cubin, ptx.decode().rstrip("\0"))


def _read(nvrtc, program, what):
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    room = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, room)
    return room.raw

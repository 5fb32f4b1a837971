"""A kernel as NVRTC compiles it for a run, built for a processor."""

import ctypes
import hashlib
import subprocess
from pathlib import Path

import numpy as np

from hpcsgd.backends.cuda.kernels import Build
from tests.helpers.kernels import emulator, nvrtc
from tests.helpers.kernels.ptx.parse import parsed
from tests.helpers.kernels.ptx.translate import translated

HERE = Path(__file__).parent
FLAGS = (
    *("-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"),
    *("-fno-strict-aliasing", "-w"),
)


def ptx_of(kernel, defines=(), arch="90", text=None, fmad=True):
    """What NVRTC makes of a kernel, or of another `text` for it; kept between runs.

    `fmad`: products and sums may become one, as they do in a run.
    """
    text = emulator.inlined(emulator.source_of(kernel) if text is None else text)
    given = nvrtc.options_for(Build(kernel, kernel, tuple(defines)), arch)
    if not fmad:
        given = ["--fmad=false" if one == "--fmad=true" else one for one in given]
    path = _cached(kernel, "ptx", text, *given)
    if not path.exists():
        made = nvrtc.compile_text(text, kernel, given, nvrtc.major_for(arch))
        if not made.ok:
            raise RuntimeError(made.log[:4000])
        part = emulator.part_of(path)
        part.write_text(made.ptx)
        part.rename(path)
    return path.read_text()


def build(text, entry, flags=(), watch=None):
    """The shared object of C++ text; `watch` names a header of this folder."""
    headers = [*sorted(emulator.HERE.glob("*.h")), *sorted(HERE.glob("*.h"))]
    said = [text, *FLAGS, *flags, watch or "", *(path.read_text() for path in headers)]
    path = _cached(f"ptx-{entry}", "so", *said)
    if not path.exists():
        part, folders = emulator.part_of(path), (HERE, emulator.HERE)
        names = [*([watch] if watch else []), "on_cpu.h"]
        units = [unit for unit in ("WGMMA",) if f"-D{unit}" in flags]
        header = emulator.precompiled(names, FLAGS, units, folders)
        command = [emulator.COMPILER, "-x", "c++", *FLAGS, *flags]
        command += [*(f"-I{at}" for at in folders), "-include", str(header)]
        command += ["-o", str(part), "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[:4000])
        part.rename(path)
    return path


def _cached(name, ending, *said):
    key = hashlib.sha256("\0".join(said).encode()).hexdigest()[:20]
    return emulator.cache() / f"{name}-{key}.{ending}"


class Translated(emulator.Kernel):
    """An entry of PTX that is there as text."""

    def __init__(self, ptx, entry, flags=(), watch=None):
        module = parsed(ptx)
        self.name, self.entry = entry, module.entries[entry]
        flags = (*flags, *(f"-D{define}" for define in emulator.units_of(ptx)))
        self.path = build(translated(module, entry), entry, flags, watch)
        self.library = emulator.library(self.path)
        self.call = emulator.launcher(self.library, entry)

    def __call__(self, grid, block, arguments, *, cluster=1, **how):
        """Launch, within the limits that the text has set."""
        threads = int(np.prod(block))
        assert threads <= self.entry.threads, "more threads than .maxntid"
        # Where the text has none, it is blocks that the emulation runs at once.
        assert self.entry.cluster in (1, cluster), "not the cluster of the text"
        super().__call__(grid, block, arguments, cluster=cluster, **how)
        self.library.wgmma_said.restype = ctypes.c_char_p
        said = self.library.wgmma_said()
        assert said is None, said.decode()


class PtxKernel(Translated):
    """Looks like emulator.Kernel, and runs what NVRTC made of it for `arch`."""

    def __init__(
        self,
        name,
        *defines,
        arch="90",
        entry=None,
        text=None,
        watch=None,
        fmad=True,
    ):
        ptx = ptx_of(name, defines, arch, text, fmad)
        # What has no value is meant for the emulation.
        flags = [f"-D{define}" for define in defines if "=" not in define]
        super().__init__(ptx, entry or name, flags, watch)

"""A kernel as NVRTC compiles it for a run, built for a processor."""

import ctypes
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
    path = emulator.cached(kernel, "ptx", text, *given)

    def make(part):
        compiled = nvrtc.compile_text(text, kernel, given, nvrtc.major_for(arch))
        if not compiled.ok:
            raise RuntimeError(compiled.log[:4000])
        part.write_text(compiled.ptx)

    return emulator.made(path, make).read_text()


def build(text, entry, flags=(), watch=None):
    """The shared object of C++ text; `watch` names a header of this folder."""
    folders = (HERE, emulator.HERE)
    headers = [one for at in folders for one in emulator.texts_of(at)]
    said = [text, *FLAGS, *flags, watch or "", *headers]
    path = emulator.cached(f"ptx-{entry}", "so", *said)
    names = [*([watch] if watch else []), "on_cpu.h"]
    units = [unit for unit in ("WGMMA",) if f"-D{unit}" in flags]

    def make(part):
        own = [*FLAGS, *flags, *(f"-I{at}" for at in folders)]
        header, launch = emulator.run_time(names, FLAGS, units, folders)
        emulator.link(part, text, own, header, launch)

    return emulator.made(path, make)


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

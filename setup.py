"""The one thing that setup.cfg cannot hold: the optional extensions."""

import os
import platform
import sys
from copy import copy

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# One object for each set of instructions; the best that a processor has is loaded.
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")
# Vectors wider than a set has are taken apart inside of one object: no call passes one.
FLAGS = ("-O3", "-ffp-contract=fast", "-Wno-psabi")
X86 = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": AVX512,
    "avx512bf16": (*AVX512, "-mavx512bf16"),
    "amx": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
ARM = {"neonbf16": ("-march=armv8.2-a+bf16",)}  # each Armv8 has NEON: it is portable
# What platform.machine() may return -> the objects beside the portable one.
MACHINES = {"x86_64": X86, "amd64": X86, "aarch64": ARM, "arm64": ARM}
NAMES = (
    *("level", "exact", "losses", "looks", "rows", "gram", "gram_pairs"),
    *("gram_amx", "hessian", "steps", "csr", "columns", "columns_amx", "softmax"),
    *("softmax_steps", "sweep", "lbfgs", "threads"),
)
SOURCES = [f"kernels/cpu/{name}.c" for name in NAMES]
HEADERS = [
    f"kernels/cpu/{name}.h"
    for name in (
        *(
            "csr",
            "exponential",
            "lanes",
            "many_body",
            "reals",
            "softmax_body",
            "softmax_link",
            "steps_body",
            "sweep_body",
        ),
        *("threads", "tiles", "tiles_emulated", "turn", "walk"),
    )
]
LIBRARIES = ["m"] if sys.platform == "win32" else ["m", "pthread"]


def sets_of(machine):
    """Return set of instructions -> flags of the objects for a kind of processor."""
    return {"portable": (), **MACHINES.get(machine.lower(), {})}


class EachApart(build_ext):
    """All at once: objects of one source for several sets lie in several folders."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extension(self, ext):
        own = copy(self)
        own.build_temp = os.path.join(self.build_temp, ext.name)
        build_ext.build_extension(own, ext)


# optional: without a C compiler the build goes on, and NumPy does the kernels' work
setup(
    cmdclass={"build_ext": EachApart},
    ext_modules=[
        Extension("hpcsgd.data._scatter", ["kernels/cpu/scatter.c"], optional=True),
        Extension("hpcsgd.backends._call", ["kernels/cpu/call.c"], optional=True),
        Extension("hpcsgd.data.convert._parse", ["kernels/cpu/parse.c"], optional=True),
        Extension(
            "hpcsgd.comm._casts",
            ["kernels/cpu/casts.c"],
            extra_compile_args=["-O3", "-fno-trapping-math"],
            optional=True,
        ),
        *(
            Extension(
                f"hpcsgd.backends._cpu_{name}",
                SOURCES,
                depends=HEADERS,
                extra_compile_args=[*FLAGS, *flags],
                libraries=LIBRARIES,
                optional=True,
            )
            for name, flags in sets_of(platform.machine()).items()
        ),
    ],
)

"""Which text serves a kernel on which GPU, and the options it is compiled with.

The same table is what a run compiles from and what the tests compile through, for every
architecture, on machines that have no GPU.
"""

from dataclasses import dataclass

from hpcsgd.errors import ConfigError

# What NVRTC calls them; "90a" has instructions that no later one has.
ARCHS = ("70", "75", "80", "86", "89", "90", "90a", "100", "120")
FOLDER = "cuda"  # below kernels/

# The numbers of kernels/cuda/elements.cuh.
ELEMENTS = {"bf16": 1, "fp16": 2, "fp32": 3, "fp8-e4m3": 4, "fp8-e5m2": 5}
LOW = tuple(name for name in ELEMENTS if name != "fp32")
WIDE = ("COLUMN64=1",)  # column numbers of 64 bits
CSR = (
    *("csr_margin", "csr_margins_columns", "csr_update", "csr_update_columns"),
    "csr_gram",
)
# Steps of slices, and the sums of tiles.
RULES = ("step_plain", "step_momentum", "step_adagrad", "step_adam", "add_words")

# The numbers of kernels/cuda/families.cuh.
FAMILIES = {
    **{"logistic": 0, "gaussian": 1, "poisson": 2, "gamma": 3},
    **{"squared-hinge": 4, "huber": 5, "probit": 6},
}
CLUSTER = 8  # blocks that share the rows of a long exchange
# Texts with instructions of one architecture, which no later one has: the name under
# which NVRTC compiles them.
OF_ONE_ARCH = {"gram_wgmma": "90a"}
FALLS_BACK = {"gram-wgmma": "gram-128"}  # on every other GPU: the same tiles


@dataclass(frozen=True)
class Build:
    """One compiled kernel."""

    source: str  # file name without .cu
    entry: str
    defines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """One way to do a kernel's work, for some formats, from some architecture on."""

    source: str
    elements: tuple[str, ...]
    since: int = 70
    defines: tuple[str, ...] = ()
    entry: str = ""  # the source's name if empty

    def serves(self, element: str, arch: str) -> bool:
        """Whether it can be compiled for that GPU."""
        alone = OF_ONE_ARCH.get(self.source)
        is_here = alone in (None, f"{number_of(arch)}a")
        return is_here and element in self.elements and number_of(arch) >= self.since


def _grams(tile: int) -> tuple[Variant, ...]:
    """Tensor cores where they know the format; else its values, one by one, in fp32."""
    size = f"TB={tile}"
    return (
        Variant("gram", ("bf16", "fp16"), 80, defines=(size,)),
        Variant("gram", ("fp8-e4m3", "fp8-e5m2"), 89, defines=(size,)),
        Variant("gram", tuple(ELEMENTS), defines=(size, "FFMA=1")),
    )


def _tf32_grams(tile: int) -> tuple[Variant, ...]:
    """A matrix in fp32, multiplied as tf32; exactly where there is none."""
    size = f"TB={tile}"
    return (
        Variant("gram", ("fp32",), 80, defines=(size, "TF32=1")),
        Variant("gram", ("fp32",), defines=(size, "FFMA=1")),
    )


def _direct_steps(family: int) -> tuple[Variant, ...]:
    """With fp8 its values do not fit into the registers of sm_70."""
    own, low = (f"FAMILY={family}",), ("fp8-e4m3", "fp8-e5m2")
    return (
        Variant("direct_steps", ("bf16", "fp16", "fp32"), defines=own),
        Variant("direct_steps", low, 75, defines=own),
    )


# The first that serves is taken: what is faster stands before what it falls back to.
VARIANTS: dict[str, tuple[Variant, ...]] = {
    "margin": (Variant("margin", tuple(ELEMENTS)),),
    "sample": (Variant("sample", ("fp32",)),),
    "round": (Variant("round", ("bf16", "fp16"), entry="round_values"),),
    "update": (Variant("update", tuple(ELEMENTS)),),
    "portion": (Variant("average", ("fp32",), entry="portion"),),
    "become": (Variant("average", ("fp32",), entry="become"),),
    "gram-64": _grams(64),
    "gram-128": _grams(128),
    "gram-wgmma": (Variant("gram_wgmma", ("bf16", "fp16"), 90),),
    "gram-tf32-64": _tf32_grams(64),
    "gram-tf32-128": _tf32_grams(128),
    **{
        f"recurrence-{family}": (
            Variant("recurrence", ("fp32",), defines=(f"FAMILY={number}", "NC=1")),
        )
        for family, number in FAMILIES.items()
    },
    **{
        f"recurrence-cluster-{family}": (
            Variant(
                *("recurrence", ("fp32",), 90),
                defines=(f"FAMILY={number}", f"NC={CLUSTER}"),
            ),
        )
        for family, number in FAMILIES.items()
    },
    "softmax": (Variant("softmax", ("fp32",)),),
    "narrow": (Variant("cast", LOW, entry="narrow"),),
    "widen": (Variant("cast", LOW, entry="widen"),),
    "add_parts": (Variant("parts", ("bf16",), entry="add_parts"),),
    "gather_rows": (Variant("cast", tuple(ELEMENTS), entry="gather_rows"),),
    "gather_rows_wide": (
        Variant("cast", LOW, defines=("WIDEN=1",), entry="gather_rows"),
    ),
    "pack_tiles": (Variant("pack", ("fp32",), entry="pack_tiles"),),
    "margins_columns": (Variant("columns", tuple(ELEMENTS), entry="margins_columns"),),
    "update_columns": (Variant("columns", tuple(ELEMENTS), entry="update_columns"),),
    "blend": (Variant("columns", ("fp32",), entry="blend"),),
    **{name: (Variant("rules", ("fp32",), entry=name),) for name in RULES},
    **{
        f"{name}{bits}": (Variant("csr", tuple(ELEMENTS), defines=wide, entry=name),)
        for name in CSR
        for bits, wide in (("", ()), ("_64", WIDE))
    },
    "pack_rows": (Variant("pieces", tuple(ELEMENTS), entry="pack_rows"),),
    "join_rows": (Variant("pieces", tuple(ELEMENTS), entry="join_rows"),),
    **{f"direct-steps-{f}": _direct_steps(n) for f, n in FAMILIES.items()},
    **{
        f"gather-steps-{family}": (
            Variant("gather_steps", tuple(ELEMENTS), defines=(f"FAMILY={number}",)),
        )
        for family, number in FAMILIES.items()
    },
}


def number_of(arch: str) -> int:
    """90 of "90a"."""
    return int(arch.rstrip("af"))


def build_of(kernel: str, element: str, arch: str) -> Build:
    """What serves `kernel` for a matrix in `element` on a GPU of `arch`."""
    if kernel not in VARIANTS:
        raise ConfigError(f"unknown kernel: {kernel!r}; known: {sorted(VARIANTS)}")
    for variant in VARIANTS[kernel]:
        if variant.serves(element, arch):
            defines = (f"ELEMENT={ELEMENTS[element]}", *variant.defines)
            return Build(variant.source, variant.entry or variant.source, defines)
    raise ConfigError(
        f"kernel {kernel} has no way for a matrix in {element} on sm_{arch};"
        " use --precision c, or --device cpu"
    )


def serves(kernel: str, element: str, arch: str) -> bool:
    """Whether there is a build of it."""
    return any(v.serves(element, arch) for v in VARIANTS.get(kernel, ()))


def compiled_for(build: Build, arch: str) -> str:
    """What NVRTC is told of a GPU of `arch`: "90a" for a text that needs it."""
    return OF_ONE_ARCH.get(build.source, arch)


def all_builds(arch: str) -> list[Build]:
    """Every text with every set of defines that a GPU of `arch` may be asked for.

    Kernels of one text are compiled together: one of their names stands for all.
    """
    found = {}
    for kernel, variants in VARIANTS.items():
        for element in sorted({name for v in variants for name in v.elements}):
            if serves(kernel, element, arch):
                build = build_of(kernel, element, arch)
                found[build.source, build.defines] = build
    return list(found.values())


def options(build: Build, folder: str) -> tuple[str, ...]:
    """What NVRTC is told besides the architecture, which CuPy adds itself."""
    return (
        "--std=c++17",
        "--fmad=true",
        f"-I{folder}",
        *(f"-D{define}" for define in build.defines),
    )

"""The round kernel beside float64: sizes, checks and planted faults."""

import numpy as np

from hpcsgd.formats import round_through
from tests.helpers.kernels.emulator import Kernel, on_device
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.problems import ELEMENTS

MUTANTS = [
    Mutant("round", "values behind the last", "if (i >= count)", "if (i > count)"),
]


def awkward(name):
    """Every pattern of the upper half, its neighbours and midpoints; half's, too."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    if name == "fp16":
        every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
        upper = every.view(np.uint32)
        return np.concatenate([upper, upper + 0xFFF, upper + 0x1000, upper + 0x1001])
    return np.concatenate([upper, upper + 0x7FFF, upper + 0x8000, upper + 0x8001])


def check(text):
    """What mutants have to fail."""
    agrees("bf16", text)


def agrees(name, text=None):
    values = on_device(awkward(name).view(np.float32)[:-3])
    wanted = values.copy()
    with np.errstate(all="ignore"):
        round_through(wanted, name)
    kernel = Kernel(
        "round", f"ELEMENT={ELEMENTS[name]}", text=text, entry="round_values"
    )
    count = len(values)
    kernel(-(-count // 256), 256, (values, count))
    same = values.view(np.uint32) == wanted.view(np.uint32)
    assert (same | (np.isnan(values) & np.isnan(wanted))).all()

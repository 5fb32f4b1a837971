"""Both ways side by side: what a C++ compiler and what NVRTC made of one kernel."""

import numpy as np

from tests.helpers.kernels.emulator import Kernel
from tests.helpers.kernels.ptx.kernel import PtxKernel


class Beside:
    """Launches both on the same arrays, and counts the values whose bits differ.

    `by`: what runs the PTX.
    """

    def __init__(self, name, *defines, text=None, entry=None, by=PtxKernel, **how):
        same = {"text": text, "entry": entry}
        self.plain = Kernel(name, *defines, **same)
        self.ptx = by(name, *defines, **same, **how)
        self.differ = self.launched = 0

    def __call__(self, grid, block, arguments, **how):
        """What the arrays hold afterwards is of PTX."""
        arrays = [one for one in arguments if isinstance(one, np.ndarray)]
        before = [one.copy() for one in arrays]
        self.plain(grid, block, arguments, **how)
        after = [one.copy() for one in arrays]
        for array, old in zip(arrays, before, strict=True):
            if array.size:
                array.view(np.uint8)[...] = old.view(np.uint8)
        self.ptx(grid, block, arguments, **how)
        self.launched += 1
        self.differ += sum(map(differing, arrays, after))


def differing(one, other):
    """Values with other bits; all that are no numbers are alike."""
    same = one.view(f"u{one.itemsize}") == other.view(f"u{one.itemsize}")
    if one.dtype.kind == "f":
        same |= np.isnan(one) & np.isnan(other)
    return int((~same).sum())

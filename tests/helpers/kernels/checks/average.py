"""The average kernel beside float64: sizes, checks and planted faults."""

import ctypes

import numpy as np

from hpcsgd.backends.cuda.kernels import average
from hpcsgd.backends.task import State
from tests.helpers.kernels.emulator import Kernel, empty, on_device
from tests.helpers.kernels.mutants import Mutant

SIZES = ((1, 0), (255, 1), (256, 0), (257, 6), (1000, 300))
MUTANTS = [
    Mutant("average", "the share is left out", "scale * share", "scale"),
    Mutant(
        *("average", "the share of the intercept is left out"),
        *("(float)intercept[i - held] * share", "(float)intercept[i - held]"),
    ),
    Mutant(
        *("average", "the intercept is scaled before it is rounded"),
        *("(float)intercept[i - held] * share", "(float)(intercept[i - held] * share)"),
    ),
    Mutant(
        *("average", "the intercept begins at the wrong word"),
        *(
            "intercept[i - held] = buffer[i];",
            "intercept[i - held] = buffer[i - held];",
        ),
    ),
    Mutant("average", "the scale is left out", "weights[i] * scale", "weights[i]"),
    Mutant("average", "the scale stays", "buffer[i] / scale", "buffer[i]"),
]


def check(text):
    """What mutants have to fail."""
    agrees(257, 300, text)


def agrees(held, more, text=None):
    rng = np.random.default_rng(held)
    weights, scale = on_device(rng.normal(size=held), np.float32), 0.25
    intercept = on_device(rng.normal(size=more), np.float64) if more else None
    share = 1 / 3
    buffer, shape = empty(held + more), average(held, more)
    count = ctypes.c_longlong(held)

    def launch(entry, arguments):
        kernel = Kernel("average", "ELEMENT=3", text=text, entry=entry)
        kernel(shape.grid, shape.block, arguments)

    launch("portion", (weights / scale, count, scale, intercept, more, share, buffer))
    wanted = State(weights, intercept).portion(share, None)
    np.testing.assert_array_equal(buffer, wanted)
    back = empty(held), empty(more, np.float64) if more else None
    launch("become", (buffer, count, scale, more, *back))
    np.testing.assert_array_equal(back[0] * np.float32(scale), wanted[:held])
    if more:
        np.testing.assert_array_equal(back[1], wanted[held:].astype(np.float64))

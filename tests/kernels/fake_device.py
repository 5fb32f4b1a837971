"""A device that is this processor: kernels run under the emulation, all of it late.

Its stream, its arrays and its NCCL are those of tests/fake_cuda.py: nothing happens
before somebody waits, and whoever takes an array for one of the host gets an error.
"""

import ctypes
from collections import deque

import numpy as np

from tests.fake_cuda import FakeArray, FakeLayer, Node
from tests.kernels.emulator import Kernel, check_guards, empty

SIZES = {"i4": ctypes.c_int, "i8": ctypes.c_longlong, "f4": ctypes.c_float}


class Held(FakeArray):
    """Memory between guards, or a part of it."""

    def __init__(self, held, late, whole=None):
        super().__init__(held, late)
        self.whole = held if whole is None else whole

    def __getitem__(self, part):
        return Held(self.held[part], self.late, self.whole)

    def __len__(self):
        return len(self.held)


class FakeDevice:
    """See `hpcsgd.backends.device.Device`."""

    arch, multiprocessors, cache, is_shared = "90", 4, 2**20, False

    def __init__(self, node=None, seed=1, place="node 0000:01"):
        self.layer = FakeLayer(node or Node(), place)
        self.stream = self.layer.main
        self.seed = seed
        self.settle = self.wait
        self.launched = []  # names of kernels, in order
        self.captured = 0  # graphs

    def empty(self, shape, dtype):
        return Held(empty(shape, dtype), set())

    def zeros(self, shape, dtype):
        found = self.empty(shape, dtype)
        self.stream.put(lambda: found.held.fill(0), found)
        return found

    def fill(self, array, values):
        values = np.array(values)
        assert values.shape == array.shape and values.dtype == array.dtype
        self.stream.put(lambda: np.copyto(array.held, values), array)

    def fetch(self, array):
        self.synchronize()
        return array.held.copy()

    def kernel(self, build):
        kernel = Kernel(build.source, *build.defines, entry=build.entry)

        def launch(grid, block, arguments, shared=0, cluster=1):
            given = [_given(argument) for argument in arguments]
            arrays = [one for one in arguments if isinstance(one, Held)]
            more = {"shared": shared, "cluster": cluster, "seed": self.seed}
            self.launched.append(build.entry)

            def action():
                kernel(grid, block, given, **more)
                for array in arrays:
                    check_guards(array.whole)

            self.stream.put(action, *arrays)

        return launch

    def capture(self, action):
        stream = self.stream
        with stream.node.lock:  # or others, who wait, run what is but recorded
            before, stream.queue = stream.queue, deque()
            action()
            recorded, stream.queue = list(stream.queue), before
        self.captured += 1

        def replay():
            for one in recorded:
                stream.put(one)

        return replay

    def wait(self):
        self.layer.synchronize(self.stream)

    def synchronize(self):
        self.settle()


def _given(argument):
    if argument is None:
        return None
    if isinstance(argument, Held):
        return ctypes.c_void_p(argument.held.ctypes.data)
    assert isinstance(argument, np.generic), f"of no certain size: {argument!r}"
    return SIZES[argument.dtype.str[1:]](argument.item())

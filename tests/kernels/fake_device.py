"""A device that is this processor: kernels run under the emulation, copies are late.

Its arrays are of a class of their own: whoever takes one for an array of the host gets
an error. What is asked for happens when somebody waits, as on a stream.
"""

import ctypes

import numpy as np

from tests.kernels.emulator import Kernel, check_guards, empty

SIZES = {"i4": ctypes.c_int, "i8": ctypes.c_longlong, "f4": ctypes.c_float}


class FakeArray:
    """Memory of the device."""

    __array_ufunc__ = None

    def __init__(self, held, whole=None):
        self.held = held
        self.whole = held if whole is None else whole  # what was asked for at once

    @property
    def shape(self):
        return self.held.shape

    @property
    def dtype(self):
        return self.held.dtype

    def __getitem__(self, part):
        return FakeArray(self.held[part], self.whole)

    def view(self, dtype):
        return FakeArray(self.held.view(dtype), self.whole)

    def reshape(self, *shape):
        return FakeArray(self.held.reshape(*shape), self.whole)

    def __array__(self, *_, **__):
        raise TypeError("an array of the device was taken for one of the host")

    def __len__(self):
        return len(self.held)


class FakeDevice:
    """See `hpcsgd.backends.device.Device`."""

    arch, multiprocessors = "90", 4

    def __init__(self, seed=1):
        self.seed = seed
        self.stream = []  # what was asked for and has not happened
        self.launched = []  # names of kernels, in order
        self.captured = 0  # graphs

    def empty(self, shape, dtype):
        return FakeArray(empty(shape, dtype))

    def zeros(self, shape, dtype):
        found = self.empty(shape, dtype)
        self.stream.append(lambda: found.held.fill(0))
        return found

    def fill(self, array, values):
        values = np.array(values)
        assert values.shape == array.shape and values.dtype == array.dtype
        self.stream.append(lambda: np.copyto(array.held, values))

    def fetch(self, array):
        self.synchronize()
        return array.held.copy()

    def kernel(self, build):
        kernel = Kernel(build.source, *build.defines, entry=build.entry)

        def launch(grid, block, arguments, shared=0, cluster=1):
            given = [_given(argument) for argument in arguments]
            self.launched.append(build.entry)
            more = {"shared": shared, "cluster": cluster, "seed": self.seed}

            def action():
                kernel(grid, block, given, **more)
                for argument in arguments:
                    if isinstance(argument, FakeArray):
                        check_guards(argument.whole)

            self.stream.append(action)

        return launch

    def capture(self, action):
        before, self.stream = self.stream, []
        action()
        recorded, self.stream = self.stream, before
        self.captured += 1
        return lambda: self.stream.extend(recorded)

    def synchronize(self):
        stream, self.stream = self.stream, []
        for action in stream:
            action()


def _given(argument):
    if argument is None:
        return None
    if isinstance(argument, FakeArray):
        return ctypes.c_void_p(argument.held.ctypes.data)
    assert isinstance(argument, np.generic), f"of no certain size: {argument!r}"
    return SIZES[argument.dtype.str[1:]](argument.item())

"""A device that is this processor: kernels run under the emulation, all of it late.

Its stream, its arrays and its NCCL are those of `fake_cuda`: nothing happens
before somebody waits, and whoever takes an array for one of the host gets an error.
"""

import ctypes
from contextlib import contextmanager

import numpy as np

from hpcsgd.backends.cuda.device import LaunchGraph, Uploads
from hpcsgd.backends.cuda.driver import DeviceCasts, out_of_memory_error
from tests.helpers.fake_cuda import FakeArray, FakeLayer, Node, Stream
from tests.helpers.fake_nccl import EachTime
from tests.helpers.kernels.emulator import Kernel, check_guards, empty

SIZES = {"i4": ctypes.c_int, "i8": ctypes.c_longlong, "f4": ctypes.c_float}


class Held(FakeArray):
    """Memory between guards, or a part of it."""

    def __init__(self, held, late, whole=None):
        super().__init__(held, late)
        self.whole = held if whole is None else whole

    def __getitem__(self, part):
        return Held(self.held[part], self.late, self.whole)

    def reshape(self, *shape):
        return Held(self.held.reshape(*shape), self.late, self.whole)

    def __len__(self):
        return len(self.held)


class Crossing:
    """One stream waits for another, each time that both are asked to."""

    def __init__(self):
        self.reached = self.awaited = 0

    def put(self, first, second):
        first.put(self.reach)
        second.put(EachTime(self.expect))

    def reach(self):
        self.reached += 1

    def expect(self):
        self.awaited += 1
        number = self.awaited
        return lambda: self.reached >= number


class Layer(FakeLayer):
    """With the kernels of sums in 16 bits."""

    def __init__(self, device, node, place):
        super().__init__(node, place)
        self.casts = DeviceCasts(device.arch, device.on_stream)

    def array(self, values):
        values = np.asarray(values)
        found = Held(empty(values.shape, values.dtype), {})
        found.held[...] = values
        return found

    def narrow(self, values, bits, stream):
        self.casts.narrow(stream, values, bits)

    def widen(self, bits, values, stream):
        self.casts.widen(stream, bits, values)

    def add_bits(self, parts, ranks, total, stream):
        self.casts.add(stream, parts, ranks, total)


class FakeDevice:
    """See `hpcsgd.backends.cuda.device.Device`."""

    arch, multiprocessors, cache, is_shared = "90", 4, 2**20, False

    def __init__(self, node=None, seed=1, place="node 0000:01"):
        self.layer = Layer(self, node or Node(), place)
        self.stream = self.now = self.layer.main
        self.side = Stream(self.layer.node)
        self.seed = seed
        self.settle = self.wait
        self.uploads = Uploads(self.layer, self.stream)
        self.launched = []  # names of kernels, in order
        self.captured = 0  # graphs
        self.fetched = 0  # arrays that the host has waited for

    def empty(self, shape, dtype):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size > self.layer.size:
            raise out_of_memory_error(self.layer.place, size, *self.memory())
        return Held(empty(shape, dtype), {})

    def zeros(self, shape, dtype):
        found = self.empty(shape, dtype)
        self.stream.put(lambda: found.held.fill(0), found)
        return found

    def clear(self, array):
        assert array.flags.c_contiguous
        self.stream.is_free()
        self.stream.put(lambda: array.held.fill(0), array)

    def fill(self, array, values):
        """By way of pinned buffers, as a GPU is sent it: what is late shows."""
        self.stream.is_free()
        self.uploads.fill(array, values)

    def upload(self, array, write):
        self.uploads.put(array, write)

    def put_rows(self, array, rows):
        def action():
            array.held[:, : rows.shape[1]] = rows.held
            array.held[:, rows.shape[1] :] = 0

        self.stream.put(action, array)
        self.wait()

    def memory(self):
        return self.layer.memory()

    def fetch(self, array):
        self.layer.tick("fetch")
        self.fetched += 1
        self.synchronize()
        return array.held.copy()

    def kernel(self, build):
        launch = self.on_stream(build)
        return lambda *given, **more: launch(self.now, *given, **more)

    def on_stream(self, build):
        kernel = Kernel(build.source, *build.defines, entry=build.entry)

        def launch(stream, grid, block, arguments, shared=0, cluster=1):
            given = [_given(argument) for argument in arguments]
            arrays = [one for one in arguments if isinstance(one, Held)]
            more = {"shared": shared, "cluster": cluster, "seed": self.seed}
            self.launched.append(build.entry)
            self.layer.tick("launch")

            def action():
                kernel(grid, block, given, **more)
                for array in arrays:
                    check_guards(array.whole)

            stream.put(action, *arrays)

        return launch

    def capture(self, action):
        self.captured += 1
        sides = []
        graph = self.stream.capture(lambda: sides.append(self.side.capture(action)))

        def replay():
            self.layer.tick("replay")
            graph()
            sides[0]()
            self.side.run()

        return LaunchGraph(replay)

    def gemm_bf16(self, out, left, right):
        assert out.dtype == np.float32 and left.dtype == right.dtype == np.uint16
        assert out.shape == (len(left), len(right))

        def action():
            out.held[...] = _wide(left.held) @ _wide(right.held).T
            check_guards(out.whole)

        self.launched.append("gemm_bf16")
        self.now.put(action, out, left, right)

    def seconds(self, action, times):
        """As many as kernels were launched: the same for every run."""
        before = len(self.launched)
        for _ in range(times):
            action()
        self.wait()
        return (len(self.launched) - before) / times

    @contextmanager
    def aside(self):
        """As early as it may be, which shows what should have been waited for."""
        Crossing().put(self.stream, self.side)
        self.now = self.side
        yield
        self.now = self.stream
        self.side.run()

    def join(self):
        Crossing().put(self.side, self.stream)

    def wait(self):
        self.layer.synchronize(self.stream)

    def synchronize(self):
        self.settle()


def _wide(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _given(argument):
    if argument is None:
        return None
    if isinstance(argument, Held):
        return ctypes.c_void_p(argument.held.ctypes.data)
    assert isinstance(argument, np.generic), f"of no certain size: {argument!r}"
    return SIZES[argument.dtype.str[1:]](argument.item())

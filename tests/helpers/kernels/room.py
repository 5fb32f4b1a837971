"""A device that counts the bytes it holds."""

import numpy as np

from tests.helpers.kernels.fake_device import FakeDevice


class Counting(FakeDevice):
    """Adds up what it is asked for."""

    def __init__(self, free, place="node 0000:01", node=None):
        super().__init__(node, place=place)
        self.layer.size, self.asked = free, []

    def empty(self, shape, dtype):
        self.asked.append(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return super().empty(shape, dtype)

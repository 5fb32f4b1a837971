"""Slices between a device and its host: pinned, on streams of their own, counted."""

import numpy as np
import pytest

from hpcsgd.agreements.more.offload import SliceLink
from hpcsgd.backends.base import HOST
from hpcsgd.comm.gpu import fetched
from tests.helpers.fake_cuda import FakeLayer, Node

SHAPE = 5, 3


def test_a_host_that_is_its_device_counts_the_same():
    link, part = SliceLink(), np.arange(15.0).reshape(SHAPE)
    host = HOST.host_zeros(SHAPE, np.float64)
    link.down(part, host)()
    np.testing.assert_array_equal(host, part)
    host += 1.0
    link.up(host[2:4], part[2:4])()
    assert part[2, 0] == 7.0 and part[0, 0] == 0.0
    assert (link.down_bytes, link.up_bytes) == (8 * 15, 8 * 6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pinned_copies_wait_for_kernels_and_kernels_for_them(dtype):
    """What a kernel writes late comes down; what goes up is there for the next one."""
    layer = FakeLayer(Node())
    link, values = SliceLink(layer, layer.main), np.arange(15, dtype=dtype)
    gradient, weights = layer.empty(15, dtype), layer.empty(15, dtype)
    hosts = [layer.pinned(15, dtype).reshape(SHAPE) for _ in range(2)]
    for turn in range(4):  # two buffers in turns
        host = hosts[turn % 2]
        layer.later(gradient, values * (turn + 1))
        arrive = link.down(gradient.reshape(SHAPE), host)
        arrive()
        np.testing.assert_array_equal(host.reshape(-1), values * (turn + 1))
        host *= 2.0
        link.up(host, weights.reshape(SHAPE))
        seen = fetched(layer, weights, layer.main)  # a kernel behind it
        np.testing.assert_array_equal(seen, 2 * values * (turn + 1))
    size = 4 * values.nbytes
    assert (link.down_bytes, link.up_bytes) == (size, size)


def test_a_copy_that_nobody_waited_for_is_not_there():
    """The broken twin: the host reads at once."""
    layer = FakeLayer(Node())
    link, gradient = SliceLink(layer, layer.main), layer.empty(15, np.float64)
    host = layer.pinned(15, np.float64).reshape(SHAPE)
    host[...] = 0.0
    layer.later(gradient, np.arange(15.0))
    link.down(gradient.reshape(SHAPE), host)
    assert not host.any()

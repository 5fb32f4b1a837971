"""What every device must do, whatever is behind it; each check takes one."""

import numpy as np
import pytest

from hpcsgd.backends.cuda import device as uploads
from hpcsgd.backends.cuda.device import Mirrored
from hpcsgd.backends.cuda.kernels import build_of
from hpcsgd.backends.cuda.matrix import DeviceSampled, Order, put_matrix, sent
from hpcsgd.comm.gpu import open_transport
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.data.matrix import DenseMatrix
from hpcsgd.errors import ConfigError
from hpcsgd.formats import decode, encode, get_format
from tests.helpers.bits import add_bits, narrow_bits, widen_bits

BLOCK = 256


def rounds(device, array, form="bf16"):
    """Launch a kernel of the table: array ← its values, rounded."""
    launch = device.kernel(build_of("round", form, device.arch))
    launch(-(-array.size // BLOCK), BLOCK, (array, np.int32(array.size)))


def rounded(values):
    return decode(encode(values, "bf16"), "bf16", np.float32)


def values_of(count, seed=0):
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def brings_arrays_back(device):
    """Of every shape and type, small and large, none at all among them."""
    for shape in ((1,), (0,), (37, 5), (70_001,), (3, 0), (1100, 17)):
        for dtype in (np.float32, np.float64, np.int32, np.int64, np.uint16, np.uint32):
            values = (100 * np.random.default_rng(0).normal(size=shape)).astype(dtype)
            array = device.empty(shape, dtype)
            device.fill(array, values)
            found = device.fetch(array)
            assert found.dtype == values.dtype and found.shape == shape
            np.testing.assert_array_equal(found, values)
            assert not device.fetch(device.zeros(shape, dtype)).any()


def takes_parts_of_arrays(device):
    array = device.zeros((9, 4), np.float32)
    device.fill(array[2:5], np.ones((3, 4), np.float32))
    device.fill(array[8:9], np.full((1, 4), 2, np.float32))
    expected = np.zeros((9, 4))
    expected[2:5], expected[8] = 1, 2
    np.testing.assert_array_equal(device.fetch(array), expected)
    np.testing.assert_array_equal(device.fetch(array[3:9]), expected[3:])


def clears_arrays_and_parts_of_them(device):
    """In its order: what was filled before, and not what is filled then."""
    array = device.empty((9, 4), np.float32)
    for first, last in ((0, 9), (2, 5)):
        device.fill(array, np.ones((9, 4), np.float32))
        device.clear(array[first:last])
        device.fill(array[4:5], np.full((1, 4), 2, np.float32))
        expected = np.ones((9, 4))
        expected[first:last] = 0
        expected[4] = 2
        np.testing.assert_array_equal(device.fetch(array), expected)


def reads_what_it_is_filled_with_at_once(device):
    """What was given may change before the copy is done; buffers are used again."""
    for width in (3, uploads.SMALL // 4 + 1):  # the ring, and the two large ones
        count = 3 * uploads.RING
        array, values = device.empty((count, width), np.float32), np.empty((1, width))
        values = values.astype(np.float32)
        for row in range(count):
            values[...] = row
            device.fill(array[row : row + 1], values)
            values[...] = -1
        expected = np.repeat(np.arange(count), width).reshape(count, width)
        np.testing.assert_array_equal(device.fetch(array), expected)


def sends_what_is_written_in_place(device):
    array, rows = device.empty((40, 5000), np.float32), 7
    for first in range(0, 40, rows):
        part = array[first : first + rows]

        def write(host, first=first, shape=tuple(part.shape)):
            assert host.shape == shape and host.dtype == np.float32
            host[...] = first

        device.upload(part, write)
    expected = np.arange(40) // rows * rows
    assert (device.fetch(array) == expected[:, None]).all()


def works_in_order(device):
    """A copy, a kernel, a copy over a part of it, a kernel, and so on."""
    values = values_of(1000)
    array = device.empty((1000,), np.float32)
    for turn in range(5):
        device.fill(array, values + turn)
        rounds(device, array)
        device.fill(array[:10], values[:10])
        expected = rounded(values + turn)
        expected[:10] = values[:10]
        if turn % 2:
            np.testing.assert_array_equal(device.fetch(array), expected)
    device.wait()
    np.testing.assert_array_equal(device.fetch(array), expected)


def goes_on_beside_itself(device):
    """What is aside follows what came before it, and what follows `join` it."""
    values = values_of(1000)
    one, other = (device.empty((1000,), np.float32) for _ in range(2))
    for turn in range(5):
        device.fill(one, values + turn)
        device.fill(other, values - turn)
        with device.aside():
            rounds(device, one)
        rounds(device, other)
        device.join()
        np.testing.assert_array_equal(device.fetch(one), rounded(values + turn))
        np.testing.assert_array_equal(device.fetch(other), rounded(values - turn))


def replays_read_what_is_there_now(device):
    """A graph repeats launches, not the numbers that they had."""
    array = device.empty((500,), np.float32)
    action = lambda: rounds(device, array)  # noqa: E731
    device.fill(array, values_of(500))
    action()
    replay = device.capture(action)
    device.fill(array, values_of(500, 1))
    np.testing.assert_array_equal(device.fetch(array), values_of(500, 1))
    for seed in (2, 3):
        device.fill(array, values_of(500, seed))
        replay()
        expected = rounded(values_of(500, seed))
        np.testing.assert_array_equal(device.fetch(array), expected)


def runs_kernels_with_what_a_run_gives(device):
    """The next rows, their targets, and their margins: exactly, then closely."""
    rng = np.random.default_rng(0)
    X, targets = rng.normal(size=(61, 13)).astype(np.float32), rng.normal(size=(61, 1))
    matrix = put_matrix(device, DenseMatrix(X), "fp32")
    weights = sent(device, values_of(13, 5))
    order = Order(device, targets, None, targets + 1)
    sampled, margins = DeviceSampled(device, order, 20), device.empty((20,), np.float32)
    permuted = rng.permutation(61)
    order.seek(permuted, 0, 20)
    for turn in range(3):
        order.seek(permuted, 20 * turn, 20)
        build = build_of("sample", "fp32", device.arch)
        device.kernel(build)(1, 1024, sampled.arguments)
        rows = (matrix.values, matrix.stride, sampled.numbers, np.int32(20))
        arguments = (*rows, np.int32(13), weights, margins)
        device.kernel(build_of("margin", "fp32", device.arch))(3, BLOCK, arguments)
        chosen = permuted[20 * turn : 20 * turn + 20]
        np.testing.assert_array_equal(device.fetch(sampled.numbers), chosen)
        wanted = targets[chosen, 0].astype(np.float32)
        np.testing.assert_array_equal(device.fetch(sampled.targets), wanted)
        exact = X[chosen].astype(np.float64) @ values_of(13, 5)
        np.testing.assert_allclose(device.fetch(margins), exact, 1e-5, 1e-5)


def pads_the_rows_of_a_matrix(device):
    for form, width in (("fp32", 13), ("bf16", 9), ("fp8-e4m3", 21), ("fp32", 8)):
        kind = get_format(form).dtype
        values = np.arange(700 * width).reshape(700, width).astype(kind)
        matrix = put_matrix(device, DenseMatrix(values), form)
        found = device.fetch(matrix.values)
        assert found.shape[1] * found.itemsize % 16 == 0
        np.testing.assert_array_equal(found[:, :width], values)
        assert not found[:, width:].any()


def settles_before_the_host_waits(device):
    """Whoever looks at collectives does so before the host waits, not after."""
    seen, array = [], device.zeros((3,), np.float32)
    before = device.settle
    device.settle = lambda: (seen.append(1), before())
    try:
        device.fetch(array)
        assert len(seen) == 1
        device.synchronize()
        assert len(seen) == 2
        device.wait()
        device.fill(array, np.ones(3, np.float32))
        assert len(seen) == 2
    finally:
        device.settle = before


def mirrors_what_was_written_last(device):
    mirror = Mirrored(device, np.arange(5.0), "float32")
    there = mirror.on_device()
    assert mirror.on_host() is mirror.on_host()
    device.fill(there, np.full(5, 7, np.float32))
    mirror.written()
    assert (mirror.on_host() == 7).all()
    mirror.on_host()[2] = 1
    np.testing.assert_array_equal(device.fetch(mirror.on_device()), [7, 7, 1, 7, 7])


def knows_its_memory(device):
    free, total = device.memory()
    assert 0 < free <= total and isinstance(free, int) and isinstance(total, int)


def is_carried_by(kind):
    """A transport of one rank: nothing is said, nothing is changed."""

    def check(device):
        layer, stream = device.layer, device.stream
        world = open_transport(kind, SerialCommunicator(), layer, stream=stream)
        array = sent(device, values_of(700))
        assert layer.owns(array) and not layer.owns(values_of(3))
        assert world.sum(array, "products") is array
        assert world.start_sum(array, "products").wait() is array
        world.settle()
        np.testing.assert_array_equal(device.fetch(array), values_of(700))
        world.close()

    check.__name__ = f"is_carried_by_{kind}"
    return check


def sums_bits_as_the_host_does(device):
    """Floats that no product keeps among them, and whatever is no number."""
    rng, ranks = np.random.default_rng(0), 3
    layer, stream = device.layer, device.stream
    for count in (1, 7, 8, 4096 + 8, 5001):
        values = rng.normal(size=(ranks, count)).astype(np.float32)
        values *= 2.0 ** rng.integers(-140, 100, size=count).astype(np.float32)
        values[:, ::5] *= [[1e-38], [-1e-38], [1e-39]]
        values[1, ::31] = np.inf
        values[2, ::62] = -np.inf
        exact = [narrow_bits(np, row, np.empty(count, np.uint16)) for row in values]
        expected = add_bits(np, np.concatenate(exact), ranks, np.empty_like(exact[0]))
        bits = [layer.empty(count, np.uint16) for _ in values]
        for row, held in zip(values, bits, strict=True):
            layer.narrow(sent(device, row), held, stream)
        there = [device.fetch(held) for held in bits]
        np.testing.assert_array_equal(there, exact)
        total, wide = layer.empty(count, np.uint16), layer.empty(count, np.float32)
        layer.add_bits(sent(device, np.concatenate(there)), ranks, total, stream)
        layer.widen(total, wide, stream)
        found = device.fetch(total)
        none = (expected & 0x7FFF) > 0x7F80
        np.testing.assert_array_equal(found[~none], expected[~none])
        assert ((found[none] & 0x7FFF) > 0x7F80).all()
        back = widen_bits(found, np.empty(count, np.float32))
        np.testing.assert_array_equal(device.fetch(wide), back)
    layer.narrow(layer.empty(0, np.float32), layer.empty(0, np.uint16), stream)


def copies_for_transports(device):
    """Down and up on its stream, events that say when, and a second stream."""
    layer, stream = device.layer, device.stream
    array = sent(device, values_of(300))
    rounds(device, array)
    host, back = (layer.pinned(300, np.float32) for _ in range(2))
    layer.to_host(array, host, stream)
    copied = layer.record(stream)
    layer.wait(copied)
    assert layer.is_done(copied)
    np.testing.assert_array_equal(host, rounded(values_of(300)))
    host *= 2
    side = layer.new_stream()
    layer.to_device(host, array, stream)
    layer.stream_wait_event(side, layer.record(stream))
    layer.to_host(array, back, side)
    layer.synchronize(side)
    np.testing.assert_array_equal(back, host)


def refuses_what_has_no_room(device):
    with pytest.raises(
        ConfigError, match="has no room for .* more .* are free\\); use"
    ):
        device.empty((2**44,), np.uint8)


CHECKS = [
    brings_arrays_back,
    takes_parts_of_arrays,
    clears_arrays_and_parts_of_them,
    reads_what_it_is_filled_with_at_once,
    sends_what_is_written_in_place,
    works_in_order,
    goes_on_beside_itself,
    replays_read_what_is_there_now,
    runs_kernels_with_what_a_run_gives,
    pads_the_rows_of_a_matrix,
    settles_before_the_host_waits,
    mirrors_what_was_written_last,
    knows_its_memory,
    sums_bits_as_the_host_does,
    copies_for_transports,
    refuses_what_has_no_room,
    is_carried_by("nccl"),
    is_carried_by("mpi-host"),
]

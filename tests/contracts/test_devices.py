"""The contract of devices: the emulation, our code for CuPy on a fake one, a GPU."""

from inspect import signature

import numpy as np
import pytest

from hpcsgd.backends.cuda import device as uploads
from hpcsgd.backends.cuda.device import CudaDevice, Device
from hpcsgd.backends.cuda.matrix import sent
from hpcsgd.comm.gpu import open_transport
from hpcsgd.comm.threads import run_ranks
from tests.helpers.contracts.device import CHECKS, rounded, rounds, values_of
from tests.helpers.fake_cuda import Node
from tests.helpers.fake_cupy import FakeCupy
from tests.helpers.gpu import open_gpu
from tests.helpers.kernels.emulator import COMPILER
from tests.helpers.kernels.fake_device import FakeDevice

KINDS = ("emulation", "fake CuPy", "GPU")


@pytest.fixture(params=KINDS)
def device(request, monkeypatch):
    """One of each kind; a GPU where there is one, or where one is required."""
    if request.param == "GPU":
        return open_gpu(request)
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(uploads, "PIECE", 2**16)  # what is large shows when it is small
    monkeypatch.setattr(uploads, "SMALL", 2**10)
    return FakeDevice() if request.param == "emulation" else CudaDevice(0, FakeCupy())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.cases(6)
def test_devices(device, check):
    check(device)


@pytest.mark.parametrize("kind", ["nccl", "mpi-host"])
def test_sums_come_between_kernels(kind):
    """Two ranks: a kernel before a sum, a kernel after it, nobody waits by hand."""
    node = Node()

    def on_rank(host):
        device = FakeDevice(node, 1, f"node 0000:{host.rank}")
        layer, stream = device.layer, device.stream
        world = open_transport(kind, host, layer, stream=stream)
        array = sent(device, values_of(700, host.rank))
        rounds(device, array)
        world.sum(array, "products")
        rounds(device, array)
        world.settle()
        return device.fetch(array)

    first, second = run_ranks(2, on_rank)
    expected = rounded(rounded(values_of(700, 0)) + rounded(values_of(700, 1)))
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected)


def test_a_fill_waits_for_nobody():
    """In a steady state the host goes on: buffers of the ring are free by then."""
    cupy = FakeCupy()
    device = CudaDevice(0, cupy)
    array = device.zeros((3, 5), np.float32)
    for turn in range(uploads.RING):
        device.fill(array, np.full((3, 5), turn, np.float32))
    assert cupy.waits == 0
    assert device.fetch(array)[0, 0] == uploads.RING - 1
    waited = cupy.waits
    for turn in range(uploads.RING):
        device.fill(array, np.full((3, 5), turn, np.float32))
    assert cupy.waits == waited


@pytest.mark.parametrize("kind", [CudaDevice, FakeDevice])
def test_every_device_has_all_that_is_asked_for(kind):
    names = [name for name in vars(Device) if not name.startswith("_")]
    assert len(names) >= 10
    for name in names:
        wanted = signature(getattr(Device, name)).parameters
        assert list(signature(getattr(kind, name)).parameters) == list(wanted)

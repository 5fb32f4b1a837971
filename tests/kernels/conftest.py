"""What these tests need of a machine: a C++ compiler, and NVRTC's wheels on Linux."""

import sys
from threading import Lock

import pytest

from tests.helpers.fake_cuda import Node
from tests.helpers.kernels import emulator
from tests.helpers.kernels.fake_device import FakeDevice


def pytest_collection_modifyitems(items):
    """Said where it is missing; a machine of ours has both."""
    for item in items:
        asks_nvrtc = "test_compiles" in item.nodeid or "test_ptx" in item.nodeid
        if asks_nvrtc and not sys.platform.startswith("linux"):
            item.add_marker(pytest.mark.skip(reason="NVRTC has no wheel here"))
        elif "tests/kernels" in item.nodeid and emulator.COMPILER is None:
            item.add_marker(pytest.mark.skip(reason="no C++ compiler"))


@pytest.fixture
def devices(monkeypatch):
    """Those that ranks were given, in order."""
    given, node = [], Node()
    lock = Lock()  # ranks are threads, and no two of them get one place

    def take(world, share_gpus):
        with lock:
            number = len(given)
            given.append(FakeDevice(node, number + 1, f"node 0000:{number:02}"))
        return given[number]

    monkeypatch.setattr("hpcsgd.runs.gpu.take_gpu", take)
    return given

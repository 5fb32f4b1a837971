"""What these tests need of a machine: a C++ compiler, and NVRTC's wheels on Linux."""

import sys

import pytest

from tests.kernels import emulator


def pytest_collection_modifyitems(items):
    """Said where it is missing; a machine of ours has both."""
    for item in items:
        if "test_compiles" in item.nodeid and not sys.platform.startswith("linux"):
            item.add_marker(pytest.mark.skip(reason="NVRTC has no wheel here"))
        elif "tests/kernels" in item.nodeid and emulator.COMPILER is None:
            item.add_marker(pytest.mark.skip(reason="no C++ compiler"))

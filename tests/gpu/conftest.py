"""A GPU for tests that can use one."""

import pytest

from hpcsgd.backends.cuda import CudaDevice
from hpcsgd.backends.device_layer import load_cupy
from hpcsgd.errors import ConfigError


def open_gpu(request):
    """Without one the test is skipped, or fails where one is required."""
    try:
        load_cupy()
    except ConfigError as error:
        if request.config.getoption("--require-gpu"):
            raise
        pytest.skip(str(error))
    return CudaDevice()


@pytest.fixture
def device(request):
    return open_gpu(request)

"""The GPU of this machine, or a skip."""

import pytest

from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.backends.cuda.driver import load_cupy
from hpcsgd.errors import ConfigError

OPENED = pytest.StashKey()


def open_gpu(request):
    """Without one the test is skipped, or fails where one is required.

    One that a test has lost is lost for all that follow in this process.
    """
    try:
        load_cupy()
    except ConfigError as error:
        if request.config.getoption("--require-gpu"):
            raise
        pytest.skip(str(error))
    try:
        found = CudaDevice()
    except ConfigError as error:
        if request.config.stash.get(OPENED, False):
            pytest.exit(f"the GPU was lost by a test: {error}", returncode=1)
        raise
    request.config.stash[OPENED] = True
    return found

"""A GPU for tests that can use one."""

import pytest

from tests.helpers.gpu import open_gpu


@pytest.fixture
def device(request):
    return open_gpu(request)

"""What NVRTC made of the kernels does what their text says: PTX, run on a processor."""

import pytest

from tests.kernels import test_margin
from tests.kernels.ptx.kernel import PtxKernel


@pytest.mark.parametrize("name", ["bf16", "fp8-e4m3"])
def test_margins(name, monkeypatch):
    monkeypatch.setattr(test_margin, "Kernel", PtxKernel)
    test_margin.agrees(name, *test_margin.SIZES[1])

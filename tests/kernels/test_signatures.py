"""Launches are held against what the texts of kernels say of their parameters."""

import re

import numpy as np
import pytest

from hpcsgd.backends.cuda.kernels import VARIANTS
from tests.helpers.kernels import signatures
from tests.helpers.kernels.emulator import Kernel, on_device, source_of

ENTRIES = {
    (variant.source, variant.entry or variant.source)
    for variants in VARIANTS.values()
    for variant in variants
}


@pytest.mark.parametrize("source, entry", sorted(ENTRIES))
def test_parameters_of_every_kernel_are_known(source, entry):
    text = source_of(source)
    (inside,) = re.findall(rf"\)\s+{entry}\(([^)]*)\)\s*\{{", text)
    assert len(signatures.kinds_of(text, entry)) == inside.count(",") + 1


def test_a_stride_of_32_bits_is_refused():
    """It is a part of the next argument otherwise, or of nothing."""
    rows, out = on_device(np.zeros((4, 8), np.float32)), on_device(np.zeros(4, "f4"))
    numbers, weights = on_device(np.arange(4)), on_device(np.zeros(8, np.float32))
    kernel = Kernel("margin", "ELEMENT=3")
    with pytest.raises(AssertionError, match="takes .*'i8'.* and is given"):
        kernel(1, 256, (rows, 8, numbers, 4, 8, weights, out))
    with pytest.raises(AssertionError, match="margin takes"):
        kernel(1, 256, (rows, numbers, 4, 8, weights, out))

"""What is packed comes out as it was."""

import numpy as np
import pytest

from hpcsgd.data.convert.transform import pack, unpack


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<i4", "<i8", "u1", "?"])
@pytest.mark.parametrize("shape", [(0,), (3,), (5, 3), (0, 4)])
def test_arrays_come_out_as_they_were(dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    parts = {"a": array, "none": None, "n": 2**62, "b": np.arange(3.0)[::-1]}
    packed = pack(parts)
    found = unpack(np.concatenate([np.zeros(8, np.uint8), packed])[8:])
    assert found.keys() == parts.keys()
    assert found["a"].dtype == array.dtype and found["a"].shape == shape
    assert (found["a"] == array).all() and (found["b"] == [2, 1, 0]).all()
    assert found["none"] is None and found["n"] == 2**62

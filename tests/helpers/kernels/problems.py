"""Matrices as a device holds them, and their exact values."""

import numpy as np

from hpcsgd.formats import decode, encode, get_format
from tests.helpers.kernels.emulator import empty, on_device

ELEMENTS = {"bf16": 1, "fp16": 2, "fp32": 3, "fp8-e4m3": 4, "fp8-e5m2": 5}


def stored(rng, n, d, name="bf16", spare=0):
    """(matrix with a stride of whole chunks, stride, its exact values in float64).

    Behind the last column of each row lie NaNs: they may be read, not used.
    """
    values = rng.normal(size=(n, d)).astype(np.float32)
    bits = encode(values, name)
    item = bits.dtype.itemsize
    stride = -(-(d + spare) * item // 16) * 16 // item
    matrix = empty((n, stride), bits.dtype)
    matrix[:, :d] = bits
    return matrix, stride, decode(bits, name, np.float64)


def numbers(rng, n, m):
    """m row numbers."""
    return on_device(rng.integers(0, n, size=m), np.int64)


def roundoff(name):
    """u of a format."""
    return get_format(name).unit_roundoff

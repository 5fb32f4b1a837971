"""Compiled kernels equal their NumPy twins bit for bit, or say why they miss."""

import subprocess
import sys

import numpy as np
import pytest

from hpcsgd.backends import cpu
from hpcsgd.backends.host import HostBackend
from hpcsgd.precision import RECIPES, encode, widen_bf16

compiled = pytest.mark.skipif(not cpu.available(), reason=cpu.why())


@compiled
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (64, 100), (33, 257)])
def test_widen_rows_equals_numpy(shape):
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 2**16, size=shape, dtype=np.uint16)
    rows = rng.integers(0, shape[0], size=50)
    out = np.empty((50, shape[1]), dtype=np.float32)
    cpu.widen_rows(matrix, rows, out)
    expected = widen_bf16(matrix[rows], np.float32)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


@compiled
def test_widen_rows_follows_the_row_stride():
    """A column block of a wider matrix, and every bit pattern, NaNs included."""
    matrix = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    rows, out = np.arange(255, -1, -1), np.empty((256, 100), dtype=np.float32)
    cpu.widen_rows(matrix[:, 50:150], rows, out)
    expected = matrix[rows, 50:150].astype(np.uint32) << 16
    np.testing.assert_array_equal(out.view(np.uint32), expected)


def test_the_backend_gathers_the_same_bits_either_way(monkeypatch):
    rng = np.random.default_rng(0)
    matrix = encode(rng.normal(size=(40, 9)).astype(np.float32), "bf16")
    rows, backend = rng.integers(0, 40, size=16), HostBackend(RECIPES["c"])
    first, second = (np.empty((16, 9), dtype=np.float32) for _ in range(2))
    backend.gather(matrix, rows, first)
    monkeypatch.setattr(cpu, "available", lambda: False)
    backend.gather(matrix, rows, second)
    np.testing.assert_array_equal(first, second)


def test_switched_off_says_so():
    code = "from hpcsgd.backends import cpu; print(cpu.available(), cpu.why())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HPCSGD_NATIVE": "off", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "False switched off by HPCSGD_NATIVE", done.stderr

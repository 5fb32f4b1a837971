"""Whole runs on arrays that are CuPy's own, in the memory of the host.

Making an array, or a view of one, asks for no driver: whatever a run does with shapes,
slices, addresses and flags is done by CuPy here. What would be a kernel of CuPy's, and
all of its streams and modules, is that of tests/helpers/strict_cupy.py.
"""

import sys
import warnings

import numpy as np
import pytest

from hpcsgd.backends.cuda import device
from tests.helpers import strict_cupy
from tests.helpers.harness import make_problem, oracle_for, relative_error, train_on
from tests.helpers.kernels.emulator import COMPILER
from tests.helpers.kernels.emulator import empty as guarded
from tests.helpers.kernels.runs import on_gpu
from tests.helpers.sparse import make_sparse

CASES = {
    "gram": {"products": {"kind": "gram"}},
    "look-ahead": {"products": {"kind": "gram", "look_ahead": "on"}},
    "direct": {"products": {"kind": "direct"}},
    "cached": {
        "products": {"kind": "cached"},
        "sampling": {"mode": "shuffle-once"},
    },
    "momentum": {"update": {"kind": "momentum", "momentum": 0.8}},
    "ddp": {"agreement": {"kind": "gradient"}, "products": {"kind": "auto"}},
}


def host_array(cupy):
    """The class of such arrays."""

    class HostArray(cupy.ndarray):
        """CuPy's, but for what it would launch a kernel for."""

        whole = None  # the memory of all that it is a part of

        def __array_finalize__(self, other):
            self.whole = getattr(other, "whole", None)

        @property
        def held(self):
            """The same as an array of NumPy."""
            room = self.whole.reshape(-1).view(np.uint8)
            place = self.data.ptr - self.whole.ctypes.data
            assert 0 <= place <= room.nbytes
            given = self.shape, self.dtype, room.data, place, self.strides
            return np.ndarray(*given) if self.size else np.empty(self.shape, self.dtype)

        def fill(self, value):
            strict_cupy.STACK[-1].put(lambda: self.held.fill(value))

        def copy(self):
            return made(self.held.copy())

        def __setitem__(self, key, value):
            raise AssertionError("a kernel of CuPy")

    def made(held):
        memory = cupy.cuda.memory.UnownedMemory(held.ctypes.data, held.nbytes, held, 0)
        pointer = cupy.cuda.memory.MemoryPointer(memory, 0)
        array = HostArray(held.shape, held.dtype, pointer)
        array.whole = held
        strict_cupy.ALIVE[held.ctypes.data] = held
        return array

    return HostArray, made


@pytest.fixture
def arrays(monkeypatch):
    """Installed; the test is skipped without CuPy."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        real = pytest.importorskip("cupy")
    kind, made = host_array(real)

    def empty(shape, dtype=float, order="C"):
        assert strict_cupy.STACK[-1].recorded is None
        return made(guarded(shape, dtype))

    monkeypatch.setattr(strict_cupy, "ndarray", kind)
    monkeypatch.setattr(strict_cupy, "empty", empty)
    device.opened.devices.clear()
    strict_cupy.install(monkeypatch)
    assert sys.modules["cupy"].ndarray is kind
    yield kind
    device.opened.devices.clear()
    assert len(strict_cupy.ALIVE) > 10 and len(strict_cupy.RawModule.made) >= 2


@pytest.mark.parametrize("name", CASES)
def test_runs_on_arrays_of_cupy(arrays, name):
    problem = make_problem("logistic", n=101, d=37)
    sections = {"problem": {"intercept": True, "l2": 0.01}, **CASES[name]}
    sections["schedule"] = {"batch": 8, "steps": 1 if name == "ddp" else 4, "epochs": 2}
    config = on_gpu(problem, **sections)
    found = train_on(1, config, problem, weights=True)
    exact = oracle_for(config, problem, weights=True)
    assert relative_error(found, exact) <= 1e-4


@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_sparse_rows_on_arrays_of_cupy(arrays, family):
    stored, dense = make_sparse(family, n=101, d=300, density=0.05)
    sections = {"schedule": {"batch": 8, "steps": 4, "epochs": 1}}
    sections["products"] = {"kind": "gram"}
    config = on_gpu(stored, **sections)
    found = train_on(1, config, stored, weights=True)
    exact = oracle_for(config, dense, weights=True)
    assert relative_error(found, exact) <= 1e-4

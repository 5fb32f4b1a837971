"""The compiled kernels of this processor, and sizes to try them on."""

import numpy as np
import pytest

from hpcsgd.backends import compiled_calls
from hpcsgd.formats import encode, widen_bf16
from hpcsgd.glm.unrolling import blocks_of

RAGGED, RATES = blocks_of((9, 4, 4, 13, 2)), (0.3, 0.2, 0.2, 0.1, 0.4)


def sets_here():
    """The sets of instructions that this processor can run, each with its object."""
    best = compiled_calls.best()[1]
    known = compiled_calls.SETS
    return known[: known.index(best) + 1] if best else ()


@pytest.fixture(params=sets_here())
def kernels(request, monkeypatch):
    """The kernels of one set, in place of the best one."""
    monkeypatch.setenv("HPCSGD_ISA", request.param)
    compiled_calls.best.cache_clear()
    compiled_calls.functions.cache_clear()
    assert compiled_calls.instructions() == request.param
    yield request.param
    monkeypatch.undo()
    compiled_calls.best.cache_clear()
    compiled_calls.functions.cache_clear()


def sampled(n, d, m, storage, spare=0):
    """(matrix as stored, its exact values, row numbers); `spare` columns beside it."""
    rng = np.random.default_rng(n + d + m)
    X = rng.normal(size=(n, d + spare)).astype(np.float32)
    stored = encode(X, storage)[:, :d]
    exact = widen_bf16(stored, np.float64) if storage == "bf16" else stored
    return stored, exact.astype(np.float64), rng.integers(0, n, size=m)


WIDTHS = [1, 2, 7, 8, 9, 15, 16, 31, 33, 64, 100, 1023, 1024, 1025, 2051]
SIZES = [(1,), (1, 1), (7,) * 5 + (2,), (8,) * 8, (32, 32, 5), (1,) * 40, (14,) * 20]


class Spied:
    """What a function returned, call by call."""

    def __init__(self):
        self.done = []

    def around(self, function):
        def spy(*arguments):
            self.done.append(function(*arguments))
            return self.done[-1]

        return spy

    def were_taken(self, update):
        """Whether every call did its work; steps of SVRG are NumPy's, without one."""
        if update == "svrg":
            return not self.done
        return bool(self.done) and not any(made is None for made in self.done)

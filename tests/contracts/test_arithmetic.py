"""One contract for all arithmetic: backends of the host, kernels of devices."""

import numpy as np
import pytest

from hpcsgd.backends import compiled_calls, make_backend
from hpcsgd.backends.base import StepBatch
from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.backends.cuda.exchange import (
    DeviceShard,
    ExchangeKernels,
    Widths,
    put_csr,
)
from hpcsgd.backends.cuda.matrix import Order, put_matrix, sent
from hpcsgd.backends.emulated import RoundedBackend
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.data.matrix import DenseMatrix, from_scipy
from hpcsgd.formats import encode
from hpcsgd.glm import get_family
from hpcsgd.precision import make_precision
from tests.helpers.contracts.arithmetic import (
    CHECKS,
    Found,
    in_other_formats,
    tells_a_wrong_one,
)
from tests.helpers.fake_cupy import FakeCupy
from tests.helpers.gpu import open_gpu
from tests.helpers.kernels.emulator import COMPILER
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.sparse import as_csr

FORMS = ("bf16", "fp16", "fp8-e4m3")


def precision_of(problem, inner="fp32"):
    """Rows stored in the problem's format, all else in `inner`."""
    return make_precision(inner, {"matrix": problem.form})


class OnHost:
    """A backend of the host, made anew for each exchange."""

    def __init__(self, make, inner="fp32", sparse=False):
        self.make, self.inner, self.sparse = make, inner, sparse

    def __call__(self, problem):
        precision = precision_of(problem, self.inner)
        backend = self.make(precision)
        matrix = DenseMatrix(backend.store(problem.X))
        room = np.empty((len(problem.sampled), problem.X.shape[1]), precision.working)
        if self.sparse:
            room = None
            matrix = from_scipy(as_csr(problem.X))
            matrix = matrix.with_data(encode(matrix.data, problem.form))
        rows = matrix.gather(backend, problem.sampled, room)
        return self._exchange(problem, backend, rows)

    def _exchange(self, problem, backend, rows):
        blocks, family = problem.blocks, get_family(problem.family)
        kind = np.float64 if self.inner == "fp64" else np.float32
        weights = backend.zeros(problem.weights.shape)
        weights[...] = problem.weights
        gram = backend.strict_gram(rows, blocks, np.empty(blocks.gram_words, kind))
        margins = np.empty((blocks.rows, weights.shape[1]), kind)
        margins = backend.scores(rows, weights, margins).copy()
        plan = backend.prepare(problem.unrolled, blocks)
        intercept = None if problem.intercept is None else problem.intercept.copy()
        residuals = backend.corrected_residuals(
            *(margins.copy(), gram.copy(), plan, family, self._batch(problem, kind)),
            intercept,
        ).copy()
        backend.apply_update(weights, rows, residuals, plan)
        return Found(gram, margins, residuals, backend.to_host(weights), intercept)

    def _batch(self, problem, kind):
        given = (problem.targets, problem.sample_weights, problem.offsets)
        parts = [None if c is None else c[problem.sampled].astype(kind) for c in given]
        return StepBatch(*parts)


class There:
    """The kernels of a device."""

    def __init__(self, device, sparse=False):
        self.device, self.sparse = device, sparse

    def __call__(self, problem):
        device, blocks = self.device, problem.blocks
        unrolled, precision = problem.unrolled, precision_of(problem)
        states = len(unrolled.probe)
        given = (problem.targets, problem.sample_weights, problem.offsets)
        order = Order(device, *given)
        matrix = self._matrix(problem)
        exchange = ExchangeKernels(
            *(device, DeviceShard(matrix, order, matrix.width), blocks),
            *(get_family(problem.family), precision),
            Widths(problem.classes, states, states),
        )
        exchange.coefficients.load(unrolled)
        order.seek(np.resize(problem.sampled, len(problem.targets)), 0, blocks.rows)
        weights = sent(device, problem.weights.astype(np.float32))
        beta = None
        if problem.intercept is not None:
            beta = sent(device, problem.intercept)
        exchange.before(weights)
        gram, margins = device.fetch(exchange.gram), device.fetch(exchange.margins)
        exchange.after(weights, beta)
        return Found(
            gram=exchange.tiles.packed(gram),
            margins=margins.reshape(blocks.rows, -1),
            residuals=device.fetch(exchange.residuals),
            weights=device.fetch(weights),
            intercept=None if beta is None else device.fetch(beta),
        )

    def _matrix(self, problem):
        if not self.sparse:
            stored = DenseMatrix(encode(problem.X, problem.form))
            return put_matrix(self.device, stored, problem.form)
        matrix = from_scipy(as_csr(problem.X))
        stored = matrix.with_data(encode(matrix.data, problem.form))
        return put_csr(self.device, stored, problem.form)


HOSTS = {
    "NumPy": lambda: OnHost(HostBackend),
    "NumPy fp64": lambda: OnHost(HostBackend, "fp64"),
    "NumPy CSR": lambda: OnHost(HostBackend, sparse=True),
    "chosen": lambda: OnHost(make_backend),
    "chosen CSR": lambda: OnHost(make_backend, sparse=True),
    "emulated": lambda: OnHost(RoundedBackend),
    "emulated CSR": lambda: OnHost(RoundedBackend, sparse=True),
}
DEVICES = {
    "emulation": lambda request: FakeDevice(),
    "fake CuPy": lambda request: CudaDevice(0, FakeCupy()),
    "GPU": open_gpu,
}
KINDS = (*HOSTS, *DEVICES, "emulation CSR", "GPU CSR")


@pytest.fixture(params=KINDS)
def side(request):
    """One of each; a GPU where there is one, or where one is required."""
    name = request.param
    if name in HOSTS:
        return HOSTS[name]()
    device = name.removesuffix(" CSR")
    if device != "GPU" and COMPILER is None:
        pytest.skip("no C++ compiler")
    return There(DEVICES[device](request), sparse=name != device)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.cases(6)
def test_arithmetic(side, check):
    check(side)


@pytest.mark.cases(2)
@pytest.mark.parametrize("form", FORMS)
def test_arithmetic_of_other_formats(side, form):
    in_other_formats(side, form)


def test_the_contract_can_fail(side):
    tells_a_wrong_one(side)


def test_the_chosen_one_is_compiled():
    """Else `chosen` would be NumPy once more."""
    if not compiled_calls.available():
        pytest.skip(compiled_calls.why())
    kind = type(make_backend(make_precision("fp32")))
    assert kind not in (HostBackend, RoundedBackend)

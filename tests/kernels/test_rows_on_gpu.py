"""Rows that a caller has on the GPU: they stay there, and train as others do."""

import numpy as np
import pytest

import hpcsgd
from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.backends.cuda.matrix import put_matrix
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.readers import DeviceBlock
from hpcsgd.data.stream import Unheld
from hpcsgd.errors import ConfigError, DataError
from tests.helpers import strict_cupy
from tests.helpers.harness import make_problem
from tests.helpers.kernels.fake_device import FakeDevice

pytestmark = pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")
PLAIN = {"device": "cuda", "batch": 16, "steps": 4, "epochs": 2}
HOST = {"run": {"transport": "mpi-host", "check_every": 2}}


class OnGpu:
    """What is used of a CuPy array; whoever takes it for one of the host fails."""

    __cuda_array_interface__ = {"version": 3}  # noqa: RUF012

    def __init__(self, held, seen=None):
        self.held, self.seen = held, [] if seen is None else seen
        self.shape, self.dtype, self.size = held.shape, held.dtype, held.size
        self.ndim = held.ndim

    def __getitem__(self, key):
        return OnGpu(self.held[key], self.seen)

    def __array__(self, *_, **__):
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def astype(self, dtype, copy=True):
        return OnGpu(self.held.astype(dtype, copy=copy), self.seen)

    def get(self):
        self.seen.append(self.size)
        return self.held.copy()


def fitted(X, problem, ranks=1, **more):
    options = PLAIN | {"config": HOST} | more

    def on_rank(world):
        return hpcsgd.fit(X, "logistic", problem.y, comm=world, **options)

    return run_ranks(ranks, on_rank)[0]


@pytest.mark.parametrize(
    "dtype, recipe, ranks, width",
    [("f4", None, 1, 37), ("f4", None, 2, 40), ("f4", "c", 2, 21), ("f8", None, 1, 24)],
)
def test_they_train_as_those_of_the_host(devices, ranks, width, dtype, recipe):
    problem = make_problem("logistic", n=40, d=width)
    X = (8 * problem.X).astype(dtype)
    held = fitted(X, problem, ranks, precision=recipe)
    there = fitted(OnGpu(X), problem, ranks, precision=recipe)
    assert there.weights_sha256 == held.weights_sha256
    assert there.loss == held.loss
    assert there.report["data_fingerprint"] == held.report["data_fingerprint"]


def test_float32_rows_never_pass_the_host_on_their_way(devices, monkeypatch):
    problem, sent = make_problem("logistic", n=40, d=40), []
    put_rows = FakeDevice.put_rows

    def put(device, array, rows):
        sent.append(rows.shape)
        put_rows(device, array, rows)

    monkeypatch.setattr(FakeDevice, "put_rows", put)
    X = OnGpu(problem.X.astype("f4"))
    config = HOST | {"stop": {"on": "none"}}
    result = fitted(X, problem, polish=False, average=False, config=config)
    assert sent == [(40, 40)]
    # Read once before training, once for the rate, and for every loss but the first.
    assert sum(X.seen) == (1 + len(result.history)) * X.size


@pytest.mark.parametrize("width", [37, 40])
def test_cupy_copies_them_on_the_stream_of_the_run(monkeypatch, width):
    """By the names that CuPy has, with zeros behind the ends of rows."""
    cupy = strict_cupy.install(monkeypatch)
    device = CudaDevice(0, cupy)
    rows = np.random.default_rng(0).normal(size=(9, width)).astype("f4")
    given = cupy.empty(rows.shape, np.float32)
    given.held[...] = rows
    matrix = DeviceBlock(Unheld(lambda *_: 1 / 0, rows.shape, "f4"), given)
    found = device.fetch(put_matrix(device, matrix, "fp32").values)
    np.testing.assert_array_equal(found[:, :width], rows)
    assert found.shape[1] == 40 and not found[:, width:].any()


@pytest.mark.parametrize(
    "more, words",
    [
        ({"device": "cpu"}, r"use device='cuda' with layout='replicated', or pass X"),
        ({"layout": "rows"}, r"or pass X\.get\(\)"),
        ({"precision": "auto"}, "name a recipe"),
    ],
)
def test_what_it_is_not_offered_with(devices, more, words):
    problem = make_problem("logistic", n=30, d=5)
    with pytest.raises(ConfigError, match=words):
        fitted(OnGpu(problem.X.astype("f4")), problem, **more)


def test_bad_values_are_found_there(devices):
    problem = make_problem("logistic", n=30, d=5)
    X = problem.X.astype("f4")
    X[7, 2] = np.nan
    with pytest.raises(DataError, match="X has nan at row 7, column 2"):
        fitted(OnGpu(X), problem)
    with pytest.raises(DataError, match="give real numbers"):
        fitted(OnGpu(X.astype(complex)), problem)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("ranks", [1, 2])
def test_estimators_take_them_too(devices, ranks):
    """The model is that of the same rows from the host, and nothing is implicit."""
    problem = make_problem("logistic", n=40, d=24)
    X = problem.X.astype("f4")

    def model_of(rows):
        def on_rank(world):
            settings = {"device": "cuda", "batch": 16, "steps": 4, "config": HOST}
            model = hpcsgd.LogisticRegression(max_iter=2, polish=False, **settings)
            return model.fit(rows, problem.y, comm=world)

        return run_ranks(ranks, on_rank)[0]

    held, there = model_of(X), model_of(OnGpu(X))
    np.testing.assert_array_equal(there.coef_, held.coef_)
    assert there.n_features_in_ == 24
    assert there.result_.weights_sha256 == held.result_.weights_sha256
    with pytest.raises(DataError, match="was trained on 24 columns"):
        there.predict(OnGpu(X[:, :5]))

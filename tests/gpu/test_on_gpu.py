"""The same kernels and runs as in tests/kernels, on a GPU where there is one."""

import numpy as np
import pytest

from hpcsgd.backends.cuda import CudaDevice
from hpcsgd.backends.device_layer import load_cupy
from hpcsgd.backends.kernel_table import all_builds
from hpcsgd.errors import ConfigError
from hpcsgd.products.device_kinds import ON_DEVICE
from tests.harness import make_problem, oracle_for, relative_error, train_on
from tests.kernels.test_runs import FAMILIES, on_gpu


@pytest.fixture
def device(request):
    """A GPU; without one the test is skipped, or fails where one is required."""
    try:
        load_cupy()
    except ConfigError as error:
        if request.config.getoption("--require-gpu"):
            raise
        pytest.skip(str(error))
    return CudaDevice()


def test_every_kernel_is_compiled(device):
    for build in all_builds(device.arch):
        assert device.kernel(build)


def test_arrays_come_back(device):
    values = np.random.default_rng(0).normal(size=(37, 5)).astype(np.float32)
    array = device.empty(values.shape, np.float32)
    device.fill(array, values)
    np.testing.assert_array_equal(device.fetch(array), values)
    assert (device.fetch(device.zeros((9,), np.int64)) == 0).all()


@pytest.mark.parametrize("kind", ON_DEVICE)
@pytest.mark.parametrize("family", FAMILIES)
def test_iterates_are_those_of_sgd(device, family, kind):
    problem = make_problem(family, n=1001, d=137)
    sections = {"problem": {"intercept": True, "l2": 0.01}, "products": {"kind": kind}}
    sections["sampling"] = {"mode": "shuffle-once"}
    sections["schedule"] = {"batch": 16, "steps": 8, "epochs": 4}
    config = on_gpu(problem, **sections)
    found = train_on(1, config, problem, weights=True, offset=True)
    exact = oracle_for(config, problem, weights=True, offset=True)
    assert relative_error(found, exact) <= 1e-4


@pytest.mark.parametrize("recipe", ["fp32", "c"])
@pytest.mark.parametrize("batch, steps", [(32, 16), (32, 64)])
def test_recipes_are_those_of_the_host(device, recipe, batch, steps):
    """One block, and a cluster of them where the GPU has any."""
    problem = make_problem("logistic", n=5000, d=300)
    sections = {
        "schedule": {"batch": batch, "steps": steps, "epochs": 3},
        "precision": {"recipe": recipe},
        "products": {"kind": "gram"},
    }
    here = train_on(1, on_gpu(problem, **sections, run={"device": "cpu"}), problem)
    there = train_on(1, on_gpu(problem, **sections), problem)
    again = train_on(1, on_gpu(problem, **sections), problem)
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= 1e-3 * size
    np.testing.assert_array_equal(there.weights, again.weights)


@pytest.mark.parametrize("kind", ["gather", "gather-once", "cached", "direct"])
@pytest.mark.parametrize("d", [137, 5000])
def test_members_that_share_a_gpu(device, monkeypatch, kind, d):
    """Two ranks that are threads, each with a stream of its own."""
    take = lambda share_gpus: CudaDevice()  # noqa: E731
    monkeypatch.setattr("hpcsgd.assembly.gpu.take_gpu", take)
    problem = make_problem("logistic", n=1001, d=d)
    sections = {
        "problem": {"intercept": True, "l2": 0.01},
        "products": {"kind": kind},
        "sampling": {"mode": "shuffle-once"},
        "schedule": {"batch": 16, "steps": 8, "epochs": 4},
        "run": {"transport": "mpi-host", "share_gpus": True},
    }
    config = on_gpu(problem, **sections)
    found = train_on(2, config, problem, weights=True)
    exact = oracle_for(config, problem, weights=True)
    assert relative_error(found, exact) <= 1e-4


@pytest.mark.parametrize("d, batch", [(18, 8), (100_000, 32), (1_000_003, 16)])
def test_plain_steps_of_all_widths(device, d, batch):
    """Kept by its blocks, in the GPU's cache, and beyond both."""
    problem = make_problem("logistic", n=64, d=d)
    sections = {
        "precision": {"recipe": "c"},
        "schedule": {"batch": batch, "steps": 4, "epochs": 2},
        "products": {"kind": "direct"},
    }
    there = train_on(1, on_gpu(problem, **sections), problem)
    again = train_on(1, on_gpu(problem, **sections), problem)
    here = train_on(1, on_gpu(problem, **sections, run={"device": "cpu"}), problem)
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= 2e-3 * size
    np.testing.assert_array_equal(there.weights, again.weights)

"""The same kernels and runs as in tests/kernels, on a GPU where there is one."""

import h5py
import numpy as np
import pytest

import hpcsgd.build
from hpcsgd.api import train
from hpcsgd.backends.cuda import CudaDevice
from hpcsgd.backends.kernel_table import all_builds
from hpcsgd.errors import ConfigError
from tests.harness import make_problem, oracle_for, relative_error, train_on
from tests.kernels.test_runs import FAMILIES, on_gpu


def test_every_kernel_is_compiled(device):
    for build in all_builds(device.arch):
        assert device.kernel(build)


@pytest.mark.parametrize("kind", ["gram", "direct"])
@pytest.mark.parametrize("family", FAMILIES)
def test_iterates_are_those_of_sgd(device, family, kind):
    problem = make_problem(family, n=1001, d=137)
    sections = {"problem": {"intercept": True, "l2": 0.01}, "products": {"kind": kind}}
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


@pytest.mark.parametrize("width", [37, 40])  # of whole chunks the latter alone
def test_rows_of_a_file_alone_train_alike(device, tmp_path, monkeypatch, width):
    """Past the host's memory, by kvikio where it is there: the same bits."""
    problem = make_problem("logistic", n=20_011, d=width)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"], file["y"] = problem.X.astype(np.float32), problem.y
    config = on_gpu(problem, data={"path": str(tmp_path / "x.h5")})
    held = train(config)
    monkeypatch.setattr(hpcsgd.build, "check_memory", lambda *given: True)
    assert train(config).weights_sha256 == held.weights_sha256


def test_a_run_without_room_is_refused(device, monkeypatch):
    monkeypatch.setattr(CudaDevice, "memory", lambda self: (1000, 2000))
    problem = make_problem("logistic", n=1001, d=137)
    with pytest.raises(ConfigError, match="has no room: .* and 1000 bytes of 1.95 KiB"):
        train_on(1, on_gpu(problem), problem)

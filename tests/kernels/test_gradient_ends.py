"""Replicas that share gradients of devices: what is found, refused, gone on with."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.agreements.buckets import Buffer
from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import StoreWriter
from hpcsgd.errors import ConfigError
from hpcsgd.runs import opened_run
from hpcsgd.runs.result import Status
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.going_on import goes_on_bit_for_bit
from tests.helpers.kernels.gradient_runs import both, near, shared

# ------------------------------------------------------------------- broken twins


@pytest.mark.parametrize("update", ["sgd", "momentum"])
def test_a_gradient_that_is_not_cleared_is_found(devices, monkeypatch, update):
    monkeypatch.setattr(FakeDevice, "clear", lambda self, array: None)
    problem = make_problem("logistic", n=13, d=13)
    there, here = both(problem, 2, update={"kind": update})
    with pytest.raises(AssertionError):
        near(there, here)


def test_an_intercept_that_moves_twice_is_found(devices, monkeypatch):
    """Once on the device, before the last batch of an exchange is read."""
    from hpcsgd.backends.cuda import gradients

    plain = gradients.gradient_step

    def moving(scale):
        return replace(plain(scale), push=np.full((1, 1), -0.05))

    monkeypatch.setattr(gradients, "gradient_step", moving)
    problem = make_problem("logistic", n=13, d=13)
    there, here = both(problem, 2, agreement={"accumulate": 2}, schedule={"batch": 2})
    with pytest.raises(AssertionError):
        near(there, here)


def test_means_of_means_are_found(devices, monkeypatch):
    """Uneven replicas that are counted alike."""
    counted = Buffer.count_in

    def alike(self, residuals):
        counted(self, residuals)
        self.tail[-1] = 4

    problem = make_problem("logistic", n=13, d=13)
    here = train_on(3, shared(problem, 3, run={"device": "cpu"}), problem)
    monkeypatch.setattr(Buffer, "count_in", alike)
    there = train_on(3, shared(problem, 3), problem)
    with pytest.raises(AssertionError):
        near(there, here)


# --------------------------------------------------------------------- endings


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"agreement": {"codec": "topk"}, "codec": {"share": 0.3}},
        {"update": {"kind": "adam"}, "agreement": {"accumulate": 2}},
        {"update": {"kind": "nesterov"}, "run": {"transport": "mpi-host"}},
    ],
    ids=["step there", "topk", "adam", "nesterov"],
)
def test_runs_go_on_bit_for_bit(devices, tmp_path, sections):
    """And from a checkpoint of the host, to roundoff."""
    problem = make_problem("softmax", n=13, d=13)
    goes_on_bit_for_bit(problem, sections, tmp_path)


@pytest.mark.parametrize("update", ["sgd", "momentum"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_no_number_ends_runs_as_on_the_host(devices, update, bad):
    """With the weights that had a loss; on all ranks alike."""
    problem = make_problem("gaussian", n=24, d=13)
    rate = {"value": 1e30 if bad == np.inf else 1e18}
    sections = {"rate": rate, "update": {"kind": update}, "run": {"check_every": 1}}
    there, here = both(problem, 2, **sections)
    assert there.status is here.status is Status.DIVERGED
    np.testing.assert_array_equal(there.weights, here.weights)


def test_one_column_and_no_gradient(devices):
    """d = 1; and targets that are met: nothing moves."""
    problem = make_problem("logistic", n=13, d=1)
    near(*both(problem, 3))
    met = make_problem("gaussian", n=24, d=13)
    met = replace(met, y=np.zeros(24))
    found = train_on(2, shared(met, 2), met)
    assert found.status is Status.COMPLETED and not found.weights.any()


def test_looks_see_the_weights_of_that_moment(devices):
    problem = make_problem("logistic", n=13, d=13)
    sections = {"run": {"evaluate_every": 1}, "schedule": {"epochs": 3}}
    there, here = both(problem, 2, **sections)
    losses = [[one["loss"] for one in run.history] for run in (there, here)]
    assert len(losses[0]) == 4
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize(
    "sections, remedy",
    [
        ({"products": {"kind": "gather"}}, "use --products direct"),
        ({"precision": {"recipe": "fp64"}}, "use --device cpu"),
    ],
)
def test_what_a_gpu_does_not_do_is_said_with_the_remedy(devices, sections, remedy):
    problem = make_problem("logistic", n=13, d=13)
    with pytest.raises(ConfigError, match=remedy):
        train_on(2, shared(problem, 2, **sections), problem)


def test_no_room_is_said_before_the_matrix_is_sent(devices, monkeypatch):
    problem = make_problem("logistic", n=13, d=13)
    monkeypatch.setattr(FakeDevice, "memory", lambda self: (100, 2**20))
    with pytest.raises(ConfigError, match="has no room"):
        train_on(2, shared(problem, 2), problem)


def test_rows_may_be_on_the_device_alone(devices, monkeypatch, tmp_path):
    """Of a matrix that the host has no room for: the same bits."""
    problem, path = make_problem("logistic", n=13, d=13), tmp_path / "x.h5"
    with StoreWriter(path, StoreLayout(13, element="fp32")) as writer:
        writer.append(problem.X.astype(np.float32), problem.y)
    found = []
    for full in (False, True):
        monkeypatch.setattr(opened_run, "check_memory", lambda *given, full=full: full)
        config = shared(problem, 2, data={"path": str(path)})
        found.append(run_ranks(2, lambda world, own=config: train(own, world=world)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)

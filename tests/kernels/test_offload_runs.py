"""ZeRO-Offload with devices: the runs of the host, and what crosses in between."""

import numpy as np
import pytest

from hpcsgd.result import Status
from tests.harness import make_problem, train_on
from tests.kernels.test_gradient_runs import both, near, shared
from tests.unit.test_gradient import in_folder


def offloaded(**sections):
    more = sections.pop("agreement", {})
    return {"agreement": {"kind": "offload", **more}, **sections}


@pytest.mark.parametrize("transport", ["nccl", "mpi-host", "mpi-cuda"])
@pytest.mark.parametrize("replicas, members", [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)])
def test_runs_are_those_of_the_host(devices, replicas, members, transport):
    problem = make_problem("logistic", n=12 * replicas + 1, d=13)
    near(*both(problem, replicas, members, **offloaded(run={"transport": transport})))


def test_batches_are_added_up_on_the_device(devices):
    """Where the gradient is whole: the steps of stage 1, which hosts accumulate in."""
    problem = make_problem("logistic", n=13, d=13)
    asked = {"accumulate": 2, "bucket": 4 * 5 * 2.0**-20}
    more = {"schedule": {"batch": 2}, "update": {"kind": "adam"}}
    more["rate"] = {"value": 0.01}
    there = train_on(3, shared(problem, 3, **offloaded(agreement=asked, **more)), problem)
    sliced = {"agreement": {"kind": "sharded", **asked}, "run": {"device": "cpu"}}
    near(there, train_on(3, shared(problem, 3, **sliced, **more), problem))


@pytest.mark.parametrize("transport", ["nccl", "mpi-host", "mpi-cuda"])
@pytest.mark.parametrize("delay", [-1, 1])
def test_replicas_without_columns_or_rows(devices, transport, delay):
    """d = 1 on three; and the last of an epoch's exchanges."""
    problem = make_problem("logistic", n=13, d=1)
    asked = {"delay_after": delay}
    near(*both(problem, 3, **offloaded(agreement=asked, run={"transport": transport})))


@pytest.mark.parametrize("delay", [-1, 0])
def test_what_is_no_number_ends_runs_as_on_the_host(devices, delay):
    """And nobody waits for a slice for ever."""
    problem = make_problem("gaussian", n=24, d=13)
    sections = {"rate": {"value": 1e30}, "run": {"check_every": 1, "fall_back": False}}
    asked = {"delay_after": delay}
    there, here = both(problem, 2, **offloaded(agreement=asked, **sections))
    assert there.status is here.status is Status.DIVERGED
    np.testing.assert_array_equal(there.weights, here.weights)


def test_runs_that_diverged_go_on_more_carefully(devices):
    """From the weights that had a loss: the host's own are put back, too."""
    problem = make_problem("gaussian", n=24, d=13)
    sections = {"rate": {"value": 50.0}, "schedule": {"epochs": 3}}
    run = {"check_every": 1, "fall_back": True}
    there, here = both(problem, 2, **offloaded(run=run, **sections))
    assert there.status is here.status
    np.testing.assert_allclose(there.weights, here.weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("delay", [-1, 1])
def test_runs_go_on_bit_for_bit(devices, tmp_path, delay):
    """With looks in between, which see every gradient taken."""
    problem = make_problem("logistic", n=25, d=13)
    more = {"schedule": {"epochs": 2}, "run": {"evaluate_every": 1}}
    asked = offloaded(agreement={"delay_after": delay}, **more)
    config = shared(problem, 3, **asked)
    whole = in_folder(tmp_path / "whole", config, 3, problem)
    first = in_folder(tmp_path / "half", config, 3, problem, 4)
    again = in_folder(tmp_path / "half", config, 3, problem)
    assert {one.status for one in first} == {Status.PREEMPTED}
    for one, other in zip(again, whole, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)

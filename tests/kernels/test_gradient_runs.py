"""Replicas that share gradients of devices: the runs of the host, to roundoff."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.contracts.codec import NAMES, ROWS, sections_of
from tests.helpers.harness import make_problem
from tests.helpers.kernels.gradient_runs import both, near, same_on_three
from tests.helpers.sparse import make_sparse


@pytest.mark.parametrize("transport", ["nccl", "mpi-host"])
@pytest.mark.parametrize("replicas, members", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_runs_are_those_of_the_host(devices, replicas, members, transport):
    problem = make_problem("logistic", n=12 * replicas + 1, d=13)
    near(*both(problem, replicas, members, run={"transport": transport}))
    # The third time that a batch of four comes, it is one launch.
    assert all(device.captured for device in devices)


# Of which some take the step on the device, and others send the point where scores are
# read: momenta, adaptive rates, what is shaped before the step.
CASES = {
    "softmax": ("softmax", {}),
    "several scores by the host": ("softmax", {"run": {"transport": "mpi-host"}}),
    "accumulated": (
        "logistic",
        {"agreement": {"accumulate": 2}, "schedule": {"batch": 2}},
    ),
    "accumulated, no intercept": (
        "huber",
        {
            "agreement": {"accumulate": 2},
            "problem": {"intercept": False},
            "schedule": {"batch": 2},
        },
    ),
    "growing": (
        "logistic",
        {"agreement": {"kind": "growing", "accumulate": 2}, "schedule": {"epochs": 3}},
    ),
    "momentum": ("logistic", {"update": {"kind": "momentum", "momentum": 0.8}}),
    "momentum by the host": (
        "logistic",
        {"update": {"kind": "momentum"}, "run": {"transport": "mpi-host"}},
    ),
    "nesterov": ("softmax", {"update": {"kind": "nesterov", "momentum": 0.8}}),
    "nesterov-classic": (
        "poisson",
        {"update": {"kind": "nesterov-classic", "momentum": 0.8}},
    ),
    "adam": ("logistic", {"update": {"kind": "adam"}, "rate": {"value": 0.01}}),
    "adagrad": ("softmax", {"update": {"kind": "adagrad"}, "rate": {"value": 0.05}}),
    "in 8 bits": ("logistic", {"update": {"kind": "momentum", "bits": 8}}),
    "clipped": ("logistic", {"update": {"clip": "norm", "clip_at": 0.05}}),
    "reproducible": ("logistic", {"run": {"reproducible": True}}),
    "two levels": ("logistic", {"agreement": {"hierarchical": "2"}}),
    "compared": ("logistic", {"run": {"check_members": 1}, "grid": {"members": 2}}),
    "fp16": ("logistic", {"precision": {"matrix": "fp16", "scale": "global"}}),
    "fp8": ("logistic", {"precision": {"matrix": "fp8-e4m3", "scale": "global"}}),
    "fp8, momentum": (
        "logistic",
        {
            "precision": {"matrix": "fp8-e4m3", "scale": "global"},
            "update": {"kind": "momentum", "momentum": 0.8},
        },
    ),
    "fp8, nesterov by the host": (
        "logistic",
        {
            "precision": {"matrix": "fp8-e4m3", "scale": "global"},
            "update": {"kind": "nesterov-classic", "momentum": 0.8},
            "run": {"transport": "mpi-host"},
        },
    ),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", CASES)
def test_what_else_a_run_may_be(devices, case):
    same_on_three(*CASES[case])


@pytest.mark.parametrize(
    "recipe, most, transport", [("fp32", 1e-5, "nccl"), ("c", 2e-4, "mpi-host")]
)
def test_sparse_rows(devices, recipe, most, transport):
    stored, _ = make_sparse("logistic", n=13, d=37)
    sections = {"precision": {"recipe": recipe}, "run": {"transport": transport}}
    near(*both(stored, 2, **sections), most)


def test_rows_in_bf16(devices):
    """Margins may round the other way."""
    problem = make_problem("logistic", n=13, d=13)
    near(*both(problem, 2, precision={"recipe": "c"}), 2e-4)


def test_replicas_may_store_their_rows_times_other_powers(devices):
    """What they sum is of no scale."""
    problem = make_problem("logistic", n=24, d=13)
    X = problem.X * np.repeat([1.0, 2.0**-9], 12)[:, None]
    problem = replace(problem, X=X)
    sections = {"precision": {"matrix": "fp16", "scale": "global"}}
    near(*both(problem, 2, **sections))


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", NAMES)
def test_codecs_say_what_they_say_for_hosts(devices, name):
    """With the same dice, and errors that are kept."""
    problem = make_problem("softmax", n=17, d=13)
    sections = {"agreement": {"codec": name}, **sections_of(ROWS[name].rough)}
    if name == "powersgd":
        sections["agreement"]["bucket"] = 4.0
    near(*both(problem, 2, **sections))


@pytest.mark.parametrize("kind", ["gradient", "scheduled"])
def test_a_replica_is_clipped_as_on_hosts(devices, kind):
    """By all tiles that came down, of which none travels before the last."""
    problem = make_problem("softmax", n=17, d=13)
    agreement = {"kind": kind, "codec": "dgc", "bucket": 4 * 4 * 4 * 2.0**-20}
    clips = {"share": 1.0, "clip": 0.02}
    ends = both(problem, 2, agreement=agreement, codec=clips)
    near(*ends)
    free = both(problem, 2, agreement=agreement, codec={"share": 1.0})
    assert np.abs(free[0].weights - ends[0].weights).max() > 1e-2

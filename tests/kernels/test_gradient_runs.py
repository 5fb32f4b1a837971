"""Replicas that share gradients of devices: the runs of the host, to roundoff."""

import numpy as np
import pytest

from tests.harness import make_problem, train_on
from tests.kernels.test_runs import on_gpu


def shared(problem, replicas, members=1, /, **sections):
    """A run of the gradient agreement on GPUs, in several buckets."""
    tables = {
        "schedule": {"batch": 4, "steps": 1, "epochs": 2},
        "products": {"kind": "auto"},
        "problem": {"intercept": True, "l2": 0.05},
        "agreement": {"kind": "gradient", "bucket": 4 * 5 * 2.0**-20},
        "grid": {"replicas": replicas, "members": members},
        "run": {"device": "cuda", "evaluate_every": 0, "transport": "nccl"},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return on_gpu(problem, **tables)


def both(problem, replicas, members=1, /, data=None, **sections):
    """Results with the device, and without."""
    ranks, data = replicas * members, data or {}
    there = train_on(
        ranks, shared(problem, replicas, members, **sections), problem, **data
    )
    sections["run"] = {**sections.get("run", {}), "device": "cpu"}
    here = train_on(
        ranks, shared(problem, replicas, members, **sections), problem, **data
    )
    return there, here


def near(there, here, most=1e-5):
    size = np.abs(here.weights).max()
    gap = np.abs(here.weights - there.weights).max() / size
    assert size > 0 and gap <= most, gap
    if here.intercept is not None:
        np.testing.assert_allclose(there.intercept, here.intercept, atol=most * size)
    one, other = (run.ledger["agreement"] for run in (there, here))
    for name in ("calls", "words", "bytes", "wire_bytes"):
        assert one[name] == pytest.approx(other[name]), name


@pytest.mark.parametrize("transport", ["nccl", "mpi-host"])
@pytest.mark.parametrize("replicas, members", [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)])
def test_runs_are_those_of_the_host(devices, replicas, members, transport):
    problem = make_problem("logistic", n=37, d=13)
    near(*both(problem, replicas, members, run={"transport": transport}))

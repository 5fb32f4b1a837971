"""Gradient runs on emulated GPUs beside runs on the host."""

import numpy as np
import pytest

from tests.helpers.harness import make_problem, train_on, what_is_read
from tests.helpers.kernels.runs import on_gpu


def shared(problem, replicas, members=1, /, **sections):
    """A run of the gradient agreement on GPUs, in several buckets."""
    tables = {
        "schedule": {"batch": 4, "steps": 1, "epochs": 1},
        "products": {"kind": "auto"},
        "problem": {"intercept": True, "l2": 0.05},
        "agreement": {"kind": "gradient", "bucket": 4 * 5 * 2.0**-20},
        "grid": {"replicas": replicas, "members": members},
        "run": {"device": "cuda", "evaluate_every": 0, "transport": "nccl"},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return on_gpu(problem, **what_is_read(tables, "agreement"))


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


def near_weights(one, other, most=1e-5):
    size = np.abs(other.weights).max()
    assert np.abs(one.weights - other.weights).max() <= most * size


def crossed(result):
    said = result.report["agreement"]
    return said["device_bytes_up"], said["device_bytes_down"]


def same_on_three(family, sections):
    """Weights and offsets of rows, three replicas of uneven rows, one without."""
    members = sections.get("grid", {}).get("members", 1)
    problem = make_problem(family, n=13, d=13)
    data = {"weights": True, "offset": True}
    there, here = both(problem, 3, members, data=data, **sections)
    near(there, here)
    assert there.report["agreement"]["mended_replicas"] == 0

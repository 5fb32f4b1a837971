"""Agreements of every kind on gradients of devices: the runs of the host, to roundoff."""

import numpy as np
import pytest

from tests.harness import make_problem, train_on
from tests.kernels.test_gradient_runs import both, crossed, near, shared

BUCKETS = 4 * 5 * 2.0**-20  # of five words
KINDS = {
    "decentralized": {"kind": "decentralized"},
    "pairs": {"kind": "decentralized", "peers": "shift_one"},
    "decentralized-low": {"kind": "decentralized-low", "resync": 2},
    "qadam": {"kind": "qadam", "codec": "bytegrad", "warmup_steps": 2},
    "scheduled": {"kind": "scheduled", "partition": 2.0**-17, "credit": 2.0**-16},
    "ticktock": {"kind": "ticktock"},
    "delayed": {"kind": "ticktock", "mode": "delayed"},
}
BUCKETED = ("qadam", "scheduled", "ticktock", "delayed")


def of(name, /, **sections):
    agreement = {"bucket": BUCKETS, **KINDS[name], **sections.pop("agreement", {})}
    if name == "qadam":
        sections["update"] = {"kind": "adam"}
        sections.setdefault("rate", {"value": 0.01})
        sections.setdefault("codec", {"feedback": "off"})
    return {"agreement": agreement, **sections}


@pytest.mark.parametrize("name", KINDS)
def test_runs_are_those_of_the_host(devices, name):
    """Uneven replicas; the last exchange of one has no rows."""
    problem = make_problem("logistic", n=13, d=13)
    replicas = 2 if name == "pairs" else 3
    near(*both(problem, replicas, **of(name, schedule={"epochs": 2})))

"""ZeRO-Offload with devices: the runs of the host, and what crosses in between."""

import pytest

from tests.harness import make_problem
from tests.kernels.test_gradient_runs import both, near


def offloaded(**sections):
    more = sections.pop("agreement", {})
    return {"agreement": {"kind": "offload", **more}, **sections}


@pytest.mark.parametrize("transport", ["nccl", "mpi-host", "mpi-cuda"])
@pytest.mark.parametrize("replicas, members", [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)])
def test_runs_are_those_of_the_host(devices, replicas, members, transport):
    problem = make_problem("logistic", n=12 * replicas + 1, d=13)
    near(*both(problem, replicas, members, **offloaded(run={"transport": transport})))

"""Offload with devices that add several batches up before anything travels."""

import pytest

from tests.helpers.harness import make_problem
from tests.helpers.kernels.gradient_runs import both, near
from tests.helpers.kernels.offload_runs import offloaded


@pytest.mark.parametrize("delay", [-1, 1])
@pytest.mark.parametrize("transport", ["nccl", "mpi-host"])
def test_batches_that_travel_together(devices, transport, delay):
    """The device sums them whole, the host takes their rows at once."""
    problem = make_problem("logistic", n=37, d=13)
    more = {"agreement": {"accumulate": 3}, "run": {"transport": transport}}
    asked = offloaded(delay, **more)
    near(*both(problem, 2, 1, **asked))

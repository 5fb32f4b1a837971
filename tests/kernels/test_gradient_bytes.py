"""What crosses between host and device where replicas share gradients."""

import pytest

from hpcsgd.products.direct import Direct
from tests.helpers.fake_cuda import FakeLayer
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.gradient_runs import crossed, shared


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_bytes_between_host_and_device_are_those_of_the_formula(
    devices, accumulate, intercept
):
    """Replica 0 of two has 9 rows: two batches of four, and one of a single row."""
    problem = make_problem("softmax", n=17, d=13)
    classes, rows = problem.classes, 9
    exchanges = {1: 3, 2: 2}[accumulate]
    tail, words = 4 * (classes * intercept + 1), 4 * 13 * classes
    offset = 8 * classes * intercept
    residuals = 4 * rows * classes * intercept  # else they are counted, not summed
    sections = {
        "problem": {"intercept": intercept},
        "agreement": {"accumulate": accumulate},
        "schedule": {"epochs": 1},
    }
    formulas = {
        # Replicas sum on their devices, which take the step.
        ("nccl", "sgd"): (offset + tail, tail),
        # They sum there, and the host takes it.
        ("nccl", "momentum"): (words + offset + tail, words + tail),
        # The host sums, too.
        ("mpi-host", "sgd"): (words + offset, words),
    }
    for (transport, update), (up, down) in formulas.items():
        more = {"run": {"transport": transport}, "update": {"kind": update}}
        found = train_on(2, shared(problem, 2, **sections, **more), problem)
        expected = exchanges * up, exchanges * down + residuals
        assert crossed(found) == expected, (transport, update)


@pytest.mark.parametrize(
    "transport, update, comes_down",
    [
        *(("nccl", "sgd", 0), ("mpi-cuda", "sgd", 0), ("nccl", "momentum", 0)),
        *(("nccl", "adam", 2), ("mpi-host", "sgd", 2)),
    ],
)
def test_nothing_as_large_as_the_weights_comes_down(
    devices, monkeypatch, transport, update, comes_down
):
    """Where devices sum and step: by the copies there were, not by what was said."""
    problem = make_problem("logistic", n=16, d=101)
    to_host, fetch, advance = FakeLayer.to_host, FakeDevice.fetch, Direct.advance
    inside = set()  # devices that are in an exchange

    def copied(self, array, host, stream):
        count(self, array)
        to_host(self, array, host, stream)

    def fetched(self, array):
        count(self.layer, array)
        return fetch(self, array)

    def count(layer, array):
        if layer in inside and array.nbytes >= 4 * 101:
            large.append(layer)

    def between(self, *given):
        layer = self.exchanges.device.layer
        inside.add(layer)
        state = advance(self, *given)
        inside.remove(layer)
        return state

    large = []
    monkeypatch.setattr(FakeLayer, "to_host", copied)
    monkeypatch.setattr(FakeDevice, "fetch", fetched)
    monkeypatch.setattr(Direct, "advance", between)
    sections = {"agreement": {"bucket": 4.0}, "run": {"transport": transport}}
    sections["update"] = {"kind": update}
    train_on(2, shared(problem, 2, **sections), problem)
    assert len(large) == 2 * comes_down

"""Weights that live on a device come when somebody looks, and do not go back for it."""

import numpy as np
import pytest

from hpcsgd.backends.cuda.weights import DeviceCopies
from hpcsgd.backends.task import State
from tests.helpers.fake_cuda import Node
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.runs import on_gpu

D = 13
LOCAL = {
    "grid": {"replicas": 2},
    "agreement": {"kind": "average"},
    "schedule": {"period": 2},
}
SHARED = {
    "grid": {"replicas": 2},
    "agreement": {"kind": "gradient"},
    "products": {"kind": "direct"},
    "schedule": {"steps": 1},
    "run": {"check_members": 1, "transport": "nccl"},
}
RUNS = {
    "looks every exchange": (1, {"run": {"check_every": 1}}),
    "checkpoints and recordings": (1, {"checkpoint": {"every": 3}}),
    "members are compared": (2, {"run": {"check_members": 1}}),
    "replicas are compared": (2, SHARED),
    "losses amid a period": (2, LOCAL),
    "held-out rows": (
        1,
        {"stop": {"on": "validation"}, "sampling": {"hold_out": 0.2}},
    ),
    "a mean": (1, {"average": {"kind": "tail"}, "run": {"check_every": 1}}),
    "a gap": (1, {"stop": {"on": "gap", "tol": 1e-9}}),
}


def sections_of(more, folder):
    tables = {
        "problem": {"intercept": True},
        "schedule": {"batch": 4, "steps": 2, "epochs": 2},
        "products": {"kind": "gram"},
    }
    for name, table in more.items():
        tables[name] = {**tables.get(name, {}), **table}
    if "checkpoint" in more:
        tables["run"] = {"out": str(folder)}
    return tables


def sent_up(monkeypatch):
    """How often each array went up."""
    fill, counts = FakeDevice.fill, {}

    def counted(self, array, values):
        counts[id(array)] = counts.get(id(array), 0) + 1
        return fill(self, array, values)

    monkeypatch.setattr(FakeDevice, "fill", counted)
    return counts


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", RUNS)
def test_weights_go_up_once(devices, monkeypatch, tmp_path, name):
    ranks, more = RUNS[name]
    problem = make_problem("logistic", n=64, d=D)
    config = on_gpu(problem, **sections_of(more, tmp_path))
    held, counts = [], sent_up(monkeypatch)
    place = State.place
    monkeypatch.setattr(
        State,
        "place",
        lambda self, copies: (
            place(self, copies),
            held.append(copies.arrays["weights"]),
        ),
    )
    result = train_on(ranks, config, problem)
    assert result.exchanges > 1 and result.status.value in ("completed", "converged")
    assert [counts[id(one._held)] for one in held] == ranks * [1]


def state_on(device):
    state = State(np.arange(6.0, dtype=np.float32).reshape(3, 2), np.zeros((1, 2)))
    state.place(DeviceCopies(device, state.weights, state.intercept, 2.0))
    state.on_device("weights"), state.on_device("intercept")
    return state


def test_a_look_cannot_write_and_sees_what_the_device_wrote(monkeypatch):
    device = FakeDevice(Node(), 1, "node 0000:00")
    state = state_on(device)
    fill, ups = FakeDevice.fill, []
    monkeypatch.setattr(
        FakeDevice, "fill", lambda *given: (ups.append(given), fill(*given))
    )
    for turn in (1.0, 2.0):
        fill(device, state.on_device("weights"), np.full((3, 2), turn, np.float32))
        state.mark_written("weights")
        for seen in (state.host_array("weights"), state.host_state().weights):
            assert (seen == 2.0 * turn).all()  # rows are stored times two
            with pytest.raises(ValueError, match="read-only"):
                seen[...] = 0.0
        assert state.host_state().copies is None
        state.on_device("weights")
        assert not ups
    state.weights[1] = 7.0  # who asks for the array itself may write
    assert (state.host_array("weights")[1] == 7.0).all()
    there = device.fetch(state.on_device("weights"))
    assert (there[1] == 3.5).all() and len(ups) == 1


def test_the_host_is_given_what_it_may_write_to():
    """Without a device it is the array itself."""
    state = State(np.zeros((3, 1)), None)
    assert state.host_state() is state and state.host_array("weights") is state.weights

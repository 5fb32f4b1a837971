"""Agreements that average, in runs on a device that is the emulation."""

import numpy as np
import pytest

from hpcsgd.agreements import Average
from tests.helpers.averages import PLAIN, config_of
from tests.helpers.harness import config_for, make_problem, relative_error, train_on
from tests.helpers.swarm import Swarm


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "row, members", [(row, 1 + i % 2) for i, row in enumerate(PLAIN)]
)
def test_runs_on_a_device_equal_those_of_the_host(devices, row, members, monkeypatch):
    """Averages are taken there; slow steps look at the weights on the host."""
    problem = make_problem("logistic", n=58, d=13)
    more = {"products": {"kind": "gram"}, "precision": {"recipe": "fp32"}}
    more["update"] = {"kind": "momentum", "momentum": 0.5}
    run = {"device": "cuda", "evaluate_every": 0, "check_every": 100}
    config = config_of(problem, row, 4, members, **more, run=run)
    average, copies = Average.average, []

    def counted(self, state, *rest):
        on = state.copies  # none where a consensus is taken
        device = on and on.device
        before = device and device.fetched
        average(self, state, *rest)
        if device:
            copies.append(device.fetched - before)

    monkeypatch.setattr(Average, "average", counted)
    found = train_on(4 * members, config, problem)
    monkeypatch.undo()
    assert copies and not any(copies)
    wanted = Swarm(config, problem, 4).run()
    assert relative_error(found, wanted) < 2e-5
    host = config_of(problem, row, 4, members, **more)
    here = train_on(4 * members, host, problem)
    for figure in ("calls", "words", "bytes"):
        sent = [one.ledger["agreement"][figure] for one in (here, found)]
        assert sent[0] == sent[1] > 0


@pytest.mark.parametrize("momentum", ["keep", "reset"])
def test_momentum_that_does_not_travel(devices, momentum):
    """It is dealt with on the host, and sent back from there."""
    problem = make_problem("logistic", n=58, d=13)
    more = {"products": {"kind": "gram"}, "precision": {"recipe": "fp32"}}
    more["update"] = {"kind": "momentum", "momentum": 0.5}
    more["run"] = {"device": "cuda", "evaluate_every": 1}
    config = config_of(problem, "average", 2, agreement={"momentum": momentum}, **more)
    found = train_on(2, config, problem)
    assert relative_error(found, Swarm(config, problem, 2).run()) < 2e-5


def test_changes_are_encoded_on_the_host(devices):
    """Qsparse-local-SGD: the device then has the weights that were agreed on."""
    problem = make_problem("logistic", n=58, d=13)
    more = {"products": {"kind": "gram"}, "precision": {"recipe": "fp32"}}
    more["codec"] = {"share": 0.2, "dense": "never"}
    more["run"] = {"device": "cuda", "evaluate_every": 1}
    config = config_of(problem, "average", 2, agreement={"codec": "topk"}, **more)
    found = train_on(2, config, problem)
    assert relative_error(found, Swarm(config, problem, 2).run()) < 2e-5


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_trust_ratios_look_at_the_weights_of_a_device(devices, kind):
    """Where LARS and LAMB take their norms, and where LAMB steps again."""
    problem = make_problem("logistic", n=58, d=13)
    tables = {
        "precision": {"recipe": "fp32"},
        "problem": {"l2": 0.05, "intercept": True},
        "schedule": {"batch": 4, "steps": 1, "epochs": 2},
        "products": {"kind": "direct"},
        "agreement": {"kind": "gradient"},
        "update": {"kind": kind, "trust": 0.3},
        "rate": {"value": 0.05},
        "grid": {"replicas": 2},
    }
    found = train_on(2, config_for(problem, **tables, run={"device": "cuda"}), problem)
    here = train_on(2, config_for(problem, **tables), problem)
    np.testing.assert_allclose(found.weights, here.weights, 2e-4, 2e-5)

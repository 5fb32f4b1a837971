"""The gap monitor beside a device: silent about rounding, loud about anything else."""

import numpy as np
import pytest

from hpcsgd.backends.cuda.exchange import ExchangeKernels
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.runs import on_gpu

SCHEDULE = {"batch": 8, "steps": 4, "epochs": 3}


def watched(problem, recipe="fp32", /, **sections):
    """A look at every second exchange, and nothing done about what is seen."""
    tables = {
        "precision": {"recipe": recipe},
        "schedule": SCHEDULE,
        "products": {"kind": "gram"},
        "problem": {"intercept": True},
        "run": {"gap_every": 2, "fall_back": False, **sections.pop("run", {})},
    }
    return on_gpu(problem, **{**tables, **sections})


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("recipe", ["fp32", "c"])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("update", ["sgd", "nesterov"])
def test_rounding_is_no_alarm(devices, ratios, update, family, recipe, members):
    problem = make_problem(family, n=101, d=37)
    config = watched(problem, recipe, update={"kind": update}, rate={"value": 0.05})
    found = train_on(members, config, problem, weights=True, offset=True)
    assert not found.events
    # Exchanges 2, 4, ... of 12; the last look has no message to go with.
    assert len(ratios["residuals"]) == 6 * members
    assert len(ratios["scores"]) == 5 * members
    assert max(ratios["scores"]) < 0.7 and max(ratios["residuals"]) < 0.7
    assert np.median(ratios["scores"]) > 2e-3
    assert any(device.captured for device in devices)  # the others stay one launch


@pytest.mark.cases(1)
@pytest.mark.parametrize("recipe, form", [("fp32", "fp32"), ("c", "bf16")])
def test_looks_change_no_bit(devices, recipe, form):
    problem = make_problem("logistic", n=101, d=37)
    found = [
        train_on(2, watched(problem, recipe, run={"gap_every": every}), problem)
        for every in (0, 1, 2)
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other.weights, found[0].weights)


def test_a_scaled_matrix_is_no_alarm(devices, ratios):
    problem = make_problem("logistic", n=101, d=37)
    precision = {"recipe": "fp32", "matrix": "fp8-e4m3", "scale": "global"}
    assert not train_on(2, watched(problem, precision=precision), problem).events
    assert ratios["scores"] and max(ratios["scores"]) < 0.7


@pytest.mark.parametrize("members", [1, 2])
def test_a_gram_that_is_kept_is_looked_at(devices, ratios, members):
    problem = make_problem("logistic", n=101, d=37)
    sections = {"sampling": {"mode": "shuffle-once"}, "products": {"kind": "cached"}}
    assert not train_on(members, watched(problem, **sections), problem).events
    assert len(ratios["residuals"]) == 6 * members
    assert len(ratios["scores"]) == 5 * members and max(ratios["scores"]) < 0.7


@pytest.mark.parametrize("what", ["gram", "residuals"])
def test_a_device_that_computes_wrongly_is_seen(devices, monkeypatch, what):
    """An entry of the Gram, or a residual, that is off by some percent."""
    iterate = ExchangeKernels.iterate

    def wrong(self, intercept):
        stream = self.device.stream
        if what == "gram" and self.tiles.count:
            stream.put(lambda: np.multiply(self.gram.held, 1.2, self.gram.held))
        iterate(self, intercept)
        if what == "residuals":
            held = self.residuals.held
            stream.put(lambda: np.multiply(held, 1.02, held))

    monkeypatch.setattr(ExchangeKernels, "iterate", wrong)
    problem = make_problem("logistic", n=101, d=37)
    found = train_on(2, watched(problem), problem)
    alarms = [event for event in found.events if event["event"] == "gap"]
    assert alarms and alarms[0]["of"] == {"gram": "scores"}.get(what, what)


def test_a_run_falls_back_on_the_device(devices, monkeypatch):
    """From bf16 to fp32 there, and the loss of the end is that of plain SGD."""
    iterate = ExchangeKernels.iterate

    def wrong(self, intercept):
        if self.precision.matrix == "bf16":
            held = self.gram.held
            self.device.stream.put(lambda: np.multiply(held, 1.2, held))
        iterate(self, intercept)

    monkeypatch.setattr(ExchangeKernels, "iterate", wrong)
    problem = make_problem("logistic", n=101, d=37)
    config = watched(problem, "c", run={"gap_every": 1, "fall_back": True})
    found = train_on(2, config, problem)
    assert [event["event"] for event in found.events][:1] == ["gap"]
    here = watched(problem, "fp32", run={"device": "cpu"})
    assert found.loss == pytest.approx(train_on(2, here, problem).loss, rel=1e-3)

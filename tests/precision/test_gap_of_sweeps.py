"""The gap monitor looks at the models of a sweep, one after the other."""

import numpy as np
import pytest

from hpcsgd.backends.compiled import NativeBackend
from hpcsgd.backends.numpy_rows import HostBackend
from tests.helpers.gap import COLUMNS, ROWS, alarms, bend, one_entry, settings
from tests.helpers.harness import make_problem
from tests.helpers.many import sweep_on

SWEEP = {"l2": [0.0, 0.05], "rate": [0.05, 0.02], "folds": 2}


def looked(recipe="fp32", family="logistic", product="gram", **sections):
    problem = make_problem(family, n=ROWS, d=COLUMNS)
    config = settings(problem, product, recipe, sweep=SWEEP, **sections)
    return sweep_on(2, config, problem).outcome


@pytest.mark.parametrize("recipe", ["fp64", "fp32", "c"])
@pytest.mark.parametrize(
    "family, product, update",
    [
        ("logistic", "gram", "sgd"),
        ("softmax", "cached", "nesterov"),
        ("poisson", "look-ahead", "momentum"),
        ("huber", "gram", "nesterov-classic"),
    ],
)
def test_rounding_is_no_alarm(recipe, family, product, update):
    more = {"problem": {"intercept": True}, "run": {"gap_every": 1}}
    result = looked(recipe, family, product, update={"kind": update}, **more)
    assert result.report["gap_looks"] == 19 and not alarms(result)


@pytest.mark.parametrize(
    "family, update", [("logistic", "sgd"), ("softmax", "momentum")]
)
@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_a_wrong_entry_of_the_gram_is_found(recipe, family, update, monkeypatch):
    bend(monkeypatch, one_entry(77))
    result = looked(recipe, family, update={"kind": update})
    assert alarms(result)[0]["of"] == "scores"


@pytest.mark.parametrize("model", [0, 5, 11])
def test_every_model_has_its_turn(model, monkeypatch):
    """Residuals of one that are not those of its scores."""

    def bent(kind):
        real = kind.corrected_residuals

        def wrong(*given):
            found = real(*given)
            if found.shape[1] == 12:
                found[:, model] *= 1.01
            return found

        return wrong

    # The compiled backend's own call may be NumPy's in the end: bent once.
    kind = NativeBackend if NativeBackend in _used() else HostBackend
    monkeypatch.setattr(kind, "corrected_residuals", bent(kind))
    found = alarms(looked(run={"gap_every": 1}))
    assert found and {event["of"] for event in found} == {"residuals"}
    assert {event["looked_at"] % 12 for event in found} == {model}


def _used():
    from hpcsgd.backends import make_backend
    from hpcsgd.precision import RECIPES

    return type(make_backend(RECIPES["fp32"])).__mro__


def test_a_model_that_diverged_is_not_judged():
    problem = make_problem("gaussian", n=ROWS, d=COLUMNS)
    sweep = {"rate": [0.05, 1e30]}
    config = settings(problem, sweep=sweep, run={"gap_every": 1})
    result = sweep_on(2, config, problem)
    assert not alarms(result.outcome)
    assert list(np.isfinite(result.losses)) == [True, False]

"""The recurrence of several models in one call is that of NumPy."""

from itertools import product

import numpy as np
import pytest

from hpcsgd.backends import cpu, many_steps
from hpcsgd.backends.base import Batch
from hpcsgd.backends.host import HostBackend
from hpcsgd.backends.native import NativeBackend
from hpcsgd.backends.plain import FAMILIES
from hpcsgd.families import get_family
from hpcsgd.precision import RECIPES
from hpcsgd.schedule import blocks_of
from hpcsgd.updates import UPDATES, make_update
from hpcsgd.updates.many import unroll_many
from tests.harness import config_for, make_problem
from tests.many import sweep_on
from tests.unit.test_cpu import Spied, kernels

__all__ = ["kernels"]  # a fixture
compiled = pytest.mark.skipif(not cpu.available(), reason=cpu.why())
SIZES = (5, 5, 5, 3)


def residuals_of(backend, recipe, update, family, margins, gram, batch, start):
    """(residuals, intercepts behind them), by one backend."""
    K = margins.shape[1] // make_update(update, 0.5).states
    rng = np.random.default_rng(1)
    rates, l2 = rng.uniform(0.01, 0.3, (len(SIZES), K)), rng.uniform(0, 0.2, K)
    steps = unroll_many(make_update(update, 0.5), rates, SIZES, l2)
    made = backend(RECIPES[recipe])
    plan, beta = made.prepare(steps, blocks_of(SIZES)), None
    beta = None if start is None else start.copy()
    given = (plan, get_family(family), batch, beta)
    found = made.corrected_residuals(margins.copy(), gram.copy(), *given)
    return found, np.zeros(1) if beta is None else beta


@pytest.mark.parametrize("K", [2, 16, 65])
@pytest.mark.parametrize("update", list(UPDATES))
@pytest.mark.parametrize("recipe", ["fp64", "fp32"])
def test_the_recurrence_is_that_of_numpy(kernels, recipe, update, K, monkeypatch):
    """Every family; weights of all or of each, offsets, intercepts, a ragged batch."""
    rng, m = np.random.default_rng(K), sum(SIZES)
    real = np.dtype("f8" if recipe == "fp64" else "f4")
    states = make_update(update, 0.5).states
    z = rng.normal(size=(m, states * K)).astype(real)
    gram = (0.1 * rng.normal(size=blocks_of(SIZES).gram_words)).astype(real)
    one, each = (np.abs(rng.normal(size=(m, w))).astype(real) for w in (1, K))
    offsets = rng.normal(size=(m, 1)).astype(real)
    beta, calls = rng.normal(size=(states, K)), Spied()
    recur = many_steps.Recurrence.__call__
    monkeypatch.setattr(many_steps.Recurrence, "__call__", calls.around(recur))
    sides = list(product((None, one, each), (None, offsets), (None, beta)))
    for number, (w, o, start) in enumerate(sides):
        family = FAMILIES[number % len(FAMILIES)]
        low = -1.0 if family == "squared-hinge" else 0.0
        targets = rng.choice([low, 1.0], size=(m, 1)).astype(real)
        given = (recipe, update, family, z, gram, Batch(targets, w, o), start)
        this, that = (residuals_of(b, *given) for b in (HostBackend, NativeBackend))
        tolerance = 1e-12 if recipe == "fp64" else 5e-5
        for a, b in zip(this, that, strict=True):
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
    assert len(calls.done) == len(sides)


@compiled
@pytest.mark.parametrize("family, used", [("logistic", True), ("softmax", False)])
@pytest.mark.parametrize("product", ["gram", "direct"])
def test_runs_use_it(family, used, product, monkeypatch):
    """Plain SGD takes a step at a time through the same call."""
    calls, recur = Spied(), many_steps.Recurrence.__call__
    monkeypatch.setattr(many_steps.Recurrence, "__call__", calls.around(recur))
    problem = make_problem(family)
    config = config_for(problem, sweep={"rate": [0.1, 0.2]}, products={"kind": product})
    sweep_on(2, config, problem)
    assert bool(calls.done) == used

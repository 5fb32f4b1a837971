"""The recurrence of softmax in one call is that of NumPy."""

from itertools import product

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends import compiled as native
from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import StepBatch
from hpcsgd.backends.compiled import NativeBackend
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.glm import UPDATES, get_family, make_update
from hpcsgd.glm.unrolling import unroll
from hpcsgd.precision import RECIPES
from tests.helpers.cpu import RAGGED, RATES, Spied, kernels
from tests.helpers.harness import config_for, make_problem

__all__ = ["kernels"]  # a fixture
compiled = pytest.mark.skipif(
    not compiled_calls.available(), reason=compiled_calls.why()
)


def residuals_of(backend, recipe, update, margins, gram, batch, start):
    """(residuals, intercept behind them), by one backend."""
    made = backend(RECIPES[recipe])
    steps = unroll(make_update(update, 0.5), RATES, RAGGED.sizes, 0.1)
    plan, beta = made.prepare(steps, RAGGED), None if start is None else start.copy()
    given = (plan, get_family("softmax"), batch, beta)
    found = made.corrected_residuals(margins.copy(), gram.copy(), *given)
    return found, np.zeros(1) if beta is None else beta


@pytest.mark.parametrize("K", [2, 3, 10])
@pytest.mark.parametrize("update", list(UPDATES))
@pytest.mark.parametrize("recipe", ["fp64", "fp32"])
def test_the_recurrence_is_that_of_numpy(kernels, recipe, update, K, monkeypatch):
    """Weights, offsets, an intercept, ridge, ragged batches, scores of any size."""
    rng, m = np.random.default_rng(K), RAGGED.rows
    real = np.dtype("f8" if recipe == "fp64" else "f4")
    states = make_update(update, 0.5).states
    z = (rng.normal(size=(m, states * K)) * rng.choice([1, 300], (m, 1))).astype(real)
    gram = (0.1 * rng.normal(size=RAGGED.gram_words)).astype(real)
    labels = rng.integers(0, K, size=(m, 1)).astype(real)
    weights, offsets = np.abs(rng.normal(size=(2, m, 1))).astype(real)
    beta, calls = rng.normal(size=(states, K)), Spied()
    recur = compiled_calls.CompiledRecurrence.__call__
    monkeypatch.setattr(
        compiled_calls.CompiledRecurrence, "__call__", calls.around(recur)
    )
    for w, o, start in product((None, weights), (None, offsets), (None, beta)):
        given = (recipe, update, z, gram, StepBatch(labels, w, o), start)
        one, two = (residuals_of(b, *given) for b in (HostBackend, NativeBackend))
        tolerance = 1e-12 if recipe == "fp64" else 2e-5
        for this, that in zip(one, two, strict=True):
            np.testing.assert_allclose(that, this, rtol=tolerance, atol=tolerance)
    assert len(calls.done) == 8


@compiled
@pytest.mark.parametrize("recipe", ["fp64", "fp32"])
@pytest.mark.parametrize("update", ["sgd", "nesterov"])
def test_runs_use_it(update, recipe, monkeypatch):
    problem, calls, found = make_problem("softmax", n=53, d=19), Spied(), []
    config = config_for(
        problem,
        problem={"family": "softmax", "l2": 0.01, "intercept": True},
        schedule={"batch": 6, "steps": 4, "epochs": 2},
        update={"kind": update, "momentum": 0.5},
        precision={"recipe": recipe},
        products={"kind": "gram", "look_ahead": "off"},
    )
    recur = compiled_calls.CompiledRecurrence.__call__
    monkeypatch.setattr(
        compiled_calls.CompiledRecurrence, "__call__", calls.around(recur)
    )
    for backend in (HostBackend, NativeBackend):
        assert not calls.done
        monkeypatch.setattr("hpcsgd.runs.opened_run.make_backend", backend)
        found.append(train(config, X=problem.X, y=problem.y))
    assert calls.done and get_family("softmax").name == native.SOFTMAX
    one, two = (np.append(r.weights, r.intercept) for r in found)
    tolerance = 1e-12 if recipe == "fp64" else 1e-5
    assert np.abs(one - two).max() <= tolerance * np.abs(one).max()

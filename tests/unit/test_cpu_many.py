"""The recurrence of several models in one call is that of NumPy."""

from itertools import product

import numpy as np
import pytest

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import StepBatch
from hpcsgd.backends.compiled import NativeBackend
from hpcsgd.backends.compiled_calls import FAMILIES
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.formats import encode, widen_bf16
from hpcsgd.glm import UPDATES, get_family, make_update
from hpcsgd.glm.unrolling import blocks_of, unroll_many
from hpcsgd.precision import RECIPES
from tests.helpers.cpu import Spied, kernels
from tests.helpers.harness import config_for, make_problem
from tests.helpers.many import sweep_on

__all__ = ["kernels"]  # a fixture
compiled = pytest.mark.skipif(
    not compiled_calls.available(), reason=compiled_calls.why()
)
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
    recur = compiled_calls.CompiledRecurrence.__call__
    monkeypatch.setattr(
        compiled_calls.CompiledRecurrence, "__call__", calls.around(recur)
    )
    sides = list(product((None, one, each), (None, offsets), (None, beta)))
    for number, (w, o, start) in enumerate(sides):
        family = list(FAMILIES)[number % len(FAMILIES)]
        low = -1.0 if family == "squared-hinge" else 0.0
        targets = rng.choice([low, 1.0], size=(m, 1)).astype(real)
        given = (recipe, update, family, z, gram, StepBatch(targets, w, o), start)
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
    calls, recur = Spied(), compiled_calls.CompiledRecurrence.__call__
    monkeypatch.setattr(
        compiled_calls.CompiledRecurrence, "__call__", calls.around(recur)
    )
    problem = make_problem(family)
    config = config_for(problem, sweep={"rate": [0.1, 0.2]}, products={"kind": product})
    sweep_on(2, config, problem)
    assert bool(calls.done) == used


tiled = pytest.mark.skipif(not compiled_calls.has_tiles(), reason="no AMX tiles here")
GUARD = 7.0  # behind what a kernel may write


def bf16_rows(m, d, seed=0):
    """(matrix as it is stored, row numbers, the sampled rows in float64)."""
    rng = np.random.default_rng([seed, m, d])
    matrix = encode(rng.normal(size=(3 * m, d)).astype(np.float32), "bf16")
    rows = rng.permutation(3 * m)[:m].astype(np.int64)
    return matrix, rows, widen_bf16(matrix[rows], np.dtype("f4")).astype(float)


@tiled
@pytest.mark.parametrize("m", [1, 15, 16, 33, 96, 97])
@pytest.mark.parametrize("d", [1, 31, 32, 50, 131])
@pytest.mark.parametrize("K", [1, 16, 33, 64, 65])
def test_products_by_tiles_are_those_of_float32(m, d, K):
    """Within a few roundings of the sum of sizes; nothing behind is touched."""
    matrix, rows, Y = bf16_rows(m, d)
    rng, workspace = np.random.default_rng(K), compiled_calls.KernelScratch()
    W = (rng.normal(size=(d, K)) * 10.0 ** rng.integers(-9, 9, (1, K))).astype("f4")
    R = rng.normal(size=(m, K)).astype("f4")
    out = np.full((m + 1, K), GUARD, dtype="f4")
    compiled_calls.margins_columns(matrix, rows, W, out[:m], workspace)
    size = np.abs(Y) @ np.abs(W)
    assert (np.abs(out[:m] - Y @ W) <= 2.0**-22 * size).all()
    assert (out[m] == GUARD).all()
    moved = np.vstack([W, np.full((1, K), GUARD, dtype="f4")])
    compiled_calls.update_columns(matrix, rows, R, moved[:d], workspace)
    size = np.abs(W) + np.abs(Y).T @ np.abs(R)
    assert (np.abs(moved[:d] - (W + Y.T @ R)) <= 2.0**-22 * size).all()
    assert (moved[d] == GUARD).all()


@tiled
def test_a_float_is_the_sum_of_three_parts():
    """Rows of one 1 each: the products are the weights themselves, to the bit."""
    d, K = 64, 48
    matrix = encode(np.eye(d, dtype=np.float32), "bf16")
    W = np.random.default_rng(0).normal(size=(d, K)).astype("f4")
    out = np.empty_like(W)
    compiled_calls.margins_columns(
        matrix, np.arange(d), W, out, compiled_calls.KernelScratch()
    )
    np.testing.assert_array_equal(out, W)


@tiled
def test_a_column_that_is_no_number_stays_alone():
    matrix, rows, Y = bf16_rows(40, 70)
    W, out = np.ones((70, 40), dtype="f4"), np.empty((40, 40), dtype="f4")
    W[3, 7], W[5, 20] = np.nan, np.inf
    compiled_calls.margins_columns(matrix, rows, W, out, compiled_calls.KernelScratch())
    assert list(np.flatnonzero(~np.isfinite(out).all(axis=0))) == [7, 20]


@tiled
@pytest.mark.parametrize("update", ["sgd", "nesterov"])
@pytest.mark.parametrize("product", ["gram", "direct"])
def test_a_sweep_by_tiles_is_that_by_blas(update, product, monkeypatch):
    """With 40 models, and as many states of momentum behind them."""
    problem = make_problem("logistic", n=200, d=70, dtype=np.float32)
    config = config_for(
        problem,
        schedule={"batch": 16, "steps": 3},
        sweep={"l2": list(np.linspace(0.0, 0.1, 40))},
        precision={"recipe": "c"},
        update={"kind": update, "momentum": 0.5},
        products={"kind": product},
    )
    calls = Spied()
    for name in ("margins_columns", "update_columns"):
        spy = calls.around(getattr(compiled_calls, name))
        monkeypatch.setattr(compiled_calls, name, spy)
    by_tiles = sweep_on(2, config, problem)
    assert calls.done
    monkeypatch.setattr(compiled_calls, "has_tiles", lambda: False)
    by_blas = sweep_on(2, config, problem)
    size = np.abs(by_blas.weights).max()
    np.testing.assert_allclose(by_tiles.weights, by_blas.weights, atol=2e-3 * size)

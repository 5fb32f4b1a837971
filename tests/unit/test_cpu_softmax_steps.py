"""Plain steps of softmax in one call are those of NumPy, a step at a time."""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends.base import StepBatch, StepSequence
from hpcsgd.backends.compiled import NativeBackend
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.formats import encode, widen_bf16
from hpcsgd.glm import UPDATES, get_family, make_update
from hpcsgd.glm.unrolling import plain_steps
from hpcsgd.precision import RECIPES
from tests.helpers.cpu import RAGGED, RATES, Spied, kernels, sampled
from tests.helpers.harness import config_for, make_problem, train_on

__all__ = ["kernels"]  # a fixture


def config_of(problem, recipe, update, kind):
    return config_for(
        problem,
        problem={"family": "softmax", "l2": 0.01, "intercept": True},
        schedule={"batch": 6, "steps": 4, "epochs": 2},
        update={"kind": update, "momentum": 0.5},
        precision={"recipe": recipe},
        products={"kind": kind},
    )


def tolerance_of(recipe):
    """Margins that are rounded to bf16 may fall to the other side of a tie."""
    return 1e-5 if recipe == "fp32" else 1e-3


@pytest.mark.parametrize("kind", ["direct", "gather"])
@pytest.mark.parametrize("update", list(UPDATES))
@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_a_run_on_one_rank(kernels, recipe, update, kind, monkeypatch):
    """Ridge, intercepts, weights, offsets, ragged batches."""
    problem, rng = make_problem("softmax", n=53, d=19), np.random.default_rng(3)
    sides = {"sample_weight": rng.uniform(0.5, 2, 53), "offset": rng.normal(size=53)}
    config, found, steps = config_of(problem, recipe, update, kind), [], Spied()
    monkeypatch.setattr(
        NativeBackend, "fused_steps", steps.around(NativeBackend.fused_steps)
    )
    for backend in (HostBackend, NativeBackend):
        monkeypatch.setattr("hpcsgd.runs.opened_run.make_backend", backend)
        done = train(config, X=problem.X, y=problem.y, **sides)
        found.append(np.vstack([done.weights, np.atleast_2d(done.intercept)]))
    assert steps.were_taken(update)
    assert np.abs(found[0] - found[1]).max() <= tolerance_of(recipe) * scale(found[0])


@pytest.mark.parametrize("update", list(UPDATES))
@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_a_run_on_two_members(kernels, recipe, update, monkeypatch):
    """A sum of K margins a row parts every two steps."""
    problem, found, calls = make_problem("softmax", n=53, d=19), [], Spied()
    config = config_of(problem, recipe, update, "direct")
    spy = calls.around(NativeBackend.pipelined_steps)
    monkeypatch.setattr(NativeBackend, "pipelined_steps", spy)
    for backend in (HostBackend, NativeBackend):
        monkeypatch.setattr("hpcsgd.runs.opened_run.make_backend", backend)
        done = train_on(2, config, problem, weights=True, offset=True)
        found.append(np.vstack([done.weights, np.atleast_2d(done.intercept)]))
    assert calls.were_taken(update)
    assert np.abs(found[0] - found[1]).max() <= tolerance_of(recipe) * scale(found[0])


def scale(weights):
    return np.abs(weights).max()


def given(d, K, update, storage):
    """(matrix, exact rows, weights, more of `fused_steps`) of ragged batches."""
    matrix, exact, rows = sampled(20, d, RAGGED.rows, storage, spare=d % 3)
    rng, made = np.random.default_rng(d), make_update(update, 0.5)
    steps = plain_steps(made, RATES, RAGGED.sizes, 0.1)
    m, f32 = RAGGED.rows, np.float32
    labels = rng.integers(0, K, size=(m, 1)).astype(f32)
    weights, offsets = np.abs(rng.normal(size=(2, m, 1))).astype(f32)
    batch, intercept = (
        StepBatch(labels, weights, offsets),
        rng.normal(size=(steps.states, K)),
    )
    w = (0.1 * rng.normal(size=(d, steps.states * K))).astype(f32)

    def plain(backend):
        gathered = backend.gather(matrix, rows, np.empty((m, d), f32))
        family, beta = get_family("softmax"), intercept.copy()
        return StepSequence(gathered, RAGGED, steps, family, batch, beta)

    return exact[rows], w, plain


def by_formula(Y, w, plain, rounds):
    """Steps in float64: t = Y (q · x) + o + q · β, r = ∂ℓ/∂t, x ← M x + u Yᵀ r."""
    steps, K = plain.steps, plain.intercept.shape[1]
    x = w.astype(np.float64).reshape(len(w), steps.states, K)
    beta, batch, found = plain.intercept.copy(), plain.batch, []
    for j, first in enumerate(plain.blocks.starts[:-1]):
        part = slice(first, plain.blocks.starts[j + 1])
        t = Y[part] @ np.einsum("dak,a->dk", x, steps.probe)
        if rounds:
            t = t.astype(np.float32)
            NativeBackend(RECIPES["c"]).round(t, "bf16")
        t = t + batch.offsets[part] + steps.probe @ beta
        r = plain.family.residual(t, batch.targets[part].astype(np.float64))
        r = r * batch.weights[part]
        gradient = np.multiply.outer(steps.gain[j], Y[part].T @ r)
        x = np.einsum("ab,dbk->dak", steps.carry[j], x) + gradient.transpose(1, 0, 2)
        beta = steps.free[j] @ beta + np.multiply.outer(steps.gain[j], r.sum(axis=0))
        found.append(r)
    return np.vstack(found), x.reshape(w.shape), beta


@pytest.mark.parametrize("K", [2, 3, 10])
@pytest.mark.parametrize("d", [1, 7, 8, 33, 257, 1025])
@pytest.mark.parametrize("update", ["sgd", "nesterov"])
@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_one_call_is_the_formula(kernels, recipe, update, d, K):
    """Every width of rows and of weights; steps between sums have the same bits."""
    storage = "bf16" if recipe == "c" else "fp32"
    Y, w, plain = given(d, K, update, storage)
    backend = NativeBackend(RECIPES[recipe])
    tolerance = 1e-5 if recipe == "fp32" else 2e-2  # a tie of bf16 is 2⁻⁸ of a score
    one = plain(backend)
    wanted = by_formula(Y, w, one, rounds=recipe == "c")
    walked = w.copy()
    residuals = backend.fused_steps(walked, one)
    for this, that in zip((residuals, walked, one.intercept), wanted, strict=True):
        np.testing.assert_allclose(this, that, rtol=0, atol=tolerance * scale(that))
    two, stepped = plain(backend), w.copy()
    between, found = backend.pipelined_steps(stepped, two)
    between(-1, None, z := np.empty(max(RAGGED.sizes) * K, np.float32))
    for j in range(len(RAGGED.sizes)):
        between(j, z.copy(), z)
    assert found.tobytes() == residuals.tobytes()
    assert stepped.tobytes() == walked.tobytes()
    assert two.intercept.tobytes() == one.intercept.tobytes()


@pytest.mark.parametrize("update", ["sgd", "nesterov"])
def test_margins_are_rounded_as_they_are_stored(kernels, update):
    """Numbers whose sums are exact, and far from what bf16 has."""
    Y, w, plain = given(33, 3, update, "bf16")
    backend, size = NativeBackend(RECIPES["c"]), RAGGED.sizes[0]
    one = plain(backend)
    one.rows.matrix[...] = encode(np.sign(widen_bf16(one.rows.matrix, "f4")), "bf16")
    w = (np.round(w * 4096) / 4096).astype(np.float32)
    wanted = by_formula(np.sign(Y), w, one, rounds=True)[0][:size]
    plainly = by_formula(np.sign(Y), w, one, rounds=False)[0][:size]
    assert np.abs(wanted - plainly).max() > 1e-4
    found = backend.fused_steps(w.copy(), one)[:size]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6)

"""Compiled kernels equal their NumPy twins bit for bit, or say why they miss."""

import ctypes
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from scipy import sparse

from hpcsgd.api import train
from hpcsgd.backends import compiled as native
from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import StepBatch
from hpcsgd.backends.compiled import NativeBackend
from hpcsgd.backends.numpy_rows import (
    HostBackend,
    add_combined,
    add_moments,
    exact_scores,
)
from hpcsgd.formats import encode, round_through, widen_bf16
from hpcsgd.glm import UPDATES, get_family, make_update
from hpcsgd.glm.families import exp_bound
from hpcsgd.glm.unrolling import blocks_of, unroll
from hpcsgd.precision import RECIPES
from tests.helpers.cpu import (
    RAGGED,
    RATES,
    SIZES,
    WIDTHS,
    Spied,
    kernels,
    sampled,
    sets_here,
)
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.limits import HANG

__all__ = ["kernels"]  # a fixture

EMPTY = np.empty(0, dtype=np.float32)
compiled = pytest.mark.skipif(
    not compiled_calls.available(), reason=compiled_calls.why()
)


@compiled
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (64, 100), (33, 257)])
def test_widen_rows_equals_numpy(shape):
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 2**16, size=shape, dtype=np.uint16)
    rows = rng.integers(0, shape[0], size=50)
    out = np.empty((50, shape[1]), dtype=np.float32)
    compiled_calls.widen_rows(matrix, rows, out)
    expected = widen_bf16(matrix[rows], np.float32)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


@compiled
def test_widen_rows_follows_the_row_stride():
    """A column block of a wider matrix, and every bit pattern, NaNs included."""
    matrix = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    rows, out = np.arange(255, -1, -1), np.empty((256, 100), dtype=np.float32)
    compiled_calls.widen_rows(matrix[:, 50:150], rows, out)
    expected = matrix[rows, 50:150].astype(np.uint32) << 16
    np.testing.assert_array_equal(out.view(np.uint32), expected)


def test_the_backend_gathers_the_same_bits_either_way(monkeypatch):
    rng = np.random.default_rng(0)
    matrix = encode(rng.normal(size=(40, 9)).astype(np.float32), "bf16")
    rows, backend = rng.integers(0, 40, size=16), HostBackend(RECIPES["c"])
    first, second = (np.empty((16, 9), dtype=np.float32) for _ in range(2))
    backend.gather(matrix, rows, first)
    monkeypatch.setattr(compiled_calls, "available", lambda: False)
    backend.gather(matrix, rows, second)
    np.testing.assert_array_equal(first, second)


def test_switched_off_says_so():
    code = (
        "from hpcsgd.backends.compiled_calls import available, why;"
        " print(available(), why())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HPCSGD_NATIVE": "off", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.stdout.strip() == "False switched off by HPCSGD_NATIVE", done.stderr


@pytest.mark.parametrize("storage", ["fp32", "bf16"])
@pytest.mark.parametrize("d", WIDTHS)
def test_margins_and_updates(kernels, d, storage):
    for m in (1, 3, 4, 8, 13):
        matrix, exact, rows = sampled(20, d, m, storage, spare=d % 3)
        rng = np.random.default_rng(d)
        w = rng.normal(size=(d, 1)).astype(np.float32)
        out = np.full((m, 1), np.nan, dtype=np.float32)
        compiled_calls.margins(matrix, rows, w, out)
        scale = np.abs(exact[rows]) @ np.abs(w) + 1e-30
        assert (np.abs(out - exact[rows] @ w) <= 2e-6 * scale).all()
        r = rng.normal(size=(m, 1)).astype(np.float32)
        wanted, scale = (
            w + exact[rows].T @ r,
            np.abs(w) + np.abs(exact[rows].T) @ abs(r),
        )
        compiled_calls.update(matrix, rows, r, w)
        assert (np.abs(w - wanted) <= 1e-6 * scale).all()


@pytest.mark.parametrize("storage", ["fp32", "bf16"])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: f"{len(s)}x{s[0]}")
@pytest.mark.parametrize("d", [1, 2, 31, 33, 100, 1024, 1031, 2100])
def test_the_strict_gram(kernels, d, sizes, storage):
    """Every way to it; blocks of every kind of edge, and nothing written behind."""
    blocks = blocks_of(sizes)
    matrix, exact, rows = sampled(30, d, blocks.rows, storage, spare=d % 2)
    Y, starts = exact[rows], np.array(blocks.starts)
    wanted = [
        (Y[a:b] @ Y[:a].T).reshape(-1) for a, b in zip(starts, starts[1:], strict=False)
    ]
    wanted, most = np.concatenate(wanted), (Y**2).sum(axis=1).max()
    room = np.full(blocks.gram_words + 9, np.float32(7))
    ways = [compiled_calls.strict_gram]
    if storage == "bf16" and compiled_calls.has_pairs():
        scratch = compiled_calls.KernelScratch()
        ways.append(lambda *given: compiled_calls.strict_gram_pairs(*given, scratch))
    for way in ways:
        way(matrix, rows, starts, room[: blocks.gram_words])
        found = room[: blocks.gram_words].copy()
        # A sum of pairs is one chain of 512 additions: half a bit each, at random.
        assert np.abs(found - wanted).max(initial=0) <= 6e-6 * most
        assert (room[blocks.gram_words :] == 7).all()
        way(matrix, rows, starts, room[: blocks.gram_words])
        np.testing.assert_array_equal(room[: blocks.gram_words], found)


@pytest.mark.parametrize("update", list(UPDATES))
@pytest.mark.parametrize("family", native.FAMILIES)
@pytest.mark.parametrize("recipe", ["fp64", "fp32"])
def test_the_recurrence_is_that_of_numpy(kernels, family, update, recipe):
    """Weights, offsets, an intercept, ridge, ragged batches, any number of states."""
    rng, precision, blocks = np.random.default_rng(1), RECIPES[recipe], RAGGED
    m, real = blocks.rows, np.dtype("f8" if recipe == "fp64" else "f4")
    plans = [
        backend(precision).prepare(
            unroll(make_update(update, 0.5), RATES, blocks.sizes, 0.1), blocks
        )
        for backend in (HostBackend, NativeBackend)
    ]
    draw = [rng.normal(size=(m, 1)).astype(real) for _ in range(3)]
    targets = {"counts": abs, "positive": abs, "binary": lambda y: y > 0}.get(
        get_family(family).targets, np.sign
    )(draw[0])
    z = rng.normal(size=(m, plans[0].states)).astype(real)
    gram = (0.1 * rng.normal(size=blocks.gram_words)).astype(real)
    for weights, offsets in product((None, abs(draw[1])), (None, draw[2])):
        for start in (None, 0.3):
            batch = StepBatch(targets.astype(real), weights, offsets)
            found = []
            for backend, plan in zip((HostBackend, NativeBackend), plans, strict=True):
                beta = None if start is None else np.full((plan.states, 1), start)
                arguments = (plan, get_family(family), batch, beta)
                made = backend(precision)
                r = made.corrected_residuals(z.copy(), gram.copy(), *arguments)
                found.append((r, 0 if beta is None else beta))
            (one, two), (this, that) = found
            tolerance = 1e-13 if recipe == "fp64" else 1e-5
            np.testing.assert_allclose(this, one, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(that, two, rtol=tolerance, atol=tolerance)


def covering(*others):
    """Every family with every update, each beside one of the others in turn.

    The whole product is left to the full matrices.
    """
    others, found = list(product(*others)), []
    for i, family in enumerate(native.FAMILIES):
        for j, update in enumerate(UPDATES):
            for k, more in enumerate(others):
                is_theirs = (i + j) % len(others) == k
                marks = () if is_theirs else pytest.mark.full
                found.append(pytest.param(family, update, *more, marks=marks))
    return found


@pytest.mark.parametrize(
    "family, update, recipe, kind", covering(["fp32", "c"], ["direct", "gather"])
)
def test_steps_in_one_call_are_those_of_numpy(
    kernels, recipe, family, update, kind, monkeypatch
):
    """A whole run on one rank: ridge, intercept, weights, offsets, ragged batches."""
    problem = make_problem(family, n=53, d=19)
    rng = np.random.default_rng(3)
    sides = {"sample_weight": rng.uniform(0.5, 2, 53), "offset": rng.normal(size=53)}
    config = config_for(
        problem,
        problem={"family": family, "l2": 0.01, "intercept": True},
        schedule={"batch": 6, "steps": 4, "epochs": 2},
        update={"kind": update, "momentum": 0.5},
        precision={"recipe": recipe},
        products={"kind": kind},
    )
    found, steps = [], Spied()
    monkeypatch.setattr(
        native.NativeBackend, "fused_steps", steps.around(NativeBackend.fused_steps)
    )
    for backend in (HostBackend, NativeBackend):
        monkeypatch.setattr("hpcsgd.runs.opened_run.make_backend", backend)
        found.append(train(config, X=problem.X, y=problem.y, **sides))
    assert steps.were_taken(update)
    one, two = (np.append(r.weights, r.intercept) for r in found)
    # Margins that are rounded to bf16 may fall to the other side of a tie.
    tolerance = 1e-5 if recipe == "fp32" else 1e-4
    assert np.abs(one - two).max() <= tolerance * np.abs(one).max()


@pytest.mark.parametrize("family, update, recipe", covering(["fp32", "c"]))
def test_steps_between_messages_are_those_of_numpy(
    kernels, recipe, family, update, monkeypatch
):
    """A whole run on two members: a sum of margins parts every two steps."""
    problem = make_problem(family, n=53, d=19)
    config = config_for(
        problem,
        problem={"family": family, "l2": 0.01, "intercept": True},
        schedule={"batch": 6, "steps": 4, "epochs": 2},
        update={"kind": update, "momentum": 0.5},
        precision={"recipe": recipe},
        products={"kind": "direct"},
    )
    found, calls = [], Spied()
    spy = calls.around(NativeBackend.pipelined_steps)
    monkeypatch.setattr(native.NativeBackend, "pipelined_steps", spy)
    for backend in (HostBackend, NativeBackend):
        monkeypatch.setattr("hpcsgd.runs.opened_run.make_backend", backend)
        done = train_on(2, config, problem, weights=True, offset=True)
        found.append(np.append(done.weights, done.intercept))
    assert calls.were_taken(update)
    tolerance = 1e-5 if recipe == "fp32" else 1e-4
    assert np.abs(found[0] - found[1]).max() <= tolerance * np.abs(found[0]).max()


def test_scores_beyond_the_bound_are_clipped_as_numpy_does(kernels):
    blocks, precision = blocks_of((6,)), RECIPES["fp32"]
    z = np.array([[-1e30], [-100], [-50], [50], [100], [1e30]], dtype=np.float32)
    batch = StepBatch(np.ones((6, 1), dtype=np.float32), None, None)
    plan = unroll(make_update("sgd", 0.0), (1.0,), (6,), 0.0)
    for family in native.FAMILIES:
        found = [
            made.corrected_residuals(
                z.copy(),
                EMPTY,
                made.prepare(plan, blocks),
                get_family(family),
                batch,
                None,
            )
            for made in (HostBackend(precision), NativeBackend(precision))
        ]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_a_set_that_is_not_known_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "hpcsgd", "info"],
        env={"HPCSGD_ISA": "sse9", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"known: {', '.join(compiled_calls.SETS)}\n" in done.stderr


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
@pytest.mark.parametrize("layout", ("dense", "i32", "i64"))
@pytest.mark.parametrize("columns", (1, 2, 8, 11, 32, 33))
def test_passes_are_those_of_longdouble(kernels, dtype, layout, columns):
    """Scores, combinations and moments, of dense rows and of CSR rows."""
    rng = np.random.default_rng(columns)
    eps = np.finfo(float).eps
    for rows, width in ((0, 5), (1, 1), (7, 3), (9, 40), (70, 17)):
        X = rng.normal(size=(rows, width)).astype(dtype)
        if layout != "dense":
            X[rng.random(X.shape) < 0.7] = 0.0
        w, r = rng.normal(size=(width, columns)), rng.normal(size=(rows, columns))
        first, second, out = rng.normal(size=(3, width, columns))
        sums = first.copy(), second.copy(), out.copy()
        block = X
        if layout != "dense":
            block = sparse.csr_array(X)
            index = np.int32 if layout == "i32" else np.int64
            block.indices = block.indices.astype(index)
            block.indptr = block.indptr.astype(index)
        scores = exact_scores(block, w)
        add_combined(block, r, out)
        add_moments(block, r, first, second)
        wide = X.astype(np.longdouble)
        for found, begin, factors in (
            (scores, 0.0, (wide, w)),
            (out, sums[2], (wide.T, r)),
            (first, sums[0], (wide.T, r)),
            (second, sums[1], (np.square(wide).T, r)),
        ):
            expected = begin + factors[0] @ factors[1]
            size = np.abs(begin) + np.abs(factors[0]) @ np.abs(factors[1])
            assert found.shape == expected.shape
            assert (np.abs(found - expected) <= (rows + width + 4) * eps * size).all()


@pytest.mark.parametrize("d", WIDTHS)
def test_exact_scores(kernels, d):
    """Of a slab of a wider matrix, beside longdouble; float64 goes to NumPy."""
    rng = np.random.default_rng(d)
    X = rng.normal(size=(21, d + 3)).astype(np.float32)[::2, 1 : d + 1]
    w = rng.normal(size=(d, 1))
    expected = X.astype(np.longdouble) @ w.astype(np.longdouble)
    size = np.abs(X).astype(np.longdouble) @ np.abs(w)
    found = exact_scores(X, w)
    assert (np.abs(found - expected) <= 4 * d * 2.0**-53 * size).all()
    twice = exact_scores(X, np.hstack([w, w]))
    assert (np.abs(twice - expected) <= 4 * d * 2.0**-53 * size).all()
    wide = X.astype(np.float64)
    np.testing.assert_array_equal(exact_scores(wide, w), wide @ w)
    assert exact_scores(X[:0], w).shape == (0, 1)


@pytest.mark.parametrize("by", ["invoke", "ctypes"])
def test_rounding_is_that_of_ml_dtypes(kernels, by, monkeypatch):
    """By either door: halfway cases, their neighbours, infinities and NaN."""
    if by == "ctypes":
        monkeypatch.setattr(compiled_calls, "invoke", None)
        compiled_calls.functions.cache_clear()
    bits = np.arange(0, 2**16, dtype=np.uint32) << 16
    near = [(bits + np.uint32(0x8000 + d)).view(np.float32) for d in (-1, 0, 1)]
    values = np.concatenate([bits.view(np.float32), *near])
    expected = values.copy()
    with np.errstate(invalid="ignore"):
        round_through(expected, "bf16")
    compiled_calls.round_bf16(values)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.skipif(compiled_calls.invoke is None, reason="the door is not compiled")
def test_the_door_refuses_what_it_cannot_pass():
    with pytest.raises(TypeError, match="up to 13"):
        compiled_calls.invoke(0, *range(14))
    with pytest.raises(TypeError):
        compiled_calls.invoke(0, "text")
    with pytest.raises(TypeError):
        compiled_calls.invoke(0, 1.5)


def test_what_is_settled_is_never_taken_back(kernels, monkeypatch):
    """A later run with better processors keeps what an earlier one settled on."""
    monkeypatch.setattr(compiled_calls, "settled", [])
    compiled_calls.settle([kernels, "portable"])
    assert compiled_calls.instructions() == "portable"
    compiled_calls.settle(["portable", "avx512bf16"])
    assert compiled_calls.instructions() == "portable"
    compiled_calls.settle(["portable", ""])
    assert not compiled_calls.available() and "another rank" in compiled_calls.why()


def test_two_sets_with_the_same_lanes_give_the_same_bits(monkeypatch):
    """AVX2 and AVX-512 add up in one order: float32 kernels agree bit for bit."""
    wide = [name for name in sets_here() if name in ("avx2", "avx512")]
    if len(wide) < 2:
        pytest.skip("this processor has one of them at most")
    matrix, _, rows = sampled(40, 1003, 30, "fp32")
    starts, w = np.array([0, 8, 16, 30]), np.ones((1003, 1), dtype=np.float32)
    found = []
    for name in wide:
        library = ctypes.CDLL(
            compiled_calls.best()[0]._name.replace(sets_here()[-1], name)
        )
        out = np.empty(8 * 8 + 14 * 16, dtype=np.float32)
        bound = compiled_calls.kernels_of(library)
        monkeypatch.setattr(compiled_calls, "functions", lambda one=bound: one)
        compiled_calls.strict_gram(matrix, rows, starts, out)
        z = np.empty((30, 1), dtype=np.float32)
        compiled_calls.margins(matrix, rows, w, z)
        found.append((out.tobytes(), z.tobytes()))
    assert found[0] == found[1]


def residuals_of(family, scores, targets):
    """What the recurrence makes of scores, in one batch and without a Gram."""
    m = len(scores)
    blocks, precision = blocks_of((m,)), RECIPES["fp32"]
    backend = NativeBackend(precision)
    plan = backend.prepare(unroll(make_update("sgd", 0.0), (0.1,), (m,), 0.0), blocks)
    batch = StepBatch(np.full((m, 1), targets, dtype=np.float32), None, None)
    z = np.asarray(scores, dtype=np.float32).reshape(-1, 1)
    return backend.corrected_residuals(
        z, np.empty(0, np.float32), plan, get_family(family), batch, None
    )[:, 0]


def test_exponentials_are_those_of_long_doubles(kernels):
    """All exponents, both ends of the range, and what is no number."""
    rng, top = np.random.default_rng(0), exp_bound(np.float32)
    scores = np.concatenate(
        [
            rng.uniform(-104, top, size=100_000),
            rng.normal(size=100_000),
            rng.uniform(-1e-6, 1e-6, size=1000),
            np.arange(-149, 64) * np.log(2),
        ]
    ).astype(np.float32)
    exact = np.exp(scores.astype(np.longdouble))
    found = residuals_of("poisson", scores, 0.0)
    place = np.maximum(np.spacing(exact.astype(np.float32)), 2.0**-149)
    assert (np.abs(found - exact) / place).max() <= 1.1
    sigmoid = 1 / (1 + np.exp(-scores.astype(np.longdouble)))
    found = residuals_of("logistic", scores, 0.0)
    place = np.maximum(np.spacing(sigmoid.astype(np.float32)), 2.0**-149)
    assert (np.abs(found - sigmoid) / place).max() <= 3
    odd = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45])
    expected = np.float32([0.5, 0.5, 1, 0, np.nan, 1, 0, 0.5])
    np.testing.assert_array_equal(residuals_of("logistic", odd, 0.0), expected)
    found = residuals_of("poisson", odd, 0.0)
    assert np.isnan(found[4]) and found[3] == found[6] == 0
    assert (found[[0, 1, 7]] == 1).all() and np.isfinite(found[[2, 5]]).all()
    assert np.isnan(residuals_of("gamma", odd, 1.0)[4])


@pytest.mark.parametrize("family", ["logistic", "poisson", "gamma"])
def test_residuals_do_not_depend_on_their_place(kernels, family):
    """Eight are made at once; those of a short end have the same bits."""
    scores = np.random.default_rng(0).normal(size=40).astype(np.float32)
    whole = residuals_of(family, scores, 1.0)
    for first, last in ((0, 1), (3, 10), (7, 40), (17, 30), (39, 40)):
        some = residuals_of(family, scores[first:last], 1.0)
        np.testing.assert_array_equal(some, whole[first:last])

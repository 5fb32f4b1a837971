"""Several columns of weights: the kernels equal exact products, and are used."""

import ctypes

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends import compiled as native
from hpcsgd.backends import compiled_calls
from hpcsgd.backends.compiled import NativeBackend
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.precision import RECIPES
from tests.helpers.cpu import WIDTHS, Spied, kernels, sampled, sets_here
from tests.helpers.harness import config_for, make_problem

__all__ = ["kernels"]  # a fixture
compiled = pytest.mark.skipif(
    not compiled_calls.available(), reason=compiled_calls.why()
)


@pytest.mark.parametrize("storage", ["fp32", "bf16"])
@pytest.mark.parametrize("K", [1, 3, 10])
@pytest.mark.parametrize("d", WIDTHS)
def test_margins_and_updates(kernels, d, K, storage):
    for m in (1, 5, 8, 20):
        matrix, exact, rows = sampled(20, d, m, storage, spare=d % 3)
        rng, Y = np.random.default_rng(d), exact[rows]
        w = rng.normal(size=(d, K)).astype(np.float32)
        room = np.full(m * K + 5, np.float32(7))
        out = room[: m * K].reshape(m, K)
        compiled_calls.margins_columns(matrix, rows, w, out)
        scale = np.abs(Y) @ np.abs(w) + 1e-30
        assert (np.abs(out - Y @ w) <= 2e-6 * scale).all()
        assert (room[m * K :] == 7).all()
        r = rng.normal(size=(m, K)).astype(np.float32)
        wanted, scale = w + Y.T @ r, np.abs(w) + np.abs(Y.T) @ np.abs(r)
        compiled_calls.update_columns(matrix, rows, r, w)
        assert (np.abs(w - wanted) <= 1e-6 * scale).all()


def test_two_sets_with_the_same_lanes_give_the_same_bits():
    """AVX2 and AVX-512 add up in one order, whatever fits into their registers."""
    wide = [name for name in sets_here() if name in ("avx2", "avx512")]
    if len(wide) < 2:
        pytest.skip("this processor has one of them at most")
    matrix, _, rows = sampled(40, 1003, 30, "fp32")
    rng, found = np.random.default_rng(0), []
    w = rng.normal(size=(1003, 5)).astype(np.float32)
    for name in wide:
        path = compiled_calls.best()[0]._name.replace(sets_here()[-1], name)
        library, z, g = ctypes.CDLL(path), np.empty((30, 5), np.float32), w.copy()
        with pytest.MonkeyPatch.context() as patch:
            bound = compiled_calls.kernels_of(library)
            patch.setattr(compiled_calls, "functions", lambda one=bound: one)
            compiled_calls.margins_columns(matrix, rows, w, z)
            compiled_calls.update_columns(matrix, rows, z, g)
        found.append((z.tobytes(), g.tobytes()))
    assert found[0] == found[1]


@compiled
@pytest.mark.parametrize("recipe", ["fp32", "c"])
@pytest.mark.parametrize(
    "family, update",
    [
        *(("softmax", update) for update in ("sgd", "momentum", "nesterov")),
        ("logistic", "momentum"),
    ],
)
def test_runs_use_them_and_equal_those_of_numpy(family, update, recipe, monkeypatch):
    """Classes and states both lie side by side."""
    monkeypatch.setattr(native, "MANY_ROWS", 20)
    monkeypatch.setattr(native, "MANY_COLUMNS", 10)
    monkeypatch.setattr(native, "DOTS_FROM", 10)
    problem = make_problem(family, n=53, d=19)
    config = config_for(
        problem,
        problem={"family": family, "l2": 0.01, "intercept": True},
        schedule={"batch": 6, "steps": 4, "epochs": 2},
        update={"kind": update, "momentum": 0.5},
        precision={"recipe": recipe, "margin": "fp32"},
        products={"kind": "gram", "look_ahead": "off"},
    )
    spies = {"margins_columns": Spied(), "update_columns": Spied()}
    found = []
    for name, spy in spies.items():
        product = getattr(compiled_calls, name)
        monkeypatch.setattr(compiled_calls, name, spy.around(product))
    for backend in (HostBackend, NativeBackend):
        assert not any(spy.done for spy in spies.values())
        monkeypatch.setattr("hpcsgd.runs.opened_run.make_backend", backend)
        found.append(train(config, X=problem.X, y=problem.y))
    if compiled_calls.instructions() != "portable":
        assert spies["update_columns"].done
        assert bool(spies["margins_columns"].done) == (
            family == "softmax" or update != "sgd"
        )
    one, two = (np.append(r.weights, r.intercept) for r in found)
    assert np.abs(one - two).max() <= 1e-5 * np.abs(one).max()


@compiled
def test_arrays_in_any_order_will_do(monkeypatch):
    """Those of NumPy may lie column by column, or be a part of another."""
    monkeypatch.setattr(native, "DOTS_FROM", 0)
    monkeypatch.setattr(compiled_calls, "instructions", lambda: "avx2")
    monkeypatch.setitem(native.DOTS_TO, native.FLOAT32, 130)
    backend, d, m = NativeBackend(RECIPES["fp32"]), native.MANY_COLUMNS, 130
    matrix, exact, numbers = sampled(140, d, m, "fp32")
    rng, Y = np.random.default_rng(0), exact[numbers]
    rows = backend.gather(matrix, numbers, np.empty((m, d), dtype=np.float32))
    both = rng.normal(size=(d, 6)).astype(np.float32)
    z = backend.scores(rows, both[:, :3], np.empty((m, 3), dtype=np.float32))
    np.testing.assert_allclose(z, Y @ both[:, :3], rtol=0, atol=1e-3)
    w, r = np.zeros((d, 3), dtype=np.float32), rng.normal(size=(m, 3))
    rows.add_transposed(np.asfortranarray(r, dtype=np.float32), w)
    np.testing.assert_allclose(w, Y.T @ r, rtol=0, atol=1e-3)
    assert not rows.is_copied
    part = both[:, :3]
    wanted = part + Y.T @ r
    rows.add_transposed(r.astype(np.float32), part)
    np.testing.assert_allclose(part, wanted, rtol=0, atol=1e-3)

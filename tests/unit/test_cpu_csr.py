"""The kernels on CSR rows equal exact products, and are those that runs use."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse as sp

import hpcsgd
from hpcsgd.api import train
from hpcsgd.backends import compiled as native
from hpcsgd.backends import compiled_calls, make_backend
from hpcsgd.backends.compiled import NativeBackend
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.data import shard
from hpcsgd.data.matrix import Csr, from_scipy
from hpcsgd.data.readers import MemoryReader
from hpcsgd.errors import DataError
from hpcsgd.formats import encode, widen_bf16
from hpcsgd.glm.unrolling import blocks_of
from hpcsgd.precision import RECIPES
from tests.helpers.cpu import SIZES, Spied, kernels, sets_here
from tests.helpers.harness import config_for
from tests.helpers.sparse import as_csr, make_sparse

__all__ = ["kernels"]  # a fixture
compiled = pytest.mark.skipif(
    not compiled_calls.available(), reason=compiled_calls.why()
)
STORED = [("fp32", np.int32), ("fp32", np.int64), ("bf16", np.int32)]


def sampled(n, d, m, density, storage="fp32", column=np.int32):
    """(rows as stored, their exact values, row numbers): an empty row, a full one."""
    rng = np.random.default_rng(n + d + m)
    X = rng.normal(size=(n, d)) * (rng.uniform(size=(n, d)) < density)
    X[n // 2], X[n // 3] = 0.0, rng.normal(size=d)
    csr = from_scipy(as_csr(X.astype(np.float32), {(0, 0)}))
    data = encode(csr.data, storage)
    exact = widen_bf16(data, np.float64) if storage == "bf16" else data.astype(float)
    kept = Csr(csr.indptr, csr.indices.astype(column), data, d)
    return kept, csr.with_data(exact).to_dense(), rng.integers(0, n, size=m)


@pytest.mark.parametrize("K", [1, 3, 17])
@pytest.mark.parametrize(("storage", "column"), STORED)
@pytest.mark.parametrize("d", [1, 2, 5, 40, 1003])
def test_margins_and_updates(kernels, d, storage, column, K):
    for m, density in ((1, 1.0), (7, 0.1), (13, 0.6)):
        csr, exact, rows = sampled(20, d, m, density, storage, column)
        rng, Y = np.random.default_rng(d), exact[rows]
        w = rng.normal(size=(d, K)).astype(np.float32)
        out = np.full((m, K), np.nan, dtype=np.float32)
        compiled_calls.csr_margins(csr, rows, w, out)
        assert (np.abs(out - Y @ w) <= 2e-6 * (np.abs(Y) @ np.abs(w))).all()
        r = rng.normal(size=(m, K)).astype(np.float32)
        wanted, scale = w + Y.T @ r, np.abs(w) + np.abs(Y.T) @ np.abs(r)
        untouched = ~exact[rows].any(axis=0)
        before = w.copy()
        compiled_calls.csr_update(csr, rows, r, w)
        assert (np.abs(w - wanted) <= 1e-6 * scale).all()
        np.testing.assert_array_equal(w[untouched], before[untouched])


@pytest.mark.parametrize(("storage", "column"), STORED)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: f"{len(s)}x{s[0]}")
@pytest.mark.parametrize("density", [0.005, 0.1, 1.0])
def test_the_strict_gram(kernels, density, sizes, storage, column):
    """Columns that nobody, one row, or all rows share; scratch is left as it was."""
    blocks, room = blocks_of(sizes), compiled_calls.KernelScratch()
    starts = np.array(blocks.starts)
    for d in (300, 7):  # the scratch is wider than it has to be for the second
        csr, exact, rows = sampled(30, d, blocks.rows, density, storage, column)
        out = np.full(blocks.gram_words + 9, np.float32(7))
        compiled_calls.csr_strict_gram(
            csr, rows, starts, out[: blocks.gram_words], room
        )
        Y, found = exact[rows], out[: blocks.gram_words].copy()
        parts = zip(starts, starts[1:], strict=False)
        wanted = np.concatenate([(Y[a:b] @ Y[:a].T).ravel() for a, b in parts])
        assert np.abs(found - wanted).max(initial=0) <= 2e-6 * (Y**2).sum(axis=1).max()
        assert (out[blocks.gram_words :] == 7).all()
        assert not any(
            room.array(name, 0, "f4").any() for name in ("places", "abreast")
        )
        compiled_calls.csr_strict_gram(
            csr, rows, starts, out[: blocks.gram_words], room
        )
        np.testing.assert_array_equal(out[: blocks.gram_words], found)


def test_rows_that_share_nothing_have_a_gram_of_zeros(kernels):
    csr = from_scipy(as_csr(np.eye(6, dtype=np.float32)))
    out = np.full(3 * 3, np.nan, dtype=np.float32)
    starts = np.array([0, 3, 6])
    compiled_calls.csr_strict_gram(
        csr, np.arange(6), starts, out, compiled_calls.KernelScratch()
    )
    np.testing.assert_array_equal(out, 0.0)


def test_two_sets_with_the_same_lanes_give_the_same_bits():
    """All sets with fused multiply-adds agree bit for bit."""
    wide = [name for name in sets_here() if name not in ("portable",)]
    if len(wide) < 2:
        pytest.skip("this processor has one of them at most")
    csr, _, rows = sampled(40, 400, 30, 0.2)
    starts, w = np.array([0, 8, 16, 30]), np.ones((400, 3), dtype=np.float32)
    found = []
    for name in wide:
        path = compiled_calls.best()[0]._name.replace(sets_here()[-1], name)
        with pytest.MonkeyPatch.context() as patch:
            library = ctypes.CDLL(path)
            bound = compiled_calls.kernels_of(library)
            patch.setattr(compiled_calls, "functions", lambda one=bound: one)
            gram, z = np.empty(8 * 8 + 14 * 16, np.float32), np.empty((30, 3), "f4")
            compiled_calls.csr_strict_gram(
                csr, rows, starts, gram, compiled_calls.KernelScratch()
            )
            compiled_calls.csr_margins(csr, rows, w, z)
        found.append((gram.tobytes(), z.tobytes()))
    assert len(set(found)) == 1


@compiled
@pytest.mark.parametrize("recipe", ["fp32", "c"])
@pytest.mark.parametrize("kind", ["direct", "gram", "gather"])
@pytest.mark.parametrize("update", ["sgd", "nesterov"])
@pytest.mark.parametrize("family", [*native.FAMILIES, "softmax"])
def test_runs_use_them_and_equal_those_without(
    family, update, kind, recipe, monkeypatch
):
    """A whole run on one rank, with an intercept, ridge, and rows of every kind."""
    stored, _ = make_sparse(family)
    config = config_for(stored, **sections(family, update, kind, recipe))
    calls, steps, found = Spied(), Spied(), []
    monkeypatch.setattr(
        compiled_calls, "call_csr", calls.around(compiled_calls.call_csr)
    )
    walk = compiled_calls.CompiledSteps.__call__
    monkeypatch.setattr(compiled_calls.CompiledSteps, "__call__", steps.around(walk))
    for backend in (HostBackend, NativeBackend):
        assert not calls.done and not steps.done
        monkeypatch.setattr("hpcsgd.runs.opened_run.make_backend", backend)
        found.append(train(config, X=stored.X, y=stored.y))
    at_once = kind != "gram" and family != "softmax"
    assert bool(steps.done) == at_once and (calls.done or at_once)
    one, two = (np.append(r.weights, r.intercept) for r in found)
    assert np.abs(one - two).max() <= 2e-5 * np.abs(one).max()


def sections(family, update, kind, recipe):
    """A configuration in which nothing is left out."""
    fields = {"margin": "fp32"} if recipe == "c" else {}  # no ties on the way
    return {
        "problem": {"family": family, "l2": 0.01, "intercept": True},
        "schedule": {"batch": 6, "steps": 4, "epochs": 2},
        "update": {"kind": update, "momentum": 0.5},
        "precision": {"recipe": recipe, **fields},
        "products": {"kind": kind},
        "rate": {"value": 0.1},
    }


@pytest.mark.parametrize("column", [np.int32, np.int64])
@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_steps_of_every_set_and_kind_of_column(kernels, recipe, column, monkeypatch):
    """All steps in one call, against those of the dense rows."""
    stored, dense = make_sparse("logistic")
    config = config_for(stored, **sections("logistic", "momentum", "direct", recipe))
    monkeypatch.setattr(
        "hpcsgd.data.matrix.index_dtype", lambda width: np.dtype(column)
    )
    steps = Spied()
    walk = compiled_calls.CompiledSteps.__call__
    monkeypatch.setattr(compiled_calls.CompiledSteps, "__call__", steps.around(walk))
    one = train(config, X=stored.X, y=stored.y)
    assert steps.done
    two = train(config, X=dense.X, y=dense.y)
    assert np.abs(one.weights - two.weights).max() <= 2e-5 * np.abs(two.weights).max()


@compiled
def test_what_is_damaged_later_is_found_in_rows_as_stored():
    """A copy of sampled rows is widened, whatever they are stored in."""
    csr, exact, rows = sampled(20, 9, 6, 0.3, "bf16")
    backend = make_backend(RECIPES["c"])
    taken = backend.gather_sparse(csr, rows)
    np.testing.assert_array_equal(taken.widened.csr.to_dense(), exact[rows])
    np.testing.assert_array_equal(taken[2:5].widened.csr.to_dense(), exact[rows[2:5]])


def broken():
    """What makes a matrix unsound, by name."""
    csr = from_scipy(sp.random_array((9, 7), density=0.4, format="csr"))
    high, low, back = csr.indices.copy(), csr.indices.copy(), csr.indptr.copy()
    high[5], low[5], back[4] = 7, -1, csr.nnz + 3
    return {
        "beyond": replace(csr, indices=high),
        "negative": replace(csr, indices=low),
        "descending": replace(csr, indptr=back),
        "short": replace(csr, indptr=csr.indptr - np.eye(10, dtype=int)[9]),
        "longer": replace(csr, data=csr.data[:-1]),
    }


@pytest.mark.parametrize("name", list(broken()))
def test_unsound_rows_of_a_reader_are_refused_before_any_product(name, monkeypatch):
    bad, reader = broken()[name], MemoryReader(sp.eye_array(9, 7), np.zeros(9))
    monkeypatch.setattr(shard, "from_scipy", lambda block: bad)
    with pytest.raises(DataError, match="rows 0 to 9 .* outside of the matrix"):
        shard.load_csr(reader, slice(0, 9), slice(0, 7), lambda data: data)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix])
@pytest.mark.parametrize("name", ["indices", "indptr"])
def test_unsound_matrices_are_refused_before_scipy_follows_them(kind, name):
    X = kind(np.eye(6))
    getattr(X, name)[3] = 40
    with pytest.raises(DataError, match="not a sound sparse matrix") as said:
        hpcsgd.train({}, X=X, y=np.arange(6) % 2)
    assert "\n" not in str(said.value)


def test_the_arrays_of_a_callers_matrix_may_have_gaps():
    """Kernels read arrays without gaps: others are copied once."""
    X = sp.random(40, 9, 0.3, format="csr", random_state=3)
    wide = np.empty((X.nnz, 2), dtype=np.int64)
    wide[:, 0] = X.indices
    gaps = sp.csr_array(X.shape)
    gaps.indptr, gaps.data = X.indptr.astype(np.int64), X.data
    gaps.indices = wide[:, 0]
    assert not gaps.indices.flags.c_contiguous
    y = X.toarray().sum(axis=1)
    found, expected = (hpcsgd.fit(rows, "gaussian", y) for rows in (gaps, X))
    assert np.array_equal(found.weights, expected.weights)
    reader = MemoryReader(X, y)
    assert reader.read_csr(slice(0, 40), slice(0, 9)).data is reader.X.data

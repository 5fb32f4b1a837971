"""CSR rows: the holder, its products, what is read, refused and said."""

import json
import logging
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse as sp

import hpcsgd
from hpcsgd.backends import compiled_calls, numpy_rows
from hpcsgd.backends.exchange import pack, unpack
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.config import RunConfig
from hpcsgd.data import readers, shard
from hpcsgd.data.checksums import Fingerprint
from hpcsgd.data.matrix import Csr, from_scipy, side_by_side, stack
from hpcsgd.data.readers import MemoryReader, row_words, stored_in
from hpcsgd.errors import DataError
from hpcsgd.formats import encode
from hpcsgd.glm.unrolling import blocks_of
from hpcsgd.precision import RECIPES
from hpcsgd.products.base import ReplicaSize
from hpcsgd.products.cost import CostInputs, Machine, ValueBytes, choose
from hpcsgd.runs import memory
from hpcsgd.runs.build import build
from hpcsgd.runs.load import DENSE_PAYS
from hpcsgd.runs.recovery import find_damage
from tests.helpers.harness import config_for, train_on
from tests.helpers.sparse import as_csr, make_sparse


def both(n=30, d=11, density=0.3, seed=0):
    """(Csr, array) of the same values."""
    rng = np.random.default_rng(seed)
    X = np.where(rng.uniform(size=(n, d)) < density, rng.normal(size=(n, d)), 0.0)
    X[4] = 0.0
    return from_scipy(as_csr(X)), X


def test_rows_are_cut_and_taken():
    csr, X = both()
    np.testing.assert_array_equal(csr.to_dense(), X)
    np.testing.assert_array_equal(csr[3:9].to_dense(), X[3:9])
    assert csr[7:7].shape == (0, 11)
    rows = np.array([4, 0, 29, 0, 12])
    np.testing.assert_array_equal(csr.take(rows).to_dense(), X[rows])
    np.testing.assert_array_equal(stack([csr[:5], csr[5:]]).to_dense(), X)
    wide = side_by_side([csr, csr.with_data(2 * csr.data)])
    np.testing.assert_array_equal(wide.to_dense(), np.hstack([X, 2 * X]))
    assert wide.to_scipy().has_sorted_indices
    for number in (0, 17, csr.nnz - 1):
        assert X[csr.place(number)] == csr.data[number]


def test_blocks_of_rows_are_views_of_the_matrix():
    csr, X = both(n=1000)
    for start in range(0, 1000, 100):
        rows = slice(start, start + 100)
        block = csr.operand(rows)
        assert np.shares_memory(block.data, csr.data)
        assert np.shares_memory(block.indices, csr.indices)
        np.testing.assert_array_equal(block.toarray(), X[rows])


@pytest.mark.parametrize("recipe", ["fp64", "fp32", "c"])
@pytest.mark.parametrize("column", [np.int32, np.int64])
def test_what_is_packed_is_unpacked(recipe, column):
    csr, _ = both()
    name = RECIPES[recipe].matrix
    sent = csr.with_data(encode(csr.data, name))
    flat = pack(sent, np.dtype(column))
    size = np.dtype(column).itemsize + sent.dtype.itemsize
    assert flat.nbytes == csr.nnz * size
    back = unpack(flat, csr.lengths, 11, np.dtype(column), sent.dtype)
    np.testing.assert_array_equal(back.to_dense(), sent.to_dense())


@pytest.mark.parametrize("split_work", [0.0, 1e9])
@pytest.mark.parametrize("heavy", [0.0, 0.25, 0.35, 1.0])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (5,), (3, 3, 3, 3, 3, 1), (16, 14)])
@pytest.mark.parametrize("wire", ["fp64", "fp32"])
def test_the_gram_by_every_way(sizes, heavy, split_work, wire, monkeypatch):
    monkeypatch.setattr(numpy_rows, "HEAVY", heavy)
    monkeypatch.setattr(numpy_rows, "SPLIT_WORK", split_work)
    blocks, (csr, X) = blocks_of(sizes), both(n=sum(sizes), d=40)
    backend = HostBackend(RECIPES["fp64"])
    dtype = np.float64 if wire == "fp64" else np.float32
    found = np.full(blocks.gram_words, np.nan, dtype=dtype)
    rows = backend.gather_sparse(csr, np.arange(len(X)))
    backend.strict_gram(rows, blocks, found)
    wanted = np.empty(blocks.gram_words)
    backend.strict_gram(numpy_rows.DenseRows(X), blocks, wanted)
    tolerance = 1e-13 if wire == "fp64" else 1e-6
    np.testing.assert_allclose(found, wanted, atol=tolerance, rtol=tolerance)


def test_columns_touched_before_are_forgotten():
    marks = numpy_rows.Marks()
    for indices in ([5, 2, 5, 9], [7, 3]):
        touched, places = marks.compact(np.array(indices), 20)
        assert list(touched) == sorted(set(indices))
        assert list(touched[places]) == indices


@pytest.mark.parametrize("width", [11, 4000])
@pytest.mark.parametrize("K", [1, 3])
def test_scores_and_gradients(width, K):
    """Few columns are all touched; of many only those are, and the others stay."""
    csr, X = both(d=width, density=0.3 if width < 100 else 0.003)
    rng, backend = np.random.default_rng(0), HostBackend(RECIPES["fp64"])
    chosen = np.array([3, 0, 4, 4, 21])
    rows, w = backend.gather_sparse(csr, chosen), rng.normal(size=(width, K))
    out = np.empty((5, K))
    np.testing.assert_allclose(backend.scores(rows, w, out), X[chosen] @ w, atol=1e-13)
    part, r = rows[1:4], rng.normal(size=(3, K))
    wanted = w + X[chosen[1:4]].T @ r
    part.add_transposed(r, w)
    np.testing.assert_allclose(w, wanted, atol=1e-13)


@pytest.mark.parametrize(
    "kind", [sp.coo_array, sp.csc_matrix, sp.csr_matrix, sp.lil_array]
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.int64, bool])
def test_any_sparse_matrix_will_do(kind, dtype):
    _, X = both()
    X = (10 * X).astype(dtype)
    reader = MemoryReader(kind(X), np.zeros(30))
    assert reader.is_sparse and (reader.rows, reader.cols) == X.shape
    assert reader.read(slice(0, 0), slice(0, 0)).dtype == MemoryReader(X, None).X.dtype
    np.testing.assert_array_equal(reader.read(slice(2, 9), slice(1, 7)), X[2:9, 1:7])
    block = reader.read_csr(slice(2, 9), slice(1, 7))
    assert block.shape == (7, 6) and block.has_sorted_indices
    assert stored_in(reader) == np.count_nonzero(X)
    assert row_words(reader) < 4 * X.shape[1]


def test_a_reader_that_cannot_say_is_sampled(monkeypatch):
    monkeypatch.setattr(readers, "LOOKED", 10)
    reader = MemoryReader(sp.csr_array(np.eye(40)), None)
    del reader.nnz
    assert stored_in(reader) == 40


def test_duplicates_are_added_up_in_a_copy():
    given = sp.csr_array(([1.0, 2.0, 4.0], [2, 0, 2], [0, 3, 3]), shape=(2, 3))
    reader = MemoryReader(given, np.zeros(2))
    np.testing.assert_array_equal(reader.read(slice(0, 2), slice(0, 3))[0], [2, 0, 5])
    assert given.nnz == 3 and list(given.indices) == [2, 0, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_value_is_named_with_its_place(bad):
    stored, dense = make_sparse("logistic")
    dense.X[20, 8] = bad
    stored = replace(stored, X=as_csr(dense.X))
    said = [
        pytest.raises(DataError, train_on, ranks, config_for(p), p).value.args
        for p in (stored, dense)
        for ranks in (1, 3)
    ]
    assert len(set(said)) == 1 and "at row 20, column 8" in said[0][0]


def test_a_value_too_large_for_the_storage_is_named():
    stored, dense = make_sparse("logistic")
    dense.X[20, 8] = 1e39
    stored = replace(stored, X=as_csr(dense.X))
    with pytest.raises(DataError, match="row 20, column 8, too large"):
        train_on(2, config_for(stored, precision={"recipe": "c"}), stored)


def test_a_block_is_read_in_pieces(monkeypatch):
    monkeypatch.setattr(shard, "FIRST_ROWS", 2)
    _, X = both(n=100)
    reader = MemoryReader(as_csr(X), None)
    seen = []
    block = shard.load_csr(
        *(reader, slice(3, 95), slice(2, 9), lambda values: values),
        budget=700,
        seen=lambda piece, row, col: seen.append((row, len(piece), col)),
    )
    np.testing.assert_array_equal(block.to_dense(), X[3:95, 2:9])
    assert len(seen) > 5 and sum(count for _, count, _ in seen) == 92
    assert max(count for _, count, _ in seen) < 60
    assert [row for row, _, _ in seen] == sorted({row for row, _, _ in seen})


def test_zeros_add_nothing_to_the_fingerprint_and_minus_zero_does():
    csr, X = both()

    def of(block):
        seen = Fingerprint()
        if isinstance(block, Csr):
            seen.add_sparse(block, 100, 7)
        else:
            seen.add(block, 100, 7)
        return seen.value

    assert of(csr) == of(X)
    kept = from_scipy(as_csr(X, {(4, 3), (4, 5)}))
    assert kept.nnz == csr.nnz + 2 and of(kept) == of(X)
    kept.data[kept.indptr[4]] = -0.0
    assert of(kept) != of(X) and of(kept) == of(kept.to_dense())
    assert np.signbit(kept.to_dense()[4, 3])


@pytest.mark.parametrize("family", ["softmax", "poisson"])
def test_predictions_and_figures_are_those_of_dense_rows(family):
    stored, dense = make_sparse(family, n=300)
    result = train_on(1, config_for(stored), stored)
    for what in ("mean", "score"):
        one, two = (hpcsgd.predict(result, p.X, what=what) for p in (stored, dense))
        np.testing.assert_allclose(one, two, rtol=1e-12)
    one, two = (hpcsgd.evaluate(result, p.X, p.y) for p in (stored, dense))
    assert one["objective"] == pytest.approx(two["objective"], rel=1e-12)
    assert result.loss == pytest.approx(one["objective"], rel=1e-12)


def test_predictions_look_at_what_they_read():
    stored, dense = make_sparse("logistic")
    result = train_on(1, config_for(stored), stored)
    dense.X[11, 4] = np.nan
    with pytest.raises(DataError, match="row 11, column 4"):
        hpcsgd.predict(result, as_csr(dense.X))


@pytest.mark.parametrize(
    "recipe, density, columns, dense_is_better",
    [
        ("fp64", 0.001, 2000, False),
        ("fp64", 0.04, 2000, False),
        ("fp64", 0.06, 2000, True),
        ("fp64", 0.01, 400, True),
        ("fp32", 0.06, 2000, not compiled_calls.available()),
        ("fp32", 0.01, 400, not compiled_calls.available()),
        ("fp32", 0.21, 400, True),
    ],
)
def test_the_density_is_said(recipe, density, columns, dense_is_better, caplog):
    config = {"precision": {"recipe": recipe}}
    rng = np.random.default_rng(0)
    X = sp.random_array((50, columns), density=density, rng=rng, format="csr")
    with caplog.at_level(logging.INFO, logger="hpcsgd"):
        result = hpcsgd.train(
            config, X=X, y=np.arange(50) % 2, world=SerialCommunicator()
        )
    said = [r.getMessage() for r in caplog.records if "density" in r.getMessage()]
    assert (
        len(said) == 1 and f"{X.nnz} values, density {100 * density:.3g} %" in said[0]
    )
    assert ("dense rows train faster" in said[0]) == dense_is_better
    assert result.report["density"] == pytest.approx(density)
    assert result.report["sparse"]


def test_dense_rows_say_nothing_of_density(caplog):
    _, dense = make_sparse("logistic")
    with caplog.at_level(logging.INFO, logger="hpcsgd"):
        result = train_on(1, config_for(dense), dense)
    assert "density" not in caplog.text
    assert result.report["density"] == 1.0 and not result.report["sparse"]


def test_every_rank_counts_its_own_values():
    stored, _ = make_sparse("logistic")
    config = config_for(stored, grid={"replicas": 2, "members": 2})
    density = train_on(4, config, stored).report["density"]
    assert density == pytest.approx(stored.X.nnz / (53 * 17))


def need(X, **sections):
    config, grid = RunConfig.parse(sections), Grid(SerialCommunicator(), 1, 1)
    reader = MemoryReader(X, np.zeros(X.shape[0]))
    return memory.predict(grid, reader, config, config.precision.resolve(), 1)


@pytest.mark.parametrize("recipe, size", [("fp64", 8), ("fp32", 4), ("c", 2)])
def test_memory_counts_what_is_stored(recipe, size):
    indices = np.tile(np.arange(50) * 1000, 2000)
    indptr = np.arange(2001) * 50
    X = sp.csr_array((np.ones(100_000), indices, indptr), shape=(2000, 50_000))
    found = need(X, precision={"recipe": recipe})
    assert found.matrix == pytest.approx(100_000 * (size + 4) + 8 * 2000, rel=1e-3)
    assert found.claim < 2000 * 50_000 * size / 4


def test_memory_bounds_what_a_block_takes():
    """The shard's own arrays, and those of an exchange, against what was predicted."""
    X = sp.random_array((3000, 4000), density=0.01, format="csr", dtype=np.float32)
    predicted = need(X, schedule={"batch": 64, "steps": 8})
    reader, backend = MemoryReader(X, None), HostBackend(RECIPES["fp32"])
    block = shard.load_csr(reader, slice(0, 3000), slice(0, 4000), backend.store)
    held = block.indptr.nbytes + block.indices.nbytes + block.data.nbytes
    assert held <= predicted.matrix + 8 <= 1.1 * held
    blocks = blocks_of((64,) * 8)
    gram = np.empty(blocks.gram_words, dtype=np.float32)
    tracemalloc.start()
    rows = backend.gather_sparse(block, np.arange(512))
    backend.strict_gram(rows, blocks, gram)
    peak = tracemalloc.get_traced_memory()[1] + gram.nbytes
    tracemalloc.stop()
    assert peak <= predicted.exchange <= 6 * peak


@pytest.mark.parametrize("density, wanted", [(1e-5, "gather"), (1e-2, "gram")])
def test_auto_gathers_rows_of_few_values(density, wanted):
    job = CostInputs(
        replica=ReplicaSize(
            rows=10_000, columns=10**6, local_columns=5 * 10**5, members=2
        ),
        value_bytes=ValueBytes(matrix=8 * density, gram_wire=4, margin_sum=4),
        batch=32,
        epochs=1,
        comes_again=False,
    )
    found = choose("auto", 8, job, Machine(latency=60e-6, per_byte=1e-9, gram=1e15))
    assert found.product == wanted


@pytest.mark.parametrize("more", [{}, {"recipe": "fp32", "gradient_sum": "bf16"}])
def test_damage_is_found_in_stored_values(more):
    """Also where arithmetic is emulated: rows of it have no stored values."""
    stored, _ = make_sparse("logistic")
    reader = MemoryReader(stored.X, stored.y)
    config = config_for(stored, precision=more)
    world = SerialCommunicator()
    live = build(config, world, lambda _: reader, [], Clock())
    assert find_damage(live) == ""
    matrix = live.loaded.shard.matrix
    place = matrix.place(33)
    matrix.data[33] = np.nan
    assert f"at row {place[0]}, column {place[1]}," in find_damage(live)


def test_the_threshold_is_the_measured_one():
    """The sentence and the benchmark's results say the same."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "bench_sparse.json"
    rows = json.loads(path.read_text())["figures"]
    rows = [r for r in rows if r["part"] == "exchange" and r["width"] >= 1000]
    for way, least in (("csr", "kernels"), ("scipy", "SciPy")):
        least, _ = DENSE_PAYS[least]
        ratios = [(r["density"], spent(r, "dense") / spent(r, way)) for r in rows]
        below = [ratio for density, ratio in ratios if density < least]
        above = [ratio for density, ratio in ratios if density > least]
        assert np.median(below) > 1.5 and np.median(above) < 0.75


def spent(row, way):
    return sum(row[f"{way}_us"].values())

"""Rows or columns that ranks hold: the same data, the same model, one transport."""

import re

import numpy as np
import pytest
from scipy.sparse import csr_array

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import StoreWriter
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators import inputs as dealing
from tests.helpers.problems import make_problem

PLAIN = {"precision": "fp64", "epochs": 2, "steps": 3, "batch": 4, "polish": False}
PROBLEM = make_problem("logistic", n=61, d=11)
SPARSE = PROBLEM.X * (np.abs(PROBLEM.X) > 0.3)
ROWS = [0, 40, 40, 61]  # rank 1 has none
COLUMNS = [0, 1, 8, 11]
IGNORED = pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")
pytestmark = IGNORED


def whole(X=PROBLEM.X, **more):
    sides = {"sample_weight": PROBLEM.weights, "offset": PROBLEM.offset}
    return hpcsgd.fit(X, "logistic", PROBLEM.y, **sides, **(PLAIN | more))


def by_rows(X=PROBLEM.X, cuts=ROWS, **more):
    def on_rank(world):
        own = slice(cuts[world.rank], cuts[world.rank + 1])
        return hpcsgd.fit(
            X[own],
            "logistic",
            PROBLEM.y[own],
            sample_weight=PROBLEM.weights[own],
            offset=PROBLEM.offset[own],
            comm=world,
            layout="rows",
            **(PLAIN | more),
        )

    return run_ranks(len(cuts) - 1, on_rank)


def by_columns(X=PROBLEM.X, cuts=COLUMNS, everywhere=False, **more):
    def on_rank(world):
        has = everywhere or world.rank == 0
        return hpcsgd.fit(
            X[:, cuts[world.rank] : cuts[world.rank + 1]],
            "logistic",
            PROBLEM.y if has else None,
            sample_weight=PROBLEM.weights if has else None,
            offset=PROBLEM.offset if has else None,
            comm=world,
            layout="columns",
            **(PLAIN | more),
        )

    return run_ranks(len(cuts) - 1, on_rank)


def check(results, expected):
    assert len({r.weights_sha256 for r in results}) == 1
    assert {r.loss for r in results} == {results[0].loss}
    first = results[0].report
    assert first["data_fingerprint"] == expected.report["data_fingerprint"]
    np.testing.assert_allclose(results[0].weights, expected.weights, rtol=1e-11)
    np.testing.assert_allclose(results[0].intercept, expected.intercept, rtol=1e-11)


@pytest.mark.parametrize("X", [PROBLEM.X, csr_array(SPARSE)], ids=["dense", "sparse"])
def test_rows_of_unequal_numbers(X):
    check(by_rows(X), whole(X))


@pytest.mark.parametrize("X", [PROBLEM.X, csr_array(SPARSE)], ids=["dense", "sparse"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_columns_of_unequal_numbers(X, everywhere):
    check(by_columns(X, everywhere=everywhere), whole(X))


@pytest.mark.parametrize("X", [PROBLEM.X, csr_array(SPARSE)], ids=["dense", "sparse"])
@pytest.mark.parametrize("room", [1, 200, 2000])
def test_rows_travel_in_rounds(X, room, monkeypatch):
    """Also one at a time, and where some ranks have nothing left to send."""
    monkeypatch.setattr(dealing, "ROUND", room)
    check(by_rows(X, polish=True), whole(X, polish=True))


@pytest.mark.parametrize("X", [PROBLEM.X, csr_array(SPARSE)], ids=["dense", "sparse"])
@pytest.mark.parametrize("grid", ["2x2", (4, 1)])
def test_rows_on_a_grid_with_replicas(X, grid):
    cuts = [0, 5, 30, 31, 61]
    found = by_rows(X, cuts, grid=grid)
    expected = run_ranks(4, lambda world: whole(X, comm=world, grid=grid))
    check(found, expected[0])
    assert found[0].report["grid"] == expected[0].report["grid"]


def deals(result):
    return result.ledger["control"]


def test_rows_that_are_where_they_are_wanted_do_not_travel():
    """Two replicas of one member, each with its own half: side columns alone travel."""
    cuts = [0, 31, 61]
    stays = by_rows(cuts=cuts, grid=(2, 1))
    moves = by_rows(cuts=[0, 30, 61], grid=(2, 1))
    more = deals(moves[0])["words"] - deals(stays[0])["words"]
    # 30 rows of 11 columns less one word of y, c and o each, and what objects weigh.
    assert 30 * 11 - 3 <= more < 30 * 11 + 40
    assert deals(moves[0])["calls"] == deals(stays[0])["calls"] + 1
    np.testing.assert_array_equal(stays[0].weights, moves[0].weights)


def test_what_rows_cost():
    """One deal of the rank's own rows; y, c and o are told to all."""
    spread = by_rows()
    same = run_ranks(3, lambda world: whole(comm=world))
    more = {k: deals(spread[0])[k] - deals(same[0])[k] for k in ("calls", "words")}
    assert more["calls"] == 4
    # Rank 0 has 40 of the rows. The outlines that all exchange differ by some bytes.
    assert 40 * 11 + 3 * 40 <= more["words"] < 40 * 11 + 3 * 40 + 80


def test_what_columns_cost():
    """Nothing of X travels: y, c and o come from rank 0."""
    spread = by_columns()
    same = run_ranks(3, lambda world: whole(comm=world))
    more = {k: deals(spread[0])[k] - deals(same[0])[k] for k in ("calls", "words")}
    assert more["calls"] == 3
    assert 3 * 61 <= more["words"] < 3 * 61 + 80


def test_members_take_sparse_columns_by_stored_values():
    X = np.zeros((61, 11))
    X[:, 0] = PROBLEM.X[:, 0]
    X[::7] = PROBLEM.X[::7]
    check(by_rows(csr_array(X)), whole(csr_array(X)))


def test_rows_are_a_view_where_nothing_moves():
    X = np.ascontiguousarray(PROBLEM.X, dtype=np.float32)
    deal = dealing.Deal(run_ranks(1, lambda w: w)[0], (61,), (slice(0, 11),), 1)
    np.testing.assert_array_equal(dealing.deal_dense(deal, X), X)


def refused(function, kind=(ConfigError, DataError)):
    """The one error of all ranks, in its own words."""
    said = []

    def on_rank(world):
        try:
            function(world)
        except kind as error:
            said.append(str(error))
            assert error.on_all_ranks

    run_ranks(3, on_rank)
    assert len(said) == 3 and len(set(said)) == 1
    return said[0]


def fit_of(world, X, y, layout, **more):
    return hpcsgd.fit(X, "logistic", y, comm=world, layout=layout, **(PLAIN | more))


X, Y = PROBLEM.X, PROBLEM.y
WRONG = {
    "widths": (
        lambda w: fit_of(w, X[:, : 11 - (w.rank == 2)], Y, "rows"),
        "rank 0 has columns 11 and rank 2 has 10; give every rank rows of the same",
    ),
    "widths beside a rank without rows": (
        lambda w: fit_of(
            w, X[61 * (w.rank == 0) :, : 11 - (w.rank == 2)], Y[61 * (w.rank == 0) :],
            "rows",
        ),
        "rank 1 has columns 11 and rank 2 has 10; give every rank rows of the same",
    ),
    "types": (
        lambda w: fit_of(w, X.astype("f4" if w.rank == 1 else "f8"), Y, "rows"),
        "element type float64 and rank 1 has float32",
    ),
    "kinds": (
        lambda w: fit_of(w, csr_array(X) if w.rank else X, Y, "rows"),
        "rank 0 has kind dense and rank 1 has sparse",
    ),
    "heights": (
        lambda w: fit_of(w, X[w.rank :], Y[w.rank :], "columns"),
        "rank 0 has rows 61 and rank 1 has 60; give every rank all rows",
    ),
    "replicated": (
        lambda w: fit_of(w, X[w.rank :], Y[w.rank :], "replicated"),
        "give every rank the same arrays",
    ),
    "no rows": (lambda w: fit_of(w, X[:0], Y[:0], "rows"), "no rank has any row"),
    "no column": (
        lambda w: fit_of(w, X[:, : w.rank], Y, "columns"),
        "rank 0 has no column",
    ),
    "no y": (
        lambda w: fit_of(w, X, Y if w.rank else None, "columns"),
        "rank 0 has no y",
    ),
    "y too short": (
        lambda w: fit_of(w, X, Y[: 61 - (w.rank == 1)], "rows"),
        "y has shape",
    ),
    "text": (
        lambda w: fit_of(w, X.astype("U") if w.rank == 2 else X, Y, "rows"),
        "give real numbers",
    ),
    "weights of some": (
        lambda w: hpcsgd.fit(
            X, "logistic", Y, sample_weight=Y + 1 if w.rank else None, comm=w,
            layout="rows", **PLAIN,
        ),
        "sample_weight",
    ),
    "nan": (
        lambda w: fit_of(w, X if w.rank else X * np.nan, Y, "rows"),
        "X has nan at row 0, column 0",
    ),
    "weights of some replicas": (
        lambda w: hpcsgd.fit(
            X, "logistic", Y, sample_weight=Y + 1 if w.rank else None, comm=w,
            **PLAIN,
        ),
        "give every rank the same arrays",
    ),
    "targets of no rows": (
        lambda w: fit_of(w, X if w.rank else X[:0], Y, "rows"),
        "61 targets, weights or offsets are given beside 0 rows",
    ),
    "layouts": (
        lambda w: fit_of(w, X, Y, "rows" if w.rank else "replicated"),
        "layout is 'replicated' on rank 0 and 'rows' on rank 1",
    ),
    "settings": (
        lambda w: hpcsgd.fit(
            X, "logistic", Y, comm=w, **(PLAIN | {"alpha": 1.0 + w.rank})
        ),
        "problem.l2 is 1.0 on rank 0 and 2.0 on rank 1; give all ranks the same",
    ),
    "narrow": (
        lambda w: fit_of(w, X[:, :2], Y, "rows"),
        "cannot share 2 columns",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_one_error_on_all_ranks(name):
    function, words = WRONG[name]
    assert re.search(words, refused(function))


def test_one_of_the_ranks_may_look_on(capsys):
    """What it sees takes passes of all."""
    found = run_ranks(
        2,
        lambda w: hpcsgd.fit(
            X, "logistic", Y, comm=w, **(PLAIN | {"verbose": int(w.rank == 0)})
        ),
    )
    assert len({one.weights_sha256 for one in found}) == 1
    assert "gap" in capsys.readouterr().out
    assert all("gap" in record for record in found[1].history[:2])


@pytest.mark.parametrize(
    "more, words",
    [
        ({"layout": "stripes"}, "known: replicated, rows, columns, hdf5"),
        ({"layout": "hdf5"}, "does not suit arrays"),
        ({"layout": "columns", "grid": (3, 1)}, "needs one replica"),
        ({"layout": "rows", "precision": "auto"}, "name a recipe"),
        ({"grid": (2, 2)}, "needs 4 ranks"),
    ],
)
def test_settings_that_do_not_suit(more, words):
    def on_rank(world):
        hpcsgd.fit(X, "logistic", Y, comm=world, **(PLAIN | more))

    assert words in refused(on_rank, ConfigError)


def test_a_file_needs_no_layout(tmp_path):
    path = tmp_path / "a.h5"
    with StoreWriter(path, StoreLayout(11), rows=61) as writer:
        writer.append(X, Y)
    for layout in ("replicated", "hdf5"):
        found = run_ranks(
            2, lambda w, own=layout: hpcsgd.fit(path, comm=w, layout=own, **PLAIN)
        )
        stored = X.astype(np.float32)  # as files hold it
        expected = hpcsgd.fit(stored, "logistic", Y, **PLAIN)
        np.testing.assert_allclose(found[1].weights, expected.weights, rtol=1e-11)
    with pytest.raises(ConfigError, match="layout = 'rows' is for arrays"):
        hpcsgd.fit(path, layout="rows")
    with pytest.raises(ConfigError, match="leave the argument out"):
        hpcsgd.fit(path, y=Y)


def test_coordinates_have_ranks_of_rows():
    """Where only columns are held, l1 is taken by proximal steps."""
    options = {"family": "gaussian", "y": Y, "alpha": 0.02, "l1_ratio": 0.5}
    expected = hpcsgd.fit(X, **options, tol=1e-10)

    def rows(world):
        own = slice(ROWS[world.rank], ROWS[world.rank + 1])
        more = options | {"y": Y[own], "comm": world, "layout": "rows"}
        return hpcsgd.fit(X[own], **more, tol=1e-10)

    def columns(world):
        own = slice(COLUMNS[world.rank], COLUMNS[world.rank + 1])
        more = options | {"comm": world, "layout": "columns"}
        return hpcsgd.fit(X[:, own], **more, tol=1e-3)

    by_rows, by_columns = (run_ranks(3, f)[2] for f in (rows, columns))
    assert by_rows.report["solver"] == "coordinate"
    assert by_rows.loss == pytest.approx(expected.loss, rel=1e-12)
    np.testing.assert_allclose(by_rows.weights, expected.weights, atol=1e-6)
    assert by_columns.config["update"]["kind"] == "svrg"
    assert by_columns.loss == pytest.approx(expected.loss, rel=2e-3)

"""Estimators on real MPI ranks: every layout against one process."""

import numpy as np
import pytest
from sklearn.base import clone

import hpcsgd
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.shard import split_range
from hpcsgd.data.store import StoreWriter
from hpcsgd.errors import DataError
from tests.helpers.zoo import problem_for
from tests.ranks.counting import CountingComm

QUICK = {"max_iter": 2, "tol": 1e-7}
MODELS = [
    (hpcsgd.LogisticRegression(alpha=0.01, class_weight="balanced", **QUICK), 3),
    (hpcsgd.PoissonRegressor(alpha=0.01, **QUICK), 2),
    (hpcsgd.LinearSVC(alpha=0.1, **QUICK), 3),
    (hpcsgd.GLM_CV(alphas=(1e-2, 1.0), cv=3, **QUICK), 2),
]


def part_of(layout, comm, X, y, c):
    """What this rank has: uneven rows, or some columns with y on rank 0 alone."""
    if layout == "rows":
        first = split_range(len(y) - 20, comm.size, comm.rank)
        last = comm.rank == comm.size - 1
        rows = slice(first.start, len(y) if last else first.stop)
        return X[rows], y[rows], c[rows]
    if layout == "columns":
        columns = split_range(X.shape[1], comm.size, comm.rank)
        alone = comm.rank > 0
        return X[:, columns], None if alone else y, None if alone else c
    return X, y, c


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("layout", ["replicated", "rows", "columns"])
def test_every_layout_is_the_serial_fit(comm, layout):
    for estimator, classes in MODELS if layout == "rows" else MODELS[:2]:
        X, y = problem_for(estimator, n=65, classes=classes)
        c = np.random.default_rng(4).uniform(0.5, 2.0, size=len(y))
        alone = clone(estimator).fit(X, y, c)
        own = part_of(layout, comm, X, y, c)
        found = clone(estimator).fit(*own, comm=comm, layout=layout)
        np.testing.assert_allclose(found.coef_, alone.coef_, atol=1e-5)
        np.testing.assert_allclose(found.intercept_, alone.intercept_, atol=1e-5)
        assert (found.predict(X) == alone.predict(X)).all() or classes == 2
        bits = comm.allgather((found.coef_.tobytes(), str(found.intercept_)))
        assert len(set(bits)) == 1
        if hasattr(alone, "classes_"):
            assert found.classes_.tolist() == ["low", "mid", "top"]
        assert found.n_features_in_ == X.shape[1]


@pytest.mark.ranks(2, 3)
def test_labels_that_no_rank_has_all_of(comm):
    """Each rank has one class of strings, of its own length."""
    names = ["a", "bb", "a long one"][: comm.size]
    rng = np.random.default_rng(comm.rank)
    X = rng.normal(size=(20, 3)).astype(np.float32) + comm.rank
    proxy = CountingComm(comm.Dup())
    model = hpcsgd.LogisticRegression(alpha=0.01, **QUICK)
    model.fit(X, [names[comm.rank]] * 20, comm=proxy, layout="rows")
    assert model.classes_.tolist() == sorted(names)
    everything = np.concatenate(comm.allgather(X))
    labels = np.repeat(names, 20)
    alone = clone(model).fit(everything, labels)
    np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-5)


@pytest.mark.ranks(2, 3)
def test_rates_with_exposures(comm):
    X, y = problem_for(hpcsgd.PoissonRegressor(), n=65)
    e = np.random.default_rng(4).uniform(0.5, 2.0, size=len(y))
    rows = split_range(len(y), comm.size, comm.rank)
    model = hpcsgd.PoissonRegressor(alpha=0.01, **QUICK)
    alone = clone(model).fit(X, y, exposure=e)
    model.fit(X[rows], y[rows], exposure=e[rows], comm=comm, layout="rows")
    np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-6)
    assert model.score(X, y, exposure=e) == pytest.approx(
        alone.score(X, y, exposure=e), abs=1e-6
    )
    before = model.n_iter_
    model.partial_fit(X[rows], y[rows], exposure=e[rows], comm=comm, layout="rows")
    assert len(set(comm.allgather(model.coef_.tobytes()))) == 1
    assert model.n_iter_ == before + 1


@pytest.mark.ranks(2, 3)
def test_what_one_rank_finds_wrong_all_say(comm):
    X, y = problem_for(hpcsgd.Ridge(), n=65)
    if comm.rank == 1:
        X[3, 2] = np.nan
    with pytest.raises(DataError, match="NaN"):
        hpcsgd.Ridge().fit(X, y, comm=comm, layout="rows")
    labels = np.full(len(y), "one")
    with pytest.raises(DataError, match="one class only"):
        hpcsgd.LinearSVC().fit(np.nan_to_num(X), labels, comm=comm, layout="rows")


@pytest.mark.ranks(2)
def test_a_file_and_its_labels(comm, tmp_path):
    """layout="hdf5": rank 0 looks the labels up."""
    X, y = problem_for(hpcsgd.LogisticRegression(), n=65, classes=3)
    codes = np.unique(y, return_inverse=True)[1] + 4.0
    path = comm.bcast(tmp_path) / "d.h5"
    if comm.rank == 0:
        with StoreWriter(path, StoreLayout(X.shape[1]), rows=len(X)) as writer:
            writer.append(X, codes)
    comm.Barrier()
    model = hpcsgd.LogisticRegression(alpha=0.01, **QUICK)
    model.fit(path, comm=comm, layout="hdf5")
    assert model.classes_.tolist() == [4.0, 5.0, 6.0]
    alone = clone(model).fit(X.astype(np.float32), codes)
    np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-5)
    assert (model.predict(X) == alone.predict(X)).all()
    comm.Barrier()


@pytest.mark.ranks(2, 3)
def test_families_with_a_parameter(comm):
    """Every rank has the power or the dispersion, and some of the rows."""
    for estimator in (
        hpcsgd.TweedieRegressor(power=1.2, alpha=0.01),
        hpcsgd.NegativeBinomialRegressor(dispersion=0.4, alpha=0.01),
        hpcsgd.GLM(family="binomial", alpha=0.01),
    ):
        X, y = problem_for(estimator, n=65)
        c = np.random.default_rng(4).integers(1, 9, size=len(y)).astype(float)
        rows = split_range(len(y), comm.size, comm.rank)
        alone = clone(estimator).fit(X, y, c)
        estimator.fit(X[rows], y[rows], c[rows], comm=comm, layout="rows")
        np.testing.assert_allclose(estimator.coef_, alone.coef_, atol=1e-6)
        assert len(set(comm.allgather(estimator.coef_.tobytes()))) == 1

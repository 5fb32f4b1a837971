"""Frames, sparse rows, float32 without a copy; pipelines and searches."""

import pickle
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hpcsgd
from tests.helpers.zoo import NAMED, name_of, problem_for


@pytest.mark.parametrize("estimator", NAMED, ids=name_of)
@pytest.mark.cases(4)
def test_containers_hold_the_same_rows(estimator):
    X, y = problem_for(estimator, n=41)
    names = [f"x{k}" for k in range(X.shape[1])]
    wanted = clone(estimator).fit(X, y)
    for rows, targets in (
        (pd.DataFrame(X, columns=names), pd.Series(y)),
        (pl.DataFrame(X, schema=names), pl.Series(y)),
        (sparse.csr_array(X), y),
        (sparse.coo_matrix(X), list(y)),
        (X.tolist(), list(y)),
        (np.asfortranarray(X), y),
    ):
        found = clone(estimator).fit(rows, targets)
        np.testing.assert_allclose(found.coef_, wanted.coef_, atol=1e-6)
        if found.predict(rows).dtype.kind == "f":
            np.testing.assert_allclose(
                found.predict(rows), wanted.predict(X), atol=1e-5
            )
        else:
            assert (found.predict(rows) == wanted.predict(X)).all()
        named = hasattr(rows, "columns")
        assert hasattr(found, "feature_names_in_") == named
        if named:
            assert found.feature_names_in_.tolist() == names


def test_names_are_held_against_those_of_the_fit():
    X, y = problem_for(hpcsgd.Ridge())
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = hpcsgd.Ridge().fit(frame, y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))
    with pytest.raises(ValueError, match="5 features"):
        model.predict(X[:, :3])


@pytest.mark.cases(1)
@pytest.mark.parametrize("estimator", [hpcsgd.Ridge(), hpcsgd.LogisticRegression()])
def test_float32_is_used_as_it_is(estimator):
    """Neither a fit nor a prediction holds a second matrix."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 256)).astype(np.float32)
    y = (X[:, 0] + rng.normal(size=len(X)) > 0).astype(float)
    model = clone(estimator).set_params(max_iter=1, batch=1024, tol=1e-3)
    tracemalloc.start()
    model.fit(X, y)
    _, fit = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    scores = model.predict(X)
    _, after = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fit < 0.75 * X.nbytes and after - before < 1.0 * X.nbytes
    part = model.predict(X[:50].astype(np.float64))
    np.testing.assert_allclose(scores[:50], part, rtol=1e-12)


def test_a_search_over_a_pipeline():
    X, y = problem_for(hpcsgd.LogisticRegression(), n=60, classes=3)
    pipe = make_pipeline(StandardScaler(), hpcsgd.LogisticRegression())
    grid = {"logisticregression__alpha": [1e-3, 1e-1, 10.0]}
    search = GridSearchCV(pipe, grid, cv=3).fit(X, y)
    assert search.best_params_["logisticregression__alpha"] < 10.0
    assert (search.predict(X) == search.best_estimator_.predict(X)).all()


def test_frames_through_a_column_transformer():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"size": rng.normal(size=50), "kind": rng.choice(["a", "b", "c"], size=50)}
    )
    y = frame["size"] + (frame["kind"] == "b")
    columns = ColumnTransformer(
        [
            ("n", StandardScaler(), ["size"]),
            ("k", OneHotEncoder(sparse_output=False), ["kind"]),
        ]
    ).set_output(transform="pandas")
    pipe = make_pipeline(columns, hpcsgd.Ridge()).fit(frame, y)
    assert pipe[-1].feature_names_in_.tolist() == [
        "n__size", "k__kind_a", "k__kind_b", "k__kind_c",
    ]  # fmt: skip
    assert pipe.score(frame, y) > 0.999


@pytest.mark.parametrize("estimator", NAMED, ids=name_of)
def test_clones_and_pickles(estimator):
    X, y = problem_for(estimator, n=41)
    model = clone(estimator).set_params(verbose=0, tol=1e-7).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.result_ is not None and again.history_ == model.history_
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model), "coef_")


class OnDevice:
    """An array of a GPU as far as a prediction sees it: NumPy gets at no number."""

    __cuda_array_interface__ = {"version": 3}
    fetched = 0

    def __init__(self, held):
        self.held, self.shape, self.ndim = held, held.shape, held.ndim

    def __getitem__(self, rows):
        return OnDevice(self.held[rows])

    def __matmul__(self, other):
        return OnDevice(self.held @ other.held)

    def __array__(self, *_, **__):
        raise TypeError("implicit copy to the host")


@pytest.mark.parametrize("estimator", NAMED, ids=name_of)
def test_rows_of_a_gpu_stay_there(estimator, monkeypatch):
    """Scores alone come to the host."""
    X, y = problem_for(estimator, n=41)
    model = clone(estimator).fit(X, y)
    fetched = []

    def asnumpy(array):
        fetched.append(array.shape)
        return array.held

    home = __import__("sys").modules[OnDevice.__module__.partition(".")[0]]
    monkeypatch.setattr(home, "asarray", OnDevice, raising=False)
    monkeypatch.setattr(home, "asnumpy", asnumpy, raising=False)
    np.testing.assert_array_equal(model.predict(OnDevice(X)), model.predict(X))
    assert all(shape == (41, np.atleast_2d(model.coef_).shape[0]) for shape in fetched)
    with pytest.raises(ValueError, match="columns"):
        model.predict(OnDevice(X[:, :3]))

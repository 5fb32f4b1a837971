"""Summaries of estimators: those of the run, of rows that are not kept."""

import gc
import pickle
import weakref

import numpy as np
import pytest

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError, DataError
from tests.helpers.inference import PROBLEMS
from tests.helpers.zoo import problem_for


def rates():
    """A fitted estimator of rates, and the arrays of its fit."""
    problem = PROBLEMS["rates"]()
    exposure = np.exp(problem.sides["offset"])
    arrays = {"X": problem.X, "y": problem.y, "exposure": exposure}
    return hpcsgd.PoissonRegressor(alpha=0).fit(**arrays), arrays, problem


def test_a_summary_is_that_of_the_run():
    model, arrays, problem = rates()
    options = {"alpha": 0.0, "tol": 1e-10, **problem.sides}
    run = hpcsgd.fit(problem.X, "poisson", problem.y, **options)
    for request in (
        {},
        {"covariance": "sandwich"},
        {"covariance": "clustered", "clusters": problem.clusters},
        {"dispersion": "pearson", "level": 0.5},
    ):
        one, other = model.summary(**arrays, **request), run.summary(**request)
        np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-8)
        np.testing.assert_allclose(one.upper, other.upper, rtol=1e-8)
    assert model.summary_.covariance.tobytes() == (
        model.summary(**arrays).covariance.tobytes()
    )


def test_an_estimator_keeps_no_rows():
    model, arrays, _ = rates()
    rows = weakref.ref(arrays["X"])
    assert model.summary_.names[0] == "intercept"
    arrays.clear()
    del _
    gc.collect()
    assert rows() is None
    with pytest.raises(AttributeError, match=r"call summary\(X, y\)"):
        model.summary_  # noqa: B018


def test_lists_pickles_and_batches_have_no_rows():
    X, y = PROBLEMS["diabetes"]().X, PROBLEMS["diabetes"]().y
    model = hpcsgd.LinearRegression().fit(X, y)
    pickled = pickle.loads(pickle.dumps(model))
    listed = hpcsgd.LinearRegression().fit(X.tolist(), y.tolist())
    for other in (pickled, listed):
        with pytest.raises(AttributeError, match="needs the rows of the fit"):
            other.summary_  # noqa: B018
        np.testing.assert_allclose(
            other.summary(X, y).covariance, model.summary_.covariance, rtol=1e-9
        )
    model.partial_fit(X, y)
    assert not hasattr(model, "summary_")


def test_a_model_of_a_file_is_summarized(tmp_path):
    model, arrays, _ = rates()
    model.save(tmp_path / "model.h5")
    loaded = hpcsgd.load(tmp_path / "model.h5")
    expected = model.summary(**arrays)
    assert str(loaded.summary(**arrays)) == str(expected)


def test_labels_and_names_are_those_of_the_rows():
    pandas = pytest.importorskip("pandas")
    problem = PROBLEMS["classes"]()
    frame = pandas.DataFrame(problem.X, columns=["acid", "ash"])
    labels = np.array(["red", "rose", "white"])[problem.y.astype(int)]
    model = hpcsgd.LogisticRegression(alpha=0, tol=1e-11).fit(frame, labels)
    expected = hpcsgd.fit(problem.X, "softmax", problem.y, alpha=0.0, tol=1e-10)
    names = ("intercept", "acid", "ash")
    assert model.summary_.names == tuple(
        f"{label}: {name}" for label in ("rose", "white") for name in names
    )
    np.testing.assert_allclose(
        model.summary_.covariance, expected.summary().covariance, rtol=1e-6
    )


def test_huber_is_in_the_units_of_y():
    """A fit to y has a thousandth of the errors of one to 1000 y."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(300, 2))
    y = X[:, 0] + rng.standard_t(2, size=300)
    small, large = (
        hpcsgd.HuberRegressor(alpha=0, tol=1e-11)
        .fit(X, unit * y)
        .summary(X, unit * y, covariance="sandwich")
        for unit in (1.0, 1000.0)
    )
    np.testing.assert_allclose(
        1000.0 * small.standard_errors, large.standard_errors, rtol=1e-4
    )
    assert 0.03 < small.standard_errors[1] < 0.3


def test_ranks_of_a_fit_have_one_summary():
    model, arrays, _ = rates()
    expected = model.summary(**arrays)

    def on_rank(world):
        own = slice(world.rank, None, world.size)
        part = {name: array[own] for name, array in arrays.items()}
        there = {"comm": world, "layout": "rows"}
        fitted = hpcsgd.PoissonRegressor(alpha=0).fit(**part, **there)
        assert not hasattr(fitted, "summary_")
        return fitted.summary(**part, **there)

    for summary in run_ranks(2, on_rank):
        np.testing.assert_allclose(summary.covariance, expected.covariance, rtol=1e-8)


def test_what_has_no_summary_is_refused():
    problem = PROBLEMS["classes"]()
    X, y = problem.X, problem.y
    with pytest.raises(ConfigError, match="alpha=0"):
        hpcsgd.LogisticRegression().fit(X, y).summary(X, y)
    with pytest.raises(ConfigError, match="softmax"):
        hpcsgd.LinearSVC(alpha=0).fit(X, y).summary(X, y, covariance="sandwich")
    model, arrays, _ = rates()
    with pytest.raises(DataError, match="not at its optimum"):
        model.summary(arrays["X"], arrays["y"])


@pytest.mark.parametrize("family", ["huber", "squared-hinge", "softmax"])
def test_families_without_a_dispersion_refuse_one(family):
    X, y = problem_for(hpcsgd.GLM(family=family))
    model = hpcsgd.GLM(family=family, alpha=0).fit(X, y)
    model.summary(X, y, covariance="sandwich")
    with pytest.raises(ConfigError, match=f"{family}' has no dispersion"):
        model.summary(X, y, covariance="sandwich", dispersion="pearson")

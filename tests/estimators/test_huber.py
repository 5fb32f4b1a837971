"""HuberRegressor: what it takes for an outlier, on any scale of the targets."""

import warnings

import numpy as np
import pytest
from sklearn import linear_model
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning

import hpcsgd
from hpcsgd.errors import ConfigError
from tests.helpers.harness import run_ranks
from tests.helpers.zoo import problem_for


def with_outliers(n=83):
    X, y = problem_for(hpcsgd.HuberRegressor(), n=n)
    y[:7] += 40.0
    return X, y + 3.0


def silently(model, *given, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        return model.fit(*given, **more)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("epsilon", [1.1, 1.35, 3.0])
def test_the_scale_and_the_model_are_those_of_scikit_learn(unit, epsilon):
    X, y = with_outliers()
    ours = silently(hpcsgd.HuberRegressor(epsilon=epsilon), X, unit * y)
    one = hpcsgd.HuberRegressor(epsilon=epsilon).fit(X, y)
    theirs = linear_model.HuberRegressor(
        epsilon=epsilon, alpha=1e-4 * len(X) / one.scale_, max_iter=10**4, tol=1e-8
    ).fit(X, y)
    assert one.scale_ == pytest.approx(theirs.scale_, rel=1e-4)
    np.testing.assert_allclose(one.coef_, theirs.coef_, atol=1e-4)
    assert one.intercept_ == pytest.approx(theirs.intercept_, abs=1e-4)
    # Targets in other units are the same fit.
    assert ours.scale_ == pytest.approx(unit * one.scale_, rel=1e-5)
    np.testing.assert_allclose(ours.coef_, unit * one.coef_, atol=1e-5 * unit)


def test_weights_say_how_often_a_row_counts():
    X, y = with_outliers()
    c = np.arange(len(X)) % 3
    weighted = hpcsgd.HuberRegressor().fit(X, y, c)
    repeated = hpcsgd.HuberRegressor().fit(np.repeat(X, c, axis=0), np.repeat(y, c))
    assert weighted.scale_ == pytest.approx(repeated.scale_, rel=1e-5)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-5)


def test_diabetes_are_explained_as_by_scikit_learn():
    X, y = load_diabetes(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = silently(hpcsgd.HuberRegressor(), X, y)
    theirs = linear_model.HuberRegressor(max_iter=10**4).fit(X, y)
    assert model.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-3)
    assert model.score(X, y) > 0.515


def test_a_fit_says_which_delta_its_objective_has(tmp_path):
    X, y = with_outliers()
    model = hpcsgd.HuberRegressor(alpha=0.2).fit(X, y)
    delta = model.delta_
    assert delta == pytest.approx(1.35 * model.scale_)
    e = np.abs(model.predict(X) - y)
    h = np.where(e <= delta, e * e / 2, delta * (e - delta / 2))
    F = h.mean() + 0.1 * np.sum(model.coef_**2)
    assert model.history_[-1]["loss"] == pytest.approx(F, rel=1e-12)
    assert np.minimum((e / model.scale_) ** 2, 1.35**2).mean() == pytest.approx(1.0)
    assert model.result_.report["delta"] == delta
    assert model.n_iter_ > model.history_[-1]["epoch"] + model.history_[-1]["passes"]
    model.save(tmp_path / "model.h5")
    again = hpcsgd.load(tmp_path / "model.h5")
    assert (again.delta_, again.scale_) == (delta, model.scale_)
    assert again.delta is None and again.result_.report["delta"] == delta
    model.set_params(delta=2.0).fit(X, y)
    assert model.delta_ == 2.0 and not hasattr(model, "scale_")


@pytest.mark.parametrize("layout", ["replicated", "rows", "columns"])
def test_ranks_find_the_scale_together(layout):
    X, y = with_outliers()
    known = hpcsgd.HuberRegressor().fit(X, y)

    def on_rank(world):
        rank = world.rank
        rows = {"rows": (slice(0, 50), slice(50, 50), slice(50, None))}
        columns = {"columns": (slice(0, 1), slice(1, 2), slice(2, None))}
        own = rows.get(layout, (slice(None),) * 3)[rank]
        some = columns.get(layout, (slice(None),) * 3)[rank]
        model = hpcsgd.HuberRegressor()
        return model.fit(X[own, some], y[own], comm=world, layout=layout)

    found = run_ranks(3, on_rank)
    assert len({model.scale_ for model in found}) == 1
    assert found[0].scale_ == pytest.approx(known.scale_, rel=1e-5)
    np.testing.assert_allclose(found[0].coef_, known.coef_, atol=1e-5)


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_rows_that_are_met_exactly_have_a_model(noise):
    X, y = with_outliers()
    y = X @ [1.0, -2.0, 0.5, 0.0, 3.0] + 7.0
    y[::2] += noise
    model = silently(hpcsgd.HuberRegressor(), X, y)
    assert model.score(X, y) > 0.999 and model.scale_ > 0.0
    constant = silently(hpcsgd.HuberRegressor(), X, np.full(len(X), 7.0))
    np.testing.assert_allclose(constant.predict(X), 7.0)


def test_epochs_take_the_scale_of_their_own_rows():
    X, y = with_outliers()
    model = hpcsgd.HuberRegressor().partial_fit(X[:40], y[:40])
    first = model.scale_
    model.partial_fit(X[40:], 100.0 * y[40:])
    assert 0.0 < first < model.scale_
    fixed = hpcsgd.HuberRegressor(delta=2.0).partial_fit(X, y)
    assert fixed.delta_ == 2.0


def test_what_makes_no_outlier_is_refused(tmp_path):
    X, y = with_outliers()
    for more, says in (
        ({"epsilon": 1.0}, "epsilon = 1.0 must be above 1"),
        ({"epsilon": np.inf}, "epsilon = inf must be above 1 and finite"),
        ({"delta": -1.0}, "delta = -1.0 must be positive"),
    ):
        with pytest.raises(ConfigError, match=says):
            hpcsgd.HuberRegressor(**more).fit(X, y)
    with pytest.raises(ConfigError, match="with y in a file.*set delta=1"):
        hpcsgd.HuberRegressor().fit(str(tmp_path / "rows.h5"))


@pytest.mark.parametrize("bounds", [(0, None), (None, 0.1), (None, None)])
def test_weights_may_have_no_bound_on_one_side(bounds):
    X, y = with_outliers()
    one_sided = hpcsgd.HuberRegressor(alpha=0.01, delta=2.0, bounds=bounds).fit(X, y)
    ends = [e if b is None else b for b, e in zip(bounds, (-1e9, 1e9), strict=True)]
    two_sided = hpcsgd.HuberRegressor(alpha=0.01, delta=2.0, bounds=ends).fit(X, y)
    np.testing.assert_allclose(one_sided.coef_, two_sided.coef_, atol=1e-4)


@pytest.mark.parametrize("bounds", [3, (0, 1, 2), ("a", None)])
def test_bounds_that_are_no_pair_of_numbers_are_refused(bounds):
    X, y = with_outliers()
    with pytest.raises(ConfigError, match="bounds"):
        hpcsgd.HuberRegressor(bounds=bounds).fit(X, y)

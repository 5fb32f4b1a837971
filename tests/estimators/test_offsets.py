"""Offsets and exposures: rates, with weights, in fit, predict and score."""

import numpy as np
import pytest
import sklearn
from sklearn.metrics import d2_tweedie_score
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hpcsgd
from hpcsgd.errors import ConfigError

RATES = [hpcsgd.PoissonRegressor(), hpcsgd.GLM(family="poisson")]
CLOSE = {"rtol": 0, "atol": 1e-6}


def claims(n=101, d=4):
    """Counts, exposures and weights."""
    rng = np.random.default_rng(1)
    X, e = rng.normal(size=(n, d)), rng.uniform(0.1, 3.0, size=n)
    y = rng.poisson(e * np.exp(0.4 * X[:, 0] - 0.2)).astype(float)
    return X, y, e, rng.integers(0, 3, size=n).astype(float)


@pytest.mark.parametrize("model", RATES, ids=str)
def test_an_exposure_is_rates_with_weights(model):
    """Σ c (e exp(t) − y (t + log e)) = Σ c e (exp(t) − (y/e) t) + what t is not in."""
    X, y, e, c = claims()
    counted = sklearn.clone(model).set_params(alpha=0.0).fit(X, y, c, exposure=e)
    rates = sklearn.clone(counted).fit(X, y / e, c * e)
    np.testing.assert_allclose(counted.coef_, rates.coef_, **CLOSE)
    np.testing.assert_allclose(counted.predict(X), rates.predict(X), rtol=1e-6)
    expected = counted.predict(X, exposure=e)
    np.testing.assert_allclose(expected, e * counted.predict(X), rtol=1e-12)
    # The gradient in the intercept: what is expected in all is what was counted.
    assert c @ expected == pytest.approx(c @ y, rel=1e-7)


@pytest.mark.parametrize("kind", [hpcsgd.PoissonRegressor, hpcsgd.GammaRegressor])
def test_an_exposure_is_an_offset_of_its_logarithm(kind):
    X, y, e, c = claims()
    y = y + 0.5
    o = np.random.default_rng(2).normal(size=len(y))
    one = kind().fit(X, y, c, offset=o, exposure=e)
    other = kind().fit(X, y, c, offset=o + np.log(e))
    np.testing.assert_array_equal(one.coef_, other.coef_)
    mean = one.predict(X, offset=o, exposure=e)
    np.testing.assert_allclose(mean, np.exp(X @ one.coef_ + one.intercept_ + o) * e)
    # Stationary in the objective as it is stated.
    steps = c * (mean - y if kind is hpcsgd.PoissonRegressor else 1 - y / mean)
    slope = X.T @ steps / c.sum() + 1e-4 * one.coef_
    assert np.abs(slope).max() < 1e-7 and abs(steps.sum() / c.sum()) < 1e-7


def test_other_families_take_offsets_alone():
    X, y, e, c = claims()
    o = np.random.default_rng(2).normal(size=len(y))
    gaussian = hpcsgd.GLM(family="gaussian").fit(X, y, c, offset=o)
    plain = hpcsgd.GLM(family="gaussian").fit(X, y - o, c)
    np.testing.assert_allclose(gaussian.coef_, plain.coef_, **CLOSE)
    np.testing.assert_allclose(gaussian.predict(X, offset=o), plain.predict(X) + o)
    logistic = hpcsgd.GLM(family="logistic").fit(X, y > 0, offset=o)
    np.testing.assert_allclose(
        logistic.decision_function(X, offset=o), logistic.decision_function(X) + o
    )
    assert logistic.score(X, y > 0, offset=o) > logistic.score(X, y > 0, offset=-9 - o)
    with pytest.raises(ConfigError, match="log link"):
        hpcsgd.GLM(family="gaussian").fit(X, y, exposure=e)
    with pytest.raises(ConfigError, match="cannot be used with family softmax"):
        hpcsgd.GLM(family="softmax").fit(X, y > 0, offset=o)


def test_scores_against_the_best_constant_rate():
    X, y, e, c = claims()
    model = hpcsgd.PoissonRegressor().fit(X, y, c, exposure=e)
    # Without exposures it is scikit-learn's; and so it is of rates with weights.
    d2 = d2_tweedie_score(y / e, model.predict(X), sample_weight=c * e, power=1)
    assert model.score(X, y, c, exposure=e) == pytest.approx(d2, rel=1e-12)
    gamma = hpcsgd.GammaRegressor().fit(X, y + 1, c, exposure=e)
    null = e * (c @ ((y + 1) / e)) / c.sum()
    mean = gamma.predict(X, exposure=e)

    def deviance(mu):
        return c @ (np.log(mu / (y + 1)) + (y + 1) / mu - 1)

    wanted = 1 - deviance(mean) / deviance(null)
    assert gamma.score(X, y + 1, c, exposure=e) == pytest.approx(wanted, rel=1e-12)
    # No other constant rate comes as near as that one.
    assert all(deviance(null) <= deviance(null * f) for f in (0.9, 0.99, 1.01, 1.1))


def test_what_is_wrong_is_said():
    X, y, e, _ = claims()
    model = hpcsgd.PoissonRegressor()
    for bad, said in (
        ({"exposure": e[:-1]}, "100.* and X has 101 rows"),
        ({"exposure": np.where(np.arange(101) == 7, 0.0, e)}, "row 7 .* above 0"),
        ({"offset": np.full(101, np.nan)}, "offset is not finite at row 0"),
    ):
        with pytest.raises(ValueError, match=said):
            model.fit(X, y, **bad)
        with pytest.raises(ValueError, match=said):
            sklearn.clone(model).fit(X, y).predict(X, **bad)


def test_metadata_finds_its_way():
    """Through a pipeline, into every fold, as it was requested."""
    X, y, e, c = claims()
    with sklearn.config_context(enable_metadata_routing=True):
        model = (
            hpcsgd.PoissonRegressor()
            .set_fit_request(sample_weight=True, exposure=True, offset=False)
            .set_score_request(sample_weight=True, exposure=True, offset=False)
        )
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        pipe = make_pipeline(scaler, model)
        found = cross_validate(pipe, X, y, params={"sample_weight": c, "exposure": e})
        pipe.fit(X, y, sample_weight=c, exposure=e)
    scaled = StandardScaler().fit_transform(X)
    direct = hpcsgd.PoissonRegressor().fit(scaled, y, c, exposure=e)
    np.testing.assert_array_equal(pipe[-1].coef_, direct.coef_)
    assert len(found["test_score"]) == 5 and np.isfinite(found["test_score"]).all()
    assert "comm" not in model.get_metadata_routing().fit.requests

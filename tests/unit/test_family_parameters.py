"""Tweedie, negative binomial and binomial: formulas, parameters, fits, refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import gammaln
from sklearn.exceptions import ConvergenceWarning

import hpcsgd
from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import StepBatch
from hpcsgd.backends.compiled import NativeBackend
from hpcsgd.backends.numpy_rows import HostBackend
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.glm import get_family, make_update
from hpcsgd.glm.families import least_losses, steepest_slopes
from hpcsgd.glm.unrolling import blocks_of, unroll
from hpcsgd.precision import RECIPES
from hpcsgd.solvers.full_passes import bends
from tests.helpers.cpu import kernels
from tests.helpers.harness import config_for, oracle_on, replica_batches, train_on
from tests.helpers.problems import make_problem

__all__ = ["kernels"]  # a fixture

L = np.longdouble
FIGURES = json.loads(
    (Path(__file__).parents[1] / "golden" / "statsmodels_families.json").read_text()
)
# Name, setting, value of every case; binomial has no parameter.
CASES = [
    *(("tweedie", "power", p) for p in (1.01, 1.3, 1.5, 1.99)),
    *(("negative-binomial", "dispersion", a) for a in (1e-6, 0.3, 1.0, 50.0)),
    ("binomial", "", 0.0),
]
TARGETS = {
    "tweedie": (0.0, 0.02, 1.0, 7.5),
    "negative-binomial": (0.0, 1.0, 2.5, 40.0),
    "binomial": (0.0, 0.2, 0.75, 1.0),
}


def made(case):
    """The family of a case."""
    name, setting, value = case
    return get_family(name, {setting: value} if setting else None)


def grid(case):
    """Scores and targets in longdouble, every pair of both."""
    t, y = np.meshgrid(np.linspace(-6, 6, 49), TARGETS[case[0]])
    return t.reshape(-1, 1).astype(L), y.reshape(-1, 1).astype(L)


def log_likelihood(case, mu, y):
    """What depends on the mean in the logarithm of the density, of dispersion 1."""
    name, _, value = case
    if name == "tweedie":  # (y θ − κ(θ)) / φ, Jørgensen's exponential dispersion model
        p = L(value)
        theta = mu ** (1 - p) / (1 - p)
        return y * theta - mu ** (2 - p) / (2 - p)
    if name == "negative-binomial":
        a = L(value)
        return y * np.log(a * mu) - (y + 1 / a) * np.log1p(a * mu)
    return y * np.log(mu) + (1 - y) * np.log(1 - mu)


def mean_of(case, t):
    return 1 / (1 + np.exp(-t)) if case[0] == "binomial" else np.exp(t)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_are_negative_log_likelihoods(case):
    """Up to what does not depend on the score."""
    t, y = grid(case)
    shift = made(case).loss(t, y) + log_likelihood(case, mean_of(case, t), y)
    for target in TARGETS[case[0]]:
        of_target = shift[y == target].astype(float)
        # A score of 6 and a dispersion of 1e-6 cancel six digits of 19.
        np.testing.assert_allclose(of_target, of_target[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_slopes_and_curvatures_are_those_of_the_loss(case):
    """Central differences in longdouble; the curvature is never negative."""
    family, (t, y), h = made(case), grid(case), L(1e-5)
    first = (family.loss(t + h, y) - family.loss(t - h, y)) / (2 * h)
    residual = family.residual(t, y)
    size = 1 + np.abs(residual)
    assert np.max(np.abs(residual - first) / size) < 1e-6
    second = (family.residual(t + h, y) - family.residual(t - h, y)) / (2 * h)
    name, _, value = case
    mu = mean_of(case, t)
    curvature = {
        "tweedie": lambda: (
            (2 - value) * mu ** (2 - L(value)) + (value - 1) * y * mu ** (1 - L(value))
        ),
        "negative-binomial": lambda: mu * (1 + value * y) / (1 + value * mu) ** 2,
        "binomial": lambda: mu * (1 - mu),
    }[name]()
    assert (curvature >= 0).all()
    np.testing.assert_allclose(second.astype(float), curvature.astype(float), rtol=1e-7)
    found = bends(family, t.astype(float), y.astype(float))[:, 0]
    np.testing.assert_allclose(found, curvature.astype(float), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_least_loss_is_the_least(case):
    """It is reached where the mean is the target, and approached if y is at an end."""
    family = made(case)
    for target in TARGETS[case[0]]:
        t = np.concatenate([[-4000.0], np.linspace(-40, 40, 4001), [4000.0]])[:, None]
        y = np.full(t.shape, target)
        least = least_losses(family, y)[0, 0]
        losses = family.loss(t, y)
        assert losses.min() >= least - 1e-12 * (1 + abs(least))
        # No score is more than 0.01 from one of these.
        assert losses.min() <= least + 2e-3 * (1 + abs(least))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_deviance_is_twice_the_excess_loss(case):
    family, (t, y) = made(case), grid(case)
    mean = mean_of(case, t)
    excess = 2 * (family.loss(t, y) - least_losses(family, y.astype(float)))
    found = family.deviance(y.astype(float), mean.astype(float))
    np.testing.assert_allclose(found, excess.astype(float), rtol=1e-7, atol=1e-8)
    assert (found >= -1e-12).all()


def test_variances():
    mu = np.array([0.2, 0.7])
    tweedie = get_family("tweedie", {"power": 1.3}).variance(mu)
    np.testing.assert_allclose(tweedie, np.exp(1.3 * np.log(mu)), rtol=1e-14)
    counts = get_family("negative-binomial", {"dispersion": 0.5})
    # Σ (k − μ)² of the probabilities of all counts.
    k, size = np.arange(400.0)[:, None], 2.0
    logs = gammaln(k + size) - gammaln(size) - gammaln(k + 1)
    logs = logs + size * np.log(size / (size + mu)) + k * np.log(mu / (size + mu))
    exact = (np.exp(logs) * (k - mu) ** 2).sum(axis=0)
    np.testing.assert_allclose(counts.variance(mu), exact, rtol=1e-10)
    one = get_family("binomial").variance(mu)
    np.testing.assert_allclose(one, [0.16, 0.21], rtol=1e-14)


@pytest.mark.parametrize("case", CASES[:-1], ids=str)
def test_bounds_of_slopes_hold_near_each_score(case):
    """Also about the peak of the negative binomial, and they are not loose."""
    family, (t, y) = made(case), grid(case)
    t, y = t.astype(float), y.astype(float)
    bound = steepest_slopes(family, t, y, 0.5)
    around = np.linspace(-0.5, 0.5, 101)
    slopes = [bends(family, t + a, y)[:, 0] for a in around]
    steepest = np.max(slopes, axis=0)
    assert (bound >= steepest * (1 - 1e-4)).all()
    assert (bound <= 1.01 * steepest + 1e-9).all()


def test_the_ends_of_the_parameters_are_poisson_and_gamma():
    t = np.linspace(-4, 4, 33)[:, None]
    y = np.resize([0.5, 2.0, 9.0], 33)[:, None]
    poisson, gamma = get_family("poisson"), get_family("gamma")
    for name, value, other in (
        ("tweedie", 1 + 1e-9, poisson),
        ("tweedie", 2 - 1e-9, gamma),
        ("negative-binomial", 1e-9, poisson),
    ):
        setting = "power" if name == "tweedie" else "dispersion"
        near = get_family(name, {setting: value})
        wanted = other.residual(t, y)
        np.testing.assert_allclose(near.residual(t, y), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_the_exponents_of_tweedie_are_clipped_and_counted(dtype):
    family = get_family("tweedie", {"power": 1.25})
    bound = np.log(np.finfo(dtype).max) / 2
    # Exponents 0.75 t and −0.25 t.
    t = np.array([[1.3], [1.4], [-3.9], [-4.1]], dtype=dtype) * dtype(bound)
    assert [family.clipped(t[i : i + 1]) for i in range(4)] == [0, 1, 0, 1]
    far = family.residual(np.full((1, 1), 1e3, dtype), np.ones((1, 1), dtype))
    assert far[0, 0] == pytest.approx(np.exp(bound), rel=1e-4)


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
@pytest.mark.parametrize("alpha", (1e-9, 1.0, 1e9))
def test_the_negative_binomial_needs_no_clips(alpha, dtype):
    """Beyond the bound of exponents log(1 + α eᵗ) is log α + t, to rounding."""
    family = get_family("negative-binomial", {"dispersion": alpha})
    t, y = np.full((1, 1), 500.0, dtype), np.full((1, 1), 3.0, dtype)
    exact = (3 + 1 / L(alpha)) * (np.log(L(alpha)) + 500) - 1500
    rounding = 50 * float(np.finfo(dtype).eps)
    assert family.loss(t, y)[0, 0] == pytest.approx(
        float(exact), rel=rounding, abs=1e4 * rounding
    )
    assert family.residual(t, y)[0, 0] == pytest.approx(1 / alpha, rel=1e-5)
    assert family.clipped(t) == 0


# Parameters in the kernels and in runs.

SIZES = (5, 5, 3)


def kernel_residuals(backend, recipe, family, states=1):
    """The residuals of an exchange of three steps, by one backend."""
    rng, m = np.random.default_rng(3), sum(SIZES)
    real = np.dtype("f8" if recipe == "fp64" else "f4")
    steps = unroll(make_update("sgd", 0.0), [0.1] * 3, SIZES, 0.01)
    z = (3 * rng.normal(size=(m, states))).astype(real)
    gram = (0.1 * rng.normal(size=blocks_of(SIZES).gram_words)).astype(real)
    y = rng.integers(0, 2, size=(m, 1)) * rng.uniform(0.1, 3.0, size=(m, 1))
    backend = backend(RECIPES[recipe])
    plan = backend.prepare(steps, blocks_of(SIZES))
    batch, found = StepBatch(y.astype(real), None, None), []
    for _ in range(2):  # the second call takes what the first one prepared
        given = (z.copy(), gram, plan, family, batch, None)
        found.append(backend.corrected_residuals(*given))
    np.testing.assert_array_equal(*found)
    return found[0]


@pytest.mark.parametrize("recipe", ("fp64", "fp32"))
@pytest.mark.parametrize("case", CASES[:-1], ids=str)
def test_compiled_kernels_take_the_parameter(kernels, case, recipe):
    ours, numpys = (
        kernel_residuals(backend, recipe, made(case))
        for backend in (NativeBackend, HostBackend)
    )
    tolerance = 1e-12 if recipe == "fp64" else 2e-5
    np.testing.assert_allclose(ours, numpys, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(not compiled_calls.available(), reason="no kernels")
def test_a_backend_keeps_the_coefficients_of_each_parameter():
    """One plan serves two powers; neither takes the residuals of the other."""
    backend = NativeBackend(RECIPES["fp64"])
    steps = unroll(make_update("sgd", 0.0), [0.1], (4,), 0.0)
    plan, gram = backend.prepare(steps, blocks_of((4,))), np.zeros(0)
    z = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    batch = StepBatch(np.ones((4, 1)), None, None)
    for power in (1.2, 1.8):
        family = get_family("tweedie", {"power": power})
        found = backend.corrected_residuals(z.copy(), gram, plan, family, batch, None)
        np.testing.assert_allclose(found, family.residual(z, batch.targets), rtol=1e-12)


def textbook(case):
    """The residual of a case as a function of longdouble scores and targets."""
    name, _, value = case
    if name == "tweedie":
        return lambda t, y: (np.exp(t) - y) / np.exp((L(value) - 1) * t)
    return lambda t, y: (np.exp(t) - y) / (1 + L(value) * np.exp(t))


@pytest.mark.parametrize("product", ("direct", "gram"))
@pytest.mark.parametrize("case", [CASES[1], CASES[5]], ids=str)
def test_s_steps_with_a_parameter_are_sgd(case, product):
    """On three members, against longdouble steps with the same power or dispersion."""
    name, setting, value = case
    problem = make_problem(name)
    config = config_for(
        problem,
        problem={setting: value, "intercept": True, "l2": 0.05},
        products={"kind": product},
        rate={"value": 0.1},
    )
    result = train_on(3, config, problem)
    batches = replica_batches(config, len(problem.X), 1, 0)
    wide = type(problem)(**{**vars(problem), "family": textbook(case)})
    w, beta = oracle_on(batches, config, wide)
    np.testing.assert_allclose(result.weights, w[:, 0].astype(float), rtol=1e-10)
    assert float(result.intercept) == pytest.approx(float(beta[0]), rel=1e-9)


def test_a_family_sends_what_another_one_does():
    """A parameter is no message: all-reduces and words are those of Poisson."""
    sent = {}
    for name in ("poisson", "tweedie", "negative-binomial", "binomial"):
        problem = make_problem(name)
        ledger = train_on(2, config_for(problem), problem).ledger
        products = ledger["products"]
        sent[name] = products["calls"], products["words"]
    # An epoch of 53 rows: 4 exchanges of 12 margins and 48 words of a Gram matrix, and
    # one of the 5 rows that are left, of 5 and 4 words.
    assert sent == dict.fromkeys(sent, (10, 2 * (4 * 60 + 9)))


# Fits, against statsmodels, which has no penalty either.


@pytest.mark.parametrize("case", sorted(FIGURES.keys() - {"X", "statsmodels"}))
@pytest.mark.parametrize("solver", ("newton", "lbfgs", "coordinate"))
def test_fits_are_those_of_statsmodels(case, solver):
    name, _, value = case.partition(" ")
    figures, X = FIGURES[case], np.array(FIGURES["X"])
    setting = {"tweedie": "power", "negative-binomial": "dispersion"}.get(name)
    problem = {setting: float(value)} if setting else {}
    y, trials = np.array(figures["y"]), figures.get("trials")
    model = hpcsgd.GLM(
        family=name,
        alpha=0.0,
        solver=solver,
        tol=1e-12,
        config={"problem": problem},
    ).fit(X, y, trials)
    np.testing.assert_allclose(model.coef_, figures["coef"], rtol=0, atol=1e-6)
    assert model.intercept_ == pytest.approx(figures["intercept"], abs=1e-6)
    d2 = 1 - figures["deviance"] / figures["null_deviance"]
    assert model.score(X, y, trials) == pytest.approx(d2, rel=1e-9)
    c = np.ones(len(y)) if trials is None else np.array(trials)
    seen = hpcsgd.evaluate(model.result_, X, y, sample_weight=trials)
    assert seen["mean_deviance"] == pytest.approx(
        figures["deviance"] / c.sum(), rel=1e-9
    )
    variance = get_family(name, problem).variance(np.array([0.2]))[0]
    assert variance == pytest.approx(figures["variance_at_0.2"], rel=1e-12)


@pytest.mark.parametrize("case", sorted(FIGURES.keys() - {"X", "statsmodels"}))
def test_summaries_are_those_of_statsmodels(case):
    """Standard errors by the observed information, and the dispersion."""
    figures, X = FIGURES[case], np.array(FIGURES["X"])
    family, _, parameter = case.partition(" ")
    setting = {"tweedie": "power", "negative-binomial": "dispersion"}.get(family)
    problem = {setting: float(parameter)} if setting else {}
    result = hpcsgd.fit(
        X,
        family,
        np.array(figures["y"]),
        alpha=0.0,
        sample_weight=figures.get("trials"),
        config={"problem": problem},
    )
    summary = result.summary()
    errors = figures["standard_errors"]
    np.testing.assert_allclose(summary.standard_errors, errors, rtol=1e-6)
    dispersion = summary.statistics.dispersion
    np.testing.assert_allclose(dispersion, figures["dispersion"], rtol=1e-6)
    assert (summary.aic is None) == (family == "tweedie")


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("l1_ratio", (0.0, 0.5, 1.0))
def test_gaps_are_certified(name, l1_ratio):
    """The distance of a rough model from a fine one is below the bound of the rough."""
    problem = make_problem(name, n=90)
    given = {"alpha": 0.02, "l1_ratio": l1_ratio}
    fine = hpcsgd.fit(problem.X, name, problem.y, tol=1e-12, **given)
    assert fine.report["certified"]
    rough = hpcsgd.fit(problem.X, name, problem.y, tol=1e-3, **given)
    assert rough.loss - fine.loss + 1e-12 >= 0.0
    assert rough.loss - fine.loss <= rough.report["gap"] + 1e-12


def test_a_parameter_is_saved_with_the_model(tmp_path):
    problem = make_problem("tweedie")
    model = hpcsgd.TweedieRegressor(power=1.8).fit(problem.X, problem.y)
    assert model.result_.config["problem"]["power"] == 1.8
    model.save(tmp_path / "model.h5")
    loaded = hpcsgd.load(tmp_path / "model.h5")
    seen = [
        hpcsgd.evaluate(one.result_, problem.X, problem.y)["mean_deviance"]
        for one in (model, loaded)
    ]
    y, mean = problem.y, model.predict(problem.X)
    excess = mean**0.2 / 0.2 + y * mean**-0.8 / 0.8 - y**0.2 / (0.2 * 0.8)
    assert seen == pytest.approx([2 * excess.mean()] * 2, rel=1e-9)


def test_scores_with_offsets_are_against_the_best_constant():
    """Of the negative binomial no formula has it: no other constant comes as near."""
    problem = make_problem("negative-binomial")
    X, y, o = problem.X, problem.y, 3 * problem.offset
    model = hpcsgd.NegativeBinomialRegressor(dispersion=0.5).fit(X, y, offset=o)

    def deviance(mu):
        ratio = np.where(y > 0, y, 1) / mu
        near = y * np.log(ratio) - (y + 2) * np.log((1 + y / 2) / (1 + mu / 2))
        return 2 * near.sum()

    left = deviance(model.predict(X, offset=o))
    shifts = np.linspace(-3, 3, 6001)
    null = min(deviance(np.exp(o + shift)) for shift in shifts)
    wanted = 1 - left / null
    assert model.score(X, y, offset=o) == pytest.approx(wanted, rel=1e-4)
    assert model.score(X, y, offset=o) <= wanted + 1e-12


@pytest.mark.parametrize(
    ("family", "problem", "message"),
    [
        ("poisson", {"power": 1.7}, "power = 1.7 is for .*'tweedie'"),
        ("tweedie", {"dispersion": 2.0}, "dispersion = 2.0 is for .*'negative-binom"),
        ("tweedie", {"power": 1.0}, "above 1 and below 2; .* 1 is --family poisson"),
        ("tweedie", {"power": 2.0}, "above 1 and below 2; .* 2 is --family gamma"),
        ("negative-binomial", {"dispersion": 0.0}, "at least 1e-09 .* poisson"),
        ("negative-binomial", {"dispersion": float("inf")}, "at most 1e.09"),
    ],
)
def test_wrong_parameters_are_refused_in_one_sentence(family, problem, message):
    with pytest.raises(ConfigError, match=message) as raised:
        hpcsgd.fit([[0.0], [1.0]], family, [0.0, 1.0], config={"problem": problem})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("family", "y", "message"),
    [
        ("tweedie", [1.0, -0.5], "y is -0.5 at row 1 .* values of at least 0"),
        ("negative-binomial", [1.0, -2.0], "y is -2 at row 1 .* counts of at least 0"),
        ("binomial", [0.5, 1.5], "y is 1.5 at row 1 .* from 0 to 1, successes / tri"),
        ("binomial", [-0.1, 1.0], "y is -0.1 at row 0 .* --family logistic"),
    ],
)
def test_targets_out_of_range_are_refused_in_one_sentence(family, y, message):
    with pytest.raises(DataError, match=message):
        hpcsgd.fit([[0.0], [1.0]], family, y)


def test_an_argument_that_is_a_setting_is_answered_with_it():
    with pytest.raises(TypeError, match="no argument power; give config="):
        hpcsgd.fit([[0.0], [1.0]], "tweedie", [0.0, 1.0], power=1.2)
    for wrong in (1.0, 2.0, float("nan")):
        with pytest.raises(ConfigError, match="power = .* between 1 and 2"):
            get_family("tweedie", {"power": wrong})
    with pytest.raises(ConfigError, match="dispersion = 0.0 must lie between"):
        get_family("negative-binomial", {"dispersion": 0.0})


def test_trials_that_all_end_alike_and_are_separated_have_no_minimum():
    """Rows with a share between 0 and 1 give F a minimum."""
    X, y = np.linspace(-1.0, 1.0, 12)[:, None], np.repeat([0.0, 1.0], 6)
    with pytest.warns(hpcsgd.ConvergenceWarning, match="tell the classes apart"):
        endless = hpcsgd.fit(X, "binomial", y, alpha=0.0)
    assert endless.report["has_minimum"] is False
    finite = hpcsgd.fit(X, "binomial", np.where(y == 1.0, 0.9, 0.2), alpha=0.0)
    assert finite.report.get("has_minimum", True) and not finite.advice
    slope = X[:, 0] @ (1 / (1 + np.exp(-X @ finite.weights - finite.intercept)))
    wanted = X[:, 0] @ np.where(y == 1.0, 0.9, 0.2)
    assert slope == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("name", ("tweedie", "negative-binomial"))
def test_targets_that_are_all_0_have_no_minimum(name):
    X = np.linspace(-1.0, 1.0, 12)[:, None]
    model = hpcsgd.GLM(family=name)
    with pytest.warns(ConvergenceWarning, match="all targets are 0"):
        model.fit(X, np.zeros(12))
    assert model.score(X, np.zeros(12)) == 0.0, "there is nothing to explain"


def test_paths_sweeps_and_choices_of_a_penalty_take_the_parameter():
    """Each is the fit of its penalty alone, with the same power."""
    problem = make_problem("tweedie", n=90)
    X, y, config = problem.X, problem.y, {"problem": {"power": 1.8}}

    def alone(alpha, ratio):
        given = {"alpha": alpha, "l1_ratio": ratio, "config": config}
        return hpcsgd.fit(X, "tweedie", y, tol=1e-10, **given).weights

    path = hpcsgd.path(
        X, y, family="tweedie", alphas=(0.1, 0.01), tol=1e-10, config=config
    )
    for alpha, coef in zip(path.alphas, path.coefs, strict=True):
        np.testing.assert_allclose(coef, alone(alpha, 1.0), rtol=0, atol=1e-4)
    choice = hpcsgd.GLM_CV(
        family="tweedie", alphas=(0.3, 0.003), cv=3, config=config
    ).fit(X, y)
    wanted = alone(choice.alpha_, 0.0)
    np.testing.assert_allclose(choice.coef_, wanted, rtol=0, atol=1e-4)
    other = hpcsgd.fit(X, "tweedie", y, alpha=choice.alpha_).weights
    assert np.abs(other - wanted).max() > 1e-2, "another power is another model"

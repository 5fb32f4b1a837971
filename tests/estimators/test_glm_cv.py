"""Penalties by cross-validation: what is compared, what is chosen, what it costs."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
)

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.sampling import fold_of
from hpcsgd.errors import ConfigError
from hpcsgd.estimators.glm_cv import find_fold_minima
from hpcsgd.runs.session import Session
from tests.helpers.zoo import CHOOSING, name_of, problem_for

ALPHAS = (1e-3, 1e-1, 1.0)


def held_losses(X, y, folds, alphas):
    """Half the mean squared error of scikit-learn's ridge on each part."""
    found = np.empty((len(alphas), folds.max() + 1))
    for a, alpha in enumerate(alphas):
        for f in range(found.shape[1]):
            kept = folds != f
            model = Ridge(alpha=alpha * kept.sum()).fit(X[kept], y[kept])
            found[a, f] = np.mean((model.predict(X[~kept]) - y[~kept]) ** 2) / 2
    return found


@pytest.mark.parametrize("cv", [3, KFold(3), [([0], [1])]], ids=["int", "KFold", "bad"])
def test_held_losses_are_those_of_models_that_have_not_seen_the_rows(cv):
    model = hpcsgd.GLM_CV(alphas=ALPHAS, cv=cv)
    X, y = problem_for(model, n=83)
    if isinstance(cv, list):
        with pytest.raises(ConfigError, match="at most once"):
            model.fit(X, y)
        return
    rows = np.arange(len(y))
    if cv == 3:
        folds = fold_of(slice(0, len(y)), 3, 0)
    else:
        folds = np.array(
            [next(f for f, (_, t) in enumerate(cv.split(X)) if r in t) for r in rows]
        )
    model.fit(X, y)
    wanted = held_losses(X, y, folds, ALPHAS)
    np.testing.assert_allclose(model.cv_results_["held"], wanted, rtol=1e-4)
    mean = wanted.mean(axis=1)
    assert model.alpha_ == ALPHAS[mean.argmin()]
    np.testing.assert_allclose(model.cv_results_["mean_held"], mean, rtol=1e-4)


def test_models_as_steps_leave_them():
    """Cheaper: the same losses but for what steps have not done."""
    # Whole batches: rows of a smaller one would count more in steps of SGD.
    model = hpcsgd.GLM_CV(alphas=ALPHAS, cv=3, polish="best", max_iter=50)
    X, y = problem_for(model, n=96)
    rough = clone(model).fit(X, y).cv_results_["held"]
    wanted = held_losses(X, y, fold_of(slice(0, 96), 3, 0), ALPHAS)
    np.testing.assert_allclose(rough, wanted, rtol=0.01)
    assert (
        rough != clone(model).set_params(polish="all").fit(X, y).cv_results_["held"]
    ).any()
    with pytest.raises(ConfigError, match="'all', 'best'"):
        clone(model).set_params(polish=True).fit(X, y)


@pytest.mark.cases(6)
@pytest.mark.parametrize("estimator", CHOOSING, ids=name_of)
def test_the_best_is_fitted_on_all_rows(estimator):
    X, y = problem_for(estimator, n=83)
    model = clone(estimator).fit(X, y)
    plain = hpcsgd.GLM(family=model.family, alpha=model.alpha_).fit(X, y)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-7)
    assert model.score(X, y) == pytest.approx(plain.score(X, y), abs=1e-6)
    assert model.coef_.shape == plain.coef_.shape


def test_splitters():
    model = hpcsgd.GLM_CV(family="logistic", alphas=ALPHAS)
    X, y = problem_for(model, n=60)
    groups = np.arange(60) // 20
    splits = list(LeaveOneGroupOut().split(X, y, groups))
    assert clone(model).set_params(cv=splits).fit(X, y).cv_results_["held"].shape == (
        3,
        3,
    )
    stratified = clone(model).set_params(cv=StratifiedKFold(4)).fit(X, y)
    assert stratified.cv_results_["held"].shape == (3, 4)
    for strange in (ShuffleSplit(3, random_state=0), TimeSeriesSplit(3)):
        with pytest.raises(ConfigError, match="at most once"):
            clone(model).set_params(cv=strange).fit(X, y)
    with pytest.raises(ValueError, match="n_samples=2 is less than cv=5"):
        hpcsgd.GLM_CV().fit(X[:2], [0.0, 1.0])
    with pytest.raises(ConfigError, match="at least 2"):
        hpcsgd.GLM_CV(cv=1).fit(X, np.arange(60.0))


def test_one_gram_for_all_of_them():
    """Words: the strict blocks of one Gram, and the margins of every model."""
    model = hpcsgd.GLM_CV(alphas=ALPHAS, cv=3, batch=8, steps=4, max_iter=2)
    model.set_params(config={"products": {"kind": "gram"}})
    X, y = problem_for(model, n=64, d=6)

    def fitted(world):
        mine = clone(model).fit(X, y, comm=world)
        return mine.cv_ledger_, mine.coef_, mine.alpha_

    def fitted_by_steps(world):
        return clone(model).set_params(polish="best").fit(X, y, comm=world).cv_ledger_

    def passes(ledger):
        return ledger["evaluate"]["words"]

    by_steps = run_ranks(2, fitted_by_steps)[0]
    ledgers, coefs, alphas = zip(*run_ranks(2, fitted), strict=True)
    exchanges, models, m = 2 * 2, len(ALPHAS) * 4, 32
    products = ledgers[0]["products"]
    assert products["calls"] == exchanges
    assert products["words"] == exchanges * (8 * 8 * 4 * 3 // 2 + models * m)
    # At least a sum with the Hessian and the gradient of each model at its minimum.
    assert passes(ledgers[0]) - passes(by_steps) >= models * (7 * 7 + 7)
    assert (coefs[0] == coefs[1]).all() and len(set(alphas)) == 1
    np.testing.assert_allclose(coefs[0], clone(model).fit(X, y).coef_, atol=1e-7)


def test_folds_are_those_of_any_layout():
    model = hpcsgd.GLM_CV(family="logistic", alphas=ALPHAS, cv=3)
    X, y = problem_for(model, n=61)
    alone = clone(model).fit(X, y)

    def fitted(world):
        part = slice(0, 23) if world.rank == 0 else slice(23, None)
        return clone(model).fit(X[part], y[part], comm=world, layout="rows")

    for found in run_ranks(2, fitted):
        held = alone.cv_results_["held"]
        np.testing.assert_allclose(found.cv_results_["held"], held, rtol=1e-4)
        np.testing.assert_allclose(found.coef_, alone.coef_, atol=1e-7)
    with pytest.raises(ConfigError, match="needs all rows"):
        run_ranks(
            2,
            lambda w: (
                clone(model).set_params(cv=KFold(3)).fit(X, y, comm=w, layout="rows")
            ),
        )


@pytest.mark.parametrize("failures, is_open", [(2, True), (4, True), (1, False)])
def test_a_rate_of_the_data_is_lowered_until_models_learn(
    failures, is_open, monkeypatch
):
    rates = []

    class Failing(Session):
        def run(self):
            result = super().run()
            rates.append(result.config["rate"]["value"])
            if len(rates) <= failures:
                result.report["held"] = [None] * len(result.report["held"])
            return result

    monkeypatch.setattr("hpcsgd.estimators.glm_cv.Session", Failing)
    rate = "auto" if is_open else 0.1
    model = hpcsgd.GLM_CV(alphas=(1e-3, 1e-1), cv=2, polish="best", rate=rate)
    X, y = problem_for(model, n=37)
    if failures == 4 or (failures and not is_open):
        with pytest.raises(ConfigError, match="every model diverged"):
            model.fit(X, y)
    else:
        model.fit(X, y)
    tried = min(failures + 1, 4) if is_open else 1
    np.testing.assert_allclose(rates, [rates[0] / 8**k for k in range(tried)])


@pytest.mark.parametrize("rate", [1e3, 1e30, 1e200])
def test_a_fixed_rate_with_which_every_model_diverges_is_refused(rate):
    """Losses grow to finite numbers, or weights to infinite ones."""
    model = hpcsgd.GLM_CV(alphas=ALPHAS, cv=2, polish="best", rate=rate)
    with pytest.raises(ConfigError, match="every model diverged.*a smaller rate"):
        model.fit(*problem_for(model, n=37))


def test_a_large_alpha_does_not_outrun_the_rate():
    """The rate of all models is that of the one that bends most."""
    model = hpcsgd.GLM_CV(alphas=(1e-3, 30.0), cv=3, polish="best")
    X, y = problem_for(model, n=83)
    assert model.fit(X, y).cv_results_["held"].max() < 2.0 and model.alpha_ == 1e-3


def test_it_has_no_partial_fit():
    assert not hasattr(hpcsgd.GLM_CV(), "partial_fit")


def test_all_ranks_choose_the_same_penalty(monkeypatch):
    """Sums need not have the same last bits everywhere: rank 0 chooses."""

    def as_a_rank_sees_it(*args, world, **settings):
        minima = find_fold_minima(*args, world=world, **settings)
        return replace(minima, held=minima.held[::-1]) if world.rank else minima

    monkeypatch.setattr("hpcsgd.estimators.glm_cv.find_fold_minima", as_a_rank_sees_it)
    model = hpcsgd.GLM_CV(alphas=(1e-3, 1e-1, 10.0), cv=2)
    X, y = problem_for(model, n=37)
    fitted = run_ranks(2, lambda world: clone(model).fit(X, y, comm=world))
    assert fitted[0].alpha_ == fitted[1].alpha_
    held = [one.cv_results_["mean_held"] for one in fitted]
    np.testing.assert_array_equal(*held)


def test_groups():
    """Rows of a group are held out together."""
    X, y = problem_for(hpcsgd.GLM_CV(), n=61)
    groups = np.arange(61) % 7
    model = hpcsgd.GLM_CV(alphas=ALPHAS, cv=GroupKFold(3)).fit(X, y, groups=groups)
    pairs = list(GroupKFold(3).split(X, y, groups))
    again = hpcsgd.GLM_CV(alphas=ALPHAS, cv=pairs).fit(X, y)
    np.testing.assert_array_equal(model.cv_results_["held"], again.cv_results_["held"])
    with pytest.raises(hpcsgd.ConfigError, match="GroupKFold"):
        hpcsgd.GLM_CV(alphas=ALPHAS, cv=3).fit(X, y, groups=groups)


def test_models_go_to_their_minima_whatever_bounds_the_epochs():
    model = hpcsgd.GLM_CV(family="logistic", alphas=ALPHAS, cv=3)
    X, y = problem_for(model, n=83)
    whole = clone(model).fit(X, y).cv_results_["held"]
    short = clone(model).set_params(max_iter=1).fit(X, y).cv_results_["held"]
    np.testing.assert_allclose(short, whole, rtol=1e-12)

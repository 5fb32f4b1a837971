"""What a fit listens to: labels, weights of classes, starts, epochs, settings."""

import warnings
from threading import Thread

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet
from sklearn.utils.class_weight import compute_sample_weight

import hpcsgd
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import StoreWriter
from hpcsgd.errors import ConfigError
from tests.helpers.zoo import ALL, GENERIC, NAMED, name_of, problem_for

CLASSIFIERS = [e for e in ALL if e._labelled]


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=name_of)
@pytest.mark.parametrize("kind", [str, object, bool, np.int8, np.float64])
def test_labels_of_any_kind(estimator, kind):
    X, y = problem_for(estimator)
    codes = y == "top" if "top" in y else y == "mid"
    names = {str: ["no", "yes"], object: ["no", "yes"], bool: [False, True]}
    labels = np.array(names.get(kind, [-3, 7]), dtype=kind)
    model = clone(estimator).fit(X, labels[codes.astype(int)])
    np.testing.assert_array_equal(model.classes_, labels)
    assert model.classes_.dtype == labels.dtype
    found = model.predict(X)
    assert found.dtype == labels.dtype and set(found) <= set(labels)
    assert (found == labels[codes.astype(int)]).mean() > 0.6
    assert (model.decision_function(X) > 0).tolist() == (found == labels[1]).tolist()


@pytest.mark.parametrize("weights", [None, {"low": 5.0}, "balanced"])
@pytest.mark.parametrize("classes", [2, 3])
def test_weights_of_classes_are_sample_weights(weights, classes):
    for estimator in (hpcsgd.LogisticRegression(), hpcsgd.LinearSVC()):
        X, y = problem_for(estimator, n=61, classes=classes)
        c = np.random.default_rng(5).uniform(0.5, 2.0, size=len(y))
        if weights == "balanced":  # by weights, not by rows
            counts = {k: c[y == k].sum() for k in np.unique(y)}
            by_class = {k: c.sum() / (classes * v) for k, v in counts.items()}
        else:
            by_class = weights
        each = c * compute_sample_weight(by_class, y)
        weighted = clone(estimator).set_params(class_weight=weights).fit(X, y, c)
        plain = clone(estimator).fit(X, y, each)
        np.testing.assert_allclose(weighted.coef_, plain.coef_, atol=1e-7)


@pytest.mark.parametrize("estimator", ALL, ids=name_of)
@pytest.mark.cases(4)
def test_epoch_by_epoch(estimator):
    """Each call goes on, through all orders of rows, to near the minimum."""
    X, y = problem_for(estimator, n=97)
    best = clone(estimator).fit(X, y)
    model = clone(estimator)
    more = {"classes": np.unique(y)} if estimator._labelled else {}
    scores = []
    for _ in range(12):
        model.partial_fit(X, y, **more)
        more = {}
        scores.append(model.history_[-1]["loss"])
    assert model.n_iter_ == 12
    first, last = model.history_[0]["loss"], scores[-1]
    least = best.history_[-1]["loss"]
    assert last - least < 0.5 * (first - least)
    assert len(set(scores)) == 12  # no epoch repeats another


def test_classes_that_are_not_there_yet():
    """Batches of one class are no reason to stop; strange labels are."""
    X, y = problem_for(hpcsgd.LogisticRegression(), classes=3)
    for estimator in (hpcsgd.LogisticRegression(), hpcsgd.LinearSVC()):
        model = clone(estimator)
        for label in ("low", "mid", "top"):
            rows = y == label
            model.partial_fit(X[rows], y[rows], classes=["low", "mid", "top"])
        assert model.coef_.shape == (3, X.shape[1])
        with pytest.raises(ValueError, match="name every class"):
            model.partial_fit(X, np.where(y == "low", "new", y))
        with pytest.raises(ValueError, match="classes"):
            clone(estimator).partial_fit(X, y)
        with pytest.raises(ValueError, match="one class only"):
            clone(estimator).fit(X, np.full(len(X), "low"))


@pytest.mark.parametrize("estimator", ALL, ids=name_of)
@pytest.mark.cases(4)
def test_a_warm_start_has_nothing_left_to_do(estimator):
    X, y = problem_for(estimator)
    settings = {"config": {"polish": {"tol": 1e-6}}, "max_iter": 1, "rate": 1e-9}
    model = clone(estimator).set_params(warm_start=True, average="none", **settings)
    cold = model.fit(X, y).n_iter_
    model.fit(X, y)
    assert np.all(model.n_iter_ <= 2) and np.all(cold > 4)
    cold_again = clone(model).set_params(warm_start=False)
    assert cold_again.fit(X, y).fit(X, y).n_iter_ == cold


def test_more_classes_refuse_what_knows_two():
    X, y = problem_for(hpcsgd.LogisticRegression(), classes=3)
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        hpcsgd.GLM(family="probit").fit(X, y)
    assert hpcsgd.GLM(family="softmax").fit(X, y).coef_.shape == (3, X.shape[1])


@pytest.mark.parametrize("estimator", NAMED, ids=name_of)
def test_bounds(estimator):
    X, y = problem_for(estimator, n=61)
    free = (
        clone(estimator).set_params(alpha=0.01)
        if "alpha" in estimator.get_params()
        else clone(estimator)
    )
    low = np.full(X.shape[1], -0.05)
    low[0] = 0.0
    model = clone(free).set_params(bounds=(low, 0.1), max_iter=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    inside = np.atleast_2d(model.coef_)
    assert (inside >= low - 1e-6).all() and (inside <= 0.1 + 1e-6).all()
    at_bound = np.isclose(inside, low, atol=1e-4) | np.isclose(inside, 0.1, atol=1e-4)
    assert at_bound.any()


@pytest.mark.parametrize("solver", ["coordinate", "svrg"])
def test_other_solvers_reach_the_same_minimum(solver):
    for estimator in (
        hpcsgd.Ridge(alpha=0.1),
        hpcsgd.LinearSVC(alpha=0.1, fit_intercept=False),
    ):
        X, y = problem_for(estimator, n=61)
        best = clone(estimator).fit(X, y)
        other = clone(estimator).set_params(solver=solver, precision="fp64", tol=1e-12)
        other.fit(X, y)
        np.testing.assert_allclose(other.coef_, best.coef_, atol=1e-5)


def test_history_says_the_objective():
    """F as the docstring has it, at every pass, and the gradient where it is known."""
    model = hpcsgd.Ridge(alpha=0.2)
    X, y = problem_for(model)
    model.fit(X, y)
    t = model.predict(X)
    F = 0.5 * np.mean((t - y) ** 2) + 0.1 * np.sum(model.coef_**2)
    assert model.history_[-1]["loss"] == pytest.approx(F, rel=1e-12)
    assert model.history_[-1]["gradient"] < 1e-7
    assert model.n_iter_ == model.history_[-1]["epoch"] + model.history_[-1]["passes"]
    many = hpcsgd.LinearSVC()
    X, y = problem_for(many, classes=3)
    many.fit(X, y)
    assert {record["class"] for record in many.history_} == {0, 1, 2}
    assert len(many.result_) == 3


def test_huber_says_it_in_the_units_of_y():
    model = hpcsgd.HuberRegressor(delta=0.5, alpha=0.2)
    X, y = problem_for(model)
    e = np.abs(model.fit(X, y).predict(X) - y)
    h = np.where(e <= 0.5, e * e / 2, 0.5 * (e - 0.25))
    F = h.mean() + 0.1 * np.sum(model.coef_**2)
    assert model.history_[-1]["loss"] == pytest.approx(F, rel=1e-12)


def test_callbacks_and_lines(capsys):
    class Seen(hpcsgd.Callback):
        losses: list = []

        def on_evaluate(self, view):
            self.losses.append(view.loss)

    model = hpcsgd.Ridge(callbacks=[Seen()], verbose=1)
    X, y = problem_for(model)
    model.fit(X, y)
    assert Seen.losses[-1] == model.history_[-1]["loss"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(model.history_) and "F " in lines[-1]


def test_a_warning_says_what_to_change():
    model = hpcsgd.LogisticRegression(max_iter=2, polish=False, rate=0.1)
    X, y = problem_for(model)
    with pytest.warns(
        ConvergenceWarning, match="LogisticRegression: .*max_iter"
    ) as said:
        model.fit(X, y)
    assert len(said) == 1 and said[0].filename == __file__
    model = hpcsgd.PoissonRegressor(config={"polish": {"passes": 1}})
    with pytest.warns(ConvergenceWarning, match="polish.passes"):
        model.fit(X, np.arange(len(X)))


def test_unknown_names_are_refused():
    X, y = problem_for(hpcsgd.Ridge())
    for bad in ({"solver": "simplex"}, {"precision": "fp1"}, {"bounds": 3}):
        with pytest.raises(ConfigError):
            hpcsgd.Ridge(**bad).fit(X, y)
    with pytest.raises(ConfigError, match="unknown family"):
        hpcsgd.GLM(family="cauchy").fit(X, y)
    with pytest.raises(ConfigError, match="delta"):
        hpcsgd.HuberRegressor(delta=0.0).fit(X, y)


def test_seeds():
    """Whatever scikit-learn takes for one; a generator gives another every time."""
    X, y = problem_for(hpcsgd.Ridge())
    fits = []
    for seed in (0, 0, 1, np.int64(1), None, np.random.RandomState(3)):
        model = hpcsgd.Ridge(
            random_state=seed, polish=False, max_iter=1, average="none"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fits.append(model.fit(X, y).coef_)
    assert (fits[0] == fits[1]).all() and (fits[2] == fits[3]).all()
    assert len({fit.tobytes() for fit in fits}) == 4


def test_generic_ones_are_what_their_family_is():
    from sklearn.base import is_classifier, is_regressor

    for model in GENERIC:
        assert is_classifier(model) == model._labelled != is_regressor(model)
        assert hasattr(model, "decision_function") == model._labelled
        known = model.family in ("logistic", "probit", "softmax")
        assert hasattr(model, "predict_proba") == known


def test_logarithms_of_small_probabilities():
    X, y = problem_for(hpcsgd.LogisticRegression())
    for model in (
        hpcsgd.LogisticRegression().fit(X, y),
        hpcsgd.GLM(family="probit").fit(X, y),
        hpcsgd.LogisticRegression().fit(X, np.arange(len(X)) % 3),
    ):
        found = model.predict_log_proba(X)
        np.testing.assert_allclose(found, np.log(model.predict_proba(X)), rtol=1e-9)
        assert np.isfinite(model.predict_log_proba(1e5 * X)).all()


def test_an_epoch_of_few_rows_of_one_class_is_no_search_for_a_gap():
    """Nothing but the epoch: no bound is looked for that does not exist."""
    X, _ = problem_for(hpcsgd.LogisticRegression())
    model = hpcsgd.LogisticRegression()
    model.partial_fit(X, np.zeros(len(X)), classes=[0, 1, 2])
    assert all("gap" not in record for record in model.history_)
    assert model.result_.ledger.get("evaluate", {"calls": 0})["calls"] < 20


@pytest.mark.parametrize("l1_ratio", [0.5, 1.0])
def test_the_lasso_of_correlated_columns(l1_ratio):
    """Single coordinates get there where blocks of all of them creep."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:300], y[:300]
    model = hpcsgd.Ridge(alpha=1e-2, l1_ratio=l1_ratio).fit(X, y)
    assert model.n_iter_ < 500
    known = ElasticNet(alpha=1e-2, l1_ratio=l1_ratio, tol=1e-13, max_iter=10**5)
    np.testing.assert_allclose(model.coef_, known.fit(X, y).coef_, atol=1e-5)


def test_fits_of_threads_leave_the_filters_of_warnings():
    X, y = problem_for(hpcsgd.Ridge())
    before = list(warnings.filters)
    fits = [Thread(target=lambda: hpcsgd.Ridge().fit(X, y)) for _ in range(6)]
    for fit in fits:
        fit.start()
    for fit in fits:
        fit.join()
    assert list(warnings.filters) == before


@pytest.mark.parametrize("family", ["logistic", "probit", "softmax"])
def test_a_fit_without_a_minimum_says_so(family):
    X = np.arange(12.0)[:, None]
    y = X[:, 0] > 5.5
    with pytest.warns(ConvergenceWarning, match="no minimum.*alpha > 0"):
        hpcsgd.GLM(family=family, alpha=0.0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hpcsgd.GLM(family=family, alpha=1e-6).fit(X, y)


def test_counts_of_zero_have_no_minimum():
    X = np.arange(12.0)[:, None]
    with pytest.warns(ConvergenceWarning, match="all targets are 0"):
        hpcsgd.PoissonRegressor().fit(X, np.zeros(12))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"callbacks": 3}, "callbacks contains an object of type int"),
        ({"callbacks": [3]}, "callbacks contains an object of type int"),
        ({"config": 3}, "config is of type int"),
        ({"fit_intercept": "no"}, "True or False"),
        ({"alpha": -1.0}, "alpha = -1.0 must be finite"),
        ({"alpha": np.nan}, "alpha = nan must be finite"),
    ],
)
def test_parameters_that_are_none(given, words):
    X, y = problem_for(hpcsgd.Ridge())
    with pytest.raises(ConfigError, match=words):
        hpcsgd.Ridge(**given).fit(X, y)


def test_rows_that_come_in_pieces_do_not_forget_those_before():
    """With l1 too: an exact step on a few rows would fit them and no others."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 6))
    y = X @ np.arange(6.0) + rng.normal(size=600)
    model = hpcsgd.Ridge(l1_ratio=1.0, alpha=1e-2)
    for first in range(0, 600, 20):
        model.partial_fit(X[first : first + 20], y[first : first + 20])
    assert model.score(X, y) > 0.9 and model.result_.config["update"]["kind"] == "sgd"


def test_l1_leaves_zeros_in_softmax():
    X, y = load_digits(return_X_y=True)
    X, y = X[:60, 10:30] / 16, y[:60] % 3
    model = hpcsgd.LogisticRegression(alpha=0.02, l1_ratio=1.0, max_iter=60).fit(X, y)
    assert model.result_.report["converged"]
    assert np.count_nonzero(model.coef_ == 0.0) > model.coef_.size / 3


@pytest.mark.parametrize("solver", ["newton", "lbfgs", "auto", "sgd"])
def test_all_solvers_of_a_smooth_objective_end_at_its_minimum(solver):
    model = hpcsgd.LogisticRegression(solver=solver, tol=1e-8)
    X, y = problem_for(model)
    usual = hpcsgd.LogisticRegression(tol=1e-8).fit(X, y)
    np.testing.assert_allclose(model.fit(X, y).coef_, usual.coef_, atol=1e-6)
    assert (model.result_.iterations > 0) == (solver == "sgd")


def test_max_iter_bounds_the_passes_of_whatever_solver_runs():
    """A habit of scikit-learn's users, which must not ask for so many epochs."""
    X, y = problem_for(hpcsgd.LogisticRegression())
    model = hpcsgd.LogisticRegression(max_iter=1000).fit(X, y)
    assert model.result_.iterations == 0 and model.result_.report["converged"]
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        hpcsgd.LogisticRegression(max_iter=1).fit(X, y)
    steps = hpcsgd.LogisticRegression(max_iter=2, batch=16).fit(X, y)
    assert steps.result_.config["schedule"]["epochs"] == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"l1_ratio": 1.0},
        {"hold_out": 0.1},
        {"polish": False},
        {"bounds": (0.0, None)},
    ],
)
def test_a_solver_of_smooth_objectives_is_refused_elsewhere(wrong):
    X, y = problem_for(hpcsgd.LogisticRegression())
    with pytest.raises(ConfigError, match="solver = 'newton' cannot be used"):
        hpcsgd.LogisticRegression(solver="newton", **wrong).fit(X, y)


def file_of_labels(folder, classes):
    """Return the path of a data file whose targets are the numbers of classes."""
    X, y = problem_for(hpcsgd.LogisticRegression(), classes=classes)
    with StoreWriter(folder / "rows.h5", StoreLayout(X.shape[1])) as writer:
        writer.append(X, np.unique(y, return_inverse=True)[1].astype(float))
    return str(folder / "rows.h5")


@pytest.mark.parametrize("kind", ["LogisticRegression", "LinearSVC", "GLM", "GLM_CV"])
def test_weights_of_classes_are_refused_with_labels_in_a_file(kind, tmp_path):
    model = getattr(hpcsgd, kind)(class_weight="balanced")
    if kind.startswith("GLM"):
        model.set_params(family="logistic")
    with pytest.raises(ConfigError, match="class_weight = 'balanced' cannot be used"):
        model.fit(file_of_labels(tmp_path, classes=2))


def test_one_model_for_each_class_is_refused_with_labels_in_a_file(tmp_path):
    with pytest.raises(ConfigError, match=r"LinearSVC .* 3 classes .*softmax"):
        hpcsgd.LinearSVC().fit(file_of_labels(tmp_path, classes=3))
    two = hpcsgd.LinearSVC().fit(file_of_labels(tmp_path, classes=2))
    assert two.coef_.shape == (1, 5)

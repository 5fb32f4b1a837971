"""What is not taken is refused with what is: arguments, families, text."""

import copy
import inspect
import pickle
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import linear_model, svm
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import hpcsgd
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators.fit import described
from hpcsgd.runs.defaults import FitArguments
from tests.helpers.limits import HANG
from tests.helpers.zoo import CHOOSING, NAMED, name_of, problem_for

THEIRS = {
    "LogisticRegression": linear_model.LogisticRegression,
    "LinearSVC": svm.LinearSVC,
    "LinearRegression": linear_model.LinearRegression,
    "Ridge": linear_model.ElasticNet,
    "HuberRegressor": linear_model.HuberRegressor,
    "PoissonRegressor": linear_model.PoissonRegressor,
    "GammaRegressor": linear_model.GammaRegressor,
    "TweedieRegressor": linear_model.TweedieRegressor,
    "NegativeBinomialRegressor": linear_model.PoissonRegressor,
}


@pytest.mark.parametrize(
    ("kind", "argument", "says"),
    [
        ("LogisticRegression", "C", "give alpha = 1/(C·n) for n rows"),
        ("LinearSVC", "C", "give alpha = 1/(2·C·n) for n rows"),
        ("GLM_CV", "Cs", "give alphas, each of them 1/(C·n) for n rows"),
        ("GLM_CV", "alpha", "give alphas"),
        ("LinearRegression", "alpha", "take Ridge"),
        ("Ridge", "positive", "give bounds=(0, None)"),
        ("Ridge", "epsilon", "take HuberRegressor(epsilon=...)"),
        ("LogisticRegression", "penalty", "0.0 for l2 and 1.0 for l1"),
        ("PoissonRegressor", "n_jobs", "give fit their comm"),
    ],
)
def test_an_argument_of_scikit_learn_is_answered_with_ours(kind, argument, says):
    estimator = getattr(hpcsgd, kind)
    with pytest.raises(TypeError) as raised:
        estimator(**{argument: 1})
    message = str(raised.value)
    assert message.startswith(f"{kind} has no argument {argument}; ")
    assert says in message
    with pytest.raises(ValueError, match=f"{kind} has no argument {argument}; "):
        estimator().set_params(**{argument: 1})


@pytest.mark.parametrize("estimator", NAMED, ids=name_of)
def test_every_argument_of_the_class_of_this_name_is_taken_or_answered(estimator):
    kind = type(estimator)
    for argument in inspect.signature(THEIRS[kind.__name__]).parameters:
        if argument in inspect.signature(kind).parameters:
            continue
        with pytest.raises(TypeError, match=f"{kind.__name__} has no argument"):
            kind(**{argument: 1})


def test_the_alpha_of_the_answer_is_the_same_penalty():
    X, y = problem_for(hpcsgd.LogisticRegression())
    ours = hpcsgd.LogisticRegression(alpha=1 / (0.5 * len(y))).fit(X, y)
    theirs = linear_model.LogisticRegression(C=0.5, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)


def defaults_of(function):
    """Name -> default of every parameter that has one."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def test_fit_has_every_argument_with_the_same_default():
    declared = {field.name: field.default for field in fields(FitArguments)}
    assert declared.items() <= defaults_of(hpcsgd.fit).items()


@pytest.mark.parametrize("estimator", [*NAMED, *CHOOSING[:1]], ids=name_of)
def test_a_parameter_of_an_estimator_is_the_argument_of_fit(estimator):
    """With the same default, but for the tolerance and the names of scikit-learn."""
    own = {"tol", "family"} | ({"polish"} if hasattr(estimator, "cv") else set())
    parameters = defaults_of(type(estimator))
    of_fit = defaults_of(hpcsgd.fit) | {"max_iter": None, "random_state": 0}
    for name in parameters.keys() & of_fit.keys() - own:
        assert parameters[name] == of_fit[name], name


def test_arguments_are_described_once():
    """In the docstring of `fit`, which those of estimators and paths repeat."""
    of_fit = described(inspect.getdoc(hpcsgd.fit))
    for item in (hpcsgd.Ridge, hpcsgd.Ridge.fit, hpcsgd.path):
        descriptions = described(inspect.getdoc(item))
        assert list(descriptions) == [
            name for name in inspect.signature(item).parameters if name != "self"
        ]
        assert "X" in descriptions or descriptions["alpha"] == of_fit["alpha"]
    kind, text = described(inspect.getdoc(hpcsgd.path))["sample_weight"]
    assert kind == "array-like of shape (n,) or None"
    assert text.split() == of_fit["sample_weight"][1].split()


def test_other_arguments_are_what_they_were():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        hpcsgd.Ridge(colour=1)
    with pytest.raises(ValueError, match="Invalid parameter 'colour'"):
        hpcsgd.Ridge().set_params(colour=1)
    model = hpcsgd.Ridge(alpha=3.0)
    for other in (
        clone(model),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
    ):
        assert other.alpha == 3.0

    class Own(hpcsgd.Ridge):
        def __init__(self, C=1.0):
            super().__init__(alpha=1 / C)
            self.C = C

    assert Own(C=2.0).set_params(C=4.0).C == 4.0
    X, y = problem_for(model)
    search = GridSearchCV(hpcsgd.Ridge(), {"C": [1.0]}, error_score="raise")
    with pytest.raises(ValueError, match=r"give alpha = 1/\(C·n\)"):
        search.fit(X, y)


@pytest.mark.parametrize("solver", ["newton-cg", "liblinear", "saga"])
def test_solvers_of_scikit_learn_are_said_to_be_auto(solver):
    X, y = problem_for(hpcsgd.Ridge())
    with pytest.raises(ConfigError, match="'auto' reaches the same minimum"):
        hpcsgd.LogisticRegression(solver=solver).fit(X, y > 0)
    with pytest.raises(ConfigError) as raised:
        hpcsgd.Ridge(solver="fast").fit(X, y)
    assert "scikit-learn" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        *(
            ("negbin", "negative-binomial"),
            ("Bernoulli", "logistic"),
            ("normal", "gaussian"),
        ),
        *(("multinomial", "softmax"), ("squared_hinge", "squared-hinge")),
        *(("gausian", "gaussian"), ("least squares", "gaussian")),
    ],
)
def test_families_by_other_names_are_answered_with_ours(name, ours):
    X, y = problem_for(hpcsgd.Ridge())
    for call in (
        lambda: hpcsgd.fit(X, name, y > 0),
        lambda: hpcsgd.GLM(family=name).fit(X, y > 0),
        lambda: hpcsgd.train({"problem": {"family": name}}, X=X, y=y > 0),
    ):
        with pytest.raises(ConfigError, match=f"unknown family: .*; take '{ours}'; "):
            call()


def test_families_that_are_like_no_other_are_answered_with_all():
    X, y = problem_for(hpcsgd.Ridge())
    with pytest.raises(ConfigError) as raised:
        hpcsgd.fit(X, "cauchy", y)
    assert "take" not in str(raised.value) and "known: " in str(raised.value)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_text_in_a_frame_is_refused_by_its_column(frame):
    numbers = {"age": [1.0, 2.0, 4.0], "city": [0.0, 1.0, 0.0]}
    data = frame({**numbers, "city": ["Bern", "Rom", "Bern"]})
    y = np.array([0.0, 1.0, 0.0])
    for estimator in (hpcsgd.Ridge(), hpcsgd.LogisticRegression()):
        with pytest.raises(DataError, match=r"'city' .* encode .* or drop"):
            estimator.fit(data, y)
        model = estimator.fit(frame(numbers), y)
        with pytest.raises(DataError, match=r"'city' .* encode .* or drop"):
            model.predict(data)


@pytest.mark.parametrize("dtype", [object, str])
def test_text_in_an_array_is_refused_by_its_place(dtype):
    X = np.array([[1, 2], [3, 4], [5, "Bern"]], dtype=dtype)
    if dtype is str:
        X[:, 0] = "Rom"
    place = (
        "'Rom' in column 0 at row 0" if dtype is str else "'Bern' in column 1 at row 2"
    )
    y = np.array([0.0, 1.0, 0.0])
    for call in (
        lambda: hpcsgd.Ridge().fit(X, y),
        lambda: hpcsgd.fit(X, "gaussian", y),
    ):
        with pytest.raises(DataError, match=f"X holds {place}"):
            call()
    with pytest.raises(DataError, match="y is not numeric"):
        hpcsgd.Ridge().fit(np.eye(3), np.array(["a", "b", "c"], dtype=object))


def test_estimators_are_public_names_where_scikit_learn_is():
    names = hpcsgd.__all__
    assert {type(estimator).__name__ for estimator in NAMED} | {"GLM_CV"} < set(names)
    assert len(names) == len(set(names))
    space = {}
    exec("from hpcsgd import *", space)
    assert space["Ridge"] is hpcsgd.Ridge and space["fit"] is hpcsgd.fit


@pytest.mark.parametrize("is_refused", [False, True])
def test_public_names_without_an_import_of_scikit_learn(is_refused):
    """Names are found without it, and are no estimators where it is not."""
    refuse = "import sys; sys.modules['sklearn'] = None\n" if is_refused else ""
    program = (
        "import hpcsgd, sys\n"
        "print('Ridge' in hpcsgd.__all__, 'fit' in hpcsgd.__all__,"
        " bool({'sklearn', 'numpy'} & {n for n, m in sys.modules.items() if m}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", refuse + program],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.stdout.split() == [str(not is_refused), "True", "False"], done.stderr

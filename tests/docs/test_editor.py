"""What a person sees at a prompt and in an editor: names, types, short texts."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from sklearn import linear_model

import hpcsgd
from hpcsgd.estimators.fit import OTHER_NAMES
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "hpcsgd" / "__init__.py").read_text()


def imports_for_type_checkers(source):
    """name -> module of the block `if TYPE_CHECKING:`."""
    block = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    return {
        alias.asname: node.module
        for node in block.body
        for alias in node.names
        if alias.asname == alias.name
    }


def test_a_type_checker_sees_every_public_name():
    """Under the name that a checker takes for public, from the module that has it."""
    found = imports_for_type_checkers(SOURCE)
    assert set(found) == {*hpcsgd._NAMES, *hpcsgd._ESTIMATORS}
    for name, module in found.items():
        assert getattr(import_module(module), name) is getattr(hpcsgd, name)
        assert module == hpcsgd._NAMES.get(name, module)


def test_a_name_that_a_type_checker_lacks_is_found():
    planted = SOURCE.replace("    from hpcsgd.api import train as train\n", "")
    assert planted != SOURCE
    assert "train" not in imports_for_type_checkers(planted)


def test_mypy_finds_a_type_for_every_public_name(tmp_path):
    pytest.importorskip("mypy")
    names = [name for name in hpcsgd.__all__ if name != "__version__"]
    file = tmp_path / "uses.py"
    file.write_text(
        "import hpcsgd\n"
        + "".join(f"reveal_type(hpcsgd.{name})\n" for name in names)
        + "reveal_type(hpcsgd.Ridge().fit([[1.0]], [1.0]).predict([[1.0]]))\n"
        + "hpcsgd.ridge\n"
    )
    command = [sys.executable, "-m", "mypy", "--ignore-missing-imports", str(file)]
    command += ["--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=2 * HANG
    )
    revealed = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert len(revealed) == len(names) + 1, done.stdout + done.stderr
    assert not [line for line in revealed if 'type is "Any"' in line]
    assert "ndarray" in revealed[-1]
    assert 'Module has no attribute "ridge"' in done.stdout


def problem(n=200):
    X = np.random.default_rng(0).normal(size=(n, 3))
    return X, X[:, 0] > 0


def objects():
    X, y = problem()
    result = hpcsgd.train({"rate": {"value": 0.5}}, X=X, y=y)
    with np.errstate(all="ignore"), pytest.warns(hpcsgd.ConvergenceWarning):
        diverged = hpcsgd.train(
            {"problem": {"family": "gaussian"}, "rate": {"value": 1e4}}, X=X, y=y
        )
    yield result, "Result: completed"
    yield diverged, "Result: diverged"
    yield hpcsgd.fit(X, "logistic", y), "Result: completed"
    yield hpcsgd.sweep(l2=[1e-4, 1e-2], folds=5, X=X, y=y), "Sweep: 12 models"
    yield hpcsgd.sweep(rate=[1e-4, 1e-2], X=X, y=y), "Sweep: 2 models"
    yield hpcsgd.path(X, y, n_alphas=20), "Path: 20 models of gaussian"


def test_objects_are_five_lines_at_a_prompt():
    for item, begin in objects():
        lines = repr(item).splitlines()
        assert lines[0].startswith(begin)
        assert len(lines) <= 5 and max(map(len, lines)) < 140, repr(item)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Lasso", r"Ridge\(l1_ratio=1\)"),
        ("ElasticNet", r"Ridge\(l1_ratio=0.5\)"),
        ("LogisticRegressionCV", r"GLM_CV\(family='logistic'\)"),
        ("SGDClassifier", "LogisticRegression or LinearSVC"),
    ],
)
def test_a_name_of_scikit_learn_is_answered_with_ours(name, says):
    with pytest.raises(AttributeError, match=f"hpcsgd has no {name}; take {says}"):
        getattr(hpcsgd, name)
    with pytest.raises(ImportError, match=f"hpcsgd has no {name}; take {says}"):
        exec(f"from hpcsgd import {name}")
    assert not hasattr(hpcsgd, name)


def test_every_linear_model_that_is_a_habit_exists_or_is_answered():
    habits = {"Lasso", "LassoCV", "ElasticNet", "ElasticNetCV", "RidgeCV"}
    habits |= {"RidgeClassifier", "LogisticRegressionCV", "SGDClassifier"}
    habits |= {"SGDRegressor", "lasso_path", "enet_path"}
    assert habits <= set(dir(linear_model))
    assert habits <= set(hpcsgd._INSTEAD)
    assert not set(hpcsgd._INSTEAD) & set(dir(hpcsgd))


def test_a_misspelt_name_is_answered_with_the_nearest():
    program = "import hpcsgd\nhpcsgd.predct"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG
    )
    assert "has no attribute 'predct'" in done.stderr
    if sys.version_info >= (3, 12) or "Did you mean" in done.stderr:
        assert "Did you mean: 'predict'" in done.stderr


def test_tables_say_what_they_are():
    for name in ("FAMILIES", "PRODUCTS", "RECIPES", "UPDATES"):
        table = getattr(hpcsgd, name)
        assert table.__doc__ != dict.__doc__ and "name ->" in table.__doc__
        assert isinstance(table, dict) and table == dict(table)


@pytest.mark.parametrize(
    ("name", "of_fit", "of_path"),
    [
        ("l1", "alpha", "alphas"),
        ("l2", "alpha", "alphas"),
        ("C", "alpha = 1/", "alphas, each of them 1/"),
        ("penalty", "l1_ratio", "l1_ratio"),
        ("lr", "rate", 'solver="sgd" and config={"rate": '),
        ("learning_rate", "rate", 'solver="sgd" and config={"rate": '),
        ("eta0", "rate", 'solver="sgd" and config={"rate": '),
        ("weights", "sample_weight, or start", "sample_weight"),
        ("max_iter", "epochs", "epochs"),
        ("loss", "family", "family"),
    ],
)
def test_an_argument_by_another_name_is_answered_with_ours(name, of_fit, of_path):
    X, y = problem()
    for function, says in ((hpcsgd.fit, of_fit), (hpcsgd.path, of_path)):
        with pytest.raises(TypeError) as raised:
            function(X, y=y, **{name: 1})
        assert str(raised.value).startswith(
            f"{function.__name__} has no argument {name}; give {says}"
        )
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        hpcsgd.fit(X, y=y, colour=1)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_an_answer_names_no_argument_that_only_another_function_has(name):
    X, y = problem()
    for function, other in ((hpcsgd.fit, hpcsgd.path), (hpcsgd.path, hpcsgd.fit)):
        with pytest.raises(TypeError, match="has no argument") as raised:
            function(X, y=y, **{name: 1})
        remedy = str(raised.value).partition("; give ")[2]
        named = set(re.findall(r"\w+", re.sub(r'"[^"]*"', "", remedy)))
        own = inspect.signature(function).parameters
        assert not named & (inspect.signature(other).parameters.keys() - own.keys())

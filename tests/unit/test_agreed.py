"""Ranks that ask for different fits are told so, all of them."""

import numpy as np
import pandas as pd
import pytest

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from hpcsgd.estimators.fit import agree_on_names
from tests.helpers.problems import make_problem

PROBLEM = make_problem("logistic", n=31, d=4)
PLAIN = {"epochs": 2, "batch": 4, "steps": 3, "polish": False}


def replica_rows(world):
    half = slice(0, 16) if world.rank == 0 else slice(16, 31)
    return PROBLEM.X[half], PROBLEM.y[half]


def outcomes(action):
    """What each of two ranks ends with: its result, or its error."""

    def on_rank(world):
        try:
            return action(world)
        except ConfigError as error:
            assert error.on_all_ranks
            return str(error)

    return run_ranks(2, on_rank)


def fit_rows(world, layout="rows", **more):
    X, y = replica_rows(world)
    family = more.pop("family", "logistic")
    return hpcsgd.fit(X, family, y, comm=world, layout=layout, **(PLAIN | more))


DIFFERENT = {
    "alpha": ({"alpha": 1.0}, "problem.l2 is 0.0001 on rank 0 and 1.0 on rank 1"),
    "tol": ({"tol": 1e-3}, "stop.tol is 1e-05 on rank 0 and 0.001 on rank 1"),
    "epochs": ({"epochs": 3}, "schedule.epochs is 2 on rank 0 and 3 on rank 1"),
    "family": ({"family": "gaussian"}, "problem.family"),
    "layout": ({"layout": "replicated"}, "layout is 'rows' on rank 0"),
    "start": ({"start": np.zeros(4)}, "start"),
    "seed": ({"seed": 1}, "sampling.seed"),
    "callbacks": ({"callbacks": 3}, "callbacks contains an object of type int"),
    "config": ({"config": 3}, "config is of type int"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_one_rank_that_asks_for_something_else(name):
    asked, words = DIFFERENT[name]
    one, other = outcomes(lambda w: fit_rows(w, **(asked if w.rank else {})))
    assert one == other and words in one


DIFFERENT_MODELS = {
    "layout": lambda w: (hpcsgd.Ridge(), ("rows", "columns")[w.rank]),
    "alpha": lambda w: (hpcsgd.Ridge(alpha=1.0 + w.rank), "rows"),
    "weights": lambda w: (
        hpcsgd.LogisticRegression(class_weight=[None, "balanced"][w.rank]),
        "rows",
    ),
    "folds": lambda w: (hpcsgd.GLM_CV(cv=3 + w.rank), "rows"),
    "class": lambda w: ((hpcsgd.Ridge, hpcsgd.HuberRegressor)[w.rank](), "rows"),
}


@pytest.mark.parametrize("name", DIFFERENT_MODELS)
def test_estimators_that_differ(name):
    def action(world):
        model, layout = DIFFERENT_MODELS[name](world)
        return model.fit(*replica_rows(world), comm=world, layout=layout)

    one, other = outcomes(action)
    assert one == other and one.endswith("give all ranks the same")


def test_who_shows_and_where_files_lie_is_a_rank_s_own(capsys):
    """A rank that shows losses needs those of all."""
    with pytest.warns(hpcsgd.ConvergenceWarning):  # two epochs are few
        results = outcomes(lambda w: fit_rows(w, verbose=w.rank))
    assert results[0].weights_sha256 == results[1].weights_sha256
    assert capsys.readouterr().out.count("pass 0") == 1


@pytest.mark.parametrize("door", ["fit", "estimator"])
def test_columns_in_another_order(door):
    def action(world, names):
        X, y = replica_rows(world)
        frame = X if names is None else pd.DataFrame(X, columns=list(names))
        if door == "fit":
            result = hpcsgd.fit(frame, "gaussian", y, comm=world, layout="rows")
            return result.report["feature_names"]
        model = hpcsgd.Ridge().fit(frame, y, comm=world, layout="rows")
        return model.feature_names_in_.tolist()

    one, other = outcomes(lambda w: action(w, ("abcd", "abdc")[w.rank]))
    assert one == other and one.startswith(
        "column 2 is 'c' on rank 0 and not on rank 1"
    )
    found = outcomes(lambda w: action(w, (None, "abcd")[w.rank]))
    assert found == [list("abcd")] * 2


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_only_one_rank_has_is_named_with_that_rank(first):
    """The names of one rank are the first ones of another rank."""

    def action(world):
        few = ["a", "b"]
        return agree_on_names(
            world, few if world.rank == first else [*few, "c"], "rows"
        )

    one, other = outcomes(action)
    assert one == other and one.startswith(
        f"column 2 is 'c' on rank {1 - first} and not on rank {first}"
    )


def test_classes_that_differ():
    def action(world):
        X, y = replica_rows(world)
        model = hpcsgd.LogisticRegression()
        classes = [0, 1] if world.rank else [0, 1, 2]
        return model.partial_fit(X, y, classes, comm=world, layout="rows")

    one, other = outcomes(action)
    assert one == other and "classes is [0, 1, 2] on rank 0" in one


def test_labels_of_two_kinds():
    def action(world):
        X, y = replica_rows(world)
        y = np.where(y > 0, "a", "b") if world.rank else y
        try:
            hpcsgd.LogisticRegression().fit(X, y, comm=world, layout="rows")
        except hpcsgd.DataError as error:
            return str(error)

    one, other = run_ranks(2, action)
    assert one == other and "labels of one kind" in one


def test_paths_that_differ():
    def action(world):
        X, y = PROBLEM.X, PROBLEM.y
        return hpcsgd.path(X, y, family="gaussian", n_alphas=3 + world.rank, comm=world)

    one, other = outcomes(action)
    assert one == other and one.startswith("alphas is Alphas(")

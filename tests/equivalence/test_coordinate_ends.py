"""Coordinate forms: where they begin and end, edges, and what does not fit."""

import numpy as np
import pytest

import hpcsgd
from hpcsgd.api import open_session, train
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.data.readers import MemoryReader
from hpcsgd.errors import ConfigError
from hpcsgd.runs.progress import Callback
from hpcsgd.runs.session import RunSettings, Start
from tests.helpers.coordinate import DUAL, ELASTIC, MACHINE, SHIFTED, descend
from tests.helpers.problems import make_problem


@pytest.mark.parametrize("form", ["primal", "dual", "newton"])
def test_a_start_is_where_it_begins(form):
    """From the optimum, the first look has nothing left to find."""
    family, more = (
        ("squared-hinge", {}) if form == "dual" else ("gaussian", {"l1": 0.02})
    )
    problem = make_problem(family, n=40, d=6)
    tables = {
        "problem": {"family": family, "l2": 0.05, **more},
        "schedule": {"batch": 1, "steps": 4, "epochs": 300},
        "update": {"kind": "coordinate"},
        "coordinate": {"tol": 1e-16, "form": form},
        "precision": {"recipe": "fp64"},
    }
    config, reader = hpcsgd.RunConfig.parse(tables), MemoryReader(problem.X, problem.y)

    def on_rank(world):
        first = open_session(world, RunSettings(config), lambda _: reader).run()
        start = Start(first.weights[:, None], None)
        return first, open_session(
            world, RunSettings(config), lambda _: reader, start=start
        ).run()

    first, again = run_ranks(2, on_rank)[0]
    assert first.history[-1]["epoch"] > 1
    assert again.history[-1]["epoch"] <= 1
    np.testing.assert_allclose(again.weights, first.weights, atol=1e-7)
    short = Start(np.zeros((3, 1)), None)
    with pytest.raises(ConfigError, match="give a model of the same columns"):
        open_session(
            SerialCommunicator(), RunSettings(config), lambda _: reader, start=short
        ).run()


def test_data_of_one_column_or_row_stay_as_they_are():
    for shape in ((1, 3), (5, 1)):
        X = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
        kept = X.copy()
        tables = {"problem": ELASTIC, "update": {"kind": "coordinate"}}
        for recipe in ("fp64", "fp32"):
            tables["precision"] = {"recipe": recipe}
            train(tables, X=X, y=np.arange(len(X)), sample_weight=np.ones(len(X)) * 2)
        np.testing.assert_array_equal(X, kept)


def test_without_penalties_the_gradient_says_when_to_end():
    problem = make_problem("gaussian", n=40, d=5)
    table = {**ELASTIC, "l1": 0.0, "l2": 0.0}
    result = descend(
        problem,
        problem=table,
        schedule={"batch": 1, "steps": 2, "epochs": 400},
        coordinate={"tol": 1e-12},
    )
    A = np.column_stack([problem.X, np.ones(40)]) * np.sqrt(problem.weights)[:, None]
    y = (problem.y - problem.offset) * np.sqrt(problem.weights)
    best = np.linalg.lstsq(A, y, rcond=None)[0]
    np.testing.assert_allclose(result.weights, best[:-1], atol=1e-9)
    assert result.history[-1]["gap"] is None
    assert result.report["coordinate"]["ended"] == "converged"


@pytest.mark.parametrize("form", [ELASTIC, MACHINE])
def test_float32_ends_where_float32_can(form):
    problem = make_problem(form["family"], n=40, d=8)
    wide, narrow = (
        descend(
            problem,
            2,
            problem=form,
            schedule={"batch": 2, "steps": 4, "epochs": 300},
            coordinate={"tol": 1e-15},
            precision={"recipe": recipe},
        )
        for recipe in ("fp64", "fp32")
    )
    np.testing.assert_allclose(narrow.weights, wide.weights, atol=1e-6)
    assert abs(narrow.loss - wide.loss) < 1e-7  # targets are float32, too
    each = narrow.ledger["products"]
    assert each["bytes"] == 4 * each["words"]


def test_a_column_of_zeros_stays_where_the_penalty_wants_it():
    problem = make_problem("gaussian", n=20, d=4)
    X = problem.X.copy()
    X[:, 2] = 0.0
    table = {"family": "gaussian", "l1": 0.01, "lower": 0.1}
    result = descend(problem, problem=table, X=X, schedule={"batch": 1, "epochs": 4})
    assert result.weights[2] == 0.1
    assert np.isfinite(result.weights).all()


@pytest.mark.parametrize("away", [1e3, 1e6])
def test_targets_far_from_zero_shift_the_intercept_alone(away):
    """Residuals of huber losses are all at an end until the intercept is found."""
    problem = make_problem("huber", n=60, d=4)
    near, far = (
        hpcsgd.fit(problem.X, "huber", problem.y + shift, alpha=0.01, l1_ratio=0.5)
        for shift in (0.0, away)
    )
    np.testing.assert_allclose(far.weights, near.weights, atol=1e-4)
    assert far.intercept - away == pytest.approx(near.intercept, abs=1e-4)
    assert far.report["converged"]


def test_too_few_epochs_are_said(caplog):
    problem = make_problem("gaussian", n=40, d=8)
    result = descend(
        problem, problem=ELASTIC, schedule={"epochs": 1}, coordinate={"tol": 1e-10}
    )
    assert "1 epochs were not enough (gap" in caplog.text
    assert result.report["coordinate"]["ended"] == "epochs used up"


def test_a_callback_stops_all_ranks():
    class Stop(Callback):
        def on_exchange(self, view):
            return view.exchanges >= 3

    problem = make_problem("gaussian", n=40, d=8)
    result = descend(
        problem,
        2,
        problem=ELASTIC,
        schedule={"batch": 1, "steps": 1, "epochs": 5},
        run={"check_every": 1},
        callbacks=[Stop()],
    )
    assert result.status.value == "stopped" and 3 <= result.exchanges <= 5


def test_the_model_is_one_like_others(tmp_path):
    problem = make_problem("squared-hinge", n=40, d=8)
    result = descend(problem, 2, problem=MACHINE, run={"out": str(tmp_path / "run")})
    kept = hpcsgd.load_result(tmp_path / "run")
    np.testing.assert_array_equal(kept.weights, result.weights)
    said = hpcsgd.evaluate(kept, problem.X, problem.y, problem.weights, problem.offset)
    assert said["objective"] == pytest.approx(result.loss, rel=1e-12)
    labels = hpcsgd.predict(kept, problem.X, what="class")
    assert set(labels) <= {-1.0, 1.0}
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "family, sections, says",
    [
        ("softmax", {"coordinate": {"form": "primal"}}, "for gaussian, not softmax"),
        ("logistic", {"coordinate": {"form": "primal"}}, "for gaussian, not logistic"),
        ("gaussian", {"coordinate": {"form": "dual"}}, "for squared-hinge, not gau"),
        ("squared-hinge", {"coordinate": {"form": "dual"}}, "set --l2"),
        ("squared-hinge", {**DUAL, "problem": {"l2": 1.0, "l1": 0.1}}, "no l1 and no"),
        ("squared-hinge", {**DUAL, "problem": SHIFTED}, "no intercept"),
        ("gaussian", {"coordinate": {"form": "third"}}, "primal, dual, newton"),
        ("gaussian", {"sampling": {"hold_out": 0.1}}, "hold_out = 0"),
        ("gaussian", {"stop": {"on": "gap"}}, "coordinate.tol alone"),
        ("gaussian", {"polish": {"kind": "lbfgs"}}, "coordinate.tol alone"),
        ("gaussian", {"precision": {"recipe": "c"}}, "--precision fp32 or fp64"),
        ("gaussian", {"precision": {"recipe": "auto"}}, "--precision fp32 or fp64"),
        ("gaussian", {"sampling": {"mode": "replacement"}}, "--sampling replacement"),
        ("gaussian", {"products": {"kind": "direct"}}, "auto, gram, cached"),
        (
            "gaussian",
            {"products": {"kind": "cached"}, "sampling": {"mode": "reshuffle"}},
            "--products gram",
        ),
        ("gaussian", {"schedule": {"steps": "auto"}}, "choose --steps"),
        ("gaussian", {"update": {"clip": "norm"}}, "nothing to clip"),
        ("gaussian", {"average": {"kind": "tail"}}, "average.kind = 'none'"),
        ("gaussian", {"products": {"look_ahead": "on"}}, "look_ahead = 'off'"),
        ("gaussian", {"checkpoint": {"every": 4}}, "checkpoint.every = 0"),
        ("gaussian", {"run": {"device": "cuda"}}, "--device cpu"),
        ("gaussian", {"run": {"resume": "auto"}}, "no checkpoints"),
        ("gaussian", {"run": {"emulate_members": 4}}, "start as many ranks"),
        ("gaussian", {"run": {"on_failure": "shrink"}}, "--on-failure stop"),
        ("gaussian", {"grid": {"replicas": 1, "members": 2}}, "--grid 2x1"),
        ("squared-hinge", {"problem": {"l2": 1.0}, "grid": {"replicas": 2}}, "1x2"),
        ("gaussian", {"problem": {"lower": (0.0,) * 3}}, "3 numbers and the data 7"),
    ],
)
def test_what_does_not_fit_is_refused(family, sections, says):
    problem = make_problem(family)
    asked = {**sections, "problem": {"family": family, **sections.get("problem", {})}}
    with pytest.raises(ConfigError, match=says):
        descend(problem, 2, **asked)


@pytest.mark.parametrize("tol", [-1.0, 1.0, float("nan")])
def test_a_tolerance_that_is_none_is_refused(tol):
    with pytest.raises(ConfigError, match="1e-6 is usual"):
        hpcsgd.RunConfig.parse({"coordinate": {"tol": tol}})

"""Gaps bound the distance to the optimum, and goals end runs on all ranks alike."""

import numpy as np
import pytest

from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from hpcsgd.solvers.evaluation import StopConfig
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.problems import FAMILIES

GRIDS = [(1, 1), (1, 3), (2, 2)]


def asked(drawn, grid=(1, 1), /, **sections):
    tables = {
        "problem": {"l2": 0.05, "intercept": True},
        "grid": {"replicas": grid[0], "members": grid[1]},
        "schedule": {"epochs": 4},
        "run": {"evaluate": "gap", "evaluate_every": 1},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return config_for(drawn, **tables)


def optimum(problem, data, /, **sections):
    polish = {"kind": "lbfgs", "tol": 1e-13}
    return train_on(1, asked(problem, polish=polish, **sections), problem, **data).loss


@pytest.mark.cases(3)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gap_is_a_bound(family, intercept):
    problem, data = make_problem(family), {"weights": True, "offset": True}
    sections = {"problem": {"intercept": intercept}}
    best = optimum(problem, data, **sections)
    records = train_on(4, asked(problem, (2, 2), **sections), problem, **data).history
    assert len(records) == 5
    for record in records:
        assert record["loss"] - best <= record["gap"] + 1e-14
        assert record["gap"] <= 1e3 * (record["loss"] - best)  # not just any bound
    assert records[-1]["gap"] < records[0]["gap"]


@pytest.mark.parametrize("bounds", [{"l1": 0.02}, {"lower": -0.1, "upper": 0.4}])
def test_a_gap_holds_with_l1_and_bounds(bounds):
    """And goes to zero: proximal steps reach the minimum itself."""
    problem = make_problem("logistic")
    sections = {
        "schedule": {"epochs": 60, "steps": 1, "batch": 53},
        "rate": {"value": 4.0},
    }
    config = asked(problem, (1, 2), problem=bounds, **sections)
    records = train_on(2, config, problem).history
    best = min(record["loss"] for record in records)
    gaps = [record["gap"] for record in records]
    for record, gap in zip(records, gaps, strict=True):
        assert record["loss"] - best <= gap + 1e-14
    assert gaps[-1] < 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gap_goes_to_zero_at_the_optimum(family):
    problem = make_problem(family)
    start = asked(problem, polish={"kind": "lbfgs", "tol": 1e-13})
    at_optimum = optimality_at(problem, train_on(1, start, problem))
    assert at_optimum.gap < 1e-20
    assert at_optimum.gradient < 1e-12


def optimality_at(problem, result):
    """At the weights of a result, on a grid of four ranks."""
    from hpcsgd.comm.ledger import Clock
    from hpcsgd.data.readers import MemoryReader
    from hpcsgd.runs.build import build
    from hpcsgd.solvers.full_passes import gap_of

    config = asked(problem, (2, 2))
    weights = result.weights.reshape(7, -1)

    def on_rank(world):
        def reader(_):
            return MemoryReader(problem.X, problem.y)

        live = build(config, world, reader, [], Clock())
        own = weights[live.loaded.shard.columns]
        objective = live.evaluation.objective
        return gap_of(objective, own, np.atleast_1d(result.intercept))

    found = run_ranks(4, on_rank)
    assert all(one == found[0] for one in found)
    return found[0]


def test_a_gap_looks_where_the_intercept_should_be():
    """At w = 0, β = 0 this column has no slope, and yet explains the targets."""
    problem = make_problem("gaussian", d=1)
    problem.y[:] += 3.0
    away = problem.X - problem.X.mean()
    problem.X[...] = away - (away[:, 0] @ problem.y) / problem.y.sum()
    sections = {"problem": {"l2": 1e-4}}
    first = train_on(1, asked(problem, **sections), problem).history[0]
    assert first["gradient"] == pytest.approx(abs(problem.y.mean()))
    assert first["loss"] - optimum(problem, {}, **sections) <= first["gap"]


@pytest.mark.parametrize("family", ["gaussian", "huber"])
@pytest.mark.parametrize(("size", "away"), [(1e6, 0.0), (1.0, 1e6), (1e12, 1e12)])
def test_gaps_know_targets_of_any_size(family, size, away):
    """The best intercept may be a million steps of Newton's first reach away."""
    problem = make_problem(family)
    problem.y[:] = problem.y * size + away
    sections = {"problem": {"l2": 1e-3}, "schedule": {"epochs": 1}}
    records = train_on(1, asked(problem, **sections), problem).history
    assert all(record["gap"] > 0 for record in records)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("family", ["poisson", "softmax"])
def test_gaps_do_not_depend_on_the_grid(family, grid):
    problem, data = make_problem(family), {"weights": True, "offset": True}
    one = train_on(1, asked(problem), problem, **data).history[0]
    ranks = grid[0] * grid[1]
    found = train_on(ranks, asked(problem, grid), problem, **data).history[0]
    for name in ("loss", "gradient", "gap"):
        assert found[name] == pytest.approx(one[name], rel=1e-12)


def test_there_is_no_gap_without_a_ridge():
    problem = make_problem("logistic")
    records = train_on(1, asked(problem, problem={"l2": 0.0}), problem).history
    assert [record["gap"] for record in records] == [None] * 5
    assert all(record["gradient"] > 0 for record in records)


def test_nothing_is_taken_that_was_not_asked_for():
    problem = make_problem("logistic")
    calls = {}
    for what in ("loss", "gradient", "gap"):
        config = asked(problem, (2, 2), run={"evaluate": what})
        result = train_on(4, config, problem)
        calls[what] = result.ledger["evaluate"]["calls"] / 5
        assert ("gradient" in result.history[0]) == (what != "loss")
        assert ("gap" in result.history[0]) == (what == "gap")
    # One block of rows, the ridge and one sum; ∇F comes with them, and has a norm.
    assert calls["loss"] == 3
    assert calls["gradient"] == 3 + 1
    assert calls["gap"] > calls["gradient"]


@pytest.mark.parametrize(
    ("on", "tol"), [("gradient", 1e-2), ("gap", 1e-2), ("loss", 1e-3)]
)
@pytest.mark.parametrize("grid", GRIDS)
def test_a_run_ends_where_its_goal_is_reached(on, tol, grid):
    problem = make_problem("gaussian")
    stop = {"on": on, "tol": tol, "patience": 2}
    config = asked(
        problem,
        grid,
        run={"evaluate": "loss"},
        stop=stop,
        schedule={"epochs": 200, "batch": 53},
        problem={"l2": 0.5},
        rate={"value": 0.5},
    )
    result = train_on(grid[0] * grid[1], config, problem)
    assert result.status.value == "converged"
    assert result.status.exit_code == 0 and result.advice == ""
    epochs = result.history[-1]["epoch"]
    assert 2 <= epochs < 200
    settings = StopConfig(**stop)
    assert settings.is_reached(result.history)
    assert not settings.is_reached(result.history[:-1])


def test_a_goal_that_is_not_reached_is_said(caplog):
    problem = make_problem("logistic")
    goal = {"on": "gradient", "tol": 1e-9}
    result = train_on(1, asked(problem, stop=goal), problem)
    assert result.status.value == "completed"
    assert "the goal is not reached: gradient" in caplog.text
    assert "--polish" in caplog.text


def test_a_gap_that_cannot_be_known_is_said(caplog):
    problem = make_problem("logistic")
    train_on(1, asked(problem, stop={"on": "gap"}, problem={"l2": 0.0}), problem)
    assert "a gap needs a penalty" in caplog.text


def test_a_goal_holds_after_a_resume(tmp_path):
    """The checkpoint of a run that reached its goal has nothing left to do."""
    problem = make_problem("gaussian")
    out = str(tmp_path / "run")
    config = asked(
        problem,
        stop={"on": "gradient", "tol": 1e-1},
        schedule={"epochs": 50},
        run={"out": out, "resume": "auto"},
    )
    first = train_on(1, config, problem)
    again = train_on(1, config, problem)
    assert first.status.value == again.status.value == "converged"
    assert again.iterations == first.iterations
    assert (first.report["resumes"], again.report["resumes"]) == (0, 1)
    np.testing.assert_array_equal(again.weights, first.weights)


def test_goals_are_followed_by_the_finisher():
    problem = make_problem("gaussian")
    stop, polish = {"on": "gap", "tol": 0.2}, {"kind": "lbfgs"}
    config = asked(problem, stop=stop, polish=polish, schedule={"epochs": 50})
    result = train_on(1, config, problem)
    assert result.status.value == "converged"
    assert result.report["polish"]["ended"] == "converged"


@pytest.mark.parametrize("table", [{"on": "luck"}, {"tol": 2.0}, {"patience": 0}])
def test_settings_are_checked(table):
    with pytest.raises(ConfigError, match=r"\[stop\]"):
        asked(make_problem("logistic"), stop=table)


def test_losses_that_rise_for_a_while_are_waited_for():
    stop = StopConfig(on="loss", tol=0.0, patience=3)
    history = [{"loss": loss} for loss in (3.0, 2.0, 2.5, 2.4, 1.9, 1.95, 1.91, 1.92)]
    assert [stop.is_reached(history[:k]) for k in range(1, 9)] == [False] * 7 + [True]


def test_small_falls_of_the_loss_are_none():
    history = [{"loss": 2.0 * 0.999**k} for k in range(9)]
    assert StopConfig(on="loss", tol=0.01, patience=3).is_reached(history)
    assert not StopConfig(on="loss", tol=1e-4, patience=3).is_reached(history)


@pytest.mark.parametrize("none", [None, float("nan"), float("inf")])
def test_a_held_out_loss_that_is_no_number_is_no_fall(none):
    """In whatever order it comes: NaN would hide, or be, the least of some losses."""
    stop = StopConfig(on="validation", tol=0.0, patience=2)
    falls = [{"held": one} for one in (3.0, 2.0, 1.0)]
    rises = [{"held": one} for one in (1.0, 2.0, 3.0)]
    for at in range(1, 4):
        assert not stop.is_reached([*falls[:at], {"held": none}, *falls[at:]])
        assert stop.is_reached([*rises[:at], {"held": none}, *rises[at:]])

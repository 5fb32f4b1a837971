"""Pilots: some rows, the very code of a run, and no help for a precision that fails."""

import numpy as np
import pytest

from hpcsgd.config import GridConfig, RunConfig, RunSection, rehearsal
from hpcsgd.data.readers import MemoryReader
from hpcsgd.precision import RECIPES, PrecisionConfig
from hpcsgd.tuning.pilots import (
    EXCHANGES,
    RecipeChoice,
    draw_sample,
    loss_gaps,
    pilot_config,
    recipe_reason,
)
from tests.helpers.harness import config_for, make_problem, train_on


def gaps(problem, precisions, exchanges=100, **sections):
    reader = MemoryReader(problem.X, problem.y)
    config = config_for(problem, schedule={"batch": 8, "steps": 4}, **sections)
    sample = draw_sample(reader, 32)
    return loss_gaps(config, sample, precisions, 2, exchanges)


def test_coarser_formats_have_larger_gaps_and_longer_runs_too():
    problem = make_problem("logistic", n=300, d=12)
    asked = {n: PrecisionConfig(recipe=n) for n in ("fp64", "fp32", "c", "fp8")}
    found = gaps(problem, asked)
    assert found["fp64"].measured == 0.0
    sizes = [found[name].measured for name in ("fp32", "c", "fp8")]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    longer = gaps(problem, {"c": asked["c"]}, exchanges=10_000)["c"]
    assert longer.measured == found["c"].measured
    growth = longer.predicted / found["c"].predicted
    assert abs(growth - 10) < 1e-9


def test_a_precision_that_fails_is_not_helped():
    """Margins beyond 65504 are infinite in fp16; a run would fall back to wider."""
    problem = make_problem("gaussian", n=300, d=12)
    object.__setattr__(problem, "y", problem.y * 1e6)
    asked = {"low": PrecisionConfig(recipe="fp32", margin="fp16")}
    found = gaps(problem, asked)["low"]
    assert found.diverged and found.predicted == float("inf")


def test_a_sample_comes_from_everywhere_and_keeps_rows_together():
    rows = np.arange(100_000.0)
    X, y = np.column_stack([rows, -rows]), rows % 2
    sample = draw_sample(MemoryReader(X, y, rows + 1, rows + 2), 64)
    first = sample.X[:, 0]
    assert len(first) == 4096 and first.min() < 4000 and first.max() > 96_000
    np.testing.assert_array_equal(sample.y, first % 2)
    np.testing.assert_array_equal(sample.weights, first + 1)
    np.testing.assert_array_equal(sample.offsets, first + 2)


def test_a_pilot_has_exchanges_enough_and_writes_nothing():
    problem = make_problem("logistic")
    config = config_for(problem, run={"out": "somewhere", "record": 3})
    pilot = pilot_config(config, config.precision, 64, members=9)
    each = -(-64 // (pilot.schedule.batch * pilot.schedule.steps))
    assert each * pilot.schedule.epochs >= EXCHANGES
    assert pilot.run.out is None and pilot.grid.members == 4


def test_a_sample_has_every_label_however_rare():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50_000, 3)), np.zeros(50_000)
    y[[777, 40_001]] = 1, 7
    for family in ("softmax", "logistic"):
        sample = draw_sample(MemoryReader(X, y), 64, 0, family)
        assert set(sample.y) == {0.0, 1.0, 7.0}
        rare = np.flatnonzero(sample.y)
        np.testing.assert_array_equal(sample.X[rare], X[[777, 40_001]])
    assert set(draw_sample(MemoryReader(X, y), 64).y) == {0.0}


def test_auto_takes_data_with_a_rare_label():
    problem = make_problem("logistic", n=20_000, d=4)
    y = np.zeros(20_000)
    y[4321] = 1
    object.__setattr__(problem, "y", y)
    tables = {"precision": {"recipe": "auto"}, "rate": {"value": 0.1}}
    config = config_for(
        problem,
        schedule={"batch": 16, "steps": 4},
        run={"reproducible": True},
        **tables,
    )
    result = train_on(2, config, problem)
    assert result.status.is_finished
    assert result.report["precision_auto"]["recipe"] in RECIPES


def test_a_rehearsal_writes_nothing_and_tries_nothing_else():
    """Whatever the run asks for; what it measures with is what the caller says."""
    run = {
        **{"out": "somewhere", "resume": "auto", "record": 3, "profile": True},
        **{"check_members": 5, "gap_every": 7, "on_failure": "shrink"},
    }
    tables = {"run": {**run, "evaluate_every": 2}, "stop": {"on": "loss"}}
    config = RunConfig.parse(tables)
    silent = rehearsal(config).run
    assert (silent.out, silent.resume, silent.record) == (None, "no", 0)
    assert not (silent.fall_back or silent.profile or silent.check_members)
    assert silent.on_failure == "stop" and silent.evaluate_every == 0
    assert (
        silent.gap_every == 0 and rehearsal(config, monitored=True).run.gap_every == 7
    )
    assert rehearsal(config, evaluated=True).run.evaluate_every == 1
    assert rehearsal(config).stop == rehearsal(RunConfig()).stop
    other = rehearsal(config, run=RunSection(threads=4), grid=GridConfig(2, 1))
    assert other.run.threads == 4 and other.grid.replicas == 2


@pytest.mark.parametrize(
    "recipe, gaps_of, run, reason",
    [
        ("c", {"c": 1e-3, "fp64": 0.0}, {}, "cheapest in pilots, 0.1 %"),
        ("c", {"c": 1e-3, "fp64": 0.0}, {"reproducible": True}, "first in a fixed"),
        ("fp64", {"c": 0.5, "fp64": 0.0}, {}, "no other recipe without emulation"),
        ("fp64", {"fp64": 0.0}, {}, "no other recipe without emulation"),
    ],
)
def test_the_reason_of_a_recipe_is_how_it_was_chosen(recipe, gaps_of, run, reason):
    config = RunConfig.parse({"precision": {"recipe": "auto"}, "run": run})
    considered = {n: {"seconds": 1.0, "predicted_gap": g} for n, g in gaps_of.items()}
    choice = RecipeChoice(recipe, gaps_of[recipe], considered)
    notes = {"precision_auto": choice.as_dict()}
    assert recipe_reason(config, notes).startswith(reason)

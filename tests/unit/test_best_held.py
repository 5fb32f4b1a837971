"""What an early stop returns: the weights that rows which were held out liked best."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from hpcsgd.estimators.sweep import sweep
from hpcsgd.solvers.evaluation import BestWeights
from tests.helpers.harness import config_for, make_problem, train_on

PROBLEM = make_problem("logistic", n=61, d=5)


def stopping(**sections):
    """A run that goes by held-out rows, with patience for all of its epochs."""
    settings = {
        "schedule": {"batch": 4, "steps": 3, "epochs": 5},
        "sampling": {"hold_out": 0.2},
        "stop": {"on": "validation", "patience": 50},
        "run": {"evaluate_every": 1},
    }
    for name, table in sections.items():
        settings[name] = {**settings.get(name, {}), **table}
    return config_for(PROBLEM, **settings)


def test_the_last_weights_count_where_no_look_was_at_them():
    """Looks after epochs 0, 2 and 4, and the fifth is better than all of these."""
    every = train_on(1, stopping(rate={"value": 0.02}), PROBLEM)
    held = [record["held"] for record in every.history]
    assert held[5] == min(held)
    some = train_on(
        1, stopping(rate={"value": 0.02}, run={"evaluate_every": 2}), PROBLEM
    )
    assert some.weights_sha256 == every.weights_sha256
    assert some.report["best_held"]["held"] == held[5]


def test_a_mean_does_not_hide_them():
    """Of the last iterates: it has the lower loss, and is liked less."""
    noisy = {"rate": {"value": 1.0}, "sampling": {"seed": 1}}
    config = stopping(average={"kind": "tail", "share": 0.3}, **noisy)
    found = train_on(1, config, PROBLEM)
    held = [record["held"] for record in found.history]
    assert found.report["average"]["kept"] == "mean"
    assert held[-1] == min(held) == found.report["best_held"]["held"]
    assert (
        found.weights_sha256 == train_on(1, stopping(**noisy), PROBLEM).weights_sha256
    )


def test_all_ranks_keep_the_same_weights(monkeypatch):
    """Sums may say on one rank that a look was the best, and not on another."""
    looked = BestWeights.after_evaluation

    def as_a_rank_sees_it(self, state, view):
        rank = self.evaluation.objective.grid.world.rank
        view.history[-1]["held"] *= 1.0 + rank * len(view.history)
        looked(self, state, view)

    monkeypatch.setattr(BestWeights, "after_evaluation", as_a_rank_sees_it)
    config = stopping(rate={"value": 0.02})
    results = run_ranks(
        3, lambda world: train(config, X=PROBLEM.X, y=PROBLEM.y, world=world)
    )
    alone = train_on(1, config, PROBLEM)
    for found in results:
        np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-9)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"run": {"evaluate_every": 0}}, "run.evaluate_every"),
        ({"polish": {"kind": "auto"}}, "polish.kind = 'none'"),
        ({"sampling": {"hold_out": 0.0}}, "sampling.hold_out"),
    ],
)
def test_what_it_cannot_go_with_is_refused(sections, words):
    with pytest.raises(ConfigError, match=words):
        train_on(1, stopping(**sections), PROBLEM)


@pytest.mark.parametrize("goal", ["validation", "loss"])
def test_a_sweep_does_not_end_where_one_of_its_models_is_done(goal):
    config = stopping(stop={"on": goal})
    config = replace(config, sweep=replace(config.sweep, l2=(1e-3, 1e-1)))
    with pytest.raises(ConfigError, match="end all models"):
        sweep(config, X=PROBLEM.X, y=PROBLEM.y)

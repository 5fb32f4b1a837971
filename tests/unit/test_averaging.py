"""The mean of the last iterates: the right ones, on every grid, and never a loss."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.errors import ConfigError
from hpcsgd.estimators.sweep import sweep
from hpcsgd.solvers.evaluation import AverageConfig
from tests.helpers import oracle
from tests.helpers.harness import config_for, make_problem, relative_error, train_on

TAIL = {"kind": "tail", "share": 0.5}


def noisy(family="logistic", **sections):
    """A run that ends by wandering about: the mean is better than the last."""
    problem = make_problem(family, n=53, d=7)
    settings = {"schedule": {"batch": 2, "steps": 3, "epochs": 6}, "average": TAIL}
    settings["rate"] = {"value": 1.5}
    settings["problem"] = {"intercept": True}
    for name, table in sections.items():
        settings[name] = {**settings.get(name, {}), **table}
    return problem, config_for(problem, **settings)


def prefixes(config, problem):
    """Weights and intercept by the oracle after every exchange of the last half."""
    from hpcsgd.data.sampling import Sampler, plan_groups
    from hpcsgd.glm.updates import make_rate

    n, schedule = len(problem.X), config.schedule
    sampler = Sampler(config.sampling.mode, config.sampling.seed, n, 0)
    plans = plan_groups(n, schedule.batch, schedule.steps)
    batches, ends = [], []
    for epoch in range(schedule.epochs):
        order, first = sampler.order(epoch), 0
        for sizes in plans:
            for size in sizes:
                batches.append(order[first : first + size])
                first += size
            ends.append(len(batches))
    rates = make_rate(config.rate, len(batches)).at(0, len(batches))
    update = oracle.Update(config.update.kind, config.update.momentum)
    tail = ends[len(ends) - round(config.average.share * len(ends)) :]
    return [
        oracle.sgd(
            problem.X,
            problem.y,
            batches[:end],
            rates[:end],
            family=problem.family,
            update=update,
            intercept=True,
            classes=problem.classes,
        )
        for end in tail
    ]


@pytest.mark.parametrize(
    "family, update", [("logistic", "sgd"), ("softmax", "nesterov")]
)
@pytest.mark.parametrize("ranks, product", [(1, "direct"), (3, "gram"), (2, "gather")])
def test_the_mean_of_the_iterates_of_the_last_half(family, update, ranks, product):
    rate = 1.5 if update == "sgd" else 0.6
    problem, config = noisy(
        family,
        update={"kind": update},
        rate={"value": rate},
        products={"kind": product},
        schedule={"epochs": 2},
        run={"evaluate_every": 1},  # the loss of the last iterate is known
    )
    result = train_on(ranks, config, problem)
    found = prefixes(config, problem)
    mean = tuple(np.mean([one[k] for one in found], axis=0) for k in (0, 1))
    said = result.report["average"]
    assert said["kept"] == "mean" and said["iterates"] == len(found)
    assert said["loss_of_mean"] < said["loss_of_last"]
    assert relative_error(result, mean) < 1e-11
    assert result.history[-1]["loss"] == result.loss == said["loss_of_mean"]


def test_the_last_iterate_stays_where_it_is_better():
    """A slow run is on its way: the mean lies behind it."""
    problem, config = noisy(rate={"value": 0.01})
    result = train_on(1, config, problem)
    plain = replace(config, average=AverageConfig())
    assert result.report["average"]["kept"] == "last"
    assert result.weights_sha256 == train_on(1, plain, problem).weights_sha256
    assert result.loss == min(
        result.report["average"][f"loss_of_{which}"] for which in ("mean", "last")
    )


def test_nothing_changes_but_the_end():
    """Averaging touches no iterate and sends no message amid training."""
    problem, config = noisy()
    plain = replace(config, average=AverageConfig())
    with_mean, without = (train_on(2, c, problem) for c in (config, plain))
    assert with_mean.history[:-1] != [] and with_mean.loss < without.loss
    assert "average" not in without.report
    assert with_mean.report["average"]["loss_of_last"] == without.loss
    for key in ("calls", "words"):
        said = [r.ledger["products"][key] for r in (with_mean, without)]
        assert said[0] == said[1]


@pytest.mark.parametrize("at", [9, 40])
def test_a_run_that_goes_on_has_the_same_mean(tmp_path, at):
    from hpcsgd.runs.progress import Callback
    from hpcsgd.solvers.callbacks import Request

    class Stop(Callback):
        def on_exchange(self, view):
            return Request.PREEMPT if view.exchanges >= at else None

    problem, config = noisy(run={"check_every": 1, "evaluate_every": 1})
    run = replace(config.run, out=str(tmp_path))
    broken = train_on(2, replace(config, run=run), problem, callbacks=[Stop()])
    assert broken.status.value == "preempted"
    run = replace(run, resume="auto")
    again = train_on(2, replace(config, run=run), problem)
    whole = train_on(2, config, problem)
    assert again.report["average"]["kept"] == "mean"
    assert again.weights_sha256 == whole.weights_sha256


def test_a_run_that_was_made_shorter_averages_what_there_is(tmp_path):
    """Its last part has begun already where it goes on, and nothing was kept of it."""
    from hpcsgd.runs.progress import Callback
    from hpcsgd.solvers.callbacks import Request

    class Stop(Callback):
        def on_exchange(self, view):
            return Request.PREEMPT if view.exchanges >= 20 else None

    problem, config = noisy(run={"check_every": 1}, average={"kind": "tail"})
    run = replace(config.run, out=str(tmp_path))
    train_on(1, replace(config, run=run), problem, callbacks=[Stop()])
    shorter = replace(config.schedule, epochs=4)
    run = replace(run, resume="auto")
    again = train_on(1, replace(config, run=run, schedule=shorter), problem)
    # 9 exchanges an epoch: 18 of 36 are averaged, and 20 were done before.
    assert again.report["average"]["iterates"] == 16
    assert again.report["average"]["kept"] == "mean"


def test_another_share_is_another_run(tmp_path):
    problem, config = noisy()
    run = replace(config.run, out=str(tmp_path))
    train_on(1, replace(config, run=run), problem)
    other = replace(config.average, share=1.0)
    run = replace(run, resume="auto")
    with pytest.raises(ConfigError, match=r"\[average\] share"):
        train_on(1, replace(config, run=run, average=other), problem)


def test_all_ranks_keep_the_same_iterate(monkeypatch):
    """Where both are about as good, sums may say so on one rank and not on another."""
    from hpcsgd.comm.threads import run_ranks
    from hpcsgd.solvers.evaluation import TailAverage

    measured = TailAverage.losses

    def as_a_rank_sees_it(self, weights, intercept):
        found = measured(self, weights, intercept)
        return found + 1e9 * self.evaluation.objective.grid.world.rank

    monkeypatch.setattr(TailAverage, "losses", as_a_rank_sees_it)
    problem, config = noisy(run={"evaluate_every": 1})
    results = run_ranks(
        3, lambda world: train(config, X=problem.X, y=problem.y, world=world)
    )
    assert {one.report["average"]["kept"] for one in results} == {"mean"}
    assert len({one.weights_sha256 for one in results}) == 1


def test_replicas_average_what_they_agreed_on():
    """Every second exchange here: both replicas know the same mean."""
    problem, config = noisy(
        grid={"replicas": 2}, schedule={"period": 2, "steps": 2}, rate={"value": 2.5}
    )
    found = train_on(4, config, problem)
    alone = train_on(2, config, problem)
    assert found.report["average"]["kept"] == "mean"
    exchanges = found.exchanges
    first = exchanges - round(0.5 * exchanges)
    assert found.report["average"]["iterates"] == exchanges // 2 - first // 2
    np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-10)


def test_narrow_weights_are_judged_as_they_are_stored():
    problem, config = noisy(
        precision={"recipe": "fp32", "weights": "bf16"}, problem={"intercept": False}
    )
    result = train_on(1, config, problem)
    as_bf16 = result.weights.astype(np.float32).view(np.uint32)
    assert not (as_bf16 & 0xFFFF).any()
    kept = result.report["average"]
    assert result.loss == min(kept["loss_of_mean"], kept["loss_of_last"])


def test_every_model_of_a_sweep_has_its_own():
    """The slow one keeps its last iterate, the fast one its mean."""
    problem, config = noisy()
    both = sweep(config, rate=[0.01, 1.5], X=problem.X, y=problem.y)
    assert both.outcome.report["average"]["kept"] == ["last", "mean"]
    for k, rate in enumerate((0.01, 1.5)):
        alone = train_on(1, noisy(rate={"value": rate})[1], problem)
        np.testing.assert_allclose(both.weights[:, k], alone.weights, rtol=1e-10)


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="must be one of none, tail"):
        AverageConfig(kind="head")
    for share in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="share"):
            AverageConfig(share=share)

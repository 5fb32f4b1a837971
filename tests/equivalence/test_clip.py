"""Clipped gradients: step-by-step SGD in longdouble, and what happens to s steps."""

import numpy as np
import pytest

from hpcsgd.config import UpdateConfig
from hpcsgd.data.sampling import Sampler, plan_groups
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.studies.verify.replay import open_recorded_run
from tests.helpers import oracle
from tests.helpers.harness import config_for, make_problem, relative_error, train_on

L = np.longdouble


def clipped(g, how, at):
    """The textbook, a line each."""
    if how == "value":
        return np.clip(g, -at, at)
    size = np.sqrt(np.sum(g**2))
    return g * (at / size) if size > at else g


def replay(config, problem, steps=1):
    """SGD whose data gradient is clipped; over `steps` of them together."""
    update = config.update
    n, schedule = len(problem.X), config.schedule
    sampler = Sampler(config.sampling.mode, config.sampling.seed, n, 0)
    rule = oracle.Update(update.kind, update.momentum)
    X, y = problem.X.astype(L), problem.y.astype(L).reshape(-1, 1)
    w = np.zeros((X.shape[1], problem.classes), dtype=L)
    v, count = np.zeros_like(w), 0
    rate, l2 = L(config.rate.value), L(config.problem.l2)
    for epoch in range(schedule.epochs):
        order, first = sampler.order(epoch), 0
        for group in plan_groups(n, schedule.batch, steps):
            begin, total, weight = w, np.zeros_like(w), L(0)
            inner = w
            for size in group:  # s steps of plain SGD say what is to be clipped
                rows, first = order[first : first + size], first + size
                point = rule.point(inner, v)
                r = oracle.residual(problem.family, X[rows] @ point, y[rows])
                g = X[rows].T @ r / size
                total, weight = total + rate * g, weight + rate
                if steps > 1:
                    inner = inner - rate * g
            found = clipped(total / weight, update.clip, update.clip_at)
            count += bool((found != total / weight).any())
            if steps > 1:
                w = begin - weight * found
            else:
                w, v = rule.step(w, v, found + l2 * point, rate)
    return (w, None), count


def configured(problem, how, at, /, **sections):
    update = {"clip": how, "clip_at": at, **sections.pop("update", {})}
    return config_for(problem, update=update, **sections)


WAYS = [("value", 0.02), ("norm", 0.1)]


@pytest.mark.parametrize("kind", ["direct", "gram", "gather", "gather-once", "cached"])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(("how", "at"), WAYS)
@pytest.mark.parametrize("family", ["gaussian", "softmax"])
def test_one_step_at_a_time_is_the_textbook(family, how, at, members, kind):
    problem = make_problem(family)
    config = configured(
        problem,
        *(how, at),
        problem={"l2": 0.01},
        schedule={"steps": 1, "batch": 5, "epochs": 2},
        products={"kind": kind},
    )
    result = train_on(members, config, problem)
    expected, count = replay(config, problem)
    assert relative_error(result, expected) < 1e-11
    assert 0 < count == result.report["clipped_updates"]
    free = config_for(problem, schedule=vars(config.schedule), problem={"l2": 0.01})
    assert relative_error(train_on(1, free, problem), expected) > 1e-3


@pytest.mark.parametrize("kind", ["direct", "gather", "gather-once"])
@pytest.mark.parametrize(("how", "at"), WAYS)
@pytest.mark.parametrize("update", ["momentum", "nesterov", "nesterov-classic"])
def test_products_that_step_singly_clip_every_step(update, how, at, kind):
    problem = make_problem("logistic")
    config = configured(
        problem,
        *(how, at),
        update={"kind": update, "momentum": 0.7},
        schedule={"steps": 4, "batch": 5, "epochs": 2},
        products={"kind": kind},
        sampling={"mode": "shuffle-once"},
    )
    result = train_on(2, config, problem)
    expected, count = replay(config, problem)
    assert relative_error(result, expected) < 1e-11
    assert result.report["clipped_updates"] == count > 0


@pytest.mark.parametrize("kind", ["gram", "cached"])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(("how", "at"), WAYS)
def test_over_an_exchange_the_mean_gradient_is_clipped(how, at, members, kind):
    problem = make_problem("logistic")
    config = configured(
        problem,
        *(how, at),
        update={"clip_over": "exchange"},
        schedule={"steps": 3, "batch": 5, "epochs": 2},
        products={"kind": kind},
    )
    result = train_on(members, config, problem)
    expected, count = replay(config, problem, steps=3)
    assert relative_error(result, expected) < 1e-11
    assert count > 0


def test_what_is_never_too_large_is_not_changed():
    problem = make_problem("logistic")
    for how in ("value", "norm"):
        config = configured(problem, how, 1e3, products={"kind": "direct"})
        plain = config_for(problem, products={"kind": "direct"})
        result = train_on(2, config, problem)
        assert result.report["clipped_updates"] == 0
        error = np.abs(result.weights - train_on(2, plain, problem).weights).max()
        assert error < 1e-14


def test_a_norm_takes_one_word_more_and_a_value_none():
    problem = make_problem("logistic")  # 53 rows by 4, twice: 28 steps
    words = {}
    for how in ("none", "value", "norm"):
        config = configured(problem, how, 0.1, products={"kind": "direct"})
        words[how] = train_on(3, config, problem).ledger["products"]
    assert words["value"] == {**words["none"], "seconds": words["value"]["seconds"]}
    assert words["norm"]["calls"] == 2 * words["none"]["calls"] == 56
    assert words["norm"]["words"] == words["none"]["words"] + 28


@pytest.mark.parametrize("kind", ["gram", "cached"])
def test_steps_together_are_refused(kind):
    problem = make_problem("logistic")
    config = configured(problem, "norm", 1.0, products={"kind": kind})
    with pytest.raises(ConfigError, match="--products direct or gather.*exchange"):
        train_on(2, config, problem)


def test_auto_takes_what_can_clip():
    problem = make_problem("logistic", n=200, d=60)
    config = configured(problem, "norm", 0.1, products={"kind": "auto"})
    found = train_on(3, config, problem).report["products"]
    assert found in ("direct", "gather", "gather-once")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip": "norm", "clip_at": -1.0}, "clip_at = -1.0 must be at least 0"),
        ({"clip": "both"}, "clip = 'both' must be one of none, value"),
        ({"clip_over": "epoch"}, "clip_over = 'epoch' must be one of step, exchange"),
    ],
)
def test_what_makes_no_sense(settings, words):
    with pytest.raises(ConfigError, match=words):
        UpdateConfig(**settings)


def test_narrow_weights_are_refused():
    problem = make_problem("logistic")
    config = configured(
        problem, "value", 1.0, products={"kind": "direct"}, precision={"recipe": "bf16"}
    )
    with pytest.raises(ConfigError, match="weights in bf16"):
        train_on(1, config, problem)


def test_nothing_is_recorded_that_a_replay_would_do_otherwise(tmp_path):
    problem = make_problem("logistic")
    run = {"out": str(tmp_path / "run"), "record": 3}
    config = configured(problem, "value", 0.01, products={"kind": "direct"}, run=run)
    train_on(1, config, problem)
    assert not list((tmp_path / "run").glob("exchanges*"))
    with pytest.raises(DataError, match="clipped its gradients"):
        open_recorded_run(tmp_path / "run")

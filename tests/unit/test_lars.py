"""LARS and LAMB: steps in proportion to the norms of weights and of intercept."""

import numpy as np
import pytest

from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.runs.checks import check_configuration
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import (
    make_problem,
    relative_error,
    train_on,
    union_batches,
)
from tests.helpers.oracle import Update, residual

L = np.longdouble


def lars(config, problem):
    """Algorithm 1 on the batches of all replicas together, a layer at a time."""
    asked, l2 = config.update, L(config.problem.l2)
    rule = Update(asked.kind, asked.momentum if asked.kind != "sgd" else 0.0)
    X, y = problem.X.astype(L), problem.y.reshape(-1, 1)
    K = problem.classes if problem.family == "softmax" else 1
    w, b = np.zeros((X.shape[1], K), L), np.zeros(K, L)
    v, bv = 0 * w, 0 * b
    for batch in union_batches(config, problem):
        r = residual(problem.family, X[batch] @ w + b, y[batch])
        steps = []
        for x, g, decay in (
            (w, X[batch].T @ r / len(batch), l2),
            (b, r.mean(axis=0), L(0)),
        ):
            size, slope = np.sqrt((x**2).sum()), np.sqrt((g**2).sum())
            ratio = L(1)
            if size and slope:
                ratio = L(asked.trust) * size / (slope + decay * size)
            steps.append(ratio * (g + decay * x))
        w, v = rule.step(w, v, steps[0], L(config.rate.value))
        b, bv = rule.step(b, bv, steps[1], L(config.rate.value))
    return w, b


@pytest.mark.parametrize("kind", ["sgd", "momentum", "nesterov"])
@pytest.mark.parametrize("grid", [(1, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_steps_are_those_of_algorithm_1(family, grid, kind):
    problem = make_problem(family)
    update = {"kind": kind, "momentum": 0.6, "trust": 0.2}
    if kind == "sgd":
        del update["momentum"]
    settings = {"update": update, "problem": {"intercept": True, "l2": 0.05}}
    config = agreed(problem, *grid, **settings)
    result = train_on(grid[0] * grid[1], config, problem)
    assert relative_error(result, lars(config, problem)) < 1e-11


def lamb(config, problem):
    """Algorithm 2 of the LAMB paper, φ(x) = c x, a layer at a time."""
    asked = config.update
    one, two, eps = L(asked.beta1), L(asked.beta2), L(asked.epsilon)
    X, y = problem.X.astype(L), problem.y.reshape(-1, 1)
    K = problem.classes if problem.family == "softmax" else 1
    layers = [np.zeros((X.shape[1], K), L), np.zeros(K, L)]
    m, v = [0 * x for x in layers], [0 * x for x in layers]
    for t, batch in enumerate(union_batches(config, problem), 1):
        r = residual(problem.family, X[batch] @ layers[0] + layers[1], y[batch])
        decays = config.problem.l2, 0.0
        slopes = X[batch].T @ r / len(batch), r.mean(axis=0)
        for k, (g, decay) in enumerate(zip(slopes, decays, strict=True)):
            m[k] = one * m[k] + (1 - one) * g
            v[k] = two * v[k] + (1 - two) * g**2
            along = m[k] / (1 - one**t) / (np.sqrt(v[k] / (1 - two**t)) + eps)
            along = along + L(decay) * layers[k]
            size, slope = np.sqrt((layers[k] ** 2).sum()), np.sqrt((along**2).sum())
            ratio = L(asked.trust) * size / slope if size and slope else L(1)
            layers[k] = layers[k] - L(config.rate.value) * ratio * along
    return tuple(layers)


@pytest.mark.parametrize("grid", [(1, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_steps_of_adam_are_those_of_lamb(family, grid):
    problem = make_problem(family)
    update, rate = {"kind": "adam", "trust": 0.7}, {"value": 0.02}
    sections = {"problem": {"intercept": True, "l2": 0.05}, "rate": rate}
    config = agreed(problem, *grid, update=update, **sections)
    result = train_on(grid[0] * grid[1], config, problem)
    assert relative_error(result, lamb(config, problem)) < 1e-10


def test_without_a_ratio_it_is_another_run():
    problem = make_problem("logistic")
    update = {"kind": "momentum", "momentum": 0.6}
    runs = [
        train_on(2, agreed(problem, 2, 1, update={**update, **more}), problem)
        for more in ({}, {"trust": 0.2})
    ]
    assert runs[0].weights_sha256 != runs[1].weights_sha256


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_it_resumes_bit_for_bit(kind, tmp_path):
    problem = make_problem("softmax")
    update = {"kind": kind, "trust": 0.2}
    config = agreed(problem, 2, 1, update=update, schedule={"epochs": 3})
    whole = in_folder(tmp_path / "whole", config, 2, problem)[0]
    stopped = in_folder(tmp_path / "parts", config, 2, problem, stop=7)[0]
    assert stopped.status.value == "preempted"
    again = in_folder(tmp_path / "parts", config, 2, problem)[0]
    assert again.weights_sha256 == whole.weights_sha256


REFUSED = [
    ({"agreement": {"kind": "sharded", "stage": 2}}, "needs the norm of all"),
    ({"agreement": {"kind": "average"}}, "change of a mean gradient"),
    ({"rate": {"value": "auto"}}, "trust = 0.1"),
    (
        {"agreement": {"kind": "scheduled"}, "update": {"kind": "adam", "trust": 0.1}},
        "scales whole steps",
    ),
]


@pytest.mark.parametrize("sections, why", REFUSED)
def test_it_is_refused(sections, why):
    problem = make_problem("logistic")
    tables = {"update": {"kind": "momentum", "trust": 0.1}, **sections}
    with pytest.raises(ConfigError, match=why):
        train_on(2, agreed(problem, 2, 1, **tables), problem)


@pytest.mark.parametrize("kind", ["nesterov-classic", "adagrad"])
def test_rules_without_a_trust_ratio_refuse_it(kind):
    tables = {"update": {"kind": kind, "trust": 0.1}, "agreement": {"kind": "gradient"}}
    with pytest.raises(ConfigError, match="trust = 0.1 is for"):
        check_configuration(RunConfig.parse(tables))

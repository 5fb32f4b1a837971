"""Adam and Adagrad on gradients that replicas agree on, held against longdouble."""

import numpy as np
import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.glm.updates import make_rate
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import make_problem, train_on, union_batches
from tests.helpers.oracle import residual

L = np.longdouble


def adam(kept, g, rate, t, settings):
    m, v = kept.setdefault("m", 0 * g), kept.setdefault("v", 0 * g)
    m[...] = settings.beta1 * m + (1 - L(settings.beta1)) * g
    v[...] = settings.beta2 * v + (1 - L(settings.beta2)) * g**2
    mean, square = m / (1 - L(settings.beta1) ** t), v / (1 - L(settings.beta2) ** t)
    return rate * mean / (np.sqrt(square) + L(settings.epsilon))


def adagrad(kept, g, rate, t, settings):
    h = kept.setdefault("h", 0 * g)
    h += g**2
    return rate * g / (np.sqrt(h) + L(settings.epsilon))


RULES = {"adam": adam, "adagrad": adagrad}


def expected(config, problem):
    """One process on the union of what all replicas take at a time."""
    batches = union_batches(config, problem)
    rates = make_rate(config.rate, len(batches)).at(0, len(batches))
    X, y = problem.X.astype(L), problem.y.reshape(-1, 1)
    columns = problem.classes if problem.family == "softmax" else 1
    w, b = np.zeros((X.shape[1], columns), L), np.zeros((1, columns), L)
    rule, own, free = RULES[config.update.kind], {}, {}
    for t, (batch, rate) in enumerate(zip(batches, rates, strict=True), 1):
        r = residual(problem.family, X[batch] @ w + b, y[batch])
        g = X[batch].T @ r / len(batch) + L(config.problem.l2) * w
        w = w - rule(own, g, L(rate), t, config.update)
        if config.problem.intercept:
            slope = r.mean(axis=0, keepdims=True)
            b = b - rule(free, slope, L(rate), t, config.update)
    return w, b


def check(problem, config):
    grid = config.grid
    result = train_on(grid.replicas * grid.members, config, problem)
    w, b = expected(config, problem)
    error = np.abs(result.weights.reshape(w.shape) - w).max() / np.abs(w).max()
    assert error < 1e-12, f"relative error {float(error):.1e}"
    if config.problem.intercept:
        assert np.allclose(np.ravel(result.intercept), b[0].astype(float), atol=1e-12)
    return result


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("grid", [(1, 1), (3, 1), (2, 2)])
def test_steps_are_those_of_one_process_on_the_union(family, kind, grid):
    problem = make_problem(family)
    config = agreed(
        problem,
        *grid,
        update={"kind": kind, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6},
        problem={"intercept": True},
        rate={"kind": "inverse", "value": 0.1, "decay": 0.1},
    )
    check(problem, config)


@pytest.mark.parametrize("kind", RULES)
def test_what_is_kept_outlives_a_checkpoint(kind, tmp_path):
    problem = make_problem("softmax")
    settings = {"update": {"kind": kind}, "problem": {"intercept": True}}
    config = agreed(problem, 2, **settings)
    whole = in_folder(tmp_path / "whole", config, 2, problem)[0]
    first = in_folder(tmp_path / "parts", config, 2, problem, stop=4)[0]
    assert first.status.value == "preempted"
    again = in_folder(tmp_path / "parts", config, 2, problem)[0]
    assert again.weights_sha256 == whole.weights_sha256


def test_they_need_the_gradient_of_every_step():
    problem = make_problem("logistic")
    config = agreed(problem, 2, update={"kind": "adam"}, agreement={"kind": "average"})
    with pytest.raises(ConfigError, match="--agreement gradient"):
        train_on(2, config, problem)

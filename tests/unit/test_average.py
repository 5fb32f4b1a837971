"""Averaging replicas: local SGD by hand, weights of unequal replicas, intercepts."""

import numpy as np
import pytest

from hpcsgd.data.sampling import Sampler, plan_groups
from hpcsgd.data.shard import split_range
from hpcsgd.errors import ConfigError
from tests.helpers import oracle
from tests.helpers.harness import config_for, make_problem, relative_error, train_on


def local_sgd(problem, config, replicas):
    """Every replica alone for τ exchanges, then the mean by rows; in longdouble."""
    n, schedule = len(problem.X), config.schedule
    parts = [split_range(n, replicas, r) for r in range(replicas)]
    states = [(np.zeros((problem.X.shape[1], 1)), np.zeros(1))] * replicas
    steps = [_batches(config, part, r) for r, part in enumerate(parts)]
    exchanges = max(map(len, steps))
    for number in range(exchanges):
        for r in range(replicas):
            group = steps[r][number] if number < len(steps[r]) else []
            states[r] = _walk(problem, config, states[r], group)
        if (number + 1) % schedule.period == 0 or number + 1 == exchanges:
            share = [(p.stop - p.start) / n for p in parts]
            mean = [
                sum(c * s[k] for c, s in zip(share, states, strict=True))
                for k in (0, 1)
            ]
            states = [tuple(mean)] * replicas
    return states[0]


def _batches(config, part, replica):
    rows = part.stop - part.start
    order = Sampler("shuffle-once", config.sampling.seed, rows, replica).order(0)
    groups, first = [], 0
    for sizes in plan_groups(rows, config.schedule.batch, config.schedule.steps):
        group = []
        for size in sizes:
            group.append(part.start + order[first : first + size])
            first += size
        groups.append(group)
    return groups


def _walk(problem, config, state, group):
    w, b = (np.asarray(part, dtype=oracle.L) for part in state)
    X, y = problem.X.astype(oracle.L), problem.y.reshape(-1, 1)
    rate = oracle.L(config.rate.value)
    for rows in group:
        r = oracle.residual(problem.family, X[rows] @ w + b, y[rows])
        w = w - rate * X[rows].T @ r / len(rows)
        b = b - rate * r.sum(axis=0) / len(rows)
    return w, b


@pytest.mark.parametrize("kind, members", [("direct", 1), ("gram", 2), ("gather", 2)])
@pytest.mark.parametrize("replicas, rows", [(2, 48), (2, 49), (3, 50)])
@pytest.mark.parametrize("period", [1, 2, 5])
def test_equals_local_sgd_by_hand(kind, members, replicas, rows, period):
    problem = make_problem("logistic", n=rows, d=7)
    config = config_for(
        problem,
        problem={"intercept": True},
        schedule={"batch": 4, "steps": 2, "epochs": 1, "period": period},
        products={"kind": kind},
        grid={"replicas": replicas, "members": members},
    )
    result = train_on(replicas * members, config, problem)
    expected = local_sgd(problem, config, replicas)
    assert relative_error(result, expected) < 1e-11


def test_none_with_replicas_is_refused():
    problem = make_problem("logistic")
    config = config_for(
        problem, agreement={"kind": "none"}, grid={"replicas": 2, "members": 1}
    )
    with pytest.raises(ConfigError, match="unrelated models"):
        train_on(2, config, problem)

"""Tick-tock runs and their oracle."""

import numpy as np

from hpcsgd.glm.updates import make_rate
from tests.helpers.gradients import agreed
from tests.helpers.harness import union_batches
from tests.helpers.oracle import residual

L = np.longdouble
TILE = 8 * 4 * 2 * 2.0**-20


def ticktock(problem, replicas, members=1, /, mode="exact-sum", **sections):
    """With tiles of two columns of four classes."""
    asked = sections.pop("agreement", {})
    asked = {"kind": "ticktock", "mode": mode, "bucket": TILE, **asked}
    return agreed(problem, replicas, members, agreement=asked, **sections)


def union_of_both(problem, config):
    """ddp on both halves together: an exchange of twice as many batches."""
    tables = config.tables()
    count = 2 * config.agreement.accumulate
    tables["agreement"] |= {"kind": "gradient", "accumulate": count}
    return type(config).parse(tables)


def late_oracle(config, problem):
    """w ← (1 − ηλ) w − η g of the batch before, with the rate of that batch."""
    batches = union_batches(config, problem)
    rates = make_rate(config.rate, len(batches)).at(0, len(batches))
    X, y = problem.X.astype(L), problem.y.reshape(-1, 1)
    columns = problem.classes if problem.family == "softmax" else 1
    w, b = np.zeros((X.shape[1], columns), L), np.zeros((1, columns), L)
    late = None

    def applied(w, b):
        if late is None:
            return w, b
        rate, g, slope = late
        return (1 - rate * L(config.problem.l2)) * w - rate * g, b - rate * slope

    for batch, rate in zip(batches, rates, strict=True):
        r = residual(problem.family, X[batch] @ w + b, y[batch])
        slope = r.mean(axis=0, keepdims=True) * config.problem.intercept
        g = X[batch].T @ r / len(batch)
        w, b = applied(w, b)
        late = L(rate), g, slope
    return applied(w, b)

"""Any-batch runs on a problem with a known optimum."""

from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from tests.helpers.anybatch import any_batch, script
from tests.helpers.harness import make_problem, train_on


def sorted_problem():
    """Rows in the order of their margins: the worst of shards."""
    problem = make_problem("logistic", n=120, d=11, seed=3)
    order = np.argsort(problem.X @ np.random.default_rng(5).normal(size=11))
    return replace(problem, X=problem.X[order], y=problem.y[order])


def alike_shards():
    """Four replicas with the same thirty rows."""
    one = make_problem("logistic", n=30, d=11, seed=3)
    return replace(one, X=np.tile(one.X, (4, 1)), y=np.tile(one.y, 4))


def least(problem, l2=0.05):
    """The objective at its minimum."""
    X, y = problem.X, problem.y

    def loss(w):
        t = X @ w
        r = 1 / (1 + np.exp(-t)) - y
        value = np.mean(np.logaddexp(0, t) - y * t) + l2 / 2 * w @ w
        return value, X.T @ r / len(y) + l2 * w

    return minimize(loss, np.zeros(11), jac=True, method="BFGS", tol=1e-12).fun


def gaps(folder, problem, chunks, batch, sections, every=0, **agreement):
    """Relative, at every evaluation, and how far replicas are apart at the end."""
    most, rounds = int(chunks.max()), chunks.shape[1]
    each = -(-30 // (batch * most))
    config = any_batch(
        problem,
        4,
        schedule={"batch": batch, "epochs": rounds // each},
        run={"evaluate_every": every},
        agreement={
            "accumulate": most,
            "replay": script(folder, chunks),
            "graph": "ring",
            **agreement,
        },
        **sections,
    )
    result = train_on(4, config, problem)
    found = np.array([record["loss"] for record in result.history]) / least(problem)
    return found - 1, result.report["agreement"]["disagreement"]


DECAYING = {"rate": {"kind": "inverse-sqrt", "value": 2.0, "decay": 0.1}}

"""A problem on which averaging rules differ, with its optimum."""

import numpy as np

from tests.helpers.harness import config_for, train_on
from tests.helpers.problems import Problem


def heterogeneous(n=800, d=24, seed=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    margin = X @ rng.normal(size=d) / (2 * np.sqrt(d))
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-margin))).astype(float)
    order = np.argsort(margin)
    none = np.zeros(0)
    return Problem("logistic", X[order], y[order], none, none, 1, 1.0)


L2 = 0.05


def best(problem):
    """min F by Newton's method, and the curvature bound L."""
    X, y = problem.X, problem.y
    w = np.zeros(X.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-X @ w))
        g = X.T @ (p - y) / len(y) + L2 * w
        H = (X.T * (p * (1 - p))) @ X / len(y) + L2 * np.eye(len(w))
        w -= np.linalg.solve(H, g)
    return loss(problem, w), float(np.linalg.norm(X, 2) ** 2 / (4 * len(y)) + L2)


def loss(problem, w):
    t = problem.X @ w
    return np.mean(np.logaddexp(0, t) - problem.y * t) + L2 / 2 * w @ w


HARD = heterogeneous()
OPTIMUM, CURVATURE = best(HARD)


def gap(agreement, slower=1.0, tau=8, problem=HARD, replicas=4, passes=160, **sections):
    """Relative gap at the fixed point; whole shards a step, τ of them an exchange."""
    least = OPTIMUM if problem is HARD else best(problem)[0]
    rate = 1 / CURVATURE if problem is HARD else 1 / best(problem)[1]
    rows = -(-len(problem.X) // replicas)
    steps = int(passes * slower)
    config = config_for(
        problem,
        problem={"l2": L2},
        rate={"value": rate / slower},
        schedule={"batch": rows, "steps": 1, "epochs": steps, "period": tau},
        products={"kind": "direct"},
        grid={"replicas": replicas, "members": 1},
        agreement=agreement,
        run={"check_every": 10**5, "gap_every": 0},
        **sections,
    )
    found = train_on(replicas, config, problem)
    return loss(problem, found.weights) / least - 1

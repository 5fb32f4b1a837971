"""Runs that go on to the optimum, and how far they are from it."""

import numpy as np

from hpcsgd.glm import get_family
from tests.helpers.harness import config_for, make_problem, train_on

GRIDS = [(1, 1), (1, 3), (2, 1), (2, 2)]
ICPT = {"l2": 1e-2, "intercept": True}


def polished(family, grid=(1, 1), drawn=None, data=None, **sections):
    problem = drawn or make_problem(family)
    replicas, members = grid
    asked = {
        "problem": ICPT,
        "grid": {"replicas": replicas, "members": members},
        "schedule": {"epochs": 1},
        "polish": {"kind": "lbfgs", "tol": 1e-12},
    }
    for name, table in sections.items():
        asked[name] = {**asked.get(name, {}), **table}
    config = config_for(problem, **asked)
    return train_on(replicas * members, config, problem, **(data or {}))


def checks_of_scaling(passes):
    """The scaling is checked after 10, 20, 40, ... passes."""
    return sum(10 * 2**k <= passes for k in range(10))


def flat(result):
    return np.r_[np.ravel(result.weights), np.ravel(result.intercept)]


def gradient(problem, result, l2=ICPT["l2"], weights=False, offset=False):
    """∇F by the textbook, at the model of the result."""
    w = result.weights.reshape(problem.X.shape[1], -1)
    t = problem.X @ w + np.ravel(result.intercept)
    t = t + problem.offset[:, None] if offset else t
    r = get_family(problem.family).residual(t, problem.y[:, None])
    c = problem.weights[:, None] if weights else np.ones((len(t), 1))
    r = c * r / c.sum()
    return np.r_[(problem.X.T @ r + l2 * w).ravel(), r.sum(axis=0)]

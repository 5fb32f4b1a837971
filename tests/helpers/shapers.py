"""Schedules that shape the steps, and what they have to give."""

import numpy as np

from hpcsgd.agreements.shaping import BLOCK, SALT
from hpcsgd.glm.updates import make_rate
from tests.helpers.harness import union_batches
from tests.helpers.oracle import residual

L = np.longdouble


def by_percentile(settings):
    norms = []

    def shape(g, t):
        norms.append(np.sqrt((g**2).sum()))
        limit = np.percentile(np.array(norms[-100:], dtype=float), settings.clip_at)
        return g * min(1, limit / norms[-1])

    return shape


def noisy(settings, seed):
    def shape(g, t):
        dice = np.random.default_rng((seed, SALT, t, 0))
        drawn = dice.normal(size=(BLOCK, g.shape[1]))[: len(g)]
        return g + np.sqrt(settings.noise / (1 + t) ** 0.55) * drawn

    return shape


# what is asked for, and what it makes of the gradient of step t
SHAPES = {
    "value": (
        {"clip": "value", "clip_at": 0.03},
        lambda c: lambda g, t: g.clip(-0.03, 0.03),
    ),
    "norm": (
        {"clip": "norm", "clip_at": 0.05},
        lambda c: lambda g, t: g * min(1, L(0.05) / np.sqrt((g**2).sum())),
    ),
    "percentile": (
        {"clip": "percentile", "clip_at": 30.0},
        lambda c: by_percentile(c.update),
    ),
    "classes": (
        {"centre": "classes"},
        lambda c: lambda g, t: g - g.mean(axis=1, keepdims=True),
    ),
    "columns": (
        {"centre": "columns"},
        lambda c: lambda g, t: g - g.mean(axis=0, keepdims=True),
    ),
    "normalise": (
        {"normalise": True},
        lambda c: lambda g, t: g / np.sqrt((g**2).sum()),
    ),
    "noise": ({"noise": 0.01}, lambda c: noisy(c.update, c.sampling.seed)),
}


def expected(config, problem, shape):
    """Plain SGD on the union, in longdouble, whose gradients are shaped."""
    batches = union_batches(config, problem)
    rates = make_rate(config.rate, len(batches)).at(0, len(batches))
    X, y = problem.X.astype(L), problem.y.reshape(-1, 1)
    columns = problem.classes if problem.family == "softmax" else 1
    w, b = np.zeros((X.shape[1], columns), L), np.zeros((1, columns), L)
    changed = 0
    for t, (batch, rate) in enumerate(zip(batches, rates, strict=True)):
        r = residual(problem.family, X[batch] @ w + b, y[batch])
        plain = X[batch].T @ r / len(batch)
        g = shape(plain, t)
        changed += bool(np.abs(g - plain).max() > 1e-15)
        w = w - L(rate) * (g + L(config.problem.l2) * w)
        b = b - L(rate) * r.mean(axis=0, keepdims=True)
    return w, b, changed

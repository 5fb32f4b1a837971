"""The oracle of updates that come one exchange late."""

import numpy as np

from hpcsgd.glm.updates import make_rate
from tests.helpers.harness import union_batches


def late(config, problem):
    """The recurrence in float64: (w, β) after all steps, the last gradient taken.

    Exchange t takes g_t as long as t < N0; N0 itself takes none; then t takes g_{t−1}.
    """
    batches, asked = union_batches(config, problem), config.update
    rates = make_rate(config.rate, len(batches)).at(0, len(batches))
    first, l2 = config.agreement.delay_after, config.problem.l2
    w, b = np.zeros((problem.X.shape[1], 1)), np.zeros(1)
    m, v, waiting = np.zeros((2, len(w) + 1, 1)), np.zeros((2, len(w) + 1, 1)), []
    m, v = m[0], v[0]

    def take(t, s, r):
        nonlocal w, b, m, v
        g = np.vstack([s + l2 * w, r[None]])
        if asked.kind == "adam":
            m = asked.beta1 * m + (1 - asked.beta1) * g
            v = asked.beta2 * v + (1 - asked.beta2) * g * g
            below = np.sqrt(v / (1 - asked.beta2 ** (t + 1))) + asked.epsilon
            step = m / (1 - asked.beta1 ** (t + 1)) / below
        elif asked.kind == "momentum":
            m = asked.momentum * m + g
            step = m
        else:
            step = g
        w, b = w - rates[t] * step[:-1], b - rates[t] * step[-1]

    for t, rows in enumerate(batches):
        X, y = problem.X[rows], problem.y[rows].reshape(-1, 1)
        residuals = 1 / (1 + np.exp(-(X @ w + b))) - y
        g = (t, X.T @ residuals / len(rows), residuals.mean(axis=0))
        if not 0 <= first <= t:
            take(*g)
            continue
        if waiting:
            take(*waiting.pop())
        waiting.append(g)
    for g in waiting:
        take(*g)
    return w[:, 0], b[0]

"""Runs with sharded state (ZeRO), their words, and steps of rounded weights."""

import ml_dtypes
import numpy as np

from hpcsgd.data.shard import split_range
from hpcsgd.glm.updates import make_rate
from tests.helpers.gradients import agreed
from tests.helpers.harness import replica_batches, union_batches

STAGES = 1, 2, 3


def sliced(drawn, stage, replicas, members=1, /, **sections):
    """Stage 0 is DDP; two columns a tile, so that three replicas have none of some."""
    how = {"kind": "sharded", "stage": stage} if stage else {"kind": "gradient"}
    tables = {
        "agreement": {**how, "bucket": 8 * drawn.classes * 2 * 2.0**-20},
        "problem": {"l2": 0.05, "intercept": True},
        "rate": {"value": 0.05},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return agreed(drawn, replicas, members, **tables)


def offloaded(drawn, replicas, members=1, /, delay=-1, **sections):
    """Stage 2 whose steps the host takes."""
    how = {"kind": "offload", "stage": 1, "delay_after": delay}
    asked = {**sections, "agreement": {**how, **sections.get("agreement", {})}}
    return sliced(drawn, 2, replicas, members, **asked)


def own_words(columns, width, tiles, replicas, replica):
    """Of the slices of one replica: columns go round, and nothing is padded."""
    found = turn = 0
    for number in range(tiles):
        part = split_range(columns, tiles, number)
        each, over = divmod(part.stop - part.start, replicas)
        found += each + (replica in [(turn + k) % replicas for k in range(over)])
        turn += over
    own = split_range(columns, replicas, 0)
    assert 0 <= own.stop - found <= 1
    return found * width


KINDS = {"exact": np.float64, "bf16": ml_dtypes.bfloat16, "fp16": np.float16}


def of_rounded_gradients(config, problem):
    """w ← w − η (Σ_p round(s_p) / Σ_p n_p + λ w), in float64, from zero: (w, β)."""
    replicas, n = config.grid.replicas, len(problem.X)
    taken = [replica_batches(config, n, replicas, r) for r in range(replicas)]
    each = len(taken[0]) // config.schedule.epochs  # the first has the most rows
    rates = make_rate(config.rate, len(taken[0])).at(0, len(taken[0]))
    w, b = np.zeros((problem.X.shape[1], 1)), np.zeros(1)
    for k, rate in enumerate(rates):
        epoch, place = divmod(k, each)
        total, slope, count = np.zeros_like(w), 0.0, 0
        for batches in taken:
            own = len(batches) // config.schedule.epochs
            if place < own:
                rows = batches[epoch * own + place]
                X, y = problem.X[rows], problem.y[rows].reshape(-1, 1)
                residuals = 1 / (1 + np.exp(-(X @ w + b))) - y
                total += (X.T @ residuals).astype(KINDS["bf16"]).astype(np.float64)
                slope, count = slope + residuals.sum(), count + len(rows)
        w = w - rate * (total / count + config.problem.l2 * w)
        b = b - rate * slope / count
    return w[:, 0], b[0]


def of_rounded(config, problem, keeps_masters=True):
    """w ← w − η (g(round(w)) + λ w) with momentum, in float64, from zero: (w, β).

    The broken twin has no masters: the step is taken from the rounded weights.
    """
    batches, kind = union_batches(config, problem), KINDS[config.agreement.wire]
    rates = make_rate(config.rate, len(batches)).at(0, len(batches))
    w, b = np.zeros((problem.X.shape[1], 1)), np.zeros(1)
    v, u = np.zeros_like(w), np.zeros_like(b)
    momentum = config.update.momentum if config.update.kind == "momentum" else 0.0
    for rate, rows in zip(rates, batches, strict=True):
        X, y = problem.X[rows], problem.y[rows].reshape(-1, 1)
        seen = w.astype(kind).astype(np.float64)
        residuals = 1 / (1 + np.exp(-(X @ seen + b))) - y
        start = w if keeps_masters else seen
        v = momentum * v + X.T @ residuals / len(rows) + config.problem.l2 * start
        u = momentum * u + residuals.mean(axis=0)
        w, b = start - rate * v, b - rate * u
    return w[:, 0], b[0]

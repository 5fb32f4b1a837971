"""Batches that grow, and what they have to give."""

from math import inf

import numpy as np

from hpcsgd.config import RunConfig
from hpcsgd.glm.updates import make_rate
from tests.helpers import oracle
from tests.helpers.gradients import agreed
from tests.helpers.harness import replica_batches

TIMES, EPOCHS = 3, 5


def growing(problem, replicas, members=1, /, eta=inf, interval=1, **sections):
    """Small steps in the first epochs, large ones from then on."""
    tables = {
        "schedule": {"batch": 3, "epochs": EPOCHS},
        "accordion": {"eta": eta, "interval": interval},
        "agreement": {"kind": "growing", "accumulate": TIMES},
        "problem": {"intercept": True, "l2": 0.05},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return agreed(problem, replicas, members, **tables)


def unions(config, problem, replicas):
    """The rows of every step of an epoch, of all replicas together, epoch by epoch."""
    n = len(problem.X)
    each = [replica_batches(config, n, replicas, r) for r in range(replicas)]
    longest = len(each[0]) // EPOCHS
    found = []
    for epoch in range(EPOCHS):
        own = [np.array_split(np.arange(len(e)), EPOCHS)[epoch] for e in each]
        own = [[e[k] for k in part] for e, part in zip(each, own, strict=True)]
        found.append(
            [np.concatenate([o[k] for o in own if k < len(o)]) for k in range(longest)]
        )
    return found


def expected(config, problem, replicas, small_epochs, factor=TIMES):
    """Step by step in longdouble: small batches, then large ones at a larger rate."""
    once = RunConfig.parse(
        {**config.tables(), "agreement": {"kind": "gradient", "accumulate": 1}}
    )
    small, large = unions(once, problem, replicas), unions(config, problem, replicas)
    exchanges = len(large[0]) * EPOCHS
    rate = make_rate(config.rate, exchanges).at(0, exchanges)
    batches, rates = [], []
    for epoch in range(EPOCHS):
        is_small = epoch < small_epochs
        steps = small[epoch] if is_small else large[epoch]
        batches += steps
        for k in range(len(steps)):
            exchange = epoch * len(large[0]) + (k // TIMES if is_small else k)
            rates.append(rate[exchange] * (1 if is_small else factor))
    update = oracle.Update(config.update.kind, config.update.momentum)
    return oracle.sgd(
        problem.X,
        problem.y,
        batches,
        np.array(rates),
        family=problem.family,
        l2=config.problem.l2,
        update=update,
        intercept=config.problem.intercept,
        classes=problem.classes,
    )

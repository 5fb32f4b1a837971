"""Train on thread ranks, and run the oracle over the same rows and rates."""

import numpy as np

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig, drop_unread_settings
from hpcsgd.data.sampling import Sampler, plan_groups
from hpcsgd.data.shard import split_range
from hpcsgd.glm.updates import make_rate
from tests.helpers import oracle
from tests.helpers.problems import make_problem


def config_for(drawn, /, **sections):
    """A float64 configuration for the problem `drawn`, with `sections` over it."""
    tables = {
        "problem": {"family": drawn.family},
        "schedule": {"batch": 4, "steps": 3, "epochs": 2},
        "products": {"kind": "gram"},
        "precision": {"recipe": "fp64"},
        "rate": {"value": drawn.rate},
        "run": {"evaluate_every": 0},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    # One table of numbers for all rules, rates, orders and ends, which read some.
    names = "update", "rate", "sampling", "stop", "polish"
    return RunConfig.parse(what_is_read(tables, *names))


def what_is_read(tables, *names):
    """`tables`, and of the sections `names` what a run with them reads."""
    shared = {name: tables[name] for name in names if name in tables}
    read = drop_unread_settings(tables, shared)
    return {name: read.get(name, {}) for name in tables}


def train_on(
    ranks,
    config,
    problem,
    *,
    weights=False,
    offset=False,
    world_hook=None,
    callbacks=(),
):
    """The result of rank 0 on `ranks` thread ranks."""

    def on_rank(world):
        world = world_hook(world) if world_hook else world
        return train(
            config,
            X=problem.X,
            y=problem.y,
            sample_weight=problem.weights if weights else None,
            offset=problem.offset if offset else None,
            world=world,
            callbacks=list(callbacks),
        )

    return run_ranks(ranks, on_rank)[0]


def oracle_for(config, problem, *, weights=False, offset=False):
    """Step-by-step SGD in longdouble over exactly the rows and rates of the run."""
    batches = replica_batches(config, len(problem.X), 1, 0)
    return oracle_on(batches, config, problem, weights=weights, offset=offset)


def union_oracle(config, problem, *, weights=False, offset=False):
    """The same on the union of what all replicas take at a time, however uneven."""
    batches = union_batches(config, problem)
    return oracle_on(batches, config, problem, weights=weights, offset=offset)


def union_batches(config, problem):
    """The rows of every step, of all replicas together."""
    n, replicas = len(problem.X), config.grid.replicas
    epochs = [
        replica_batches(config, n, replicas, replica) for replica in range(replicas)
    ]
    each = len(epochs[0]) // config.schedule.epochs  # of the largest
    batches = []
    for epoch in range(config.schedule.epochs):
        for k in range(each):
            parts = []
            for own in epochs:
                count = len(own) // config.schedule.epochs
                if k < count:
                    parts.append(own[epoch * count + k])
            batches.append(np.concatenate(parts))
    return batches


def replica_batches(config, n, replicas, replica):
    """The rows of every step of a replica; batches that travel together are one."""
    schedule, part = config.schedule, split_range(n, replicas, replica)
    height, batch = part.stop - part.start, schedule.batch * config.agreement.accumulate
    sampler = Sampler(config.sampling.mode, config.sampling.seed, height, replica)
    sizes = [b for group in plan_groups(height, batch, 1) for b in group]
    batches = []
    for epoch in range(schedule.epochs):
        order = part.start + sampler.order(epoch)
        batches += np.split(order, np.cumsum(sizes)[:-1])
    return batches


def oracle_on(batches, config, problem, *, weights=False, offset=False):
    """The oracle on these batches, with the rates of the run."""
    rates = make_rate(config.rate, len(batches)).at(0, len(batches))
    momentum, asked = config.update.momentum, config.problem
    bounds = (
        (-np.inf if asked.lower is None else asked.lower),
        (np.inf if asked.upper is None else asked.upper),
    )
    return oracle.sgd(
        problem.X,
        problem.y,
        batches,
        rates,
        family=problem.family,
        l2=config.problem.l2,
        update=oracle.Update(config.update.kind, momentum),
        weights=problem.weights if weights else None,
        offset=problem.offset if offset else None,
        intercept=config.problem.intercept,
        classes=problem.classes,
        penalty=None if asked.is_smooth else oracle.Bent(asked.l1, *bounds),
    )


def relative_error(result, expected):
    """Distance of the model from the oracle's, intercept included, relative to it."""
    w, b = expected
    got = np.asarray(result.weights, dtype=np.longdouble).reshape(w.shape)
    error, size = np.sum((got - w) ** 2), np.sum(w**2)
    if result.intercept is not None:
        got = np.asarray(result.intercept, dtype=np.longdouble).reshape(b.shape)
        error, size = error + np.sum((got - b) ** 2), size + np.sum(b**2)
    return float(np.sqrt(error / size))


def check_against_oracle(ranks, config, problem, tolerance, **data):
    """Train, replay, compare."""
    result = train_on(ranks, config, problem, **data)
    assert result.status.is_finished
    error = relative_error(result, oracle_for(config, problem, **data))
    assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"


__all__ = [
    "check_against_oracle",
    "config_for",
    "make_problem",
    "oracle_for",
    "relative_error",
    "train_on",
    "union_oracle",
]

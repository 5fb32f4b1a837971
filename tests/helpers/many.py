"""Sweeps on thread ranks, and the solo runs that their models have to equal."""

from dataclasses import replace

import numpy as np

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.sampling import fold_of
from hpcsgd.estimators.sweep import sweep


def sweep_on(ranks, config, problem, *, weights=False, offset=False, **more):
    """The sweep that `config` asks for, of rank 0."""

    def on_rank(world):
        given = {name: value(world) for name, value in more.items()}
        return sweep(
            config,
            X=problem.X,
            y=problem.y,
            sample_weight=problem.weights if weights else None,
            offset=problem.offset if offset else None,
            world=world,
            **given,
        )

    return run_ranks(ranks, on_rank)[0]


def solo(config, model):
    """The configuration of a run of this model alone."""
    return replace(
        config,
        sweep=type(config.sweep)(),
        problem=replace(config.problem, l2=model.l2),
        rate=replace(config.rate, value=model.rate),
    )


def weights_without(config, problem, model, weights=False):
    """Sample weights in which the rows of the model's fold have none."""
    each = problem.weights if weights else np.ones(len(problem.y))
    if model.fold is None:
        return each
    sweep_of = config.sweep
    fold = fold_of(slice(0, len(each)), sweep_of.folds, sweep_of.fold_seed)
    return each * (fold != model.fold)


def solo_run(ranks, config, problem, model, *, weights=False, offset=False):
    """Its result on rank 0."""
    own = weights_without(config, problem, model, weights)

    def on_rank(world):
        return train(
            solo(config, model),
            X=problem.X,
            y=problem.y,
            sample_weight=own,
            offset=problem.offset if offset else None,
            world=world,
        )

    return run_ranks(ranks, on_rank)[0]


def distance(one, other):
    """Of two results: weights, intercepts and losses, relative to the second."""
    error = np.sum((one.weights - other.weights) ** 2)
    size = np.sum(np.square(other.weights))
    if other.intercept is not None:
        error += np.sum((one.intercept - other.intercept) ** 2)
        size += np.sum(np.square(other.intercept))
    loss = abs(one.loss - other.loss) / abs(other.loss)
    return max(float(np.sqrt(error / size)), loss)

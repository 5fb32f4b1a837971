"""Transfers that cross the step, and halves that take turns, on real MPI ranks."""

import numpy as np
import pytest

import hpcsgd
from hpcsgd.agreements.more.scheduled import MOST, ROUNDS
from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from tests.helpers.harness import make_problem, relative_error, union_oracle
from tests.helpers.scheduled import ORDERS, WAYS, scheduled
from tests.helpers.tick_tock import late_oracle, ticktock, union_of_both


def one(comm, config, problem):
    world = MpiCommunicator(comm.Dup())
    try:
        result = train(config, X=problem.X, y=problem.y, world=world)
    finally:
        world.close()
    assert len(set(comm.allgather(result.weights_sha256))) == 1
    return result


def grids(comm):
    return ((2, 1),) if comm.size == 2 else ((4, 1), (2, 2))


@pytest.mark.ranks(2, 4)
def test_any_schedule_is_ddp(comm):
    """Requests that are asked whether they are done, in every order."""
    problem = make_problem("softmax")
    for grid in grids(comm):
        expected = None
        for way, order in zip(WAYS.values(), ORDERS, strict=True):
            config = scheduled(
                problem,
                *grid,
                problem={"intercept": True},
                update={"kind": "nesterov", "momentum": 0.5},
                run={"evaluate_every": 1},
                agreement={**way, "order": order},
            )
            result = one(comm, config, problem)
            expected = expected or union_oracle(config, problem)
            assert relative_error(result, expected) <= 1e-12


@pytest.mark.ranks(2, 4)
def test_all_ranks_tune_alike(comm):
    problem = make_problem("logistic")
    epochs = -(-(MOST + 1) * ROUNDS // 4)
    config = scheduled(
        problem,
        comm.size,
        schedule={"epochs": epochs},
        agreement={"tune_schedule": True},
    )
    said = one(comm, config, problem).report["agreement"]
    assert said["tuned"]
    assert len(set(comm.allgather((said["partition"], said["credit"])))) == 1


@pytest.mark.ranks(2, 4)
def test_fits_that_take_turns(comm):
    """MPI is called by two threads, never at once; each fit has its own bits."""
    problem = make_problem("softmax")
    for asked in ({"kind": "gradient"}, {"kind": "scheduled"}):
        configs = [
            scheduled(problem, comm.size, agreement=asked, problem={"l2": l2})
            for l2 in (0.01, 0.5)
        ]
        world = MpiCommunicator(comm.Dup())
        found = hpcsgd.tick_tock(*configs, X=problem.X, y=problem.y, world=world)
        world.close()
        for config, result in zip(configs, found, strict=True):
            assert result.weights_sha256 == one(comm, config, problem).weights_sha256


@pytest.mark.ranks(2, 4)
def test_codecs_and_schedules(comm):
    problem = make_problem("softmax")
    for name in ("bf16", "topk", "sign"):
        asked = {"codec": name, "order": "backward", **WAYS["one at a time"]}
        config = scheduled(problem, comm.size, agreement=asked)
        result = one(comm, config, problem)
        assert np.isfinite(result.loss) and result.loss < result.history[0]["loss"]


@pytest.mark.ranks(2, 4)
def test_halves_and_late_gradients(comm):
    problem = make_problem("softmax")
    for grid in grids(comm):
        config = ticktock(problem, *grid, problem={"intercept": True})
        expected = union_oracle(union_of_both(problem, config), problem)
        assert relative_error(one(comm, config, problem), expected) <= 1e-12
        config = ticktock(problem, *grid, mode="delayed", problem={"intercept": True})
        expected = late_oracle(config, problem)
        assert relative_error(one(comm, config, problem), expected) <= 1e-12

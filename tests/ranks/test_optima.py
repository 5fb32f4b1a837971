"""To the optimum on real MPI ranks: the same one, whatever the grid."""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from hpcsgd.comm.threads import SerialCommunicator
from tests.helpers.harness import config_for, make_problem


def best(problem, world, grid=(1, 1), kind="auto", **sections):
    """The model of a run that goes to the optimum."""
    tables = {
        "problem": {"l2": 0.02, "intercept": True},
        "grid": {"replicas": grid[0], "members": grid[1]},
        "polish": {"kind": kind, "tol": 1e-12},
        **sections,
    }
    config = config_for(problem, **tables)
    result = train(config, X=problem.X, y=problem.y, world=world)
    return result, np.r_[np.ravel(result.weights), np.ravel(result.intercept)]


@pytest.mark.ranks(3)
def test_the_finisher(comm):
    problem = make_problem("softmax")
    _, expected = best(problem, SerialCommunicator())
    for grid, kind in (((1, 3), "lbfgs"), ((3, 1), "lbfgs"), ((1, 3), "newton")):
        result, found = best(problem, MpiCommunicator(comm.Dup()), grid, kind)
        assert result.report["polish"]["ended"] == "converged"
        np.testing.assert_allclose(found, expected, atol=1e-9)
        # The same bits on all ranks: what is returned, and what was decided.
        said = (result.weights_sha256, result.report["polish"]["trials"])
        assert len(set(comm.allgather(said))) == 1


@pytest.mark.ranks(2)
def test_svrg_ends_where_its_gap_says_so(comm):
    problem = make_problem("logistic")
    _, expected = best(problem, SerialCommunicator())
    result, found = best(
        problem,
        MpiCommunicator(comm.Dup()),
        (1, 2),
        kind="none",
        update={"kind": "svrg"},
        schedule={"batch": 8, "steps": 7, "epochs": 400},
        rate={"value": 0.5},
        stop={"on": "gap", "tol": 1e-6},
        run={"evaluate_every": 1},
    )
    assert result.status.value == "converged"
    np.testing.assert_allclose(found, expected, atol=1e-2)
    assert len(set(comm.allgather(result.weights_sha256))) == 1

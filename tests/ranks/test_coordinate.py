"""Coordinate forms on real MPI ranks."""

import numpy as np
import pytest

import hpcsgd
from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from hpcsgd.comm.threads import SerialCommunicator
from tests.helpers.coordinate import ELASTIC, MACHINE
from tests.helpers.problems import make_problem

LASSO = {"family": "logistic", "l1": 0.02, "intercept": True}


@pytest.mark.ranks(2, 3)
def test_as_on_one_rank(comm):
    world = MpiCommunicator(comm.Dup())
    for form in (ELASTIC, MACHINE, LASSO):
        problem = make_problem(form["family"], n=37, d=13)
        tables = {
            "problem": form,
            "schedule": {"batch": 2, "steps": 3, "epochs": 4},
            "update": {"kind": "coordinate"},
            "precision": {"recipe": "fp64"},
        }
        found, alone = (
            train(tables, X=problem.X, y=problem.y, world=ranks)
            for ranks in (world, SerialCommunicator())
        )
        np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-11, atol=1e-13)
        assert len(set(world.exchange_objects(found.weights_sha256))) == 1
        assert found.ledger["products"]["calls"] >= found.exchanges > 0

    problem = make_problem("gaussian", n=37, d=13)
    found, alone = (
        hpcsgd.path(problem.X, problem.y, n_alphas=4, tol=1e-12, comm=ranks)
        for ranks in (comm, None)
    )
    np.testing.assert_allclose(found.alphas, alone.alphas, rtol=1e-12)
    np.testing.assert_allclose(found.coefs, alone.coefs, rtol=1e-9, atol=1e-12)

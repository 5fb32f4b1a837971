"""Looks at the recurrence and fall-backs on real MPI ranks."""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends.exchange import HostExchange
from hpcsgd.comm.mpi import MpiCommunicator
from tests.helpers.harness import config_for, make_problem, oracle_for, relative_error


def trained(comm, problem, **sections):
    tables = {
        "schedule": {"batch": 4, "steps": 8, "epochs": 4},
        "run": {"gap_every": 2, **sections.pop("run", {})},
    }
    config = config_for(problem, **tables, **sections)
    world = MpiCommunicator(comm.Dup())
    return config, train(config, X=problem.X, y=problem.y, world=world)


@pytest.mark.ranks(1, 2)
def test_the_weights_have_the_same_bits_with_and_without(comm):
    problem = make_problem("logistic", n=150, d=12)
    for products in ({"kind": "gram"}, {"kind": "gram", "look_ahead": "on"}):
        for recipe in ("fp32", "c"):
            found = {
                trained(
                    comm,
                    problem,
                    products=products,
                    precision={"recipe": recipe},
                    run={"gap_every": every},
                )[1].weights_sha256
                for every in (0, 1, 3)
            }
            assert len(found) == 1


@pytest.mark.ranks(2, 3, 4)
def test_rounding_is_no_alarm(comm):
    problem = make_problem("softmax", n=150, d=12)
    for kind in ("gram", "cached"):
        _, result = trained(
            comm,
            problem,
            products={"kind": kind},
            precision={"recipe": "c"},
            update={"kind": "momentum"},
            run={"gap_every": 1},
        )
        assert not result.events and result.report["gap_looks"] > 10


@pytest.mark.ranks(2, 3)
def test_ranks_fall_back_together(comm):
    """One of them alone has a wrong Gram, while there are many steps."""
    steps = HostExchange.steps

    def bending(self):
        if comm.rank == 1 and len(self.blocks.sizes) > 2:
            self.gram = self.gram.copy()
            self.gram[5] *= 3
        steps(self)

    problem = make_problem("logistic", n=150, d=12)
    try:
        HostExchange.steps = bending
        config, result = trained(comm, problem)
    finally:
        HostExchange.steps = steps
    changes = [e["change"] for e in result.events if e["event"] == "fall-back"]
    assert changes == ["steps 8 -> 4", "steps 4 -> 2"]
    assert relative_error(result, oracle_for(config, problem)) <= 1e-10
    assert np.unique(comm.allgather(result.weights_sha256)).size == 1

"""Slices on real MPI ranks: the steps of DDP, its bytes, and the memory of the table."""

import pytest

from benchmarks.bench_zero import METHODS, UPDATES, computed, measure
from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from tests.equivalence.test_gradient import agreed
from tests.equivalence.test_zero import sliced, stages
from tests.harness import make_problem, relative_error, union_oracle
from tests.ranks.counting import CountingComm


def run(comm, config, problem):
    world = MpiCommunicator(comm.Dup())
    return train(config, X=problem.X, y=problem.y, world=world)


@pytest.mark.ranks(2, 4)
def test_the_steps_of_ddp(comm):
    """To rounding; of two replicas to the bit, whose sums have one order."""
    problem = make_problem("softmax")
    for members in (1, 2) if comm.size == 4 else (1,):
        replicas = comm.size // members
        for kind in ("sgd", "nesterov", "adam"):
            sections = {"update": {"kind": kind}, "problem": {"intercept": True}}
            plain = run(
                comm,
                agreed(problem, replicas, members, agreement={"bucket": 1.6e-4})
                if not sections
                else sliced(problem, 0, replicas, members, **sections),
                problem,
            )
            for stage in stages():
                config = sliced(problem, stage, replicas, members, **sections)
                result = run(comm, config, problem)
                assert len(set(comm.allgather(result.weights_sha256))) == 1
                assert abs(result.weights - plain.weights).max() < 1e-13
                if replicas == 2 and stage < 3:
                    assert result.weights_sha256 == plain.weights_sha256
                if kind != "adam":
                    expected = union_oracle(config, problem)
                    assert relative_error(result, expected) <= 1e-12

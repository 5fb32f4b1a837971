"""Replicas that mix weights, average aside or send momentum, on real MPI ranks."""

import pytest

from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from tests.helpers.bagua import ROWS, Clocked, clocked, config_of
from tests.helpers.bagua_runs import expected
from tests.helpers.gradients import agreed
from tests.helpers.harness import make_problem, relative_error, union_oracle
from tests.ranks.counting import CountingComm


@pytest.mark.ranks(2, 4)
def test_every_row_is_its_formula(comm):
    """All rows in one launch, replicas of members too; what MPI was asked is booked."""
    problem = make_problem("softmax")
    for row in ROWS:
        for members in (1, 2) if comm.size == 4 else (1,):
            kind = {"products": {"kind": "gram"}} if "async" in row else {}
            config = config_of(problem, row, comm.size // members, members, **kind)
            proxy = CountingComm(comm.Dup())
            world = MpiCommunicator(proxy)
            result = train(config, X=problem.X, y=problem.y, world=world)
            world.close()
            assert relative_error(result, expected(config, problem, row)) < 1e-11, row
            assert len(set(comm.allgather(result.weights_sha256))) == 1, row
            if members == 1:
                said = sum(result.ledger[p]["words"] for p in ("agreement", "evaluate"))
                leads = comm.size > 3 and comm.rank % 3 == 0
                has_ring = "low" in row and (leads or "threes" not in row)
                first = 2 * (7 * 4 + 4) * has_ring  # of neighbours, as control
                asked = proxy.counts["words"] - proxy.flags["words"]
                assert asked == said + first, row


@pytest.mark.ranks(2, 4)
def test_averages_by_clocks_are_those_of_their_log(comm):
    problem = make_problem("softmax")
    for members in (1, 2) if comm.size == 4 else (1,):
        config = clocked(problem, comm.size // members, members)
        world = MpiCommunicator(comm.Dup())
        result = train(config, X=problem.X, y=problem.y, world=world)
        world.close()
        averages = result.report["agreement"]["averages"]
        told = Clocked(config, problem, averages).run()
        assert relative_error(result, told) < 1e-11
        assert len(set(comm.allgather(result.weights_sha256))) == 1


@pytest.mark.ranks(2, 4)
def test_leaders_speak_for_gradients(comm):
    problem = make_problem("softmax")
    for of in ("node", "2", "1"):
        for codec in ("identity", "bytegrad"):
            own = {"hierarchical": of, "codec": codec, "bucket": 2.0**-14}
            config = agreed(problem, comm.size, agreement=own)
            world = MpiCommunicator(comm.Dup())
            result = train(config, X=problem.X, y=problem.y, world=world)
            world.close()
            error = relative_error(result, union_oracle(config, problem))
            assert error < (1e-12 if codec == "identity" else 0.05), (of, codec)
            assert len(set(comm.allgather(result.weights_sha256))) == 1

"""Agreed gradients and every codec on real MPI ranks."""

import pytest

from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from tests.contracts.codec import NAMES, ROWS, coded
from tests.equivalence.test_gradient import agreed
from tests.equivalence.test_shapers import SHAPES
from tests.equivalence.test_shapers import expected as shaped
from tests.harness import make_problem, relative_error, union_oracle
from tests.ranks.counting import CountingComm


def hashes(comm, result):
    return set(comm.allgather((result.status.value, result.weights_sha256)))


@pytest.mark.ranks(2, 4)
def test_replicas_are_one_process_on_the_union(comm):
    problem = make_problem("softmax")
    for members in (1, 2) if comm.size == 4 else (1,):
        for sections in (
            {},
            {"agreement": {"accumulate": 2, "bucket": 2.0**-14}},
            {"update": {"kind": "nesterov"}, "problem": {"intercept": True}},
        ):
            config = agreed(problem, comm.size // members, members, **sections)
            world = MpiCommunicator(comm.Dup())
            result = train(config, X=problem.X, y=problem.y, world=world)
            assert relative_error(result, union_oracle(config, problem)) <= 1e-12
            assert len(hashes(comm, result)) == 1


@pytest.mark.ranks(2, 4)
def test_every_codec(comm):
    """The same bits on all ranks, members too; the bytes of its formula."""
    problem = make_problem("softmax")
    for name in NAMES:
        for members in (1, 2) if comm.size == 4 else (1,):
            replicas = comm.size // members
            config = coded(problem, name, replicas, members, codec=ROWS[name].rough)
            world = MpiCommunicator(comm.Dup())
            result = train(config, X=problem.X, y=problem.y, world=world)
            assert len(hashes(comm, result)) == 1, name
            assert result.loss < result.history[0]["loss"], name


@pytest.mark.ranks(2, 4)
def test_rules_and_what_is_done_to_gradients(comm):
    """One process in longdouble, or the same bits on all ranks and a lower loss."""
    for name, (asked, restated) in SHAPES.items():
        problem = make_problem("softmax")
        config = agreed(problem, comm.size, update=asked, problem={"intercept": True})
        world = MpiCommunicator(comm.Dup())
        result = train(config, X=problem.X, y=problem.y, world=world)
        w, _, _ = shaped(config, problem, restated(config))
        assert abs(result.weights - w).max() <= 1e-12 * abs(w).max(), name
        assert len(hashes(comm, result)) == 1, name
    problem = make_problem("softmax", n=40, d=1100)
    for update in ({"kind": "adam", "bits": 8}, {"kind": "momentum", "bits": 8}):
        config = agreed(problem, comm.size, update=update, rate={"value": 0.02})
        world = MpiCommunicator(comm.Dup())
        result = train(config, X=problem.X, y=problem.y, world=world)
        assert len(hashes(comm, result)) == 1
        assert result.loss < result.history[0]["loss"]


@pytest.mark.ranks(2)
def test_the_ledger_agrees_with_what_mpi_was_asked(comm):
    problem = make_problem("softmax")
    proxy = CountingComm(comm.Dup())
    config = agreed(problem, 2, agreement={"bucket": 2.0**-13})
    result = train(config, X=problem.X, y=problem.y, world=MpiCommunicator(proxy))
    said = sum(result.ledger[p]["words"] for p in ("agreement", "evaluate"))
    assert proxy.counts["words"] == said + proxy.flags["words"]

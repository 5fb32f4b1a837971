"""Agreements that average, on real MPI ranks."""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.communicator import Address
from hpcsgd.comm.mpi import MpiCommunicator
from hpcsgd.errors import ConfigError
from hpcsgd.runs.result import Status
from tests.helpers.averages import ROWS, config_of
from tests.helpers.harness import make_problem, relative_error
from tests.helpers.swarm import Swarm
from tests.ranks.counting import CountingComm


def trained(comm, config, problem, address=None):
    world = MpiCommunicator(comm.Dup())
    world.address = address
    return train(config, X=problem.X, y=problem.y, world=world)


@pytest.mark.ranks(2, 4)
def test_every_row_equals_the_same_step_by_step(comm):
    """With and without members, with momentum, and one model on all ranks."""
    problem = make_problem("softmax", n=58, d=7)
    update = {"kind": "nesterov", "momentum": 0.5}
    for number, row in enumerate(ROWS):
        members = comm.size // 2 if number % 2 else 1
        config = config_of(
            *(problem, row, comm.size // members, members), update=update
        )
        result = trained(comm, config, problem)
        wanted = Swarm(config, problem, config.grid.replicas).run()
        assert relative_error(result, wanted) < 1e-11, (row, members)
        assert len(set(comm.allgather(result.weights_sha256))) == 1


@pytest.mark.ranks(4)
def test_coded_averages_equal_the_papers_step_by_step(comm):
    problem = make_problem("softmax", n=58, d=7)
    topk = {"share": 0.2, "dense": "never"}
    for row, codec, settings in (
        ("slowmo", "topk", topk),
        ("fedavg", "qsgd", {"bits": 4}),
    ):
        agreement = {"agreement": {"codec": codec}, "codec": settings}
        config = config_of(problem, row, 4, **agreement)
        result = trained(comm, config, problem)
        wanted = Swarm(config, problem, 4).run()
        assert relative_error(result, wanted) < 1e-11, row
        assert len(set(comm.allgather(result.weights_sha256))) == 1


@pytest.mark.ranks(4)
def test_groups_by_node_are_freed_with_the_run(comm):
    """Two pretended nodes; an MPI has some two thousand communicators, not more."""
    problem = make_problem("logistic", n=58, d=7)
    asked = {"agreement": {"groups": "node,all", "periods": "1,3"}}
    by_node = config_of(problem, "hierarchical", **asked)
    by_size = config_of(problem, "hierarchical")
    address = Address("", f"node {comm.rank // 2}")
    found = {trained(comm, by_node, problem, address).weights_sha256 for _ in range(9)}
    assert found == {trained(comm, by_size, problem).weights_sha256}


@pytest.mark.ranks(4)
def test_the_ledger_agrees_with_what_mpi_was_asked(comm):
    """A proxy under the communicator counts by itself, groups included."""
    problem = make_problem("logistic", n=58, d=8)
    for row in ("postlocal", "hierarchical", "fedavg", "sharded"):
        proxy = CountingComm(comm.Dup())
        config = config_of(problem, row, run={"node_sharing": "off"})
        world = MpiCommunicator(proxy)
        ledger = train(config, X=problem.X, y=problem.y, world=world).ledger
        flags, said = proxy.flags, {"words": 0, "calls": 0}
        for purpose in ("agreement", "evaluate"):
            for figure in said:
                said[figure] += ledger[purpose][figure]
        for figure, count in said.items():
            assert proxy.counts[figure] == count + flags[figure], (row, figure)


@pytest.mark.ranks(2, 4)
def test_a_run_that_diverges_ends_on_all_ranks(comm):
    problem = make_problem("gaussian", n=58, d=3)
    for row in ROWS:
        config = config_of(
            *(problem, row, comm.size),
            rate={"value": 1e8},
            schedule={"epochs": 40},
            run={"check_every": 1, "fall_back": False},
        )
        result = trained(comm, config, problem)
        assert result.status is Status.DIVERGED, row
        assert np.isfinite(result.weights).all()


@pytest.mark.ranks(2, 4)
def test_groups_that_are_none_are_refused_by_all(comm):
    """One rank alone does not know its rack."""
    problem = make_problem("logistic", n=58, d=3)
    asked = {"agreement": {"groups": "rack,all", "periods": "1,3"}}
    config = config_of(problem, "hierarchical", comm.size, **asked)
    address = Address("r1" if comm.rank else "", "n1")
    with pytest.raises(ConfigError, match="HPCSGD_RACK"):
        trained(comm, config, problem, address)

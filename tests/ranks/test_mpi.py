"""The contract of communicators, and training, on real MPI ranks."""

import hashlib

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from hpcsgd.comm.network_model import DelayedCommunicator, Network
from hpcsgd.data.shard import split_range
from hpcsgd.jobs.smoke import smoke
from hpcsgd.products.base import product_facts
from tests.helpers.contracts.communicator import CHECKS
from tests.helpers.contracts.communicator_sums import (
    holds_the_same_bits_when_reproducible,
)
from tests.helpers.harness import config_for, make_problem, oracle_for, relative_error
from tests.ranks.counting import CountingComm


@pytest.mark.ranks(1, 2, 3, 4)
def test_the_contract(comm):
    """All checks in one launch: they are cheap, a launch is not."""
    for check in CHECKS:
        for is_patient in (False, True):
            world = MpiCommunicator(comm.Dup())
            world.is_patient = is_patient
            check(world)


@pytest.mark.ranks(2, 3)
def test_the_contract_behind_a_network(comm):
    for check in CHECKS:
        check(DelayedCommunicator(MpiCommunicator(comm.Dup()), Network(1e-4, 1e9)))


@pytest.mark.ranks(2, 3, 4)
def test_reproducible_sums_are_the_same_bits(comm):
    holds_the_same_bits_when_reproducible(
        MpiCommunicator(comm.Dup(), reproducible=True)
    )


@pytest.mark.ranks(1, 2, 3, 4)
def test_every_product_equals_the_oracle(comm):
    """Every grid of these ranks, every product, against step-by-step SGD."""
    problem = make_problem("softmax", n=53, d=7)
    for kind in ("direct", "gram", "gather", "gather-once", "cached", "look-ahead"):
        config = config_for(
            problem,
            problem={"l2": 0.05, "intercept": True},
            update={"kind": "nesterov", "momentum": 0.5},
            products={
                "kind": "gram" if kind == "look-ahead" else kind,
                "look_ahead": "on" if kind == "look-ahead" else "off",
            },
        )
        result = train(
            config, X=problem.X, y=problem.y, world=MpiCommunicator(comm.Dup())
        )
        assert relative_error(result, oracle_for(config, problem)) <= 1e-11, kind


@pytest.mark.ranks(2, 4)
def test_replicas_end_with_one_model(comm):
    problem = make_problem("logistic", n=50, d=7)
    for members in {1, comm.size // 2}:
        config = config_for(
            problem,
            problem={"intercept": True},
            schedule={"period": 2},
            grid={"replicas": comm.size // members, "members": members},
        )
        world = MpiCommunicator(comm.Dup())
        result = train(config, X=problem.X, y=problem.y, world=world)
        assert len(set(comm.allgather(result.weights_sha256))) == 1


@pytest.mark.ranks(2, 3)
def test_the_ledger_agrees_with_what_mpi_was_asked(comm):
    """A proxy under the communicator counts by itself; products and all the rest."""
    problem = make_problem("logistic", n=53, d=7)
    for kind, reproducible in (
        ("direct", False),
        ("gram", False),
        ("gather", False),
        ("gather-once", False),
        ("cached", False),
        ("gram", True),
    ):
        gathers = product_facts(kind).holds_all_columns
        proxy = CountingComm(comm.Dup())
        world = MpiCommunicator(proxy, reproducible=reproducible)
        config = config_for(
            problem, problem={"l2": 0.1, "intercept": True}, products={"kind": kind}
        )
        result = train(config, X=problem.X, y=problem.y, world=world)
        sent = proxy.counts
        ledger = result.ledger
        said = [ledger[p]["words"] for p in ("products", "agreement", "evaluate")]
        # What passes the proxy besides, all booked as control: one word for each flag,
        # and the slice of the weights that is gathered at the end.
        flags = proxy.flags["words"]
        own = split_range(problem.X.shape[1], comm.size, comm.rank)
        assert sent["words"] == sum(said) + flags + (
            0 if gathers else own.stop - own.start
        )
        calls = sum(ledger[p]["calls"] for p in ("products", "agreement", "evaluate"))
        assert sent["calls"] == calls + flags + (not gathers)
        assert proxy.shared["calls"] > 0
        assert ledger["products"]["calls"] > 0 and ledger["evaluate"]["calls"] > 0


@pytest.mark.ranks(2)
def test_the_same_run_gives_the_same_bits(comm):
    problem = make_problem("logistic", n=200, d=24)
    config = config_for(problem, precision={"recipe": "c"})
    prints = set()
    for _ in range(2):
        world = MpiCommunicator(comm.Dup())
        result = train(config, X=problem.X, y=problem.y, world=world)
        prints.add(hashlib.sha256(np.ascontiguousarray(result.weights)).hexdigest())
    assert len(prints) == 1


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("sharing", ["off", "on"])
def test_every_group_of_a_run_is_given_back(comm, sharing, monkeypatch):
    """An MPI has some two thousand communicators: programs train more often."""
    groups = []
    split = MpiCommunicator.split

    def remembering(self, color, key):
        groups.append(split(self, color, key))
        return groups[-1]

    monkeypatch.setattr(MpiCommunicator, "split", remembering)
    problem = make_problem("logistic")
    grid = {"replicas": comm.size // 2, "members": 2}
    config = config_for(problem, grid=grid, run={"node_sharing": sharing})
    world = MpiCommunicator(comm.Dup())
    for _ in range(2):
        train(config, X=problem.X, y=problem.y, world=world)
    assert len(groups) == 4
    assert not any(bool(group._comm) for group in groups)
    world.close()


@pytest.mark.ranks(4)
def test_a_smoke_job_finds_all_well(comm, tmp_path):
    folder = comm.bcast(tmp_path)
    checks = smoke(MpiCommunicator(comm.Dup()), folder, expected=comm.size)
    assert all(check.good for check in checks), checks
    assert checks == comm.bcast(checks)

"""Sparse rows on real MPI ranks."""

import pytest

from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from tests.helpers.harness import config_for, oracle_for, relative_error
from tests.helpers.sparse import make_sparse
from tests.ranks.counting import CountingComm


@pytest.mark.ranks(1, 2, 3, 4)
def test_every_product_equals_the_oracle(comm):
    stored, dense = make_sparse("softmax")
    for kind in ("direct", "gram", "gather", "gather-once", "cached", "look-ahead"):
        ahead = kind == "look-ahead"
        config = config_for(
            stored,
            problem={"l2": 0.05, "intercept": True},
            update={"kind": "nesterov", "momentum": 0.5},
            products={
                "kind": "gram" if ahead else kind,
                "look_ahead": "on" if ahead else "off",
            },
        )
        world = MpiCommunicator(comm.Dup())
        result = train(config, X=stored.X, y=stored.y, world=world)
        assert relative_error(result, oracle_for(config, dense)) <= 1e-11, kind


@pytest.mark.ranks(4)
def test_replicas_of_members(comm):
    stored, _ = make_sparse("logistic")
    for kind in ("gram", "gather"):
        for recipe in ("fp32", "c"):
            config = config_for(
                stored,
                products={"kind": kind},
                grid={"replicas": 2, "members": 2},
                precision={"recipe": recipe},
            )
            world = MpiCommunicator(comm.Dup())
            result = train(config, X=stored.X, y=stored.y, world=world)
            assert len(set(comm.allgather(result.weights_sha256))) == 1
            assert result.report["density"] == pytest.approx(stored.X.nnz / (53 * 17))


@pytest.mark.ranks(2, 3)
def test_the_ledger_agrees_with_what_mpi_was_asked(comm):
    """Gathered rows differ in length from exchange to exchange and rank to rank."""
    stored, _ = make_sparse("logistic")
    proxy = CountingComm(comm.Dup())
    equal = {"partition": "equal"}
    config = config_for(stored, products={"kind": "gather"}, data=equal)
    result = train(config, X=stored.X, y=stored.y, world=MpiCommunicator(proxy))
    ledger, flags = result.ledger, proxy.flags["words"]
    said = sum(ledger[p]["words"] for p in ("products", "agreement", "evaluate"))
    # Besides: one word for each flag, and once how many values each row has.
    assert proxy.counts["words"] == said + flags + len(stored.y)

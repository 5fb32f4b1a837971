"""All methods by name on real MPI ranks, in one launch."""

import pytest

from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from hpcsgd.config import METHODS
from hpcsgd.studies import compare_methods
from tests.helpers.harness import make_problem

BASE = {
    "schedule": {"batch": 16, "epochs": 1},
    "rate": {"value": 0.2},
}


@pytest.mark.ranks(2, 4)
def test_every_method_in_one_comparison(comm):
    """Rows in the order of the table; the messages and bytes of single runs."""
    problem, world = make_problem("logistic"), MpiCommunicator(comm.Dup())
    given = {"X": problem.X, "y": problem.y, "world": world}
    found = compare_methods("all", BASE, repeats=1, **given)
    names = [entry.name for entry in found.entries]
    assert names == ["sgd", "casgd", "hybrid", *METHODS]
    refused = {one.name: one.why for one in found.refused}
    assert ("hybrid" in refused) == (comm.size == 2)
    refused.pop("hybrid", None)
    assert all("--out" in why for why in refused.values()), refused
    ended = {row.name: row.result.status.value for row in found.rows}
    assert set(ended.values()) <= {"completed", "worse"}, ended
    rows = {row.name: row for row in found.rows}
    for name in ("ddp", "bf16", "topk", "slowmo"):
        config = {
            **BASE,
            "schedule": {"batch": 16 // comm.size, "epochs": 1},
            "grid": {"replicas": comm.size, "members": 1},
            "agreement": {"method": name},
            "products": {"kind": "direct", "look_ahead": "off"},
        }
        alone = train(config, **given)
        assert rows[name].result.weights_sha256 == alone.weights_sha256, name
        for figure in ("calls", "words", "bytes"):
            sent = alone.ledger["agreement"][figure]
            assert rows[name].traffic(figure) == sent, (name, figure)
    world.close()


@pytest.mark.ranks(2, 4)
def test_a_method_that_the_run_refuses_leaves_the_others_running(comm):
    """What is found when the run is built is a refusal on all ranks alike."""
    problem, world = make_problem("logistic"), MpiCommunicator(comm.Dup())
    config = {
        **BASE,
        "products": {"kind": "cached"},
        "sampling": {"mode": "reshuffle"},
    }
    given = {"X": problem.X, "y": problem.y, "world": world}
    found = compare_methods("casgd,ddp", config, repeats=2, **given)
    assert [one.name for one in found.refused] == ["casgd"]
    assert [row.name for row in found.rows] == ["ddp"]
    assert len(found.rows[0].times) == 2
    world.close()

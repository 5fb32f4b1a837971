"""Whoever splits off a group lets go of it: an MPI has some two thousand of them."""

import threading

import pytest

from hpcsgd.api import train
from hpcsgd.comm.threads import ThreadCommunicator, run_ranks
from hpcsgd.config import METHODS
from tests.helpers.harness import config_for, make_problem

PROBLEM = make_problem("softmax", n=40, d=6)
MORE = {
    "wavelet, exact-sum": ("wavelet", {"mode": "exact-sum"}),
    "leaders": ("bagua", {"hierarchical": "2"}),
    "leaders of momentum": ("qadam", {"hierarchical": "2", "warmup_steps": 1}),
    "leaders by priority": ("bytescheduler", {"hierarchical": "2"}),
    "circles": ("hierarchical", {"groups": "2,4", "periods": "1,3"}),
    "slow circles": (
        *("slowmo", {"base": "hierarchical", "groups": "2,4", "periods": "1,3"}),
    ),
}
BY_ADAM = ("qadam", "onebit-adam", "infinity")
ROWS = {**{name: (name, {}) for name in METHODS}, **MORE}


@pytest.fixture
def groups(monkeypatch):
    """(opened, closed) of every rank: thread -> communicators."""
    opened, closed = {}, {}
    split, close = ThreadCommunicator.split, ThreadCommunicator.close

    def own(table):
        return table.setdefault(threading.get_ident(), [])

    def splitting(self, color, key):
        own(opened).append(split(self, color, key))
        return own(opened)[-1]

    def closing(self):
        own(closed).append(self)
        close(self)

    monkeypatch.setattr(ThreadCommunicator, "split", splitting)
    monkeypatch.setattr(ThreadCommunicator, "close", closing)
    return opened, closed


@pytest.mark.cases(3)
@pytest.mark.parametrize("row", ROWS)
def test_every_group_that_is_opened_is_closed(row, groups, tmp_path):
    """On every rank, once; two of the grid, and those of the agreement."""
    method, asked = ROWS[row]
    period = 3 if "schedule.period" in METHODS[method].defaults else 1
    folder = {"store": str(tmp_path)} if method == "infinity" else {}
    config = config_for(
        PROBLEM,
        agreement={"method": method, **asked, **folder},
        schedule={"batch": 3, "steps": 1, "epochs": 1, "period": period},
        products={"kind": "auto"},
        update={"kind": "adam" if method in BY_ADAM else "sgd"},
        grid={"replicas": 4, "members": 1},
        rate={"value": 0.01},
    )
    run_ranks(4, lambda world: train(config, X=PROBLEM.X, y=PROBLEM.y, world=world))
    opened, closed = groups
    assert len(opened) == 4
    for thread, own in opened.items():
        gone = [id(group) for group in closed[thread]]
        assert len(own) >= 2 and sorted(map(id, own)) == sorted(gone)

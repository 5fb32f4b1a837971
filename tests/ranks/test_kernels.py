"""Ranks on unlike processors: all use the kernels that all of them have."""

import pytest

from hpcsgd.api import train
from hpcsgd.backends import compiled_calls
from hpcsgd.comm.mpi import MpiCommunicator
from tests.helpers.harness import config_for, make_problem


@pytest.fixture
def afresh(monkeypatch):
    """What this process found or settled on is forgotten, before and after."""

    def forget():
        compiled_calls.settled.clear()
        compiled_calls.best.cache_clear()
        compiled_calls.functions.cache_clear()

    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def run(comm):
    """A report of a few steps on these ranks."""
    problem = make_problem("logistic", n=53, d=7)
    config = config_for(problem, products={"kind": "gram", "look_ahead": "off"})
    world = MpiCommunicator(comm.Dup())
    return train(config, X=problem.X, y=problem.y, world=world).report


@pytest.mark.ranks(2, 3)
def test_the_least_set_is_used_by_all(comm, afresh):
    """The last rank has no more than portable kernels."""
    best = compiled_calls.instructions()
    if comm.rank == comm.size - 1:
        afresh.setenv("HPCSGD_ISA", "portable")
        compiled_calls.best.cache_clear()
    report = run(comm)
    assert compiled_calls.instructions() == ("portable" if best else "")
    assert report["versions"]["kernels"] == (compiled_calls.instructions() or "NumPy")


@pytest.mark.ranks(2)
def test_numpy_where_one_rank_has_nothing_compiled(comm, afresh):
    if comm.rank == 1:
        afresh.setattr(compiled_calls, "load_library", lambda name: (None, "gone"))
    report = run(comm)
    assert report["versions"]["kernels"] == "NumPy" and not compiled_calls.available()
    if comm.rank == 0 and compiled_calls.settled:
        assert "another rank" in compiled_calls.why()

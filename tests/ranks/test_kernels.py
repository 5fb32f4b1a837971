"""Ranks on unlike processors: all use the kernels that all of them have."""

import pytest

from hpcsgd.api import train
from hpcsgd.backends import cpu
from hpcsgd.comm.mpi import MpiCommunicator
from tests.helpers.harness import config_for, make_problem


@pytest.fixture
def afresh(monkeypatch):
    """What this process found or settled on is forgotten, before and after."""

    def forget():
        cpu.isa.settled.clear()
        cpu.isa.best.cache_clear()
        cpu._functions.cache_clear()

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
    best = cpu.instructions()
    if comm.rank == comm.size - 1:
        afresh.setenv("HPCSGD_ISA", "portable")
        cpu.isa.best.cache_clear()
    report = run(comm)
    assert cpu.instructions() == ("portable" if best else "")
    assert report["versions"]["kernels"] == (cpu.instructions() or "NumPy")


@pytest.mark.ranks(2)
def test_numpy_where_one_rank_has_nothing_compiled(comm, afresh):
    if comm.rank == 1:
        afresh.setattr(cpu.isa, "load_library", lambda name: (None, "gone"))
    report = run(comm)
    assert report["versions"]["kernels"] == "NumPy" and not cpu.available()
    if comm.rank == 0 and cpu.isa.settled:
        assert "another rank" in cpu.why()

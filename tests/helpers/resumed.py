"""Runs that are preempted and resumed."""

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.runs.progress import Callback
from hpcsgd.runs.result import Status
from hpcsgd.solvers.callbacks import Request
from tests.helpers.harness import config_for

PREEMPTED_AT = 7  # of 5 exchanges an epoch (n = 53, b = 4, s = 3): inside the second


class PreemptAt(Callback):
    """The system wants its nodes back, and tells one rank of it."""

    def __init__(self, exchanges):
        self.exchanges = exchanges

    def on_exchange(self, view):
        return Request.PREEMPT if view.exchanges == self.exchanges else Request.NONE


def run(ranks, drawn, folder, stop_at=None, resume="auto", **sections):
    """One run in `folder`; the results of all ranks."""
    sections["run"] = {
        "evaluate_every": 1,
        "check_every": 1,
        "out": str(folder),
        "resume": resume,
        **sections.get("run", {}),
    }
    config = config_for(drawn, **sections)

    def on_rank(world):
        callbacks = [PreemptAt(stop_at)] if stop_at and world.rank == 0 else []
        return train(config, X=drawn.X, y=drawn.y, world=world, callbacks=callbacks)

    return run_ranks(ranks, on_rank)


def interrupted(ranks, drawn, folder, at=PREEMPTED_AT, **sections):
    """The result of a run that was ended after exchange `at` and started again."""
    first = run(ranks, drawn, folder, stop_at=at, **sections)
    assert {r.status for r in first} == {Status.PREEMPTED}
    assert {r.exchanges for r in first} == {at}
    return run(ranks, drawn, folder, **sections)


def losses(result):
    return [(r["exchanges"], r["iterations"], r["loss"]) for r in result.history]

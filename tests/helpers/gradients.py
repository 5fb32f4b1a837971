"""Runs that agree on gradients, beside one that computes them whole."""

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.runs.progress import Callback
from hpcsgd.solvers.callbacks import Request
from tests.helpers.harness import config_for, relative_error, train_on, union_oracle

UPDATES = ("sgd", "momentum", "nesterov", "nesterov-classic")


def agreed(drawn, replicas, members=1, /, **sections):
    """A configuration with one step an exchange, and as many ranks as R x C."""
    tables = {
        "schedule": {"batch": 4, "steps": 1, "epochs": 2},
        "products": {"kind": "auto"},
        "problem": {"l2": 0.05},
        "agreement": {"kind": "gradient"},
        "grid": {"replicas": replicas, "members": members},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return config_for(drawn, **tables)


def check(problem, config, stored=None, **data):
    grid = config.grid
    result = train_on(grid.replicas * grid.members, config, stored or problem, **data)
    assert result.status.is_finished
    error = relative_error(result, union_oracle(config, problem, **data))
    assert error <= 1e-12, f"relative error {error:.2e}"
    return result


class PreemptAt(Callback):
    """Ends a run after an exchange."""

    def __init__(self, exchanges):
        self.exchanges = exchanges

    def on_exchange(self, view):
        return Request.PREEMPT if view.exchanges == self.exchanges else Request.NONE


def in_folder(folder, config, ranks, problem, stop=None):
    tables = config.tables()
    tables["run"] |= {"out": str(folder), "resume": "auto", "check_every": 1}
    config = RunConfig.parse(tables)

    def on_rank(world):
        callbacks = [PreemptAt(stop)] if stop and world.rank == 0 else []
        return train(config, X=problem.X, y=problem.y, world=world, callbacks=callbacks)

    return run_ranks(ranks, on_rank)

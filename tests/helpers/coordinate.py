"""Runs of coordinate forms, and the problems that they are tried on."""

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks

ELASTIC = {"family": "gaussian", "l1": 0.04, "l2": 0.02, "intercept": True}
MACHINE = {"family": "squared-hinge", "l2": 0.05}
DUAL = {"coordinate": {"form": "dual"}}
SHIFTED = {"l2": 1.0, "intercept": True}


def descend(problem, /, ranks=1, callbacks=(), X=None, **sections):
    """The result on thread ranks, with weights and offsets."""
    tables = {
        "schedule": {"batch": 2, "steps": 3, "epochs": 2},
        "update": {"kind": "coordinate"},
        "coordinate": {"tol": 0.0},
        "precision": {"recipe": "fp64"},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}

    def on_rank(world):
        return train(
            tables,
            X=problem.X if X is None else X,
            y=problem.y,
            sample_weight=problem.weights,
            offset=problem.offset,
            world=world,
            callbacks=list(callbacks),
        )

    found = run_ranks(ranks, on_rank)
    assert len({one.weights_sha256 for one in found}) == 1
    return found[0]

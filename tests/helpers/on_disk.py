"""Runs whose weights lie on disk."""

from tests.helpers.gradients import agreed
from tests.helpers.harness import make_problem, train_on
from tests.helpers.infinity_child import TILE


def on_disk(drawn, folder, replicas=1, members=1, tile=TILE, **sections):
    more = {"kind": "infinity", "store": str(folder), "tile": tile}
    more |= sections.pop("agreement", {})
    return agreed(drawn, replicas, members, agreement=more, **sections)


SMALL = {"n": 11, "d": 5}


def go(out, store="", resume="no", *, seed=0, epochs=1, replicas=1, **agreement):
    problem = make_problem("logistic", seed=seed, **SMALL)
    how = {"kind": "infinity", "store": str(store), **agreement}
    run = {"out": out and str(out), "resume": str(resume)}
    more = {"schedule": {"epochs": epochs}, "update": {"kind": "adam"}}
    config = agreed(problem, replicas, 1, agreement=how, run=run, **more)
    return train_on(replicas, config, problem)

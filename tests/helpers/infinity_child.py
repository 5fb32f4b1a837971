"""A run whose states are on disk, which kills itself where it is told to.

python -m tests.helpers.infinity_child FOLDER REPLICAS WHERE COUNT [TWIN]
"""

import os
import signal
import sys

from hpcsgd.agreements.more.infinity.store import TileStore
from hpcsgd.agreements.more.infinity.tiles import Stamps, StateFile
from tests.helpers.harness import config_for, make_problem, train_on

TILE = 0.003  # MiB: several tiles of these 37 columns


def config_of(
    problem, out, replicas=1, resume="no", kind="adam", epochs=2, **agreement
):
    return config_for(
        problem,
        agreement={"kind": "infinity", "tile": TILE, "sync": False, **agreement},
        schedule={"batch": 4, "steps": 1, "epochs": epochs},
        products={"kind": "direct"},
        grid={"replicas": replicas},
        update={"kind": kind},
        problem={"intercept": True, "l2": 0.1},
        run={"evaluate_every": 1, "out": str(out), "resume": resume},
    )


def problem():
    return make_problem("logistic", n=53, d=37)


def run(out, replicas=1, resume="no", **agreement):
    drawn = problem()
    config = config_of(drawn, out, replicas, resume, **agreement)
    return train_on(replicas, config, drawn)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(owner, name, count, tears):
    """At its call number `count`: half of it, or nothing, then the end."""
    whole, calls = getattr(owner, name), []

    def method(self, *arguments):
        calls.append(1)
        if len(calls) == count:
            if tears:
                tear(whole, self, arguments)
            die()
        return whole(self, *arguments)

    setattr(owner, name, method)


def tear(whole, self, arguments):
    """Half of a write."""
    pwritev, ask = os.pwritev, self

    def half(file, views, place):
        done = pwritev(file, [views[0][: len(views[0]) // 2]], place)
        die()
        return done

    os.pwritev = half
    whole(ask, *arguments)


def without_a_stamp(store, step):
    """The broken twin: a step counts before it is there."""
    half, self = store.half, store
    document = dict(self.document, exchanges=self.document["exchanges"] + 1)
    TileStore.commit(self, document)
    self.pipeline.update(half, self.plan, step, self.traffic)


def arm(where, count):
    """From now on this process kills itself at a call of that number."""
    if where == "after-commit":
        whole, calls = TileStore.commit, []

        def then_die(self, document):
            whole(self, document)
            calls.append(1)
            if len(calls) == count:
                die()

        TileStore.commit = then_die
        return
    owner = Stamps if where == "stamp" else StateFile
    at_call(owner, "write", count, where == "torn-write")


def main():
    out, replicas, where, count = sys.argv[1:5]
    if "twin" in sys.argv:
        TileStore.update = without_a_stamp
        commit = TileStore.commit
        TileStore.commit = lambda self, document: (
            None
            if document["exchanges"] == self.document["exchanges"]
            else commit(self, document)
        )
    arm(where, int(count))
    run(out, int(replicas))


if __name__ == "__main__":
    main()

"""Every row of METHODS on real ranks, one of which fails: python -m ... FOLDER CASES.

CASES is a JSON list of [row, sections, fault]; a fault is [how, what, number]: the
last rank is hit just before it would join the `number`-th message of agreement whose
name begins with `what`. `dies` is a SIGKILL, `raises` an error that nobody expects;
`refuses` is one of this package as the run is put together, which all ranks hear of.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import hpcsgd
from hpcsgd.comm import open_world
from hpcsgd.comm.communicator import Communicator
from hpcsgd.errors import ConfigError
from hpcsgd.runs import build, gpu
from tests.helpers.harness import what_is_read

PURPOSE = "agreement"


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def raises():
    raise RuntimeError("a method failed")


class Faulty:
    """The messages of agreement of this rank, counted; one of them never comes."""

    def __init__(self):
        self.enter = Communicator.enter
        self.action, self.what, self.left = None, "", 0

    def __call__(self, group, what, purpose):
        if purpose == PURPOSE and self.action and what.startswith(self.what):
            self.left -= 1
            if self.left == 0:
                self.action()
        return self.enter(group, what, purpose)


def data():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(90, 12))
    return X, (X @ rng.normal(size=(12, 3))).argmax(axis=1)


def settings_of(row, ranks):
    """What a row needs on so many replicas for all it sends to be sent at this size."""
    sparse = {"codec": {"dense": "never", "share": 0.1}}
    known = {
        "powersgd": {"codec": {"start": 2, "min_rate": 0.0}},
        "hierarchical": {
            "agreement": {"groups": f"{max(ranks // 2, 1)},{ranks}", "periods": "1,4"}
        },
        "slowmo": {"agreement": {"slow_sharded": True}},
        "amq": {"codec": {"adapt": 2}},
        "alq": {"codec": {"adapt": 2}},
    }
    return known.get(row, sparse)


def train(world, row, sections):
    """A few exchanges of softmax in two buckets, if the row has some."""
    tables = {
        "problem": {"family": "softmax", "intercept": True},
        "schedule": {"batch": 4, "epochs": 2, "period": 1},
        "rate": {"value": 0.1},
        "grid": {"replicas": world.size},
        "agreement": {"method": row, "bucket": 1e-4},
        "run": {"timeout": 5.0, "evaluate_every": 0},
    }
    for more in (settings_of(row, world.size), sections):
        for name, table in more.items():
            tables[name] = {**tables.get(name, {}), **table}
    if tables["run"].get("device") == "cuda":
        give_gpus(world)
    X, y = data()
    read = what_is_read(tables, "agreement", "codec")
    return hpcsgd.train(read, X=X, y=y, world=world)


def give_gpus(world):
    """Made of NumPy, and of kernels that this processor runs."""
    from tests.helpers.fake_cuda import Node
    from tests.helpers.kernels.fake_device import FakeDevice

    place = f"GPU of rank {world.rank}"
    gpu.take_gpu = lambda world, share_gpus: FakeDevice(Node(), world.rank + 1, place)


def refused(world, row, sections):
    """The sentence that every rank ends with where the last one cannot begin."""
    first_state = build.first_state

    def refusing(*told):
        first_state(*told)
        raise ConfigError("this rank has no room; give it some")

    if world.rank == world.size - 1:
        build.first_state = refusing
    try:
        train(world, row, sections)
    except ConfigError as error:
        return str(error), error.on_all_ranks
    finally:
        build.first_state = first_state
    return "", False


def main(folder, cases):
    world = open_world()
    (Path(folder) / f"pid{world.rank}").write_text(str(os.getpid()))
    faulty = Faulty()
    Communicator.enter = lambda *said: faulty(*said)
    for row, sections, (how, what, number) in json.loads(cases):
        if how == "refuses":
            said, on_all = refused(world, row, sections)
            assert on_all and "give it some" in said, (row, said)
        else:
            last = world.rank == world.size - 1
            faulty.what, faulty.left = what, number
            faulty.action = globals()[how] if last else None
        result = train(world, row, sections)
        (Path(folder) / f"{row}-{how}-{world.rank}").write_text(result.weights_sha256)
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A run in which one rank stalls: python -m tests.faults.stalling HOW SECONDS FOLDER.

HOW is the name of a function below; rank 1 calls it in its third exchange; or, with
-loading or -starting behind the name, while it loads its data or before it trains. With
-across behind it, every rank takes itself for the only one of its node.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import hpcsgd
from hpcsgd.comm import mpi, open_world
from hpcsgd.runs import load

FOR_EVER = 1000


def sleeps():
    time.sleep(FOR_EVER)


def loops():
    while True:
        pass


def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def keeps_the_interpreter():
    """A C function that waits and does not let other threads of Python run."""
    ctypes.PyDLL(None).sleep(FOR_EVER)


def works_for_a_while():
    until = time.monotonic() + 4
    while time.monotonic() < until:
        pass


def rests_for_a_moment():
    time.sleep(0.5)


class Stall(hpcsgd.Callback):
    """Calls `action` once."""

    def __init__(self, action):
        self.action = action

    def on_exchange(self, view):
        if view.exchanges == 3:
            self.action()


def stall_while_loading(action):
    load_block = load.load_block

    def stuck(*arguments, **options):
        action()
        return load_block(*arguments, **options)

    load.load_block = stuck


def stand_apart(rank):
    mpi.node = lambda: f"node {rank}"


def main(how, timeout, folder):
    world = open_world()
    (Path(folder) / f"pid{world.rank}").write_text(str(os.getpid()))
    action, _, place = how.partition("-")
    if place == "across":
        stand_apart(world.rank)
    callbacks = []
    if world.rank == 1 and place == "starting":
        globals()[action]()
    elif world.rank == 1 and place == "loading":
        stall_while_loading(globals()[action])
    elif world.rank == 1:
        callbacks = [Stall(globals()[action])]
    X = np.random.default_rng(0).normal(size=(400, 8))
    config = {
        "products": {"kind": "gram"},
        "schedule": {"batch": 4, "steps": 2, "epochs": 2},
        "grid": {"replicas": world.size // 2, "members": 2},
        "run": {"timeout": float(timeout)},
    }
    if world.size == 3:
        config["grid"] = {"replicas": 1, "members": 3}
    result = hpcsgd.train(config, X=X, y=X[:, 0] > 0, world=world, callbacks=callbacks)
    if world.rank == 0:
        print("ended well", result.status.value)
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

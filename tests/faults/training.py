"""A run with a fault in it: python -m tests.faults.training --fault NAME ... run.toml.

One rank (--rank) is hit after exchange --at; NAME is the name of a function below.
Every rank writes its process number into the run folder's neighbour `pids/`.
"""

import argparse
import faulthandler
import os
import resource
import signal
import time
from pathlib import Path

import hpcsgd
from hpcsgd.comm import open_world
from hpcsgd.config import RunConfig, read_toml
from hpcsgd.runs import load
from hpcsgd.runs.recovery import Signals


def raises(view):
    raise RuntimeError("a callback failed")


def plants_nan(view):
    """As faulty memory would: one value of the block of this rank."""
    BLOCKS[0][5, 1] = float("nan")


def fills_the_disk(view):
    """From here on no file of more than 1 kB can be written by this process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))


def makes_room_again():
    infinity = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (infinity, infinity))


def sleeps(view):
    print("falls asleep", flush=True)
    time.sleep(1000)


def nothing(view):
    pass


BLOCKS = []


class Fault(hpcsgd.Callback):
    """Happens once; `relief` undoes it six exchanges later."""

    def __init__(self, action, at, relief=None):
        self.action, self.at, self.relief = action, at, relief

    def on_exchange(self, view):
        if view.exchanges == self.at:
            self.action(view)
        if self.relief and view.exchanges == self.at + 6:
            self.relief()


class Slow(hpcsgd.Callback):
    """Exchanges that take a while, so that a fault can meet one."""

    def __init__(self, seconds):
        self.seconds = seconds

    def on_exchange(self, view):
        time.sleep(self.seconds)


def remember_blocks():
    load_block = load.load_block

    def remembering(*arguments, **options):
        BLOCKS.append(load_block(*arguments, **options))
        return BLOCKS[-1]

    load.load_block = remembering


def slow_disk(seconds):
    """Every file is a while between written and named."""
    fsync = os.fsync

    def slowly(number):
        time.sleep(seconds)
        fsync(number)

    os.fsync = slowly


def mad_clock():
    """The time of day leaps back and forth by hours."""
    true, leap = time.time, [0.0]

    def jumping():
        leap[0] = 7200.0 - leap[0]
        return true() + leap[0]

    time.time = jumping
    time.time_ns = lambda: int(jumping() * 1e9)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--fault", default="nothing")
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--slow-disk", type=float, default=0.0)
    parser.add_argument("--late", type=float, default=0.0)
    parser.add_argument("--mad-clock", action="store_true")
    options = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)  # where is it? ask it
    if options.mad_clock:
        mad_clock()
    if options.slow_disk:
        slow_disk(options.slow_disk)
    remember_blocks()
    config = RunConfig.parse(read_toml(options.config))
    world = open_world()
    pids = Path(options.config).parent / "pids"
    pids.mkdir(exist_ok=True)
    (pids / f"pid{world.rank}").write_text(str(os.getpid()))
    callbacks = [Slow(options.slow)]
    if world.rank == options.rank:
        relief = makes_room_again if options.fault == "fills_the_disk" else None
        callbacks.append(Fault(globals()[options.fault], options.at, relief))
    with Signals(world.abort) as signals:
        if world.rank == options.rank:
            time.sleep(options.late)
        result = hpcsgd.train(config, world=world, callbacks=[*callbacks, signals])
    if world.rank == 0:
        print(result.json())
    world.close()
    raise SystemExit(result.status.exit_code)


if __name__ == "__main__":
    main()

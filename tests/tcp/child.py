"""What a rank of a test does: python -m tests.tcp.child WHAT [KIND]."""

import hashlib
import json
import os
import sys
import time

import numpy as np

from hpcsgd.comm import open_world, watch
from hpcsgd.comm.delayed import Delayed
from hpcsgd.comm.ledger import Ledger
from hpcsgd.comm.network import Network
from hpcsgd.comm.tcp import letters
from tests.helpers.limits import HANG

SIZES = (1, 3, 1000, 8191, 8192, 8193, 70_001, 600_001)


def contract(kind):
    """All checks, plain and behind a network; big arrays; odd orders; runs."""
    from tests.helpers.contracts.communicator import CHECKS
    from tests.helpers.contracts.communicator_sums import (
        holds_the_same_bits_when_reproducible,
    )

    world = open_world(kind)
    for check in CHECKS:
        world.ledger = Ledger()
        check(world)
    for check in CHECKS[:4]:
        check(Delayed(open_world(kind), Network(1e-5, 1e10)))
    holds_the_same_bits_when_reproducible(open_world(kind, reproducible=True))
    big_arrays(world)
    odd_orders(world)
    assert "mpi4py" not in sys.modules, "ranks without MPI have no use for it"
    say(world, [train(world, *which) for which in RUNS])
    world.close()


def part_of(rank, words, dtype=np.float32):
    """What a rank gives: any numbers, so that another order gives other bits."""
    return np.random.default_rng(rank).normal(size=words).astype(dtype)


def big_arrays(world):
    """Of every length around where ways change: the bits of sums in rank order."""
    p, own = world.size, world.rank
    for words in SIZES:
        parts = [part_of(rank, words) for rank in range(p)]
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        for add in (world._sum, lambda b: world.start_sum(b, "control").wait()):
            buffer = parts[own].copy()
            add(buffer)
            np.testing.assert_array_equal(buffer, total)
        buffer = parts[own].copy()
        world.reduce(buffer, "control")
        np.testing.assert_array_equal(buffer, parts[own] if own else total)
        for root in (0, p - 1):
            np.testing.assert_array_equal(
                world.broadcast(parts[own].copy(), root), parts[root]
            )


def odd_orders(world):
    """Each rank waits in an order of its own for what all began in one order."""
    rng = np.random.default_rng(100 + world.rank)
    for _ in range(5):
        buffers = [np.full(words, 1.0 + world.rank) for words in (3, 40_000, 9, 20_000)]
        pending = [world.start_sum(buffer, "control") for buffer in buffers]
        for number in rng.permutation(len(pending)):
            pending[number].wait()
        p = world.size
        assert all((buffer == p * (p + 1) / 2).all() for buffer in buffers)
    one = world.start_sum(np.ones(3), "control")
    world.max_flag(0)
    began = time.monotonic()
    while not one.has_arrived():
        assert time.monotonic() - began < HANG


RUNS = (("gram", {}), ("direct", {}), ("gram", {"reproducible": True}))


def train(world, product, run):
    """SHA-256 of the weights of a small run."""
    from hpcsgd.api import train as train_on

    rng = np.random.default_rng(5)
    X = rng.normal(size=(331, 23)).astype(np.float32)
    config = {
        "schedule": {"batch": 8, "steps": 4, "epochs": 2},
        "products": {"kind": product},
        "run": {"timeout": 0.0, **run},
    }
    result = train_on(config, X=X, y=X[:, 0] + X[:, 1] > 0, world=world)
    return hashlib.sha256(np.ascontiguousarray(result.weights)).hexdigest()


def bits(kind):
    """The runs alone."""
    world = open_world(kind)
    say(world, [train(world, *which) for which in RUNS])
    world.close()


def say(world, document):
    """On rank 0 alone."""
    if world.rank == 0:
        print(json.dumps(document), flush=True)


def sums(kind):
    """Sums without an end, from when all are there."""
    world, buffer = open_world(kind), np.ones(1000)
    print(os.getpid(), flush=True)
    while True:
        world.sum(buffer, "control")
        buffer[...] = 1


def stalls(kind):
    """The same, watched by one who soon has heard enough."""
    watch.HEARING, watch.STACKS = 0.5, 0.1
    world = open_world(kind)
    world.watch(0.5)
    print(os.getpid(), flush=True)
    while True:
        world.sum(np.ones(3), "control")


def computes(kind):
    """Rank 0 is in no collective; rank 1 ends the job with 3."""
    letters.GRACE, letters.TICK = 0.1, 0.1
    world = open_world(kind)
    world.max_flag(0)
    if world.rank == 1:
        world.abort(3)
    while True:
        time.sleep(0.01)


def leaves(kind):
    """Rank 1 ends well while the others wait for it."""
    world = open_world(kind)
    world.max_flag(0)
    if world.rank != 1:
        world.max_flag(0)


def fails(kind):
    """An exception that nobody catches, on rank 1."""
    world = open_world(kind)
    if world.rank == 1:
        raise ValueError("boom on rank one")
    world.max_flag(0)


def again(kind):
    """Worlds one after another; what they are called, and whether MPI was loaded."""
    for turn in range(3):
        world = open_world(kind)
        assert world.max_flag(turn * world.rank) == turn * (world.size - 1)
        world.close()
    said = {"size": world.size, "transport": world.transport}
    say(world, {**said, "mpi": "mpi4py" in sys.modules})


if __name__ == "__main__":
    globals()[sys.argv[1]](*(sys.argv[2:] or ["auto"]))

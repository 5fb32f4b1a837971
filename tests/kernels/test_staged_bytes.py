"""What offload copies between host and device, with all that a transport copies."""

import numpy as np
import pytest

from hpcsgd.agreements.base import Overlap
from hpcsgd.comm.gpu import TRANSPORTS, open_transport
from hpcsgd.comm.network_model import DelayedCommunicator, parse_network
from hpcsgd.comm.threads import run_ranks
from tests.helpers.fake_cuda import FakeLayer, Node
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.gradient_runs import shared
from tests.helpers.kernels.offload_runs import offloaded

NETWORK = "alpha=1e-6,bandwidth=1e12"
EXCHANGES, D = 3, 13
# (4 D, 4 D/R) that one exchange copies beside the slice of either way: up, down.
WAYS = {
    "nccl": ((0, 0), (0, 0)),
    "mpi-cuda": ((0, 0), (0, 0)),
    "mpi-host": ((1, 1), (1, 1)),
    "reproducible mpi-cuda": ((0, 1), (1, 0)),
    "reproducible mpi-host": ((1, 1), (1, 1)),
}


@pytest.mark.parametrize("delay", [-1, 1])
@pytest.mark.parametrize("replicas, own", [(1, 13), (2, 7), (3, 5)])
@pytest.mark.parametrize("way", WAYS)
def test_bytes_are_those_of_the_formula(devices, way, replicas, own, delay):
    """Of replica 0, whose 9 rows are three exchanges, in three tiles of 13 columns."""
    problem = make_problem("softmax", n=9 * replicas, d=D)
    *more, transport = way.split()
    run = {"transport": transport, "reproducible": bool(more)}
    sections = {"problem": {"intercept": False}, "run": run}
    said = train_on(
        replicas, shared(problem, replicas, **offloaded(delay, **sections)), problem
    ).report["agreement"]
    whole, part = (4 * n * problem.classes for n in (D, own))
    for end, (tiles, slices) in zip(("up", "down"), WAYS[way], strict=True):
        carried = (tiles * whole + slices * part) * (replicas > 1)
        assert said[f"{end}_bytes"] == EXCHANGES * part
        assert said[f"device_bytes_{end}"] == EXCHANGES * (part + carried), end


def on_devices(function, kind, network=None):
    node = Node()

    def on_rank(host):
        if network:
            host = DelayedCommunicator(host, parse_network(network))
        return function(open_transport(kind, host, FakeLayer(node, f"n {host.rank}")))

    return run_ranks(2, on_rank)


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_what_hosts_carry_is_charged_by_their_network(kind):
    """And what NCCL carries is not, and has a clock."""

    def on_rank(world):
        words = world.layer.empty(5, np.float32)
        overlap, before = Overlap(world), world.host.charged
        with overlap.posting():
            pending = world.start_sum(words, "agreement")
        with overlap.waiting():
            pending.wait()
        took = world.host.charged - before
        return overlap.facts() | {"took": took, "split": world.split(0, world.rank)}

    for said in on_devices(on_rank, kind, NETWORK):
        group, took = said["split"], said["took"]
        if kind == "nccl":
            assert said["transfer_by"] == "clock" and took == 0.0
            assert group.charged is None
        else:
            assert said["transfer_by"] == "network"
            assert said["transfer_seconds"] == pytest.approx(took) and took > 0.0
            assert group.charged == group.host.charged


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_network_around_it_says_what_was_copied(kind):
    def on_rank(world):
        around = DelayedCommunicator(world, parse_network(NETWORK))
        around.sum(world.layer.empty(5, np.float32), "agreement")
        assert around.copied == world.copied
        return world.copied

    first = on_devices(lambda world: world.copied, kind)  # to prove the way
    for before, after in zip(first, on_devices(on_rank, kind), strict=True):
        more = 20 * (kind == "mpi-host")
        assert np.subtract(after, before).tolist() == [more, more]


def test_without_devices_nothing_is_copied():
    assert run_ranks(2, lambda world: world.copied) == [(0, 0)] * 2

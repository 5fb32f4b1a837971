"""Ranks on a fake NCCL."""

from time import perf_counter

import pytest

from hpcsgd.comm.gpu import fetched
from hpcsgd.comm.nccl import PINNED, SAFER, NcclCommunicator
from hpcsgd.comm.threads import run_ranks
from hpcsgd.comm.watchdog import Watchdog, WatchedRank
from tests.helpers.fake_cuda import FakeLayer, Node


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """NCCL's variables are as they were, whatever a test made of them."""
    for name in (*PINNED, *SAFER):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)


def on_nccl(n, function, node=None, reproducible=False):
    """function(world, layer) on n thread ranks whose GPUs speak NCCL."""
    node = node or Node()

    def on_rank(host):
        layer = FakeLayer(node)
        return function(NcclCommunicator(host, layer), layer)

    return run_ranks(n, on_rank, reproducible=reproducible)


def read(layer, array):
    return fetched(layer, array, layer.main)


def waits_in(place, what):
    """Where a rank stands that does not move any more, in a collective called so."""
    end = perf_counter() + 20
    while perf_counter() < end:
        spot, since = place.spot()
        stands = spot is not None and perf_counter() - since > 0.1
        if stands and spot.what == what:
            return spot
    raise AssertionError(f"it waits in no {what}, but in {spot}")


def watched(place, rank):
    """What a watchdog of its own says, with a clock that runs fast."""
    said, codes, now = [], [], [perf_counter()]
    this_rank = WatchedRank(place, rank, 2, codes.append)
    dog = Watchdog(this_rank, 1.0, clock=lambda: now[0], say=said.append)
    while not codes and now[0] < perf_counter() + 60:
        now[0] += 0.2
        dog.step()
    return said, codes

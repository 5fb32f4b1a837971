"""Sums that MPI prepares once: the same bits, the same books, nothing left behind."""

import gc
import threading

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm import shared_memory
from hpcsgd.comm.communicator import Workspace
from hpcsgd.comm.mpi import MpiCommunicator, load_mpi
from hpcsgd.comm.network_model import DelayedCommunicator, Network
from hpcsgd.comm.shared_memory import PersistentWorkspace, supported
from tests.helpers.harness import config_for, make_problem
from tests.ranks.counting import CountingComm

WORDS = (1, 8, 100, 512)


@pytest.mark.cases(1)
@pytest.mark.ranks(2, 3, 4)
def test_prepared_sums_have_the_bits_of_ordinary_ones(comm):
    world = MpiCommunicator(comm.Dup())
    rng = np.random.default_rng(comm.rank)
    for words in WORDS:
        space = world.workspace(words, np.float32)
        assert isinstance(space, PersistentWorkspace)
        for _ in range(20):
            part = rng.normal(size=words).astype(np.float32)
            space.array[...] = part
            total = space.sum("products")
            assert total.tobytes() == world.sum(part, "products").tobytes()


@pytest.mark.ranks(2, 3)
def test_a_buffer_is_summed_thousands_of_times(comm):
    """Several requests in turns, each again and again, with other calls between."""
    world = MpiCommunicator(comm.Dup())
    spaces = [world.workspace(words, np.float64) for words in (1, 3, 64)]
    for turn in range(3000):
        space = spaces[turn % 3]
        space.array[...] = turn + comm.rank
        total = space.sum("products")
        assert (total == comm.size * turn + sum(range(comm.size))).all()
        if turn % 500 == 0:
            assert world.max_flag(turn) == turn
    assert world.ledger.calls("products") == 3000
    assert world.ledger.words("products") == 1000 * (1 + 3 + 64)


@pytest.mark.ranks(1, 2, 3, 4)
def test_one_rank_long_or_reproducible_messages_go_the_ordinary_way(comm):
    world = MpiCommunicator(comm.Dup())
    world.share_nodes("off")
    longer = shared_memory.UP_TO // 4 + 1
    assert type(world.workspace(longer, np.float32)) is Workspace
    short = type(world.workspace(longer - 1, np.float32))
    assert short is (Workspace if comm.size == 1 else PersistentWorkspace)
    exact = MpiCommunicator(comm.Dup(), reproducible=True)
    space = exact.workspace(8, np.float32)
    assert type(space) is Workspace
    space.sum("products")
    assert exact.ledger.calls("products") == (2 if comm.size > 1 else 0)


class OneCannot:
    """A communicator of which one rank has no persistent collectives."""

    def __init__(self, comm):
        self.comm = comm

    def __getattr__(self, name):
        if name == "Allreduce_init" and self.comm.rank == self.comm.size - 1:
            raise AttributeError(name)
        return getattr(self.comm, name)


@pytest.mark.ranks(2, 3)
def test_what_one_rank_lacks_none_uses(comm):
    """Otherwise some would start a sum that the others never join."""
    mpi = load_mpi()
    assert supported(comm, mpi)
    assert not supported(OneCannot(comm), mpi)
    world = MpiCommunicator(OneCannot(comm.Dup()))
    space = world.workspace(8, np.float64)
    assert type(space) is Workspace
    space.array[...] = 1
    assert (space.sum("products") == comm.size).all()


@pytest.mark.ranks(2)
def test_an_older_mpi_is_not_asked(comm):
    class Older:
        def __getattr__(self, name):
            return getattr(load_mpi(), name)

        def Get_version(self):
            return 3, 1

    assert not supported(comm, Older())


@pytest.mark.ranks(2)
def test_requests_are_freed_with_their_workspace_or_their_group(comm):
    world = MpiCommunicator(comm.Dup())
    group = world.split(0, comm.rank)
    space = group.workspace(8, np.float32)
    request = space.request
    assert request.drop.alive
    group.close()
    assert not request.drop.alive
    space = world.workspace(8, np.float32)
    drop = space.request.drop
    del space
    gc.collect()
    assert not drop.alive
    world.close()


class CountedRequest:
    """A persistent request that notes which threads free it."""

    def __init__(self, request, freed_by):
        self.request, self.freed_by = request, freed_by

    def __getattr__(self, name):
        return getattr(self.request, name)

    def Free(self):
        self.freed_by.append(threading.current_thread())
        self.request.Free()


@pytest.mark.ranks(2)
def test_a_request_is_freed_by_the_thread_that_calls_mpi(comm):
    """Python may collect the garbage of that thread in any other."""
    freed_by = []

    class Proxy:
        def __getattr__(self, name):
            value = getattr(own, name)
            if name != "Allreduce_init":
                return value
            return lambda *arguments: CountedRequest(value(*arguments), freed_by)

    own = comm.Dup()
    world = MpiCommunicator(Proxy())
    spaces = [world.workspace(8, np.float32)]
    freed_by.clear()  # the probe
    thread = threading.Thread(target=spaces.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert freed_by == []
    world.workspace(8, np.float32)
    assert freed_by == [threading.main_thread()]


@pytest.mark.ranks(2)
def test_a_prepared_sum_behind_a_network_is_as_late_as_any(comm):
    world = DelayedCommunicator(MpiCommunicator(comm.Dup()), Network(1e-3, 1e9))
    space = world.workspace(8, np.float64)
    assert isinstance(space.inner, PersistentWorkspace)
    before = world.link.free_at
    space.array[...] = 2
    assert (space.sum("products") == 4).all()
    assert world.link.free_at >= before + 1e-3


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("kind", ["direct", "gram", "cached"])
def test_training_is_the_same_with_and_without(comm, kind, monkeypatch):
    """To the bit: the sums are those of MPI either way."""
    problem = make_problem("softmax", n=53, d=7)
    config = config_for(problem, products={"kind": kind}, run={"node_sharing": "off"})
    results, counts = [], []
    for up_to in (shared_memory.UP_TO, 0):
        monkeypatch.setattr(shared_memory, "UP_TO", up_to)
        proxy = CountingComm(comm.Dup())
        world = MpiCommunicator(proxy)
        results.append(train(config, X=problem.X, y=problem.y, world=world))
        counts.append(proxy.tally["started"])
    prepared, plain = results
    assert counts[0] > 1 and counts[1] == 0  # the probe is one
    assert prepared.weights.tobytes() == plain.weights.tobytes()
    for key in ("calls", "words", "bytes", "wire_bytes"):
        assert prepared.ledger["products"][key] == plain.ledger["products"][key]

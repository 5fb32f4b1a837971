"""A network on a desk: what is charged, how transfers queue, what is accepted."""

import pickle
from time import perf_counter

import numpy as np
import pytest

import hpcsgd.comm.network_model as link
from hpcsgd.comm.communicator import Address, Transfer
from hpcsgd.comm.messages import open_message
from hpcsgd.comm.network_model import (
    NETWORKS,
    DelayedCommunicator,
    Network,
    NetworkLink,
    parse_network,
)
from hpcsgd.comm.threads import RankDied, SerialCommunicator, run_ranks
from hpcsgd.errors import ConfigError, TransportError


def test_presets():
    assert NETWORKS["hpc"] == Network(5e-6, 25e9)
    assert NETWORKS["lan"] == Network(50e-6, 1.25e9)
    assert NETWORKS["cloud"] == Network(200e-6, 1.25e9)
    assert parse_network("lan") is NETWORKS["lan"]
    text = "alpha=1e-4,bandwidth=2e9,ranks=64,jitter=0.5,seed=3"
    assert parse_network(text) == Network(1e-4, 2e9, 64, 0.5, 3)


@pytest.mark.parametrize(
    "text, said",
    [
        ("pigeon", "lan"),
        ("alfa=1,bandwidth=1", "'alfa=1' is not known"),
        ("alpha=x,bandwidth=1", "'x' is no number"),
        ("alpha=1", "both alpha and bandwidth"),
        ("alpha=1,bandwidth=0", "bandwidth > 0"),
        ("alpha=-1,bandwidth=1", "alpha >= 0"),
    ],
)
def test_wrong_networks(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_network(text)


@pytest.fixture
def virtual(monkeypatch):
    """A clock that only sleeping moves: exact, and fast."""

    class Virtual:
        now = 0.0

        def sleep_until(self, moment):
            self.now = max(self.now, moment)

    clock = Virtual()
    monkeypatch.setattr(link, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(link, "sleep_until", clock.sleep_until)
    return clock


def one_of(ranks, network, sum_has_arrived=None):
    """A delayed communicator of `ranks` whose transport takes no time at all.

    `sum_has_arrived` answers polls of sums under way; None: they cannot be polled.
    """

    class Instant(SerialCommunicator):
        def begin(self, collective, blocking):
            return Transfer(lambda: None, sum_has_arrived)

    inner = Instant()
    inner.size = ranks
    return DelayedCommunicator(inner, network)


@pytest.mark.parametrize("ranks, hops", [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3)])
def test_a_sum_costs_hops_and_ring_bytes(virtual, ranks, hops):
    """α⌈log₂p⌉ + 2(p−1)/p bytes over the bandwidth."""
    comm = one_of(ranks, Network(1e-3, 1e6))
    comm.sum(np.zeros(100), "products")
    ring = 2 * (ranks - 1) / ranks * 800
    assert virtual.now == pytest.approx(hops * 1e-3 + ring / 1e6)


def test_other_collectives(virtual):
    comm = one_of(4, Network(1e-3, 1e6))
    comm.gather(np.zeros(10), [10] * 4, np.zeros(40), "products")
    assert virtual.now == pytest.approx(2e-3 + 3 / 4 * 320 / 1e6)
    virtual.now = 0.0
    comm.link.free_at = 0.0
    comm.broadcast(np.zeros(100))
    assert virtual.now == pytest.approx(2e-3 + 800 / 1e6)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_swap_costs_one_latency(virtual, ranks):
    """Of two ranks, however many there are; two of them queue on the link."""
    comm = one_of(ranks, Network(1e-3, 1e6))
    comm.swap(np.zeros(100), np.zeros(100), 1, "agreement")
    assert virtual.now == pytest.approx(1e-3 + 800 / 1e6)
    given, room = np.zeros(50, np.uint8), np.zeros(50, np.uint8)
    both = [comm.start_swap(given, room, 1, "agreement") for _ in range(2)]
    for pending in both:
        pending.wait()
    assert virtual.now == pytest.approx(3e-3 + 900 / 1e6)


@pytest.mark.parametrize("ranks", [0, 12])
def test_objects_of_different_sizes_cost_all_ranks_the_same(ranks):
    """A ring moves (p−1)/p of the bytes of all ranks, whatever a rank sends itself."""

    def on_rank(world):
        comm = DelayedCommunicator(world, Network(1e-5, 1e8, ranks=ranks))
        comm.exchange_objects(bytes(1000 * world.rank))
        return comm.charged

    sizes = [len(pickle.dumps(bytes(1000 * rank))) for rank in range(3)]
    modelled = ranks or 3
    hops = {3: 2, 12: 4}[modelled]
    expected = hops * 1e-5 + (modelled - 1) * sum(sizes) / 3 / 1e8
    assert run_ranks(3, on_rank) == pytest.approx([expected] * 3)


def test_a_narrow_sum_costs_two_latencies_and_half_the_bytes(virtual):
    """An exchange of pieces and a gather, (p−1)/p of the narrow bytes each."""
    comm = one_of(4, Network(1e-3, 1e6))
    message = open_message(comm, 100, "bf16")
    message.array[...] = 0
    message.sum("products")
    assert virtual.now == pytest.approx(2 * 2e-3 + 2 * 3 / 4 * 200 / 1e6)


def test_a_narrow_sum_begun_early_hides_its_first_half(virtual):
    comm = one_of(2, Network(1.0, 1e12))
    pending = open_message(comm, 100, "bf16", travels=True).start("products")
    virtual.now = 0.5
    pending.wait()
    assert virtual.now == pytest.approx(2.0)


def test_emulated_ranks_are_felt(virtual):
    comm = one_of(2, Network(1e-3, 1e6, ranks=64))
    comm.sum(np.zeros(100), "products")
    assert virtual.now == pytest.approx(6e-3 + 2 * 63 / 64 * 800 / 1e6)


def test_transfers_start_when_posted_and_queue_on_one_link(virtual):
    comm = one_of(2, Network(1.0, 1e12))
    first = comm.start_sum(np.zeros(2), "products")
    second = comm.split(0, 0).start_sum(np.zeros(2), "products")
    virtual.now = 0.5  # work done meanwhile is hidden
    first.wait()
    assert virtual.now == pytest.approx(1.0)
    second.wait()
    assert virtual.now == pytest.approx(1.0), "a group of one sends nothing"
    again = comm.start_sum(np.zeros(2), "products")
    comm.sum(np.zeros(2), "products")
    assert virtual.now == pytest.approx(3.0), "the blocking one queued behind"
    again.wait()
    assert virtual.now == pytest.approx(3.0)


def test_messages_in_flight_share_one_link(virtual):
    """Four at a time, of two groups, take as long as one after the other: no overlap
    of transfers is free, only that with computing; who asks sees them come in turn.
    """
    comm = one_of(2, Network(1e-3, 1e6), sum_has_arrived=lambda: True)
    other = DelayedCommunicator(
        comm.inner, comm.network, comm.link
    )  # a duplicate, the same link
    pending = [g.start_sum(np.zeros(125), "agreement") for g in (comm, other) * 2]
    each = 1e-3 + 1000 / 1e6
    for number, one in enumerate(pending, 1):
        virtual.now = (number - 0.01) * each
        assert not one.has_arrived()
        virtual.now = number * each + 1e-12
        assert one.has_arrived()
        one.wait()
        assert virtual.now == pytest.approx(number * each)
    assert comm.charged == other.charged == pytest.approx(4 * each)


def test_one_rank_feels_nothing(virtual):
    comm = DelayedCommunicator(SerialCommunicator(), Network(1.0, 1.0))
    comm.sum(np.zeros(5), "products")
    comm.max_flag(1)
    assert virtual.now == 0.0 and comm.ledger.calls("products") == 0


def test_what_the_inner_communicator_can_do_is_what_the_delayed_one_can_do():
    class Inner(SerialCommunicator):
        serves_threads = False
        address = Address("rack", "node")

        def has_lost_ranks(self, error):
            return isinstance(error, KeyError)

        def exit_abruptly(self):
            raise RankDied

    inner = Inner()
    comm = DelayedCommunicator(inner, NETWORKS["lan"])
    assert not comm.serves_threads and comm.address == inner.address
    assert comm.has_lost_ranks(KeyError()) and not comm.has_lost_ranks(ValueError())
    with pytest.raises(RankDied):
        comm.exit_abruptly()
    comm.watch(7.0)
    assert comm.timeout == inner.timeout == 7.0
    comm.unwatch()
    assert comm.timeout == inner.timeout == 0.0
    comm.is_patient = True
    assert inner.is_patient and comm.is_patient


def test_ranks_that_are_left_meet_on_the_same_network():
    def on_rank(world):
        comm = DelayedCommunicator(world, Network(1e-6, 1e12, ranks=2))
        if world.rank == 0:
            comm.exit_abruptly()
        left = comm.survivors()
        charged = left.charged
        total = left.sum(np.ones(1), "products")
        assert left.link is comm.link and left.charged > charged
        return left.rank, left.size, left.modelled_ranks, total.tolist()

    assert run_ranks(3, on_rank) == [None, (0, 2, 2, [2.0]), (1, 2, 2, [2.0])]


def test_a_loss_that_no_transport_can_survive_is_refused_with_a_remedy():
    comm = DelayedCommunicator(SerialCommunicator(), NETWORKS["lan"])
    with pytest.raises(TransportError, match="--on-failure stop"):
        comm.survivors()


def test_jitter_is_seeded_and_bounded():
    def draws(seed):
        link = NetworkLink(Network(1e-3, 1e9, jitter=0.5, seed=seed), rank=0)
        ends = [0.0]
        link.free_at = 1e9  # far ahead: only the charges are left
        ends[0] = link.free_at
        for _ in range(50):
            ends.append(link.book(1e-3))
        return np.diff(ends)

    assert (draws(1) == draws(1)).all() and (draws(1) != draws(2)).any()
    assert draws(1).min() > 0.99e-3 and draws(1).max() < 1.51e-3


def test_real_sleeps_are_as_long_as_charged():
    """Never shorter; how much longer is the machine's business."""

    def on_rank(world):
        comm = DelayedCommunicator(world, Network(2e-3, 1e9))
        began = perf_counter()
        for _ in range(5):
            comm.sum(np.zeros(4), "products")
        return perf_counter() - began, comm.ledger.as_dict()["products"]

    for elapsed, entry in run_ranks(2, on_rank):
        assert elapsed >= 5 * 2e-3
        assert entry["calls"] == 5 and entry["seconds"] >= 5 * 2e-3

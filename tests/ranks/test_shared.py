"""Memory shared by ranks of a node: right sums, no overwriting, nothing left behind."""

import gc
import time

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm import shared_memory
from hpcsgd.comm.communicator import Workspace
from hpcsgd.comm.mpi import MpiCommunicator, load_mpi
from hpcsgd.comm.network_model import DelayedCommunicator, Network
from hpcsgd.comm.shared_memory import SumChoice, SummedByEach, SummedInSlices
from tests.helpers.harness import config_for, make_problem

WORDS = (1, 2, 17, 4097, 60_001)
COUNTED = ("calls", "words", "bytes", "wire_bytes")


def world_on(comm, per_node=None, how="on"):
    """A world that pretends to have so many ranks on each node."""
    pretended = None if per_node is None else comm.rank // per_node
    own = comm.Dup()
    world = MpiCommunicator(own, ways=SumChoice(own, load_mpi(), pretended))
    world.share_nodes(how)
    return world


@pytest.fixture(params=["by each", "in slices"])
def kind(request, monkeypatch):
    """Both ways, whatever the size of the message."""
    each = request.param == "by each"
    monkeypatch.setattr(shared_memory, "ALONE_UP_TO", 10**9 if each else -1)
    return SummedByEach if each else SummedInSlices


@pytest.mark.ranks(2, 3, 4)
def test_shared_sums_are_the_ordinary_ones(comm, kind):
    """And the same bits on all ranks: they are added in rank order."""
    world = world_on(comm)
    rng = np.random.default_rng(comm.rank)
    for words in WORDS:
        space = world.workspace(words, np.float64)
        assert type(space) is kind
        for _ in range(3):
            part = rng.normal(size=words)
            space.array[...] = part
            total = space.sum("products")
            parts = comm.allgather(part)
            in_order = parts[0].copy()
            for other in parts[1:]:
                in_order += other
            assert total.tobytes() == in_order.tobytes()
            scale = np.sum(np.abs(parts), axis=0)
            ordinary = world.sum(part, "products")
            assert (np.abs(total - ordinary) <= 1e-12 * scale).all()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("per_node", [1, 2, 3])
def test_sums_over_pretended_nodes(comm, per_node):
    """2 and 2 sum slices across, 3 and 1 by leaders; 1 each go the ordinary way."""
    world = world_on(comm, per_node)
    for words in WORDS:
        space = world.workspace(words, np.float64)
        assert isinstance(space, SummedInSlices) == (per_node > 1)
        for turn in range(5):
            space.array[...] = np.arange(words) + turn * comm.rank
            total = space.sum("products")
            np.testing.assert_array_equal(total, 4 * np.arange(words) + 6 * turn)
            world.max_flag(0)


@pytest.mark.ranks(4)
def test_nodes_are_shared_inside_the_parts_of_a_grid(comm):
    """Members on one node and members on two, whatever their ranks in the part."""
    for colors, nodes in (((0, 0, 1, 1), 1), ((0, 1, 0, 1), 2)):
        world = world_on(comm, 2)
        part = world.split(colors[comm.rank], comm.rank)
        space = part.workspace(5000, np.float32)
        assert isinstance(space, SummedByEach) == (nodes == 1)
        space.array[...] = comm.rank
        own = [r for r, color in enumerate(colors) if color == colors[comm.rank]]
        assert (space.sum("products") == sum(own)).all()


@pytest.mark.ranks(2)
def test_a_buffer_is_summed_thousands_of_times(comm, kind):
    """Two in turns, and other calls between."""
    world = world_on(comm)
    spaces = [world.workspace(words, np.float64) for words in (5, 700)]
    for turn in range(3000):
        space = spaces[turn % 2]
        space.array[...] = turn + comm.rank
        total = space.sum("products")
        expected = comm.size * turn + sum(range(comm.size))
        assert (total == expected).all(), turn
        if turn % 500 == 0:
            assert world.max_flag(turn) == turn


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("slow_in", ["adding", "reading", "writing"])
def test_a_slow_rank_reads_what_was_written_for_it(comm, kind, slow_in, monkeypatch):
    """Every rank is the slow one in its turn, others run as far ahead as they can."""
    world, turns = world_on(comm), 12
    space = world.workspace(301, np.float64)
    add_in_order, slow = shared_memory.add_in_order, [False]

    def add_slowly(parts, out):
        time.sleep(0.01 * (slow[0] and slow_in == "adding"))
        return add_in_order(parts, out)

    monkeypatch.setattr(shared_memory, "add_in_order", add_slowly)
    totals = []
    for turn in range(turns):
        slow[0] = turn // 3 % comm.size == comm.rank
        time.sleep(0.01 * (slow[0] and slow_in == "writing"))
        space.array[...] = 1000.0**comm.rank * (turn + 1)
        total = space.sum("products")
        time.sleep(0.01 * (slow[0] and slow_in == "reading"))
        totals.append(total.copy())
    weight = sum(1000.0**r for r in range(comm.size))
    for turn, total in enumerate(totals):
        assert (total == weight * (turn + 1)).all(), turn


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("product", ["direct", "gram", "cached"])
def test_training_is_the_same_with_and_without(comm, product):
    problem = make_problem("softmax", n=53, d=7)
    results = []
    for how in ("off", "on", "auto"):
        config = config_for(
            problem,
            products={"kind": product},
            problem={"intercept": True},
            run={"node_sharing": how},
        )
        world = world_on(comm, how="auto")
        results.append(
            train(
                config,
                X=problem.X,
                y=problem.y,
                sample_weight=problem.weights,
                offset=problem.offset,
                world=world,
            )
        )
    off, *others = results
    for on in others:
        error = np.abs(on.weights - off.weights).max()
        assert error <= 1e-12 * np.abs(off.weights).max()
        for key in COUNTED:
            assert on.ledger["products"][key] == off.ledger["products"][key]
            assert on.ledger["control"]["calls"] == off.ledger["control"]["calls"]


class CountedCalls:
    """A communicator of nodes that notes how many words it sums."""

    def __init__(self, comm):
        self.comm, self.words = comm, []

    def Allreduce(self, sent, received):
        self.words.append(received.size)
        self.comm.Allreduce(sent, received)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("per_node, expected", [
    (2, [[50], [51], [50], [51]]), (3, [[101], [], [], [101]])
])  # fmt: skip
def test_the_sum_of_a_node_crosses_the_network_once(comm, per_node, expected):
    """In slices by all ranks, or whole by the first rank of each node."""
    world = world_on(comm, per_node)
    space = world.workspace(101, np.float64)
    calls = CountedCalls(space.node.across)
    if space.node.across is not None:
        space.node.across = calls
    space.array[...] = 1 + comm.rank
    total = space.sum("products")
    assert (total == 10).all() and total.size == 101
    assert comm.allgather(calls.words) == expected


@pytest.mark.ranks(4)
def test_a_slow_rank_on_unequal_nodes_reads_its_own_total(comm):
    world = world_on(comm, 3)
    space = world.workspace(301, np.float64)
    for turn in range(12):
        is_slow = turn // 3 % comm.size == comm.rank
        time.sleep(0.01 * is_slow)
        space.array[...] = 1000.0**comm.rank * (turn + 1)
        total = space.sum("products")
        time.sleep(0.01 * is_slow)
        weight = sum(1000.0**r for r in range(comm.size))
        assert (total == weight * (turn + 1)).all(), turn


@pytest.mark.ranks(4)
@pytest.mark.parametrize("product", ["gram", "cached"])
@pytest.mark.parametrize("per_node", [2, 3])
def test_training_on_a_grid_over_two_pretended_nodes(comm, product, per_node):
    problem = make_problem("logistic", n=53, d=7)
    weights = []
    for how in ("off", "on"):
        for grid in ((1, 4), (2, 2)):
            config = config_for(
                problem,
                products={"kind": product},
                grid={"replicas": grid[0], "members": grid[1]},
                precision={"margin": "bf16", "margin_sum": "fp32"},
                run={"node_sharing": how},
            )
            world = world_on(comm, per_node, "auto")
            result = train(config, X=problem.X, y=problem.y, world=world)
            assert len(set(comm.allgather(result.weights_sha256))) == 1
            weights.append(result.weights)
    for off, on in zip(weights[:2], weights[2:], strict=True):
        # Margins are rounded to bf16: what is summed in another order may round apart.
        assert np.abs(on - off).max() <= 1e-2 * np.abs(off).max()


@pytest.mark.ranks(2, 3, 4)
def test_a_lasting_copy_is_one_copy(comm):
    """What one rank writes into it all others of its node see, and nobody else."""
    for per_node in (None, 2):
        world = world_on(comm, per_node)
        kept = world.keep(np.zeros((5000, 1), dtype=np.float32))
        assert kept.shape == (5000, 1)
        own = comm.rank // (per_node or comm.size)
        peers = [r for r in range(comm.size) if r // (per_node or comm.size) == own]
        assert kept.flags.writeable == (len(peers) == 1)
        world.max_flag(0)
        if comm.rank == peers[0]:
            kept.flags.writeable = True
            kept[7] = 1 + own
        world.max_flag(0)
        assert kept[7, 0] == 1 + own


@pytest.mark.ranks(2)
def test_a_total_that_all_read_is_not_to_be_written(comm, monkeypatch):
    monkeypatch.setattr(shared_memory, "ALONE_UP_TO", -1)
    space = world_on(comm).workspace(10, np.float32)
    space.array[...] = 1
    with pytest.raises(ValueError, match="read-only"):
        space.sum("products")[0] = 3


@pytest.mark.ranks(2, 4)
def test_windows_are_freed_when_nobody_looks_any_more(comm):
    """At the next split of the world, once the last array is gone on every rank."""
    for per_node in (None, 2, *([3] if comm.size == 4 else [])):
        world = world_on(comm, per_node)
        held = world._ways._held
        group = world.split(0, comm.rank)
        space = group.workspace(5000, np.float32)
        kept = group.keep(np.arange(5000.0))
        assert len(held) == 1 and held[0].windows
        view = kept[10:20]
        if per_node == 3:  # the last rank is alone on its node, and its copy its own
            space.array[...] = np.arange(5000.0) / comm.size
            view = space.sum("products")[10:20]
        del space, group, kept
        if comm.rank != comm.size - 1:
            view = None
        gc.collect()
        world.split(0, comm.rank)
        # One node still has a reader, and nodes that sum together free together.
        assert len(held) == 1
        if view is not None:
            assert (view == np.arange(10, 20)).all()
        view = None
        world.split(0, comm.rank)
        assert not held
        world.close()


@pytest.mark.ranks(2)
def test_many_runs_in_one_world_hold_the_windows_of_the_last(comm):
    problem = make_problem("logistic", n=53, d=7)
    config = config_for(
        problem, products={"kind": "cached"}, run={"node_sharing": "on"}
    )
    world = world_on(comm)
    for _ in range(8):
        train(config, X=problem.X, y=problem.y, world=world)
        gc.collect()
        assert len(world._ways._held) <= 2
    world.close()


@pytest.mark.ranks(2, 4)
def test_where_one_rank_finds_no_room_none_shares(comm, monkeypatch):
    """No sums anywhere in the group, and no copies on its node."""
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(shared_memory, "fits_shared_memory", lambda size: False)
    world = world_on(comm, 2)
    space = world.workspace(5000, np.float32)
    assert type(space) is Workspace
    space.array[...] = 1
    assert (space.sum("products") == comm.size).all()
    kept = world.keep(np.ones(5000))
    assert kept.flags.writeable == (comm.rank >= comm.size - 2)


class NoWindows:
    """A communicator whose MPI cannot tell who shares memory."""

    def __init__(self, comm):
        self.comm = comm

    def __getattr__(self, name):
        if name == "Split_type":
            raise NotImplementedError(name)
        return getattr(self.comm, name)


@pytest.mark.ranks(2)
def test_an_mpi_without_windows_says_so_once_and_sums(comm, caplog):
    world = MpiCommunicator(NoWindows(comm.Dup()))
    with caplog.at_level("DEBUG", logger="hpcsgd"):
        for _ in range(3):
            space = world.workspace(5000, np.float32)
            world.keep(np.ones(5000))
    assert type(space) is Workspace
    assert len(caplog.records) == 1 and "summed by MPI" in caplog.text


@pytest.mark.ranks(2)
def test_short_messages_off_and_reproducible_go_the_ordinary_way(comm):
    assert not isinstance(
        world_on(comm, how="auto").workspace(512, np.float32), SummedByEach
    )
    assert isinstance(
        world_on(comm, how="auto").workspace(513, np.float32), SummedByEach
    )
    assert type(world_on(comm, how="off").workspace(5000, np.float32)) is Workspace
    exact = MpiCommunicator(comm.Dup(), reproducible=True)
    exact.share_nodes("on")
    assert type(exact.workspace(5000, np.float32)) is Workspace


@pytest.mark.ranks(2)
def test_a_shared_sum_behind_a_network_is_as_late_as_any(comm):
    world = DelayedCommunicator(world_on(comm), Network(1e-3, 1e9))
    space = world.workspace(5000, np.float64)
    assert isinstance(space.inner, SummedByEach)
    for turn in range(3):
        before = world.link.free_at
        space.array[...] = turn
        assert (space.sum("products") == 2 * turn).all()
        assert world.link.free_at >= before + 1e-3

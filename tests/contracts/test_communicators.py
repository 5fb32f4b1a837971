"""The contract of communicators without MPI: serial, threads, and both delayed."""

from importlib import import_module
from time import perf_counter

import numpy as np
import pytest

from hpcsgd.comm import (
    COMMUNICATORS,
    check_expected,
    is_launched,
    launched_size,
    open_world,
)
from hpcsgd.comm.communicator import (
    Collective,
    Communicator,
    SentObject,
    Transport,
)
from hpcsgd.comm.network_model import DelayedCommunicator, Network
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.errors import ConfigError, TransportError
from tests.helpers.contracts.communicator import CHECKS, splits_into_grids
from tests.helpers.contracts.communicator_moves import exchanges_pieces
from tests.helpers.contracts.communicator_sums import (
    books_narrow_sums_as_two_calls,
    holds_the_same_bits_when_reproducible,
    sums_in_narrow_formats,
)

FAST = Network(1e-5, 1e9)
WRAPPERS = {
    "plain": lambda world: world,
    "delayed": lambda w: DelayedCommunicator(w, FAST),
}


def test_a_transport_supplies_four_methods():
    """One of them moves data, whatever the collective is."""
    required = {"begin", "split", "close", "abort"}
    assert Transport.__abstractmethods__ == required
    assert Communicator.__abstractmethods__ == required


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_threads(check, wrap, ranks):
    run_ranks(ranks, lambda world: check(wrap(world)))


@pytest.mark.parametrize(
    "check",
    [exchanges_pieces, sums_in_narrow_formats, books_narrow_sums_as_two_calls],
)
def test_narrow_sums_where_all_is_reproducible(check):
    """The same two calls: they give every rank the same bits anyway."""
    run_ranks(3, check, reproducible=True)


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
def test_serial(check):
    check(SerialCommunicator())


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_reproducible(wrap):
    run_ranks(
        3,
        lambda w: holds_the_same_bits_when_reproducible(wrap(w)),
        reproducible=True,
    )


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_sums_are_ordered_within_and_in_groups_that_are_made_within(wrap):
    """A sum in rank order is a reduction and a broadcast: two calls."""

    def on_rank(world):
        world = wrap(world)

        def calls(group):
            before = world.ledger.entries["products"].calls
            group.sum(np.ones(2), "products")
            return world.ledger.entries["products"].calls - before

        with world.ordered_sums():
            made = world.split(0, world.rank)
            within = calls(world)
            with world.ordered_sums(False):
                nested = calls(world)
        parts = made.split(0, world.rank)
        return within, nested, calls(made), calls(parts), calls(world)

    assert run_ranks(2, on_rank) == [(2, 2, 2, 2, 1)] * 2


@pytest.mark.parametrize("ranks", [5, 6, 7, 8])
def test_more_ranks_split_as_well(ranks):
    run_ranks(ranks, splits_into_grids)


def test_a_rank_that_raises_frees_the_others():
    """The original exception comes out, whoever was waiting where."""

    def on_rank(world):
        if world.rank == 1:
            raise ZeroDivisionError("boom")
        world.split(0, 0).max_flag(1)

    with pytest.raises(ZeroDivisionError, match="boom"):
        run_ranks(3, on_rank)


def test_those_who_wait_in_a_part_are_freed_as_well():
    def on_rank(world):
        part = world.split(0, 0)
        if world.rank == 1:
            raise ZeroDivisionError("boom")
        part.max_flag(1)

    began = perf_counter()
    with pytest.raises(ZeroDivisionError, match="boom"):
        run_ranks(3, on_rank)
    assert perf_counter() - began < 10


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_peer_that_fails_frees_who_swaps_with_it(wrap):
    """Before it gave anything, and after it did: what was given can still be taken."""
    taken = []

    def on_rank(world):
        world, room = wrap(world), np.zeros(2)
        if world.rank == 1:
            world.start_swap(np.ones(2), room, 0, "control")
            raise ZeroDivisionError("boom")
        if world.rank == 0:
            world.swap(np.zeros(2), room, 1, "control")
            taken.append(room.tolist())
        world.swap(np.zeros(2), room, 1, "control")

    began = perf_counter()
    with pytest.raises(ZeroDivisionError, match="boom"):
        run_ranks(3, on_rank)
    assert perf_counter() - began < 10
    assert taken == [[1.0, 1.0]]


def test_a_peer_that_does_not_come_is_named():
    def on_rank(world):
        world.watch(0.1)
        if world.rank == 0:
            with pytest.raises(TransportError, match="swap with rank 1.*rank 1 did"):
                world.swap(np.zeros(2), np.zeros(2), 1, "control")

    run_ranks(2, on_rank)


def test_abort_frees_the_others():
    def on_rank(world):
        group = world.split(0, 0)
        if world.rank == 0:
            world.abort(3)
        group.max_flag(1)

    with pytest.raises(TransportError):
        run_ranks(2, on_rank)


def test_unknown_communicators_and_wrong_sizes():
    with pytest.raises(ConfigError, match="known: auto, serial, mpi"):
        open_world("pigeon")
    with pytest.raises(TransportError, match="4 ranks were asked for and MPI gives 1"):
        check_expected(1, 4)
    check_expected(4, 4)
    check_expected(1, None)
    assert is_launched({"PMI_RANK": "0"})
    assert is_launched({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"})
    assert not is_launched({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"})
    assert not is_launched({})


def test_the_launcher_says_how_many():
    """Silent singletons are found under any launcher that says its size."""
    assert launched_size({"HPCSGD_EXPECT_RANKS": "3", "PMI_SIZE": "4"}) == 3
    assert launched_size({"PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}) == 4
    assert launched_size({"SLURM_STEP_NUM_TASKS": "2"}) == 2
    assert launched_size({}) is None


def test_serial_is_no_answer_to_several_ranks(monkeypatch):
    monkeypatch.setenv("HPCSGD_EXPECT_RANKS", "2")
    with pytest.raises(ConfigError, match="--ranks 1"):
        open_world("serial")
    monkeypatch.delenv("HPCSGD_EXPECT_RANKS")
    monkeypatch.setenv("PMI_SIZE", "4")  # four runs of one rank each, on purpose
    assert open_world("serial").size == 1


# A bare "mpi" as an id would be taken for pytest-mpi's mark.
@pytest.mark.parametrize("row", COMMUNICATORS, ids=lambda row: f"row-{row}")
def test_every_row_names_an_opener(row):
    module, opener = COMMUNICATORS[row].split(":")
    assert callable(getattr(import_module(module), opener))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_collective_is_a_value_that_can_be_run_or_started(ranks):
    """The public methods are short ways to `run` and `start`."""

    def on_rank(world):
        ones = [1] * world.size
        for begin in (world.run, lambda *said: world.start(*said).wait()):
            part, out = np.full(1, world.rank + 1.0), np.zeros(world.size)
            begin(Collective("gather", part, out, ones), "control")
            assert out.tolist() == [rank + 1.0 for rank in range(world.size)]
            begin(Collective("sum", part, part), "control")
            assert part[0] == sum(out)
            items = Collective("objects", SentObject({world.rank}), [])
            assert begin(items, "control") == [{r} for r in range(world.size)]

    run_ranks(ranks, on_rank)

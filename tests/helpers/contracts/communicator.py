"""What every communicator must do, whoever carries it; each check takes a world."""

import numpy as np
import pytest

from hpcsgd.comm.grid import Grid
from hpcsgd.errors import ConfigError, DataError
from tests.helpers.contracts.communicator_moves import (
    broadcasts,
    collects_on_rank_0,
    compares_integers,
    deals_unequal_pieces,
    exchanges_objects,
    exchanges_pieces,
    finds_the_largest_number,
    gathers_unequal_parts,
    refuses_counts_that_do_not_fit,
    refuses_swaps_that_do_not_fit,
    shares_objects,
    shares_the_result_or_the_error_of_rank_0,
    starts_gathers,
    swaps_in_pairs,
    swaps_leave_others_alone,
)
from tests.helpers.contracts.communicator_sums import (
    books_narrow_sums_as_two_calls,
    books_workspaces_as_sums,
    reduces_to_rank_0,
    refuses_to_sum_integers,
    starts_sums,
    starts_sums_of_parts,
    sums_in_narrow_formats,
    sums_in_place,
    sums_workspaces_again_and_again,
)


def takes_the_largest_flag(world):
    assert world.max_flag(world.rank) == world.size - 1
    assert world.max_flag(-3 - world.rank) == -3


def keeps_copies(world):
    """A lasting copy of what all ranks hold, of any shape and size."""
    for how in ("auto", "on", "off"):
        world.share_nodes(how)
        for shape in ((3,), (1000, 2), (0,), (5000, 1)):
            array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            kept = world.keep(array)
            expected = array.copy()
            array[...] = -1
            assert kept.dtype == array.dtype
            np.testing.assert_array_equal(kept, expected)
            world.max_flag(0)  # nobody overwrites before all have looked
            np.testing.assert_array_equal(kept, expected)


def splits_into_grids(world):
    for replicas in range(1, world.size + 1):
        if world.size % replicas:
            continue
        grid = Grid(world, replicas, world.size // replicas)
        assert (grid.members.rank, grid.replicas.rank) == (grid.member, grid.replica)
        buffer = np.array([float(world.rank)])
        own = [r for r in range(world.size) if r // grid.members.size == grid.replica]
        assert grid.members.sum(buffer, "products")[0] == sum(own)
        buffer = np.array([float(world.rank)])
        own = [r for r in range(world.size) if r % grid.members.size == grid.member]
        assert grid.replicas.sum(buffer, "agreement")[0] == sum(own)
    with pytest.raises(ConfigError, match=f"this run has {world.size}"):
        Grid(world, 1, world.size + 1)


def raises_together(world):
    """An error of ours on one rank is raised on all, and only the first one."""

    def fail():
        if world.rank >= world.size - 2:
            raise DataError(f"rank {world.rank} saw it")
        return 7

    with pytest.raises(
        DataError, match=f"rank {max(world.size - 2, 0)} saw it"
    ) as info:
        world.together(fail)
    assert info.value.on_all_ranks
    assert world.together(lambda: world.rank) == world.rank


def counts_what_is_said(world):
    """Calls, words and bytes, to the word; nothing where a group is one rank."""
    p, ledger = world.size, world.ledger
    before = ledger.as_dict()["products"]
    world.sum(np.ones(10, dtype=np.float32), "products")
    world.start_sum(np.ones(6), "products").wait()
    out = np.empty(3 * p, dtype=np.uint16)
    world.gather(np.ones(3, dtype=np.uint16), [3] * p, out, "products")
    after = ledger.as_dict()["products"]
    grown = {k: after[k] - before[k] for k in ("calls", "words", "bytes", "wire_bytes")}
    if p == 1:
        assert set(grown.values()) == {0}
        return
    assert grown["calls"] == 3
    assert grown["words"] == 19
    assert grown["bytes"] == 40 + 48 + 6
    wire = 2 * (p - 1) / p * 88 + (p - 1) * 6
    assert grown["wire_bytes"] == pytest.approx(wire)


CHECKS = [
    sums_in_place,
    reduces_to_rank_0,
    starts_sums,
    gathers_unequal_parts,
    collects_on_rank_0,
    refuses_counts_that_do_not_fit,
    takes_the_largest_flag,
    broadcasts,
    exchanges_objects,
    shares_objects,
    shares_the_result_or_the_error_of_rank_0,
    finds_the_largest_number,
    compares_integers,
    refuses_to_sum_integers,
    splits_into_grids,
    raises_together,
    counts_what_is_said,
    sums_workspaces_again_and_again,
    books_workspaces_as_sums,
    keeps_copies,
    starts_gathers,
    starts_sums_of_parts,
    exchanges_pieces,
    deals_unequal_pieces,
    swaps_in_pairs,
    swaps_leave_others_alone,
    refuses_swaps_that_do_not_fit,
    sums_in_narrow_formats,
    books_narrow_sums_as_two_calls,
]

"""Rows are a function of mode, seed, epoch and replica, and of nothing else."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsgd.data.sampling import MODES, Sampler, SamplingConfig, plan_groups
from hpcsgd.data.shard import split_range
from hpcsgd.errors import ConfigError


@given(st.integers(0, 100), st.integers(1, 20))
def test_parts_cover_the_range_evenly(n, parts):
    slices = [split_range(n, parts, i) for i in range(parts)]
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(n))
    sizes = [s.stop - s.start for s in slices]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 9))
def test_groups_hold_every_row_once(rows, batch, steps):
    groups = plan_groups(rows, batch, steps)
    sizes = [b for group in groups for b in group]
    assert sum(sizes) == rows
    assert all(b == batch for b in sizes[:-1]) and 0 < sizes[-1] <= batch
    assert all(len(g) == steps for g in groups[:-1]) and 0 < len(groups[-1]) <= steps
    assert sizes == [b for group in plan_groups(rows, batch, 1) for b in group]


def test_rows_in_order_are_those_of_the_data():
    for epoch, seed, replica in ((0, 0, 0), (3, 1, 2)):
        order = Sampler("in-order", seed, 50, replica).order(epoch)
        assert order.tolist() == list(range(50))


@pytest.mark.parametrize("mode", MODES[:-1])
def test_orders(mode):
    def order(seed=3, replica=0, epoch=0):
        return Sampler(mode, seed, 50, replica).order(epoch)

    np.testing.assert_array_equal(order(), order())
    if mode == "replacement":
        assert len(set(order().tolist())) < 50 and order().max() < 50
    else:
        assert sorted(order().tolist()) == list(range(50))
    assert (order() != order(seed=4)).any() and (order() != order(replica=1)).any()
    comes_again = (order(epoch=0) == order(epoch=1)).all()
    assert comes_again == (mode == "shuffle-once")


def test_the_order_is_pinned():
    """A change of the generator would silently change every recorded run."""
    assert Sampler("shuffle-once", 0, 8, 0).order(5).tolist() == PINNED


PINNED = [2, 4, 3, 6, 5, 0, 1, 7]


@pytest.mark.parametrize("rows", [1, 7, 3000, 70_000])
def test_orders_are_those_of_the_generator_in_int64(rows):
    """Recorded runs took these: half the bytes must not be another order."""

    def generator(key):
        return np.random.default_rng((5, 2, key))

    def order(mode):
        return Sampler(mode, 5, rows, 2).order(3)

    numbers = np.arange(rows, dtype=np.int64)
    drawn = generator(4).integers(rows, size=rows, dtype=np.int64)
    for mode, expected in [
        ("shuffle-once", generator(0).permutation(numbers)),
        ("reshuffle", generator(4).permutation(numbers)),
        ("replacement", drawn),
    ]:
        np.testing.assert_array_equal(order(mode), expected)


@pytest.mark.parametrize("mode", MODES)
def test_an_order_takes_four_bytes_a_row_while_it_is_made(mode):
    rows = 2_000_000
    tracemalloc.start()
    order = Sampler(mode, 0, rows, 0).order(1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert order.nbytes == 4 * rows and peak <= 4 * rows + 2**21


def test_wrong_sampling():
    with pytest.raises(ConfigError, match="must be one of shuffle-once"):
        SamplingConfig("sorted")
    with pytest.raises(ConfigError, match="at least 0"):
        SamplingConfig(seed=-1)


@given(
    st.sampled_from(MODES), st.integers(1, 90), st.integers(1, 12), st.integers(1, 7)
)
def test_every_s_sees_the_same_batches(mode, rows, batch, steps):
    def batches(steps):
        found = []
        for epoch in range(3):
            order, first = Sampler(mode, 1, rows, 0).order(epoch), 0
            for group in plan_groups(rows, batch, steps):
                for size in group:
                    found.append(order[first : first + size].tolist())
                    first += size
            assert first == rows, "no group straddles an epoch"
        return found

    assert batches(steps) == batches(1)


@given(
    st.sampled_from(MODES),
    st.integers(0, 2**40),
    st.integers(1, 300),
    st.integers(0, 9),
)
def test_orders_are_local_row_numbers(mode, seed, rows, replica):
    order = Sampler(mode, seed, rows, replica).order(2)
    assert order.dtype == np.int32 and order.shape == (rows,)
    assert order.min() >= 0 and order.max() < rows
    if mode != "replacement":
        assert np.unique(order).size == rows


@pytest.mark.parametrize("mode", MODES[:-1])
def test_no_two_orders_agree_by_accident(mode):
    """Swapping seed, replica and epoch gives another order: they are never added."""
    epochs = 1 if mode == "shuffle-once" else 4
    orders = {
        tuple(Sampler(mode, seed, 60, replica).order(epoch))
        for seed in range(4)
        for replica in range(4)
        for epoch in range(epochs)
    }
    assert len(orders) == 16 * epochs


def test_an_order_asked_for_later_or_twice_is_the_same():
    sampler = Sampler("reshuffle", 0, 40, 0)
    last = sampler.order(7)
    for epoch in range(7):
        sampler.order(epoch)
    np.testing.assert_array_equal(sampler.order(7), last)

"""One pure function owns every range."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsgd.data.shard import split_by_weight, split_range


@pytest.mark.parametrize(
    "n, parts, expected",
    [
        (10, 3, [(0, 4), (4, 7), (7, 10)]),
        (7, 7, [(i, i + 1) for i in range(7)]),
        (2, 4, [(0, 1), (1, 2), (2, 2), (2, 2)]),
        (5, 1, [(0, 5)]),
    ],
)
def test_the_first_parts_get_one_more(n, parts, expected):
    slices = [split_range(n, parts, i) for i in range(parts)]
    assert [(s.start, s.stop) for s in slices] == expected


@given(st.integers(0, 10**12), st.integers(1, 10**4), st.data())
def test_neighbours_meet_at_any_size(n, parts, data):
    index = data.draw(st.integers(0, parts - 1))
    part = split_range(n, parts, index)
    assert type(part.start) is int and type(part.stop) is int
    assert part.stop - part.start in (n // parts, n // parts + 1)
    if index + 1 < parts:
        assert split_range(n, parts, index + 1).start == part.stop
    else:
        assert part.stop == n
    if index == 0:
        assert part.start == 0


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 12))
def test_parts_by_weight_meet_and_are_about_equal(weights, parts):
    weights = np.array(weights)
    slices = split_by_weight(weights, parts)
    assert len(slices) == parts and slices[0].start == 0
    assert slices[-1].stop == len(weights)
    assert all(a.stop == b.start for a, b in pairwise(slices))
    if len(weights) >= parts:
        assert all(part.start < part.stop for part in slices)
        most = weights.sum() / parts + weights.max()
        assert all(weights[part].sum() <= most + 1e-9 for part in slices)


@pytest.mark.parametrize(
    "weights, parts, ends",
    [
        ([1, 1, 1, 1, 1, 1, 1], 3, [2, 4, 7]),
        ([9, 1, 1, 1], 2, [1, 4]),
        ([1, 1, 1, 9], 2, [3, 4]),
        ([0, 0, 0, 0, 0], 2, [3, 5]),
        ([5, 5], 4, [1, 2, 2, 2]),
    ],
)
def test_parts_by_weight(weights, parts, ends):
    assert [part.stop for part in split_by_weight(np.array(weights), parts)] == ends

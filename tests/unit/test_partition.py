"""One pure function owns every range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsgd.data.partition import split_range


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

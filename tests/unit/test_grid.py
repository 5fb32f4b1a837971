"""Ranks on a grid: arithmetic and refusals."""

import pytest

from hpcsgd.comm.grid import parse_grid, place_on_grid
from hpcsgd.errors import ConfigError


def test_members_of_a_replica_are_neighbours():
    assert [place_on_grid(r, 3) for r in range(6)] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip


def test_parse():
    assert parse_grid("1x2") == (1, 2)
    assert parse_grid("4X16") == (4, 16)


@pytest.mark.parametrize("text", ["2", "x2", "1x", "ax2", "1x2x3", "-1x2", "0x2"])
def test_wrong_grids(text):
    with pytest.raises(ConfigError, match="--grid"):
        parse_grid(text)

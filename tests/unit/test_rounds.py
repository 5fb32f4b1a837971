"""Every task has one rank, in their order, and rank 0 has time for what it takes."""

import pytest

from hpcsgd.data.convert.parallel import WorkShares, part_of_rank


@pytest.mark.parametrize("shares", [[1], [8, 8], [0, 8, 8], [3, 8, 8], [0, 1]])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 15, 24])
def test_ranks_in_order_have_all_tasks(shares, count):
    tasks = list(range(min(count, sum(shares))))
    parts = [part_of_rank(tasks, shares, rank) for rank in range(len(shares) + 1)]
    assert [task for part in parts for task in part] == tasks
    assert all(len(p) <= s for p, s in zip(parts, shares, strict=False))
    assert not parts[-1], "a rank that has no share"


def test_too_few_tasks_are_spread():
    parts = [part_of_rank(list(range(8)), [8, 8, 8, 8], rank) for rank in range(4)]
    assert [len(part) for part in parts] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    "workers, make, take, expected",
    [
        (1, 5.0, 1.0, 8),  # alone: a round is what it is
        (2, 5.0, 0.0, 8),
        (2, 5.0, 1.0, 5),
        (4, 5.0, 1.0, 3),
        (8, 5.0, 1.0, 0),
        (2, 0.0, 0.0, 8),  # nothing is known yet
    ],
)
def test_rank_0_parses_as_much_as_leaves_it_ready(workers, make, take, expected):
    pace = WorkShares(workers, 8)
    pace.making.total, pace.making.count = 10 * make, 10
    pace.taking.total, pace.taking.count = 4 * take, 4
    assert pace.advise() == expected

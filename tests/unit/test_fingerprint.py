"""The data's checksum: the same for every partition, another for every change."""

import numpy as np
import pytest

from hpcsgd.backends.numpy_rows import all_finite, weigh
from hpcsgd.data.checksums import Fingerprint
from hpcsgd.data.shard import split_range

RNG = np.random.default_rng(3)
X = RNG.normal(size=(37, 11)).astype(np.float32)
Y = RNG.normal(size=37)


def fingerprint(X, y, replicas, members, pieces=1, weigh=None):
    """As `replicas` × `members` ranks that read in `pieces` find it."""
    values = []
    for r in range(replicas):
        for c in range(members):
            seen = Fingerprint(weigh)
            rows, cols = split_range(len(X), replicas, r), split_range(11, members, c)
            for k in range(pieces):
                part = split_range(rows.stop - rows.start, pieces, k)
                first, last = rows.start + part.start, rows.start + part.stop
                seen.add(X[first:last, cols], first, cols.start)
            if c == 0:
                seen.add_column(0, y[rows], rows.start)
            values.append(int(seen.value))
    return Fingerprint().total(37, 11, lambda own: [own, *values])


@pytest.mark.parametrize("grid", [(1, 1), (1, 4), (4, 1), (3, 2), (5, 11)])
@pytest.mark.parametrize("pieces", [1, 3])
def test_every_partition_gives_the_same(grid, pieces):
    assert fingerprint(X, Y, *grid, pieces) == fingerprint(X, Y, 1, 1)


def test_any_one_flipped_bit_changes_it():
    known = fingerprint(X, Y, 1, 1)
    for _ in range(50):
        row, col, bit = RNG.integers(37), RNG.integers(11), RNG.integers(32)
        changed = X.copy()
        changed.view(np.uint32)[row, col] ^= np.uint32(1 << bit)
        assert fingerprint(changed, Y, 1, 1) != known


def test_swapped_values_rows_and_targets_change_it():
    known = fingerprint(X, Y, 1, 1)
    rows, cols = X.copy(), X.copy()
    rows[[3, 4]] = rows[[4, 3]]
    cols[:, [3, 4]] = cols[:, [4, 3]]
    y = Y.copy()
    y[[0, 1]] = y[[1, 0]]
    for changed in ((rows, Y), (cols, Y), (X, y)):
        assert fingerprint(*changed, 1, 1) != known


def test_equal_values_in_another_type_are_other_data():
    assert fingerprint(X.astype(np.float64), Y, 1, 1) != fingerprint(X, Y, 1, 1)


def test_by_kernels_it_is_the_same():
    assert fingerprint(X, Y, 3, 2, 3, weigh) == fingerprint(X, Y, 1, 1)
    assert fingerprint(X.astype("f8"), Y, 1, 2, 1, weigh) == fingerprint(
        X.astype("f8"), Y, 1, 1
    )


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38, -0.0, 1e-45])
def test_what_is_not_finite_is_found_anywhere(dtype, value):
    """Sums that overflow are no reason, values that are not finite are."""
    block = RNG.normal(size=(5, 23)).astype(dtype)[:, 1:20]
    for place in ((0, 0), (4, 18), (2, 7)):
        changed = block.copy()[:, ::1]
        changed[place] = value
        assert all_finite(changed) == bool(np.isfinite(value))
    assert all_finite(np.full((40, 40), 3e38, dtype=np.float32))
    assert all_finite(np.full((40, 40), 1.7e308))
    assert all_finite(block[:0]) and all_finite(block[::2, ::-1])

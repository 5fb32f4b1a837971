"""Rows of a fold: by seed and number alone, as many in each, the same on any grid."""

import numpy as np
import pytest

from hpcsgd.data.sampling import FoldSplit, fold_of, held_out
from hpcsgd.errors import ConfigError, DataError


@pytest.mark.parametrize("folds", [2, 3, 5, 10])
def test_folds_have_as_many_rows(folds):
    found = fold_of(slice(0, 100 * folds), folds, seed=4)
    assert (np.bincount(found, minlength=folds) == 100).all()


@pytest.mark.parametrize("cut", [1, 7, 10, 26, 52])
def test_parts_of_the_rows_are_parts_of_the_folds(cut):
    """Whatever rows a replica has."""
    for whole, part in (
        (fold_of, lambda rows: fold_of(rows, 5, 9)),
        (held_out, lambda rows: held_out(rows, 0.3, 9)),
    ):
        args = (5, 9) if whole is fold_of else (0.3, 9)
        joined = np.concatenate([part(slice(0, cut)), part(slice(cut, 53))])
        np.testing.assert_array_equal(joined, whole(slice(0, 53), *args))


def test_more_rows_leave_the_first_ones_where_they_were():
    np.testing.assert_array_equal(
        fold_of(slice(0, 53), 5, 0), fold_of(slice(0, 5003), 5, 0)[:53]
    )


def test_seeds_and_folds_are_not_alike():
    one, other = (fold_of(slice(0, 2000), 5, seed) for seed in (0, 1))
    assert 0.1 < (one == other).mean() < 0.3


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.25, 1 / 3, 0.9])
def test_the_share_that_is_held_out(share):
    found = held_out(slice(0, 3000), share, seed=2)
    assert found.sum() == pytest.approx(3000 * share, abs=1)


def test_what_is_known_does_not_change():
    """These rows are in run folders: another hash would be another split."""
    assert fold_of(slice(0, 12), 4, 0).tolist() == [2, 3, 1, 0, 3, 0, 2, 1, 0, 1, 2, 3]
    assert np.flatnonzero(held_out(slice(0, 40), 0.1, 0)).tolist() == [3, 17, 25, 30]


def test_both_at_once_are_refused():
    with pytest.raises(ConfigError, match="use one of them"):
        FoldSplit(folds=5, hold_out=0.1)


def test_parts_without_weight_are_refused():
    split = FoldSplit(folds=2)
    split.check(np.ones(3), np.array([1.0, 1.0, 0.0]))
    with pytest.raises(DataError, match="set of validation rows, is empty"):
        split.check(np.ones(3), np.array([1.0, 0.0, 0.0]))
    with pytest.raises(DataError, match="left to train on"):
        split.check(np.array([1.0, 0.0, 1.0]), np.ones(3))

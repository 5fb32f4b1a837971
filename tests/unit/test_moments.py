"""Moments of blocks are those of the whole, whatever the blocks leave out."""

import numpy as np
import pytest
import scipy.sparse

from hpcsgd.data.convert.transform import BlockMoments, ColumnMoments, measure
from hpcsgd.errors import DataError

RNG = np.random.default_rng(1)
X = RNG.normal(1e4, 1, size=(999, 4)) * [1, 0, 2, 1]
CUTS = [1, 2, 500]


def moments_of(blocks):
    moments = ColumnMoments()
    for block in blocks:
        moments.add_block(block)
    return moments


def check(moments, whole):
    assert np.allclose(moments.mean, whole.mean(axis=0), rtol=1e-13)
    assert np.allclose(moments.squares / len(whole), whole.var(axis=0), rtol=1e-8)
    assert (moments.count == len(whole)).all()


def test_dense_blocks():
    moments = moments_of(np.array_split(X, CUTS))
    check(moments, X)
    assert moments.scales(centred=True).scale[1] == 1, "constant columns are left alone"


@pytest.mark.parametrize("cols", [4, 5000])
def test_sparse_blocks_count_their_zeros(cols):
    """With few columns and with many, which are found in two ways."""
    whole = np.zeros((len(X), cols))
    whole[:, -4:] = X * (RNG.random(X.shape) < 0.3)
    blocks = [scipy.sparse.csr_array(part) for part in np.array_split(whole, CUTS)]
    full = moments_of(blocks).of_columns(0, cols).with_zeros()
    check(full, whole)
    about_zero = np.sqrt((whole**2).mean(axis=0))
    expected = np.where(about_zero, about_zero, 1)
    assert np.allclose(full.scales(centred=False).scale, expected)


def test_missing_values_are_the_mean_of_their_column():
    holes = np.where(RNG.random(X.shape) < 0.2, np.nan, X)
    holes[:400, 2] = np.nan  # a block without any
    filled = np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)
    check(moments_of(np.array_split(holes, CUTS)).with_means(), filled)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e200])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_column_without_a_spread_is_named(value, sparse):
    """It would have become zeros, or NaN in every row."""
    wide = X.copy()
    wide[700, 2] = value
    blocks = np.array_split(wide, CUTS)
    if sparse:
        blocks = [scipy.sparse.csr_array(block) for block in blocks]
    with pytest.raises(DataError, match="column 2 has no finite spread"):
        moments_of(blocks).with_zeros().scales(centred=not sparse)


def test_columns_from_one_on():
    part = moments_of([X]).of_columns(1, 5)
    assert np.allclose(part.mean, [*X.mean(axis=0)[1:], 0, 0])


@pytest.mark.parametrize("sparse", [False, True])
def test_what_travels_is_the_same(sparse):
    measured = measure(scipy.sparse.csr_array(X[:, ::-1]) if sparse else X)
    again = BlockMoments.of(measured.parts())
    for one, other in zip(vars(measured).values(), vars(again).values(), strict=True):
        assert np.all(one == other)

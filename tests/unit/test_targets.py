"""Labels are those of the whole data, and every rank finds the same fault."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsgd.data.shard import split_range
from hpcsgd.data.targets import MOST_CLASSES, Targets, encode_targets
from hpcsgd.errors import DataError
from hpcsgd.glm import FAMILIES, get_family
from tests.helpers.limits import HANG

KINDS = sorted({get_family(name).targets for name in FAMILIES})


def on_ranks(y, kind, ranks):
    """What each of `ranks` ranks gets or raises; they exchange as real ones do."""
    y = np.asarray(y, dtype=np.float64)
    board, all_there, calls = [None] * ranks, Barrier(ranks, timeout=HANG), [0] * ranks

    def rank(index):
        def exchange(found):
            calls[index] += 1
            board[index] = found
            all_there.wait()
            return list(board)

        part = split_range(len(y), ranks, index)
        try:
            return encode_targets(y[part], kind, part.start, exchange)
        except DataError as error:
            return error

    with ThreadPoolExecutor(ranks) as pool:
        results = list(pool.map(rank, range(ranks)))
    assert calls == [1] * ranks, "exactly one exchange on every rank"
    return results


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(-3, 4), min_size=4, max_size=30),
    st.integers(1, 4),
)
def test_any_number_of_ranks_says_the_same(kind, y, ranks):
    (alone,) = on_ranks(y, kind, 1)
    together = on_ranks(y, kind, ranks)
    if isinstance(alone, DataError):
        assert all(str(error) == str(alone) for error in together)
        assert all(error.on_all_ranks for error in together), "nobody waits"
        return
    encoded, targets = alone
    assert encoded.shape == (len(y), 1) and encoded.dtype == np.float64
    joined = np.concatenate([part for part, _ in together])
    assert (joined == encoded).all()
    assert all(found == targets for _, found in together)


@settings(max_examples=40, deadline=None)
@given(
    st.sets(st.integers(-(10**6), 10**6), min_size=2, max_size=9),
    st.randoms(use_true_random=False),
)
def test_labels_are_decoded_to_what_they_were(labels, random):
    y = [*labels, *random.choices(sorted(labels), k=20)]
    ((encoded, targets),) = on_ranks(y, "classes", 1)
    assert targets.labels == tuple(sorted(labels))
    assert (np.array(targets.labels)[encoded[:, 0].astype(int)] == y).all()
    assert sorted(set(encoded[:, 0])) == list(range(len(labels)))


@pytest.mark.parametrize("labels", [(0, 1), (-1, 1), (1, 2), (-0.5, 7.25)])
def test_two_labels_of_any_kind(labels):
    low, high = labels
    y = [high, low, low, high]
    for kind, values in (("binary", [1, 0, 0, 1]), ("signed", [1, -1, -1, 1])):
        for part, found in zip(on_ranks(y, kind, 4), values, strict=True):
            assert part[0].tolist() == [[found]], "no rank sees more than one label"
            assert part[1] == Targets(kind, (low, high))


def test_too_many_labels_show_five_and_name_softmax():
    for error in on_ranks(np.arange(9), "binary", 3):
        assert "9 labels (0, 1, 2, 3, 4, ...)" in str(error)
        assert "softmax" in str(error)
    (error,) = on_ranks(np.arange(5000) + 0.5, "signed", 1)
    assert "too many labels" in str(error) and "softmax" in str(error)


@pytest.mark.parametrize("kind", ["binary", "signed", "classes"])
def test_one_label_on_all_ranks_together_is_too_few(kind):
    for error in on_ranks([3.0] * 6, kind, 3):
        assert "one label only (3)" in str(error)


def test_numbers_are_no_classes():
    for y in (np.linspace(0, 1, 40), np.arange(MOST_CLASSES + 1)):
        for error in on_ranks(y, "classes", 2):
            assert "gaussian" in str(error)
    for part, targets in on_ranks(np.arange(MOST_CLASSES), "classes", 2):
        assert len(targets.labels) == MOST_CLASSES and len(part) == MOST_CLASSES / 2


@pytest.mark.parametrize(
    "kind, value, said",
    [
        ("counts", -2.0, "y is -2 at row 17 .* at least 0"),
        ("positive", 0.0, "y is 0 at row 17 .* above 0"),
        ("real", np.nan, "y has nan at row 17"),
        ("counts", np.inf, "y has inf at row 17"),
        ("binary", np.nan, "y has nan at row 17"),
        ("classes", -np.inf, "y has -inf at row 17"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_first_bad_row_is_named_on_every_rank(kind, value, said, ranks):
    y = np.array([1.0, 2.0] * 15)
    y[17], y[29] = value, value
    for error in on_ranks(y, kind, ranks):
        with pytest.raises(DataError, match=said):
            raise error


@pytest.mark.parametrize("kind", ["real", "counts", "positive"])
def test_numbers_stay_what_they_are(kind):
    y = np.array([0.5, 1.0, 1e9])
    ((encoded, targets),) = on_ranks(y, kind, 1)
    assert encoded.tolist() == [[0.5], [1.0], [1e9]] and targets == Targets(kind)

"""A snapshot is a copy of every array of a state, in memory or in a file."""

import numpy as np
import pytest

from hpcsgd.backends.task import Snapshot, arrays_of
from hpcsgd.errors import DataError
from hpcsgd.products.base import State


def filled(seed, intercept=True):
    """A state whose arrays have different shapes and formats."""
    draw = np.random.default_rng(seed)
    return State(
        weights=draw.normal(size=(7, 4)).astype(np.float32),
        intercept=draw.normal(size=(2, 2)) if intercept else None,
        memory={"codec_error": draw.normal(size=(7, 2)), "weights": np.ones((7, 1))},
        rank_arrays={"since": draw.integers(0, 9, size=3)},
        shared={"adam_m": draw.normal(size=(1, 2))},
    )


@pytest.mark.parametrize("intercept", [True, False])
def test_what_is_put_back_is_what_was_copied(intercept):
    state, before = filled(0, intercept), filled(0, intercept)
    places = {name: id(array) for name, array in arrays_of(state).items()}
    snapshot = Snapshot.of(state, {"exchanges": 3})
    for array in arrays_of(state).values():
        array[...] = 5
    snapshot.put_into(state)
    assert len(places) == 6 - (not intercept) and snapshot.exchanges == 3
    for name, array in arrays_of(state).items():
        np.testing.assert_array_equal(array, arrays_of(before)[name])
        assert id(array) == places[name], "in place: others hold the arrays"


def test_what_a_snapshot_lacks_stays_as_it_is():
    state, other = filled(0), filled(1)
    model = Snapshot.of(State(other.weights, other.intercept), {})
    model.put_into(state)
    np.testing.assert_array_equal(state.weights, other.weights)
    np.testing.assert_array_equal(state.intercept, other.intercept)
    for kept in ("memory", "rank_arrays", "shared"):
        for name, array in getattr(filled(0), kept).items():
            np.testing.assert_array_equal(getattr(state, kept)[name], array)


def test_a_file_holds_the_document_and_the_bits(tmp_path):
    snapshot = Snapshot.of(filled(0), {"exchanges": 3, "history": [{"loss": 0.1}]})
    snapshot.write(tmp_path / "one.h5")
    again = Snapshot.read(tmp_path / "one.h5")
    assert again.document == snapshot.document
    assert again.arrays.keys() == snapshot.arrays.keys()
    for name, array in again.arrays.items():
        assert array.dtype == snapshot.arrays[name].dtype
        np.testing.assert_array_equal(array, snapshot.arrays[name])
    (tmp_path / "one.h5").write_bytes(b"something else")
    with pytest.raises(DataError):
        Snapshot.read(tmp_path / "one.h5")

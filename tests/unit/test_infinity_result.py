"""What a run on disk leaves: weights in a file of their own, or an array."""

import numpy as np
import pytest

import hpcsgd
from hpcsgd.errors import DataError
from hpcsgd.files import read_sealed, write_sealed
from hpcsgd.runs.predict import model_of
from hpcsgd.runs.result import KIND, VERSION, load_result
from tests.helpers.harness import train_on
from tests.helpers.infinity_child import config_of, problem


def test_weights_beyond_the_budget_stay_a_file(tmp_path):
    """Beside result.h5; loaded as a view, with the same bits."""
    drawn = problem()
    small = config_of(drawn, tmp_path / "a", tile=0.0002, kind="sgd")
    result = train_on(1, small, drawn)
    assert isinstance(result.weights, np.memmap)
    loaded = load_result(tmp_path / "a")
    assert isinstance(loaded.weights, np.memmap)
    assert np.array_equal(loaded.weights, result.weights)
    assert loaded.weights_sha256 == result.weights_sha256
    assert np.array_equal(model_of(loaded).weights[:, 0], result.weights)
    (tmp_path / "a" / "weights.npy").unlink()
    with pytest.raises(DataError, match="holds no weights.*train again"):
        load_result(tmp_path / "a")
    np.save(tmp_path / "a" / "weights.npy", np.ones((3, 1)))  # of other columns
    with pytest.raises(DataError, match="holds no weights.*train again"):
        load_result(tmp_path / "a")


def test_other_values_in_the_file_are_not_loaded(tmp_path):
    """Of the same shape and type: the seal of result.h5 is not theirs."""
    drawn = problem()
    train_on(1, config_of(drawn, tmp_path / "a", tile=0.0002, kind="sgd"), drawn)
    path = tmp_path / "a" / "weights.npy"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    for load in (load_result, hpcsgd.load):
        with pytest.raises(DataError, match="weights.npy has changed.*restore"):
            load(tmp_path / "a")
    path.write_bytes(good)
    assert np.array_equal(load_result(tmp_path / "a").weights, np.load(path)[:, 0])


def test_a_result_of_an_earlier_version_says_no_hash(tmp_path):
    drawn = problem()
    train_on(1, config_of(drawn, tmp_path / "a", tile=0.0002, kind="sgd"), drawn)
    path = tmp_path / "a" / "result.h5"
    document, arrays = read_sealed(path, KIND, VERSION)
    del document["weights_sha256"]
    write_sealed(path, KIND, VERSION, document, arrays)
    assert isinstance(load_result(tmp_path / "a").weights, np.memmap)


def test_weights_within_the_budget_are_an_array(tmp_path):
    drawn = problem()
    result = train_on(1, config_of(drawn, tmp_path / "a", kind="sgd"), drawn)
    assert type(result.weights) is np.ndarray
    assert type(load_result(tmp_path / "a").weights) is np.ndarray

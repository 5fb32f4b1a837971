"""Final models in 8 bits: codes, one scale for 256 columns, and what reads them."""

import json

import h5py
import numpy as np
import pytest

import hpcsgd
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.runs.checks import check_configuration
from hpcsgd.runs.result import CODES, SCALES, from_int8, restore, to_int8
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import make_problem, train_on


def restated(weights):
    """Each block and score alone: the nearest of 255 values, of which 0 is one."""
    table = weights.reshape(len(weights), -1)
    rounded = np.zeros(table.shape)
    bound = np.zeros(table.shape)
    for first in range(0, len(table), 256):
        for k in range(table.shape[1]):
            part = table[first : first + 256, k]
            scale = np.abs(part).max() / 127
            # Scales are rounded up to 16 bits: by a share of 2^-15 at most.
            bound[first : first + 256, k] = scale / 2 * (1 + 2**-15)
            rounded[first : first + 256, k] = scale * np.rint(part / (scale or 1.0))
    return rounded.reshape(weights.shape), bound.reshape(weights.shape)


@pytest.mark.parametrize("shape", [(1,), (255,), (256, 1), (257, 3), (1000,), (700, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_weight_is_the_nearest_multiple_of_its_scale(shape, dtype):
    rng = np.random.default_rng(len(shape) + shape[0])
    sizes = 10.0 ** rng.integers(-5, 4, size=(shape[0], *[1] * (len(shape) - 1)))
    weights = (rng.normal(size=shape) * sizes).astype(dtype)
    weights[rng.random(shape) < 0.2] = 0.0
    codes, scales = to_int8(weights)
    assert codes.dtype == np.int8 and codes.shape == shape
    assert codes.nbytes + scales.nbytes < weights.size * 1.02 + 4 * scales.shape[1]
    found = from_int8(codes, scales)
    rounded, bound = restated(weights.astype(np.float64))
    assert (np.abs(found - weights) <= bound * (1 + 1e-6)).all()
    assert (found[weights == 0.0] == 0.0).all()
    assert np.abs(found - rounded).max() <= 2 * bound.max()
    assert np.abs(codes).max() <= 127


def test_a_model_that_was_read_is_stored_as_it_is():
    weights = np.random.default_rng(3).normal(size=(600, 2)) ** 5
    once = from_int8(*to_int8(weights))
    again = from_int8(*to_int8(once))
    assert (once == again).all() and (to_int8(once)[1] == to_int8(weights)[1]).all()


def test_weights_of_zero_stay_zero():
    codes, scales = to_int8(np.zeros((300, 2)))
    assert not codes.any() and not scales.any()
    assert not from_int8(codes, scales).any()


@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_writes_and_reads_such_a_model(family, ranks, tmp_path):
    problem = make_problem(family, d=9)
    plain = train_on(ranks, agreed(problem, 1, ranks), problem)
    config = agreed(problem, 1, ranks, run={"model": "int8"})
    result = in_folder(tmp_path / "run", config, ranks, problem)[0]
    assert result.loss == plain.loss
    assert (result.weights == from_int8(*to_int8(plain.weights))).all()
    stored = result.report["stored"]
    error = np.abs(result.weights - plain.weights).max()
    assert 0 < stored["largest_error"] == error <= np.abs(plain.weights).max() / 250
    with h5py.File(tmp_path / "run" / "result.h5") as file:
        sizes = {}
        file.visititems(
            lambda name, item: (
                sizes.update({name.rpartition("/")[2]: item})
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
        assert sizes[CODES].dtype == np.int8 and "weights" not in sizes
        own = sizes[CODES].nbytes + sizes[SCALES].nbytes
        assert own == stored["bytes"]
    again = hpcsgd.load_result(tmp_path / "run")
    assert again.weights_sha256 == result.weights_sha256
    found = hpcsgd.predict(again, problem.X, what="score")
    np.testing.assert_array_equal(
        found, hpcsgd.predict(result, problem.X, what="score")
    )


def test_a_result_is_rounded_once():
    problem = make_problem("logistic")
    result = train_on(1, agreed(problem, 1), problem)
    small = result.in_int8()
    assert small.in_int8() is small
    assert "stored" not in result.report


@pytest.mark.parametrize(
    "name, broken", [(SCALES, lambda a: a[:0]), (CODES, lambda a: a.astype(np.int16))]
)
def test_scales_that_do_not_fit_the_codes_are_no_model(name, broken, tmp_path):
    problem = make_problem("logistic")
    result = train_on(1, agreed(problem, 1), problem).in_int8()
    document, arrays = json.loads(json.dumps(result.document())), result.arrays()
    same = restore(tmp_path / "result.h5", document, arrays)
    assert same.weights_sha256 == result.weights_sha256
    arrays[name] = broken(arrays[name])
    with pytest.raises(DataError, match="holds no weights"):
        restore(tmp_path / "result.h5", document, arrays)


def test_weights_on_disk_are_refused():
    tables = {
        "agreement": {"method": "infinity"},
        "run": {"model": "int8", "out": "somewhere"},
    }
    with pytest.raises(ConfigError, match="never in memory as a whole"):
        check_configuration(RunConfig.parse(tables))

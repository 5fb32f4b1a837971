"""What supporting techniques promise of any gradient, exactly."""

import numpy as np
import pytest

from hpcsgd.agreements.codecs import Moment
from hpcsgd.agreements.shaping import (
    ByNorm,
    ByValue,
    GradientFacts,
    OverClasses,
    OverColumns,
)
from hpcsgd.formats import decode, encode, get_format, round_through
from tests.helpers.gradients import agreed
from tests.helpers.harness import make_problem, train_on

NOW = Moment(0, 0, 0.1, 0.1)


def gradients(dtype):
    """Of many sizes, some of them with all but nothing in most words."""
    rng = np.random.default_rng(0)
    for size in 10.0 ** np.arange(-6, 7):
        yield (size * rng.normal(size=(257, 3)) ** 3).astype(dtype)


def alone(gradient):
    return GradientFacts(slice(0, len(gradient)), lambda words: words)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_clipped_norm_is_at_most_the_limit_and_a_smaller_one_is_left(dtype):
    above = 0
    for gradient in gradients(dtype):
        before = np.sqrt(np.square(gradient, dtype=float).sum())
        after = gradient.copy()
        ByNorm(2.0).shape(after, alone(gradient), NOW)
        norm = np.sqrt(np.square(after, dtype=float).sum())
        assert norm <= 2.0 * (1 + np.finfo(dtype).eps)
        assert before > 2.0 or (after == gradient).all()
        above += before > 2.0
    assert 0 < above < 13


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_clipped_value_is_at_most_the_limit_and_others_are_left(dtype):
    for gradient in gradients(dtype):
        after, limit = gradient.copy(), dtype(0.7)
        ByValue(0.7).shape(after, alone(gradient), NOW)
        assert np.abs(after).max() <= limit
        inside = np.abs(gradient) <= limit
        assert (after[inside] == gradient[inside]).all()
        assert (np.sign(after) == np.sign(gradient)).all()


@pytest.mark.parametrize("axis, kind", [(0, "columns"), (1, "classes")])
def test_what_is_centred_has_no_mean(axis, kind):
    for gradient in gradients(np.float64):
        size = np.abs(gradient).max()
        shaper = OverColumns(len(gradient)) if kind == "columns" else OverClasses()
        shaper.shape(gradient, alone(gradient), NOW)
        assert np.abs(gradient.mean(axis=axis)).max() <= 1e-14 * size


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_step_of_a_normalised_gradient_is_as_long_as_the_rate(replicas):
    problem = make_problem("softmax", n=20, d=7)
    more = {"schedule": {"batch": 20, "epochs": 1}, "problem": {"l2": 0.0}}
    config = agreed(problem, replicas, update={"normalise": True}, **more)
    result = train_on(replicas, config, problem)
    assert result.iterations == 1
    assert np.linalg.norm(result.weights) == pytest.approx(config.rate.value, 1e-14)


def test_a_scale_that_is_a_power_of_two_is_exact():
    """Residuals that fit with any of them have the same bits with all of them."""
    problem = make_problem("gaussian", n=40, d=5)
    found = set()
    for scale in (1.0, 2.0**5, 2.0**10):
        how = {"recipe": "fp32", "residual": "fp16", "loss_scale": scale}
        result = train_on(2, agreed(problem, 2, precision=how), problem)
        assert result.report["skipped_exchanges"] == 0
        found.add(result.weights_sha256)
    assert len(found) == 1


def test_int8_is_within_half_a_step_and_zeros_are_exact():
    """A column of zeros stays one; codes are whole numbers up to 127."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 4)).astype(np.float32)
    X[:, 2] = 0.0
    most = np.abs(X).max(axis=0)
    scale = np.where(most > 0, most / 127, 1).astype(np.float32)
    codes = X / scale
    round_through(codes, "int8")
    assert (codes == np.rint(codes)).all() and np.abs(codes).max() == 127
    assert (np.abs(X - scale * codes) <= scale / 2 * (1 + 1e-5)).all()
    assert not codes[:, 2].any()
    whole = codes.astype(np.int64)
    assert (codes.T @ codes == whole.T @ whole).all()  # 500 · 127² is below 2²⁴


@pytest.mark.parametrize("name, most", [("fp8-e4m3", 448.0), ("fp8-e5m2", 57344.0)])
def test_fp8_comes_back(name, most):
    codes = np.arange(256, dtype=np.uint8)
    values = decode(codes, name, np.float32)
    there = np.isfinite(values)
    again = decode(encode(values[there], name), name, np.float32)
    assert (again == values[there]).all() and values[there].max() == most
    assert get_format(name).largest == most

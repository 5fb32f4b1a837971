"""Synthetic data can be learnt, streams, and does not depend on how much is asked."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse import issparse

from hpcsgd.data.hdf5 import Hdf5Reader
from hpcsgd.data.synthetic import (
    BLOCK,
    SHAPES,
    Knobs,
    make_synthetic,
    plant,
    write_synthetic,
)
from hpcsgd.errors import ConfigError
from hpcsgd.glm import get_family

BINARY = [name for name, shape in SHAPES.items() if shape.task == "binary"]


def whole(shape, rows, cols, seed=0):
    blocks = list(make_synthetic(shape, rows, cols, seed))
    return tuple(np.concatenate(part) for part in zip(*blocks, strict=True))


def fit(family, X, y):
    """The unpenalised optimum by another method than ours, and its mean loss."""
    learnt = get_family(family)

    def objective(w):
        t = X @ w[:, None]
        return (
            learnt.loss(t, y).mean(),
            (X.T @ learnt.residual(t, y))[:, 0] / len(X),
        )

    return minimize(objective, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B")


@pytest.mark.parametrize("shape", BINARY)
def test_a_linear_model_learns_it_and_its_optimum_is_finite(shape):
    X, y = whole(shape, 4000, 20)
    X, y = X.astype(np.float64), y.reshape(-1, 1)
    found = fit("logistic", X, y)
    assert found.success
    accuracy = ((X @ found.x > 0) == (y[:, 0] == 1)).mean()
    assert 0.75 < accuracy < 0.95, "neither noise nor separable"
    assert found.fun > 0.1, "separable rows would drive the loss to 0"


def test_counts_are_learnt_with_moderate_rates():
    X, y = whole("poisson-synth", 4000, 20)
    X, y = X.astype(np.float64), y.reshape(-1, 1)
    found = fit("poisson", X, y)
    assert found.success
    log_rate = X @ found.x
    assert np.abs(log_rate).max() < 5, "far from any clip"
    assert np.corrcoef(np.exp(log_rate), y[:, 0])[0, 1] > 0.4


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 2 * BLOCK), st.integers(1, 9))
def test_the_first_rows_of_a_larger_set_are_the_smaller(shape, rows, cols):
    X, y = whole(shape, rows, cols)
    more_X, more_y = whole(shape, 2 * BLOCK + 7, cols)
    assert X.shape == (rows, cols) and y.shape == (rows,)
    assert (more_X[:rows] == X).all() and (y == more_y[:rows]).all()


def test_blocks_differ_from_one_another_and_between_seeds():
    X, _ = whole("synth", 2 * BLOCK, 5)
    assert (X[:BLOCK] != X[BLOCK:]).any(axis=1).all()
    other, _ = whole("synth", 2 * BLOCK, 5, seed=1)
    assert (other != X).any(axis=1).all()


def test_what_is_left_out_is_that_of_the_shape():
    X, y = next(make_synthetic("higgs"))
    assert X.shape == (BLOCK, 28) and y.shape == (BLOCK,)
    assert (SHAPES["epsilon"].rows, SHAPES["epsilon"].cols) == (400_000, 2000)


def test_the_file_holds_the_blocks_and_progress_hears_of_each(tmp_path):
    heard = []
    path = tmp_path / "s.h5"
    write_synthetic(path, "susy", BLOCK + 9, 4, 3, lambda *at: heard.append(at))
    assert heard == [(BLOCK, BLOCK + 9), (BLOCK + 9, BLOCK + 9)]
    reader = Hdf5Reader(path)
    X, y = whole("susy", BLOCK + 9, 4, seed=3)
    every = slice(0, reader.rows)
    assert (reader.read(every, slice(0, 4)) == X).all()
    assert (reader.targets(every) == y).all()
    said = reader.describe()
    assert said["source"] == "synthetic susy, seed 3" and said["finished"] is True
    reader.close()


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"shape": "moon"}, "known: .*epsilon"),
        ({"shape": "susy", "cols": 0}, "at least 1"),
        ({"shape": "susy", "seed": -1}, "seed = -1"),
    ],
)
def test_wrong_requests_are_refused_before_a_file_is_begun(tmp_path, wrong, said):
    with pytest.raises(ConfigError, match=said):
        make_synthetic(**wrong)
    with pytest.raises(ConfigError, match=said):
        write_synthetic(tmp_path / "x.h5", **wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_progress_leaves_nothing(tmp_path):
    def stop(done, rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_synthetic(tmp_path / "x.h5", "susy", 50, 3, progress=stop)
    assert list(tmp_path.iterdir()) == []


PINNED = {
    "epsilon": "22477ed0d6b738a6",
    "susy": "6be2d3d43b828aaa",
    "higgs": "0df4550c15ad5f38",
    "synth": "844631f076dbc541",
    "poisson-synth": "13ae97c9cba145aa",
}


@pytest.mark.parametrize("shape", PINNED)
def test_without_knobs_every_bit_is_as_ever(shape):
    digest = hashlib.sha256()
    for X, y in make_synthetic(shape, 2500, 7, 3):
        digest.update(X.tobytes() + y.tobytes())
    assert digest.hexdigest()[:16] == PINNED[shape]


def drawn(knobs, shape="synth", rows=20_000, cols=20):
    blocks = list(make_synthetic(shape, rows, cols, 0, knobs))
    parts = [X.toarray() if issparse(X) else X for X, _ in blocks]
    return np.concatenate(parts), np.concatenate([y for _, y in blocks])


def test_condition_and_correlation_are_as_asked_and_the_signal_stays():
    knobs = Knobs(condition=100, correlation=0.6)
    X, _ = drawn(knobs)
    assert X[:, 0].var() / X[:, -1].var() == pytest.approx(100, rel=0.1)
    correlation = np.corrcoef(X.T)
    assert correlation[0, 1] == pytest.approx(0.6, abs=0.03)
    assert correlation[5, 7] == pytest.approx(0.36, abs=0.03)
    scores = X @ plant("synth", 20, 0, knobs).weights
    assert scores.std() == pytest.approx(SHAPES["synth"].signal, rel=0.05)


def test_density_and_balance_are_as_asked():
    knobs = Knobs(density=0.3, balance=0.1, condition=4)
    X, y = drawn(knobs, cols=50)
    assert (X != 0).mean() == pytest.approx(0.3, abs=0.01)
    assert y.mean() == pytest.approx(0.1, abs=0.02)
    scores = X @ plant("synth", 50, 0, knobs).weights
    assert scores.std() == pytest.approx(SHAPES["synth"].signal, rel=0.1)
    unit, _ = drawn(Knobs(density=0.3), "epsilon", cols=50)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)


def test_noise_flips_labels_and_spreads_counts():
    _, clean = drawn(Knobs())
    _, noisy = drawn(Knobs(noise=0.2))
    assert (clean != noisy).mean() == pytest.approx(0.2, abs=0.02)
    _, calm = drawn(Knobs(), "poisson-synth")
    _, wild = drawn(Knobs(noise=1.0), "poisson-synth")
    assert wild.var() > 2 * calm.var()


@pytest.mark.parametrize("more", [{}, {"condition": 9.0, "correlation": 0.5}])
def test_true_weights_turn_once_in_a_period(more):
    """Labels follow the weights of their own row: w, then u, then −w, then −u."""
    period = 4000
    knobs = Knobs(period=period, **more)
    X, y = drawn(knobs, rows=8 * BLOCK)
    still, _ = drawn(Knobs(**more), rows=8 * BLOCK)
    np.testing.assert_array_equal(X, still)
    truth = plant("synth", 20, 0, knobs)
    planes = X @ truth.weights, X @ truth.across
    for scores in planes:
        assert scores.std() == pytest.approx(SHAPES["synth"].signal, rel=0.05)
    assert abs(np.corrcoef(*planes)[0, 1]) < 0.05
    place = np.arange(len(y)) % period / period
    np.testing.assert_allclose(truth.turn_of(np.arange(len(y))), 2 * np.pi * place)
    for centre, (first, second) in ((0.0, (1, 0)), (0.25, (0, 1)), (0.5, (-1, 0))):
        near = np.abs((place - centre + 0.5) % 1 - 0.5) < 0.03
        seen = [np.corrcoef(scores[near], y[near])[0, 1] for scores in planes]
        np.testing.assert_allclose(seen, [0.75 * first, 0.75 * second], 0, 0.15)


def test_any_block_can_be_made_alone():
    knobs = Knobs(density=0.5, noise=0.1)
    X, y = drawn(knobs, rows=3 * BLOCK)
    alone, labels = plant("synth", 20, 0, knobs).block(2)
    assert (alone.toarray() == X[2 * BLOCK :]).all()
    assert (labels == y[2 * BLOCK :]).all()


def test_the_file_keeps_the_true_weights_and_stays_sparse(tmp_path):
    knobs = Knobs(density=0.1, balance=0.2)
    write_synthetic(tmp_path / "s.h5", "synth", 100, 30, 0, knobs=knobs)
    reader = Hdf5Reader(tmp_path / "s.h5")
    truth = plant("synth", 30, 0, knobs)
    assert (reader.file.attrs["true_weights"] == truth.weights).all()
    assert reader.file.attrs["true_intercept"] == truth.intercept < 0
    assert reader.is_sparse
    reader.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"condition": 0.5},
        {"correlation": 1.0},
        {"density": 0.0},
        {"noise": 0.5},
        {"balance": 1.0},
        {"period": 1.0},
        {"density": 0.5, "correlation": 0.1},
    ],
)
def test_knobs_that_no_data_can_have(wrong):
    with pytest.raises(ConfigError, match="must be|leave one"):
        plant("synth", knobs=Knobs(**wrong))
    with pytest.raises(ConfigError, match="two labels"):
        plant("poisson-synth", knobs=Knobs(balance=0.5))

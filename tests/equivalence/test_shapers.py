"""Mean gradients that are clipped, centred, made of length one or disturbed."""

import numpy as np
import pytest

from hpcsgd.agreements.codecs import Moment
from hpcsgd.agreements.shaping import (
    BLOCK,
    ByNorm,
    ByPercentile,
    GradientFacts,
    Noise,
    OverClasses,
    OverColumns,
    ToLengthOne,
)
from hpcsgd.errors import ConfigError
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import make_problem, train_on
from tests.helpers.shapers import SHAPES, expected


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("grid", [(1, 1), (3, 1), (2, 2)])
def test_steps_are_those_of_one_process_on_the_union(name, grid):
    asked, restated = SHAPES[name]
    for family in ("softmax",) if name == "classes" else ("logistic", "softmax"):
        problem = make_problem(family)
        settings = {"update": asked, "problem": {"intercept": True}}
        config = agreed(problem, *grid, **settings, agreement={"accumulate": 2})
        result = train_on(grid[0] * grid[1], config, problem)
        w, b, changed = expected(config, problem, restated(config))
        error = np.abs(result.weights.reshape(w.shape) - w).max() / np.abs(w).max()
        assert error < 1e-12, f"{family}: relative error {float(error):.1e}"
        assert np.allclose(np.ravel(result.intercept), b[0].astype(float), atol=1e-12)
        if name != "classes":  # of softmax that mean is zero
            assert changed > 2
        if "clip" in asked:
            assert result.report["agreement"]["clipped_updates"] > 0


@pytest.mark.parametrize("how", ["value", "norm"])
def test_one_replica_is_clipped_as_without_an_agreement(how):
    problem, update = make_problem("softmax"), {"clip": how, "clip_at": 0.04}
    results = [
        train_on(
            2,
            agreed(
                problem,
                1,
                2,
                update=update,
                agreement={"kind": kind},
                products={"kind": "direct"},
            ),
            problem,
        )
        for kind in ("gradient", "none")
    ]
    difference = np.abs(results[0].weights - results[1].weights).max()
    assert difference < 1e-14
    assert results[1].report["clipped_updates"] > 0


@pytest.mark.parametrize("name", ["percentile", "noise"])
def test_a_run_goes_on_bit_for_bit(name, tmp_path):
    problem = make_problem("logistic")
    config = agreed(problem, 2, update=SHAPES[name][0])
    whole = in_folder(tmp_path / "whole", config, 2, problem)[0]
    in_folder(tmp_path / "parts", config, 2, problem, stop=4)
    again = in_folder(tmp_path / "parts", config, 2, problem)[0]
    assert again.weights_sha256 == whole.weights_sha256


def test_sums_of_words_over_members_are_counted():
    """A norm takes one word from each member and step, a centre K words."""
    problem = make_problem("softmax")
    own = problem.classes
    for update, words in (({"clip": "norm"}, 1), ({"centre": "columns"}, own), ({}, 0)):
        config = agreed(problem, 1, 2, update=update)
        result = train_on(2, config, problem)
        found = result.ledger["agreement"]
        assert found["words"] == words * result.iterations


def test_noise_has_its_variance_and_is_that_of_its_column():
    seen = Moment(number=9, epoch=0, rate=0.1, next_rate=0.1)
    noise, total = Noise(0.04, seed=3), 3 * BLOCK + 5
    whole = np.zeros((total, 2))
    noise.shape(whole, GradientFacts(slice(0, total), lambda x: x), seen)
    assert abs(whole.var() / (0.04 / 10**0.55) - 1) < 0.05
    part = slice(BLOCK - 3, 2 * BLOCK + 1)
    own = np.zeros((part.stop - part.start, 2))
    noise.shape(own, GradientFacts(part, lambda x: x), seen)
    assert (own == whole[part]).all()
    other = np.zeros_like(own)
    noise.shape(other, GradientFacts(part, lambda x: x), Moment(10, 0, 0.1, 0.1))
    assert np.abs(other - own).max() > 0.01


def test_a_percentile_is_of_the_last_hundred_norms():
    """A scripted history: norms 1, 2, ..., 150, of which the lowest tenth passes."""
    clip = ByPercentile(at=10.0)
    for number in range(150):
        g = np.array([[number + 1.0]])
        clip.shape(
            g, GradientFacts(slice(0, 1), lambda x: x), Moment(number, 0, 1.0, 1.0)
        )
        seen = np.arange(max(number - 99, 0), number + 1) + 1.0
        assert g[0, 0] == pytest.approx(min(np.percentile(seen, 10), number + 1.0))


def test_limits_that_nobody_gave_are_the_usual_ones():
    """1 of values and norms, the lowest twentieth of norms; written or not."""
    problem = make_problem("logistic")
    for how, usual, other in (("norm", 1.0, 0.05), ("percentile", 5.0, 100.0)):
        found = [
            train_on(2, agreed(problem, 2, update={"clip": how, **at}), problem)
            for at in ({}, {"clip_at": usual}, {"clip_at": other})
        ]
        plain, same, another = (one.weights_sha256 for one in found)
        assert plain == same != another


def test_steps_that_were_left_out_are_no_short_ones():
    """Of forty steps every second one overflowed, and is no norm of zero."""
    clip = ByPercentile(at=10.0)
    for number in range(0, 40, 2):
        g = np.array([[number + 1.0]])
        clip.shape(
            g, GradientFacts(slice(0, 1), lambda x: x), Moment(number, 0, 1.0, 1.0)
        )
        seen = np.arange(0, number + 1, 2) + 1.0
        assert g[0, 0] == pytest.approx(min(np.percentile(seen, 10), number + 1.0))


@pytest.mark.parametrize("size", [1e-44, 1e-39, 1.0, 1e38])
def test_gradients_of_any_size_become_of_length_one(size):
    g = np.array([[size], [0.0]], dtype=np.float32)
    ToLengthOne().shape(
        g, GradientFacts(slice(0, 2), lambda x: x), Moment(0, 0, 1.0, 1.0)
    )
    assert g.tolist() == [[1.0], [0.0]]


def test_small_gradients_are_left_alone_and_zeros_stay():
    whole, moment = GradientFacts(slice(0, 3), lambda x: x), Moment(0, 0, 1.0, 1.0)
    small = np.full((3, 2), 0.01)
    ByNorm(1.0).shape(small, whole, moment)
    assert (small == 0.01).all()
    for shaper in (ByNorm(1.0), OverClasses(), OverColumns(3)):
        zeros = np.zeros((3, 2))
        shaper.shape(zeros, whole, moment)
        assert not zeros.any()


@pytest.mark.parametrize("kind", ["adam", "adagrad", "momentum", "nesterov"])
def test_eight_bits_end_near_the_loss_of_all(kind):
    """2100 columns of two scores, above what is kept wide because it is small."""
    problem = make_problem("softmax", n=40, d=2100)
    losses, codes = [], []
    for bits in (32, 8):
        config = agreed(
            problem,
            2,
            schedule={"epochs": 6},
            update={"kind": kind, "bits": bits},
            agreement={"bucket": 0.005},
            rate={"value": 0.02 if kind == "adam" else 0.05},
        )
        result = train_on(2, config, problem)
        losses.append(result.loss)
        codes.append(result.weights_sha256)
    assert codes[0] != codes[1]
    assert abs(losses[1] / losses[0] - 1) < 0.01


def test_eight_bits_go_on_bit_for_bit_and_on_another_grid(tmp_path):
    problem = make_problem("logistic", n=40, d=5000)
    config = agreed(problem, 2, update={"kind": "adam", "bits": 8})
    whole = in_folder(tmp_path / "whole", config, 2, problem)[0]
    in_folder(tmp_path / "parts", config, 2, problem, stop=4)
    again = in_folder(tmp_path / "parts", config, 2, problem)[0]
    assert again.weights_sha256 == whole.weights_sha256
    in_folder(tmp_path / "other", config, 2, problem, stop=4)
    other = agreed(problem, 1, 2, update={"kind": "adam", "bits": 8})
    assert in_folder(tmp_path / "other", other, 2, problem)[0].status.is_finished


def test_one_score_has_no_mean_to_lose():
    problem = make_problem("logistic")
    config = agreed(problem, 2, update={"centre": "classes"})
    with pytest.raises(ConfigError, match="--family softmax"):
        train_on(2, config, problem)


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"clip": "percentile", "clip_at": 5.0}, "clip = 'percentile'"),
        ({"centre": "classes"}, "centre = 'classes'"),
        ({"normalise": True}, "normalise = True"),
        ({"noise": 0.1}, "noise = 0.1"),
        ({"kind": "momentum", "bits": 8}, "bits = 8"),
    ],
)
def test_where_no_gradients_travel_they_are_refused(update, said):
    problem = make_problem("logistic")
    config = agreed(problem, 2, update=update, agreement={"kind": "average"})
    with pytest.raises(ConfigError, match=said) as refused:
        train_on(2, config, problem)
    assert "--agreement gradient" in str(refused.value)

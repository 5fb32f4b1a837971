"""Rates as functions of the step's number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsgd.errors import ConfigError
from hpcsgd.glm.penalties import Penalty
from hpcsgd.glm.updates import RATES, RateConfig, make_rate
from hpcsgd.runs.feed import LastRate
from tests.helpers.harness import config_for, make_problem


def config_of(kind, value, decay=0.0, warmup=0):
    """A schedule of this kind, with milestones where it has some."""
    more = {
        "milestones": {"milestones": (0.3, 0.7), "factor": 0.5},
        "step": {"every": 1, "factor": 0.5},
    }.get(kind, {})
    return RateConfig(kind, value, decay, warmup, **more)


@pytest.mark.parametrize("kind", sorted(RATES))
@pytest.mark.parametrize("warmup", [0, 4])
def test_pieces_make_the_whole(kind, warmup):
    """Asked for in groups of any size, the same rates."""
    rate = make_rate(config_of(kind, 0.5, 0.1, warmup), 20)
    whole = rate.at(0, 20)
    pieces = np.concatenate([rate.at(k, n) for k, n in ((0, 3), (3, 7), (10, 10))])
    np.testing.assert_array_equal(whole, pieces)
    assert (whole >= 0).all() and whole.max() <= 0.5


def test_formulas():
    def at(kind, k, **more):
        return make_rate(RateConfig(kind, 2.0, **more), 10).at(k, 1)[0]

    assert at("constant", 7) == 2.0
    assert at("inverse", 4, decay=0.5) == pytest.approx(2 / 3)
    assert at("inverse-sqrt", 6, decay=0.5) == pytest.approx(1.0)
    assert at("cosine", 0) == 2.0
    assert at("cosine", 5) == pytest.approx(1.0)
    assert at("constant", 0, warmup=4) == 0.5, "the first rate is not zero"
    assert at("constant", 3, warmup=4) == 2.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "steep"},
        {"value": -1.0},
        {"value": float("nan")},
        {"decay": -1.0},
        {"warmup": -1},
        {"kind": "milestones"},
        {"kind": "milestones", "milestones": (2.0, 2.0)},
        {"kind": "milestones", "milestones": (3.0, 2.0)},
        {"kind": "milestones", "milestones": (0.0,)},
        {"kind": "milestones", "milestones": (float("inf"),)},
        {"kind": "step", "every": 0},
        {"kind": "step", "every": 1.5},
        {"kind": "milestones", "milestones": (1.0,), "factor": 1.0},
        {"kind": "milestones", "milestones": (1.0,), "factor": 0.0},
        {"kind": "milestones", "milestones": (1.0,), "factor": float("nan")},
    ],
)
def test_wrong_rates(wrong):
    with pytest.raises(ConfigError, match=r"\[rate\]"):
        RateConfig(**wrong)


@given(
    st.sampled_from(sorted(RATES)),
    st.floats(1e-6, 10),
    st.floats(0, 1),
    st.integers(0, 30),
    st.integers(1, 100),
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
)
def test_any_cut_gives_the_rates_of_the_whole(kind, value, decay, warmup, n, cuts):
    """A group of s steps asks once; s must not change a single rate."""
    rate = make_rate(config_of(kind, value, decay, warmup), n)
    starts = np.cumsum([0, *cuts])
    pieces = [rate.at(int(k), c) for k, c in zip(starts, cuts, strict=False)]
    whole = rate.at(0, sum(cuts))
    assert whole.dtype == np.float64 and whole.shape == (sum(cuts),)
    np.testing.assert_array_equal(whole, np.concatenate(pieces))
    assert (whole >= 0).all() and (whole <= value).all()


@pytest.mark.parametrize("kind", sorted(RATES))
def test_rates_fall_once_warm_up_is_over(kind):
    rate = make_rate(config_of(kind, 0.5, 0.2, 6), 40)
    rates = rate.at(0, 40)
    assert (np.diff(rates[5:]) <= 0).all()
    plain = make_rate(config_of(kind, 0.5, 0.2), 40).at(0, 40)
    np.testing.assert_allclose(rates[:6], plain[:6] * np.arange(1, 7) / 6)
    np.testing.assert_array_equal(rates[6:], plain[6:])


def test_milestones_are_epochs_after_which_the_rate_is_multiplied():
    """Of six epochs of four steps: after 2 and 5, and amid one where they say so."""
    made = RateConfig("milestones", 3.0, milestones=(2.0, 5.0), factor=0.1)
    rate = make_rate(made, 24, 6)
    want = [3.0] * 8 + [0.3] * 12 + [0.03] * 4
    np.testing.assert_allclose(rate.at(0, 24), want, rtol=1e-15)
    assert [rate.drops(k) for k in (0, 7, 8, 19, 20, 24)] == [0, 0, 1, 1, 2, 2]
    halves = RateConfig("milestones", 1.0, milestones=(0.5,), factor=0.5)
    np.testing.assert_array_equal(make_rate(halves, 6, 2).at(0, 6), [1, 1, *[0.5] * 4])
    longer = make_rate(made, 40, 10)  # a run that is made longer goes on alike
    np.testing.assert_array_equal(longer.at(0, 24), rate.at(0, 24))


@pytest.mark.parametrize("kind", sorted(set(RATES) - {"milestones"}))
def test_smooth_rates_have_no_drops(kind):
    rate = make_rate(RateConfig(kind, 0.5, decay=100.0, warmup=3), 20, 4)
    assert not any(rate.drops(k) for k in range(30))


def test_cosine_ends_at_zero_and_stays_there():
    rate = make_rate(RateConfig("cosine", 1.0), 10)
    assert rate.at(10, 1)[0] == pytest.approx(0, abs=1e-15)
    assert rate.at(25, 1)[0] == pytest.approx(0, abs=1e-15), "no second wave"
    assert make_rate(RateConfig("cosine", 1.0), 0).at(0, 1)[0] == 1.0


@pytest.mark.parametrize(
    "wrong", [{"value": float("inf")}, {"decay": float("inf")}, {"decay": float("nan")}]
)
def test_rates_that_are_not_finite(wrong):
    with pytest.raises(ConfigError, match=r"\[rate\]"):
        RateConfig(**wrong)


@given(st.floats(0, 10), st.lists(st.floats(-5, 5), min_size=1, max_size=9))
def test_penalties(l2, weights):
    w = np.array(weights, dtype=np.float32).reshape(-1, 1)
    expected = l2 / 2 * float(np.sum(w.astype(float) ** 2))
    assert Penalty(l2).value(w) == pytest.approx(expected, rel=1e-12)
    assert Penalty().value(w) == 0.0


def test_a_penalty_is_summed_in_float64():
    w = np.full((1000, 1), 1e30, dtype=np.float32)
    assert Penalty(2.0).value(w) == pytest.approx(1e63, rel=1e-6)


@pytest.mark.parametrize("each", [1, 7, 100])
@pytest.mark.parametrize("every", [1, 3, 30])
def test_step_decay_drops_after_every_so_many_epochs(every, each):
    """η f^⌊epoch / every⌋, written by epochs; the same as milestones there."""
    epochs, factor = 100, 0.5
    rate = make_rate(
        RateConfig("step", 2.0, every=every, factor=factor), epochs * each, epochs
    )
    wanted = [2.0 * factor ** (epoch // every) for epoch in range(epochs)]
    np.testing.assert_array_equal(rate.at(0, epochs * each), np.repeat(wanted, each))
    drops = tuple(float(e) for e in range(every, epochs, every))
    other = make_rate(
        RateConfig("milestones", 2.0, milestones=drops, factor=factor),
        epochs * each,
        epochs,
    )
    for step in range(0, epochs * each, 13):
        assert rate.drops(step) == other.drops(step) == step // each // every


def test_slow_momentum_knows_drops_after_epochs():
    """γ of a slow step is the rate of the step before it, after a drop, too."""
    problem = make_problem("logistic", n=58)
    config = config_for(
        problem,
        schedule={"batch": 4, "steps": 2, "epochs": 4, "period": 2},
        rate={"kind": "step", "value": 0.5, "every": 2, "factor": 0.1},
    )
    after = LastRate(config, 29)  # four exchanges an epoch
    assert [after(k) for k in (1, 8, 9, 16)] == pytest.approx([0.5, 0.5, 0.05, 0.05])

"""Unrolled coefficients against the affine steps they stand for."""

import numpy as np
import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.glm import UPDATES, make_update, unroll
from hpcsgd.glm.unrolling import plain_steps

RATES, COUNTS, L2 = [0.3, 0.2, 0.1, 0.4], [4, 4, 3, 1], 0.1


@pytest.mark.parametrize("name", sorted(UPDATES))
def test_unrolled_equals_step_by_step(name):
    update = make_update(name, 0.7)
    plan = unroll(update, RATES, COUNTS, L2)
    rng = np.random.default_rng(0)
    x0 = rng.normal(size=update.states)
    pushes = rng.normal(size=len(RATES))  # stands for A_iᵀ r_i along one direction
    x, reads = x0.copy(), []
    for rate, count, push in zip(RATES, COUNTS, pushes, strict=True):
        reads.append(update.probe() @ x)
        x = update.transition(rate, L2) @ x + update.gain(rate, count) * push
    for j, read in enumerate(reads):
        unrolled = plan.lead[j] @ x0 + plan.couple[j] @ pushes[:j]
        assert unrolled == pytest.approx(read, rel=1e-13)
    np.testing.assert_allclose(plan.carry @ x0 + pushes @ plan.gain, x, rtol=1e-13)


def test_plain_sgd_has_the_formulas_of_the_text():
    """lead = P_{0..j}, couple = −h_i P_{i+1..j}, carry = P_{0..s}."""
    plan = unroll(make_update("sgd", 0.0), RATES, COUNTS, L2)
    shrink = 1 - np.array(RATES) * L2
    h = np.array(RATES) / COUNTS
    assert plan.carry[0, 0] == pytest.approx(np.prod(shrink))
    for j in range(4):
        assert plan.lead[j, 0] == pytest.approx(np.prod(shrink[:j]))
        for i in range(j):
            expected = -h[i] * np.prod(shrink[i + 1 : j])
            assert plan.couple[j][i] == pytest.approx(expected)


def test_unknown_update_and_momentum():
    with pytest.raises(ConfigError, match="known: "):
        make_update("adamax", 0.9)
    with pytest.raises(ConfigError, match=r"must lie in \[0, 1\)"):
        make_update("momentum", 1.0)


@pytest.mark.parametrize("name", sorted(UPDATES))
def test_plain_steps_are_those_of_each_rate(name):
    """All updates are affine in their rate, which is what makes all steps one sum."""
    update = make_update(name, 0.7)
    steps = plain_steps(update, RATES, COUNTS, L2)
    assert steps.states == update.states
    for j, (rate, count) in enumerate(zip(RATES, COUNTS, strict=True)):
        for found, expected in (
            (steps.carry[j], update.transition(rate, L2)),
            (steps.free[j], update.transition(rate, 0.0)),
            (steps.gain[j], update.gain(rate, count)),
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-16)
    np.testing.assert_array_equal(steps.probe, update.probe())

"""How often replicas average, how far off that ends, and rates that come to zero."""

from math import ceil

import numpy as np
import pytest

from tests.helpers.averages import config_of
from tests.helpers.averages_laws import gap
from tests.helpers.contracts.codec import Alone, moments, opened, parts_of
from tests.helpers.harness import make_problem, train_on

LOCAL = {"kind": "average"}


@pytest.mark.parametrize("tau", [1, 2, 3, 5, 7, 29, 40])
def test_rounds_are_steps_over_the_period_rounded_up(tau):
    """29 rows of a replica in batches of 2, two epochs: 30 steps, ⌈30 / τ⌉ messages."""
    problem = make_problem("logistic", n=58)
    schedule = {"batch": 2, "steps": 1, "epochs": 2, "period": tau}
    config = config_of(problem, "average", 2, schedule=schedule)
    result = train_on(2, config, problem)
    assert result.exchanges == 30
    assert result.ledger["agreement"]["calls"] == ceil(30 / tau)


def test_two_steps_between_averages_are_nearer_than_four():
    """The relative gap at the fixed point, below 0.1 % as for longer periods."""
    assert 0 < gap(LOCAL, tau=2) < gap(LOCAL, tau=4) < 1e-3


@pytest.mark.full
@pytest.mark.parametrize("tau, slower", [(2, 1.0), (8, 4.0)])
def test_a_tenth_of_the_rate_ends_fifty_times_nearer(tau, slower):
    """Where τ steps are still small: at 1/L eight come near a replica's own optimum."""
    found = gap(LOCAL, tau=tau, slower=slower)
    assert gap(LOCAL, tau=tau, slower=10 * slower) < found / 50


@pytest.mark.parametrize("row", ["slowmo", "sharded", "slow fedavg"])
def test_a_rate_that_comes_to_zero_divides_nothing(row):
    """Warm-up from little, a cosine to zero at the end: finite, and it learns."""
    problem = make_problem("logistic", n=58)
    config = config_of(problem, row, rate={"kind": "cosine", "warmup": 3})
    result = train_on(4, config, problem)
    assert np.isfinite(result.weights).all()
    assert result.loss < result.history[0]["loss"]
    none = config_of(problem, row, rate={"kind": "constant", "value": 1e-300})
    assert np.abs(train_on(4, none, problem).weights).max() < 1e-290


def test_random_words_contract_on_average():
    """E |a − C(a)|² = (1 − k/D) |a|², with words as they are: as feedback has it."""
    codec = opened("randomk", {"share": 0.2}, 100)
    part, left = parts_of(100, 1)[0], []
    for moment in moments(4000):
        codec.error[...] = 0.0
        said = codec.start(part.copy(), Alone(), moment)().mean
        left.append(((part - said) ** 2).sum())
    share = np.mean(left) / (part**2).sum()
    spread = np.std(left) / (part**2).sum() / np.sqrt(len(left))
    assert abs(share - 0.8) < 4.5 * spread < 0.05

"""Where replicas that mix weights or send momentum lead, and their broken twins.

Logistic rows sorted by margin, the worst of shards, λ = 0.05, whole shards a step.
"""

import numpy as np
import pytest

from hpcsgd.agreements import AGREEMENTS
from hpcsgd.agreements.averaging import MixPairs
from tests.helpers.averages_laws import CURVATURE, HARD, L2, OPTIMUM, gap, loss
from tests.helpers.bagua import Ring, config_of
from tests.helpers.bagua_laws import WithoutFeedback, always_the_same
from tests.helpers.harness import config_for, train_on

ALL = {"kind": "decentralized"}
PAIRS = {"kind": "decentralized", "peers": "shift_one"}
LOW = {"kind": "decentralized-low"}
pytestmark = pytest.mark.full


@pytest.mark.cases(2)
@pytest.mark.parametrize("asked", [ALL, PAIRS, LOW], ids=["all", "pairs", "low"])
def test_the_mean_model_is_near_the_optimum(asked):
    """Off by the square of the rate: below 0.01 % at a quarter of 1/L."""
    found = gap(asked, slower=4.0, tau=1, passes=40)
    assert 0 < found < 1e-4
    assert gap(asked, slower=12.0, tau=1, passes=30) < found / 4


def test_pairs_that_never_change_are_worse(monkeypatch):
    good = gap(PAIRS, slower=4.0, tau=1, passes=40)
    monkeypatch.setattr(MixPairs, "start", always_the_same)
    assert gap(PAIRS, slower=4.0, tau=1, passes=40) > 5 * good


def test_weights_in_8_bits_are_worse_than_moves(monkeypatch):
    good = gap(LOW, slower=16.0, tau=1, passes=16)
    monkeypatch.setitem(AGREEMENTS, "decentralized-low", WithoutFeedback)
    assert gap(LOW, slower=16.0, tau=1, passes=16) > 3 * good


def test_a_byte_a_word_costs_next_to_nothing():
    """Against the same ring in float64: the gap changes by less than 2 %."""
    rows, steps = len(HARD.X) // 4, 160
    config = config_of(
        HARD,
        "low",
        problem={"l2": L2, "intercept": False},
        rate={"value": 0.25 / CURVATURE},
        schedule={"batch": rows, "epochs": steps},
    )
    ring = Ring(config, HARD, quantise=False)
    whole = loss(HARD, np.ravel(ring.run()[0])) / OPTIMUM - 1
    spread = max(np.linalg.norm(w - ring.mean()) for w in ring.w)
    assert spread > 0.01  # replicas differ, by the order of the rate
    assert gap(LOW, slower=4.0, tau=1, passes=40) == pytest.approx(whole, rel=0.02)


def test_averages_that_come_late_lead_where_local_sgd_does():
    aside = {"kind": "async-average", "delay": 2}
    local = gap({"kind": "average"}, tau=8, passes=100)
    assert 0 < gap(aside, tau=8, passes=100) < 1e-3
    assert gap({**aside, "delay": 0}, tau=8, passes=100) == local


def momentum_gap(warmup_steps, codec="bytegrad", steps=200):
    config = config_for(
        HARD,
        problem={"l2": L2},
        rate={"value": 0.03},
        schedule={"batch": len(HARD.X) // 4, "steps": 1, "epochs": steps},
        products={"kind": "direct"},
        grid={"replicas": 4, "members": 1},
        agreement={"kind": "qadam", "codec": codec, "warmup_steps": warmup_steps},
        update={"kind": "adam"},
        codec={"feedback": "off"},
        run={"check_every": 10**5, "gap_every": 0},
    )
    return loss(HARD, train_on(4, config, HARD).weights) / OPTIMUM - 1


def test_momentum_in_8_bits_converges_after_a_warm_up():
    """Variances of one gradient are too small for ever: steps blow up."""
    good = momentum_gap(50)
    assert good < 1e-5
    assert momentum_gap(50, "identity") < 1e-9
    assert not momentum_gap(1) < 1000 * good

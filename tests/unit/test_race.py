"""Which of several rates wins, and that all ranks say so."""

import numpy as np
import pytest

import hpcsgd
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.errors import ConfigError
from tests.helpers.problems import make_problem


def orthogonal(n=256, d=8):
    """Rows whose losses have one curvature: the best rate of full batches is 1/L."""
    rng = np.random.default_rng(3)
    q, _ = np.linalg.qr(rng.normal(size=(n, d)))
    X = q * np.sqrt(n)  # XᵀX/n = I
    return X, X @ rng.normal(size=d)


@pytest.mark.parametrize("intercept", [False, True])
def test_the_best_rate_is_known(intercept):
    """Gradient descent with XᵀX/n = I ends in one step of rate 1; others do not."""
    X, y = orthogonal()
    config = {
        "problem": {"family": "gaussian", "intercept": intercept},
        "schedule": {"batch": 256, "steps": 1},
        "rate": {"value": 0.5},
        "precision": {"recipe": "fp64"},
    }
    assert hpcsgd.race(config, X=X, y=y, world=SerialCommunicator()) == 1.0


@pytest.mark.parametrize("kind", ["gram", "direct"])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("update", ["sgd", "momentum"])
def test_all_ranks_agree_and_agree_again(kind, family, update):
    """On any grid the same rate: the columns that stay go on from their state."""
    problem = make_problem(family, n=203, d=7)
    config = {
        "problem": {"family": family, "intercept": True},
        "schedule": {"batch": 8, "steps": 3},
        "products": {"kind": kind},
        "update": {"kind": update, "momentum": 0.5},
        "precision": {"recipe": "fp64"},
    }

    def on_rank(world):
        before = world.ledger.as_dict()
        found = hpcsgd.race(config, X=problem.X, y=problem.y, world=world)
        assert world.ledger.as_dict() == before  # a race is no part of a run
        return found

    found = [*run_ranks(1, on_rank), *run_ranks(3, on_rank)]
    assert len(set(found)) == 1


def test_a_race_is_won_by_the_one_that_would_win_alone():
    """Of two there is one round: the lower F after the same exchanges."""
    problem = make_problem("logistic", n=200, d=7)
    config = {"schedule": {"batch": 8, "steps": 5, "epochs": 1}}
    losses = {}
    for rate in (0.05, 1.0):
        one = config | {"rate": {"value": rate}}
        losses[rate] = hpcsgd.train(one, X=problem.X, y=problem.y).loss
    found = hpcsgd.race(config, rates=(0.05, 1.0), share=1.0, X=problem.X, y=problem.y)
    assert found == min(losses, key=losses.get)


def test_rates_that_diverge_leave_first():
    problem = make_problem("gaussian", n=200, d=7)
    rates = (1e90, 1e-3, 1e80, 1e70)
    assert (
        hpcsgd.race(
            {"problem": {"family": "gaussian"}}, rates=rates, X=problem.X, y=problem.y
        )
        == 1e-3
    )


def test_a_race_that_nobody_survives_says_so():
    problem = make_problem("gaussian", n=200, d=7)
    with pytest.raises(ConfigError, match="every rate that was left"):
        hpcsgd.race(
            {"problem": {"family": "gaussian"}},
            rates=(1e90, 1e80),
            X=problem.X,
            y=problem.y,
        )


def test_a_race_that_nobody_wins_is_said(caplog):
    """The least of two rates that are both too large is no good one."""
    problem = make_problem("logistic", n=200, d=7)
    given = {"share": 1.0, "X": problem.X, "y": problem.y}
    assert hpcsgd.race({}, rates=(300.0, 100.0), **given) == 100.0
    assert "no rate of the race lowered the loss, and 100 ended" in caplog.text
    caplog.clear()
    assert hpcsgd.race({}, rates=(300.0, 0.1), **given) == 0.1
    assert "no rate" not in caplog.text


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_is_a_part(share):
    with pytest.raises(ConfigError, match="share"):
        hpcsgd.race(share=share, X=np.eye(2), y=[0, 1])


def test_fit_takes_the_rate_that_wins():
    """Around the rate of the data, on rows and columns that ranks have apart."""
    X, y = orthogonal()
    asked = {"batch": 256, "steps": 1, "alpha": 0.0, "fit_intercept": False}
    cautious = {"rate": {"norm": "rows"}}
    longest = 1.0 / np.square(X).sum(axis=1).max()
    found = hpcsgd.fit(X, "gaussian", y, rate="race", config=cautious, **asked)
    rate = found.config["rate"]["value"]
    # 1 is best; the race knows powers of two around 1/L, to three figures.
    nearest = min((longest * 2.0**k for k in range(-4, 4)), key=lambda r: abs(r - 1))
    assert rate == pytest.approx(nearest, rel=1e-2)
    own = np.array_split(np.arange(len(X)), 3)

    def on_rank(world):
        mine = own[world.rank]
        given = {"rate": "race", "config": cautious, "comm": world, "layout": "rows"}
        return hpcsgd.fit(X[mine], "gaussian", y[mine], **asked, **given)

    for result in run_ranks(3, on_rank):
        assert result.config["rate"]["value"] == rate


def test_a_race_is_of_sgd():
    X, y = orthogonal()
    for method in ("ddp", "zero3"):
        with pytest.raises(ConfigError, match=f"together, and {method} trains one"):
            named = {"agreement": {"method": method}}
            hpcsgd.fit(X, "gaussian", y, rate="race", solver="sgd", config=named)
    for solver in ("svrg", "coordinate"):
        with pytest.raises(ConfigError, match="a race of rates cannot be used"):
            hpcsgd.fit(X, "gaussian", y, rate="race", solver=solver)

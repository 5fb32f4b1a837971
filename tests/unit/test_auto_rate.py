"""The rate that data ask for: 1/L by the textbook, alike on all ranks and grids."""

from argparse import ArgumentTypeError

import numpy as np
import pytest
from scipy.sparse import csr_array

from hpcsgd.api import train
from hpcsgd.cli.parser import rate
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.glm import FAMILIES, UPDATES
from hpcsgd.glm.updates import RateConfig, make_rate
from hpcsgd.runs.auto_rate import rounded_down
from hpcsgd.tuning.tuner import check_rate
from tests.helpers.auto_rate import rate_of, smoothness
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.problems import FAMILIES as NAMES

AUTO = {"value": "auto"}


@pytest.mark.parametrize("family", NAMES)
def test_one_over_the_longest_row(family):
    problem = make_problem(family, n=41, d=5)
    config = config_for(
        problem, rate=AUTO, problem={"l2": 0.3, "intercept": True}, schedule={}
    )
    result = train_on(1, config, problem, weights=True, offset=True)
    c = problem.weights / problem.weights.mean()
    expected = 1.0 / (smoothness(problem, c, problem.offset, 1.0) + 0.3)
    assert rate_of(result) <= expected * (1 + 1e-6)
    assert rate_of(result) == pytest.approx(expected, rel=0.011)
    assert result.history and "auto" not in str(result.config["rate"])


def test_momentum_makes_it_slower():
    problem = make_problem("logistic")
    plain, heavy = (
        train_on(1, config_for(problem, rate=AUTO, update=update), problem)
        for update in ({}, {"kind": "nesterov", "momentum": 0.75})
    )
    assert rate_of(heavy) == pytest.approx(rate_of(plain) / 4, rel=0.02)


@pytest.mark.parametrize("norm", ["rows", "batches"])
@pytest.mark.parametrize("ranks, replicas", [(2, 1), (3, 1), (2, 2), (4, 2)])
def test_all_ranks_and_grids_find_the_same(norm, ranks, replicas):
    problem = make_problem("poisson", n=60, d=7)
    settings = {"rate": {"value": "auto", "norm": norm}, "grid": {"replicas": replicas}}
    config = config_for(problem, **settings, schedule={"batch": 60})
    found = run_ranks(
        ranks, lambda w: rate_of(train(config, X=problem.X, y=problem.y, world=w))
    )
    one = config_for(problem, rate=settings["rate"], schedule={"batch": 60})
    assert len(set(found)) == 1
    # Replicas make batches of their own rows.
    if norm == "rows" or replicas == 1:
        assert found[0] == rate_of(train_on(1, one, problem))


@pytest.mark.parametrize("norm", ["rows", "batches"])
def test_sparse_rows_give_that_of_dense_ones(norm):
    problem = make_problem("logistic", n=90, d=9)
    X = problem.X * (np.abs(problem.X) > 0.3)
    config = config_for(problem, rate={"value": "auto", "norm": norm})
    rates = [
        rate_of(train(config, X=matrix, y=problem.y)) for matrix in (X, csr_array(X))
    ]
    assert rates[0] == rates[1]


def test_batches_are_bolder_and_stay_below_the_limit_of_every_batch():
    """The largest λ_max of a batch, and no longest row that is not in it."""
    problem = make_problem("gaussian", n=96, d=20)
    X = problem.X.copy()
    X[7] *= 5.0  # one long row
    config = config_for(problem, rate={"value": "auto", "norm": "batches"})
    rate = rate_of(train(config, X=X, y=problem.y))
    assert rate > 2 * rate_of(train(config_for(problem, rate=AUTO), X=X, y=problem.y))
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = rng.choice(96, size=4, replace=False)
        batch = X[rows]
        assert rate * np.linalg.eigvalsh(batch @ batch.T)[-1] / 4 < 2.0


def test_the_longest_row_counts_although_no_batch_was_sampled_with_it():
    X = np.random.default_rng(1).normal(size=(4000, 3))
    rates = []
    for size in (1.0, 100.0):
        X[1] = 0.0
        X[1, 0] = size  # 1024 rows are sampled: not this one
        config = {
            "problem": {"family": "gaussian"},
            "rate": {"value": "auto", "norm": "batches"},
        }
        rates.append(rate_of(train(config, X=X, y=X[:, 0])))
    assert rates[1] < 32.0 / 100.0**2


def test_rows_without_weight_do_not_count():
    problem = make_problem("logistic", n=30, d=4)
    X, c = problem.X.copy(), np.ones(30)
    X[3] *= 50.0
    c[3] = 0.0
    config = config_for(problem, rate=AUTO)
    rate = rate_of(train(config, X=X, y=problem.y, sample_weight=c))
    squares = np.square(np.delete(X, 3, axis=0)).sum(axis=1)
    expected = 1 / (0.25 * (30 / 29) * squares.max())
    assert rate == pytest.approx(expected, rel=0.011)


def test_one_message_of_a_word_a_row():
    problem = make_problem("logistic", n=37, d=6)
    given, found = (
        train_on(2, config_for(problem, rate=first, run={"gap_every": 0}), problem)
        for first in ({"value": 0.25}, AUTO)
    )
    more = {
        key: found.ledger["control"][key] - given.ledger["control"][key]
        for key in ("calls", "words")
    }
    # The sum of squares, and the largest of all ranks as an object.
    assert more["calls"] == 2
    assert 37 < more["words"] < 37 + 64


def test_nothing_is_asked_where_a_rate_is_given(monkeypatch):
    monkeypatch.setattr("hpcsgd.runs.auto_rate.smoothness", lambda *_: 1 / 0)
    problem = make_problem("logistic")
    assert train_on(1, config_for(problem), problem).status.value == "completed"


def test_auto_is_a_word_of_the_configuration():
    config = RunConfig.parse({"rate": AUTO})
    assert config.tables()["rate"]["value"] == "auto" and 'value = "auto"' in (
        config.toml()
    )
    for wrong in (0, 0.0, -1.0, "automatic"):
        with pytest.raises(ConfigError, match="value"):
            RunConfig.parse({"rate": {"value": wrong}})
    with pytest.raises(ConfigError, match="must be one of rows, batches"):
        RateConfig(norm="mean")
    with pytest.raises(ConfigError, match="only a run derives"):
        make_rate(config.rate, 3)


def test_squares_that_overflow_are_refused():
    X = np.full((5, 2), 1e200)
    config = {"rate": AUTO, "precision": {"recipe": "fp64"}}
    with pytest.raises(DataError, match="divide the columns"):
        train(config, X=X, y=np.arange(5) % 2)


def test_rounding_goes_down_and_keeps_round_numbers():
    assert [rounded_down(v) for v in (0.25, 0.12399, 1234.5, 1e-7)] == (
        [0.25, 0.123, 1230.0, 1e-7]
    )
    for value in np.random.default_rng(0).lognormal(sigma=20, size=200):
        assert 0.99 * value <= rounded_down(value) <= value * (1 + 1e-8)


def test_a_run_that_goes_on_finds_its_rate_again(tmp_path):
    problem = make_problem("logistic")
    settings = {
        "rate": AUTO,
        "run": {"out": str(tmp_path), "evaluate_every": 1},
        "checkpoint": {"every": 3},
    }
    short = config_for(problem, **settings, schedule={"epochs": 1})
    train_on(1, short, problem)
    settings["run"] = {**settings["run"], "resume": "auto"}
    longer = train_on(1, config_for(problem, **settings), problem)
    alone = train_on(1, config_for(problem, rate=AUTO), problem)
    assert longer.weights_sha256 == alone.weights_sha256


def test_every_family_has_one():
    assert set(NAMES) == set(FAMILIES)


def test_only_a_velocity_makes_it_slower():
    """Those with two states, w and v; SVRG has more states and no velocity."""
    problem, moving = make_problem("logistic"), {"momentum": 0.75}
    rates = {
        kind: rate_of(
            train_on(
                1,
                config_for(problem, rate=AUTO, update=moving | {"kind": kind}),
                problem,
            )
        )
        for kind in UPDATES
    }
    slower = {kind for kind, rate in rates.items() if rate < 0.5 * rates["sgd"]}
    assert slower == {"momentum", "nesterov", "nesterov-classic"}


def test_a_flag_is_a_number_or_auto():
    assert rate("auto") == "auto" and rate("0.5") == 0.5
    with pytest.raises(ArgumentTypeError, match="write a number, or auto"):
        rate("fast")


def test_a_tuner_compares_at_a_rate_that_is_known():
    config = RunConfig.parse({"rate": AUTO})
    with pytest.raises(ConfigError, match="tune compares batches at one rate"):
        check_rate(config)

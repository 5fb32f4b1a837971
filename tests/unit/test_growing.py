"""Batches that grow: exactly the steps of larger batches, at A times the rate."""

from math import inf
from threading import current_thread

import numpy as np
import pytest

from hpcsgd.agreements.base import StateShape
from hpcsgd.agreements.codecs.base import Regime
from hpcsgd.agreements.gradient import Growing
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from tests.helpers import oracle
from tests.helpers.contracts.codec import ROWS, on_all
from tests.helpers.gradients import in_folder
from tests.helpers.growing import EPOCHS, TIMES, expected, growing, unions
from tests.helpers.harness import (
    make_problem,
    relative_error,
    train_on,
)

CASES = [
    (1, 1, {}),
    (2, 1, {}),
    (3, 1, {"update": {"kind": "momentum", "momentum": 0.5}}),
    (3, 2, {"agreement": {"kind": "growing", "accumulate": TIMES, "bucket": 2.0**-15}}),
    (4, 1, {"schedule": {"batch": 4, "epochs": EPOCHS}}),
    (7, 1, {"accordion": {"eta": inf, "interval": 2}}),
]


@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("replicas, members, sections", CASES)
def test_steps_are_those_of_the_batches(family, replicas, members, sections):
    """Of one process on the unions, however uneven; the larger ones at A times η."""
    problem = make_problem(family)
    config = growing(problem, replicas, members, **sections)
    results = on_all(replicas * members, config, problem)
    assert len({r.weights_sha256 for r in results}) == 1
    small = 1 + config.accordion.interval
    exact = expected(config, problem, replicas, small)
    assert relative_error(results[0], exact) <= 1e-12
    other = expected(config, problem, replicas, small + 1)
    assert relative_error(results[0], other) > 1e-6


def test_the_rate_stays_where_it_is_told_to():
    problem = make_problem("logistic")
    asked = {"eta": inf, "interval": 1, "scale_rate": False}
    config = growing(problem, 2, accordion=asked)
    result = train_on(2, config, problem)
    assert relative_error(result, expected(config, problem, 2, 2, 1)) <= 1e-12
    assert relative_error(result, expected(config, problem, 2, 2)) > 1e-6


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_nothing_is_settled_enough_for_eta_zero(kind):
    """Always small: the gradient agreement, to the bit; adam counts its steps."""
    problem = make_problem("softmax")
    config = growing(problem, 3, eta=0.0, update={"kind": kind})
    tables = config.tables()
    tables["agreement"] |= {"kind": "gradient", "accumulate": 1}
    del tables["accordion"]
    plain = train_on(3, RunConfig.parse(tables), problem)
    result = train_on(3, config, problem)
    assert result.weights_sha256 == plain.weights_sha256
    assert result.iterations == plain.iterations
    assert result.report["agreement"]["large_steps"] == 0


@pytest.mark.parametrize("replicas, members", [(2, 1), (3, 1), (3, 2)])
def test_messages_become_fewer(replicas, members):
    """A message a step and bucket, a broadcast a look, and Σ|G|² where C > 1."""
    problem = make_problem("softmax")
    config = growing(problem, replicas, members)
    results = on_all(replicas * members, config, problem)
    rows = -(-len(problem.X) // replicas)
    small, large = -(-rows // 3), -(-rows // 9)
    for result in results:
        said, sent = result.report["agreement"], result.ledger["agreement"]
        steps = 2 * small + 3 * large
        assert (said["small_steps"], said["large_steps"]) == (2 * small, 3 * large)
        shared = replicas > 2 and members > 1
        calls = steps * (said["buckets"] + shared)
        assert sent["calls"] == calls + EPOCHS * (1 + (members > 1))
        if members == 1:
            words = steps * (7 * 4 + 4 + 1)
            assert sent["bytes"] == 8 * words + 4 * EPOCHS


def test_batches_never_become_smaller_again(monkeypatch):
    """Whatever a look would say by then."""
    looks = iter([True, False, True, True, True])
    monkeypatch.setattr(Regime, "verdict", lambda *of: next(looks))
    problem = make_problem("logistic")
    result = train_on(1, growing(problem, 1), problem)
    exact = expected(growing(problem, 1), problem, 1, 2)
    assert relative_error(result, exact) <= 1e-12


def test_all_do_what_rank_0_says(monkeypatch):
    """Ranks whose own sums say something else would wait for each other."""
    after_exchange = Growing.after_exchange

    def other(self, state, exchanges):
        if exchanges % self.steps.each == 0:
            self.regime.total[...] *= 1 + self.grid.world.rank * exchanges
        after_exchange(self, state, exchanges)

    problem = make_problem("logistic")
    config = growing(problem, 3, eta=0.5)
    plain = on_all(3, config, problem)
    monkeypatch.setattr(Growing, "after_exchange", other)
    for result in on_all(3, config, problem):
        assert result.weights_sha256 == plain[0].weights_sha256


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("replicas, members", [(1, 1), (3, 1), (3, 2)])
def test_what_is_watched_is_a_sum_of_means(monkeypatch, replicas, members, shaped):
    """Σ_steps Σ_B a r / |B| at w = 0, also where the last unions are smaller."""
    squares, take = {}, Regime.take_square

    def taken(self):
        square = take(self)
        squares.setdefault(current_thread().name, []).append(square)
        return square

    monkeypatch.setattr(Regime, "take_square", taken)
    problem = make_problem("logistic", n=23, d=7)
    more = {"clip": "norm", "clip_at": 1e9} if shaped else {}
    config = growing(problem, replicas, members, rate={"value": 1e-14}, update=more)
    on_all(replicas * members, config, problem)
    once = RunConfig.parse(
        {**config.tables(), "agreement": {"kind": "gradient", "accumulate": 1}}
    )
    small, large = (unions(c, problem, replicas) for c in (once, config))
    assert len({len(rows) for rows in small[0]}) > 1  # counts are uneven
    r = oracle.residual(
        "logistic", np.zeros((23, 1), np.longdouble), problem.y.reshape(-1, 1)
    )
    expected = []
    for epoch in range(EPOCHS):
        steps = small[epoch] if epoch < 2 else large[epoch]
        total = sum(problem.X[rows].T @ r[rows] / len(rows) for rows in steps)
        expected.append(float(np.square(total).sum()))
    # Members hold parts of the columns, and all replicas see the same.
    found = np.array(list(squares.values())).reshape(-1, EPOCHS).sum(axis=0)
    np.testing.assert_allclose(found / replicas, expected, rtol=1e-9)


@pytest.mark.parametrize("replicas, members", [(3, 1), (2, 2)])
@pytest.mark.parametrize("codec", ["identity", "topk"])
def test_it_goes_on_bit_for_bit(replicas, members, codec, tmp_path):
    """From small steps, from the look and from large ones; steps are counted."""
    problem = make_problem("softmax")
    config = growing(
        problem,
        replicas,
        members,
        interval=2,
        agreement={"kind": "growing", "accumulate": TIMES, "codec": codec},
        codec=ROWS[codec].rough,
        update={"kind": "adam"},
    )
    ranks = replicas * members
    whole = in_folder(tmp_path / "whole", config, ranks, problem)[0]
    each = whole.exchanges // EPOCHS
    for stop in (1, 3 * each, 3 * each + 1):
        place = tmp_path / str(stop)
        in_folder(place, config, ranks, problem, stop=stop)
        again = in_folder(place, config, ranks, problem)
        assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
        assert again[0].iterations == whole.iterations


def test_another_grid_goes_on_with_large_batches(tmp_path):
    problem = make_problem("logistic")
    config = growing(problem, 3)
    each = train_on(3, config, problem).exchanges // EPOCHS
    in_folder(tmp_path, config, 3, problem, stop=3 * each)
    again = in_folder(tmp_path, growing(problem, 2), 2, problem)
    said = [r.report["agreement"] for r in again]
    assert said[0]["large_steps"] > each
    assert said[0]["small_steps"] == said[1]["small_steps"] > 0


def test_a_factor_of_one_is_refused():
    problem = make_problem("logistic")
    config = growing(problem, 2, agreement={"kind": "growing", "accumulate": 1})
    with pytest.raises(ConfigError, match="agreement.accumulate times, which is 1"):
        train_on(2, config, problem)


def test_no_formula_of_a_study_holds():
    from hpcsgd.studies.folder import expected_traffic

    problem = make_problem("logistic")
    assert expected_traffic(train_on(2, growing(problem, 2), problem).as_dict()) is None


@pytest.mark.parametrize("scales", [True, False])
def test_a_rate_from_the_data_is_that_of_the_largest_batch(scales):
    """A times it is what one agreement would have found: not beyond 2/L."""
    problem = make_problem("logistic")
    asked = {"eta": inf, "interval": 1, "scale_rate": scales}
    found = []
    for kind in ("growing", "gradient"):
        config = growing(problem, 2, accordion=asked)
        tables = config.tables()
        tables["agreement"]["kind"] = kind
        tables["rate"]["value"] = "auto"
        if kind == "gradient":
            del tables["accordion"]
        result = train_on(2, RunConfig.parse(tables), problem)
        found.append(result.config["rate"]["value"])
    assert found[1] / found[0] == pytest.approx(TIMES if scales else 1, rel=1e-2)


@pytest.mark.parametrize("replicas", [1, 2])
def test_memory_is_asked_for_the_watched_sum_of_one_replica_too(replicas):
    config = growing(make_problem("logistic"), replicas)
    shape = StateShape(config, config.precision.resolve(), columns=1000)
    assert dict(Growing.holds(shape))["watched gradients"] == 6 * shape.vector

"""l1 and bounds: proximal SGD against a longdouble oracle, step by step."""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import MemoryReader
from hpcsgd.data.sampling import Sampler
from hpcsgd.errors import ConfigError
from hpcsgd.estimators.sweep import sweep
from hpcsgd.glm.penalties import Penalty
from hpcsgd.runs.build import build
from hpcsgd.solvers.full_passes import above_least
from hpcsgd.studies.verify.certificate import certify
from tests.helpers.harness import (
    check_against_oracle,
    config_for,
    make_problem,
    train_on,
)
from tests.helpers.problems import FAMILIES

BENT = {"l1": 0.03, "l2": 0.02, "lower": -0.11, "upper": 0.4}


def proximal(problem, /, product="direct", members=1, **sections):
    """Proximal SGD, a step at a time."""
    own = {
        "problem": {**BENT, "intercept": True},
        "schedule": {"steps": 1},
        "products": {"kind": product},
        "grid": {"members": members},
    }
    for name, table in sections.items():
        own[name] = {**own.get(name, {}), **table}
    return config_for(problem, **own)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("product, members", [("direct", 1), ("gram", 3)])
def test_every_family_is_proximal_sgd(family, product, members):
    problem = make_problem(family)
    config = proximal(problem, product, members)
    check_against_oracle(members, config, problem, 1e-11, weights=True, offset=True)


@pytest.mark.parametrize("update", ["momentum", "nesterov", "nesterov-classic"])
@pytest.mark.parametrize("product, members", [("direct", 2), ("gather", 2)])
def test_momentum_takes_the_pull_of_l1_along(update, product, members):
    problem = make_problem("softmax")
    rate = {"kind": "inverse", "decay": 0.1}
    speed = {"kind": update, "momentum": 0.8}
    config = proximal(problem, product, members, update=speed, rate=rate)
    check_against_oracle(members, config, problem, 1e-11)


@pytest.mark.parametrize("update", ["sgd", "momentum", "nesterov", "nesterov-classic"])
def test_the_minimum_is_where_it_stays(update):
    """With all rows in a batch, a fixed point has a subgradient of zero."""
    problem = make_problem("gaussian", n=20, d=6)
    config = proximal(
        problem,
        schedule={"batch": 20, "epochs": 800},
        problem={"l1": 0.1, "lower": -0.2, "upper": 0.5},
        update={"kind": update, "momentum": 0.7},
        rate={"value": 0.3},
        sampling={"mode": "shuffle-once"},
    )
    result = train_on(1, config, problem)
    w = result.weights
    slope = problem.X.T @ (problem.X @ w + result.intercept - problem.y) / 20 + 0.02 * w
    least = Penalty(0.02, 0.1, -0.2, 0.5).least(w, slope)
    assert np.abs(least).max() < 1e-9
    assert (w == 0.0).any() and ((w == -0.2) | (w == 0.5)).any(), w


@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (-0.5, 1.0), (0.25, 1.0)])
@pytest.mark.parametrize("l2", [0.0, 0.5])
def test_no_weight_is_below_the_minimum_of_a_line_and_the_penalty(l2, bounds):
    """slope·u + l1|u| + (l2/2) u², also where the slope has the size of l1."""
    penalty = Penalty(l2, 0.5, *bounds)
    others = np.clip(np.linspace(-2.0, 2.0, 33), *bounds)
    weights, slope = (
        axis.reshape(-1, 1)
        for axis in np.meshgrid(others, [-0.5, -0.25, 0.0, 0.25, 0.5])
    )

    def value(u):
        return slope * u + 0.5 * np.abs(u) + l2 / 2 * np.square(u)

    best = penalty.minimum(weights, slope)
    assert (np.clip(best, *bounds) == best).all()
    assert (value(best) <= value(others).min(axis=1, keepdims=True)).all()
    above = (value(weights) - value(best)).sum()
    assert above_least(penalty, weights, slope) == pytest.approx(above)


@pytest.mark.parametrize("l2", [0.0, 0.5])
def test_weights_that_l1_holds_at_zero_add_nothing(l2):
    """They are left out of gradients and gaps; a slope that is no number is not."""
    penalty = Penalty(l2, 0.5)
    weights = np.array([0.0, 0.0, 0.0, -1.0, 2.0, 0.0])[:, None]
    slope = np.array([0.5, -0.2, 0.7, 0.1, -0.5, np.nan])[:, None]
    near, near_slope = penalty.unsettled(weights, slope)
    assert near[:, 0].tolist() == [0.0, -1.0, 2.0, 0.0]
    np.testing.assert_array_equal(near_slope[:, 0], slope[2:, 0])
    assert (penalty.least(weights[:2], slope[:2]) == 0.0).all()
    assert (penalty.minimum(weights[:2], slope[:2]) == 0.0).all()
    bounded = Penalty(l2, 0.5, 0.25, 2.0)
    assert bounded.unsettled(weights, slope)[0] is weights


def test_replicas_map_before_they_average():
    """Two replicas of one step each: the mean of two proximal steps."""
    problem = make_problem("gaussian", n=8, d=5)
    config = proximal(
        problem,
        problem={"l1": 0.1, "intercept": False, "lower": None, "upper": None},
        schedule={"batch": 4, "steps": 1, "epochs": 1},
        grid={"replicas": 2, "members": 1},
    )
    result = train_on(2, config, problem)
    ends, rate = [], problem.rate
    for half in (slice(0, 4), slice(4, 8)):
        w = rate * problem.X[half].T @ problem.y[half] / 4
        ends.append(Penalty(l1=0.1).prox(w, rate))
    np.testing.assert_allclose(result.weights, np.mean(ends, axis=0), rtol=1e-12)


@pytest.mark.parametrize("members", [1, 2])
def test_at_the_exchange_it_is_what_its_name_says(members):
    """s plain steps, then one map over the rates, each shrunk by the ridge after it."""
    problem = make_problem("logistic", n=24, d=5)
    config = proximal(
        problem,
        product="gram",
        members=members,
        problem={"l1_at": "exchange", "intercept": False},
        schedule={"batch": 4, "steps": 3, "epochs": 2},
    )
    result = train_on(members, config, problem)
    order = Sampler("shuffle-once", 0, 24, 0).order(0)
    w, rate = np.zeros(5), problem.rate
    for _ in range(2):
        for batches in np.split(order, 2):
            reach = 0.0
            for rows in np.split(batches, 3):
                Y, r = problem.X[rows], 0.0
                r = 1 / (1 + np.exp(-Y @ w)) - problem.y[rows]
                w = (1 - rate * 0.02) * w - rate * Y.T @ r / 4
                reach = (1 - rate * 0.02) * reach + rate
            w = Penalty(0.02, 0.03, -0.11, 0.4).prox(w, reach)
    np.testing.assert_allclose(result.weights, w, rtol=1e-11, atol=1e-14)
    assert (result.weights == 0.0).any()


def test_bounds_of_columns_go_with_their_columns():
    problem = make_problem("gaussian", n=30, d=5)
    lower = (-np.inf, -0.3, -0.5, 0.3, 0.31)
    bounds = {"lower": lower, "upper": 0.35, "l1": 0.0}
    whole = {"epochs": 100, "batch": 30}
    config = proximal(problem, members=2, problem=bounds, schedule=whole)
    result = train_on(2, config, problem)
    assert (result.weights >= lower).all() and (result.weights <= 0.35).all()
    assert result.weights[3] == 0.3
    again = RunConfig.parse(result.config)
    assert again.problem.lower == lower
    assert RunConfig.parse(again.tables()) == again


def test_the_loss_and_the_slope_have_l1():
    problem = make_problem("gaussian", n=30, d=5)
    upper = (0.01, 0.01, 0.01, 0.3, -0.1)
    config = proximal(problem, members=2, problem={"lower": None, "upper": upper})

    w = np.array([0.0, -0.3, 0.01, 0.2, -0.1])

    def on_rank(world):
        reader = MemoryReader(problem.X, problem.y)
        live = build(config, world, lambda _: reader, [], Clock())
        objective = live.evaluation.objective
        slope = objective.slope(w[live.columns.own, None], np.zeros(1))
        return slope, objective.norm(slope), live.columns.join(slope.least)[:, 0]

    slope, norm, least = run_ranks(2, on_rank)[0]
    r = problem.X @ w - problem.y
    smooth = problem.X.T @ r / 30 + 0.02 * w
    loss = r @ r / 60 + 0.01 * w @ w + 0.03 * np.abs(w).sum()
    assert slope.loss == pytest.approx(loss, rel=1e-13)
    expected = smooth + 0.03 * np.sign(w)
    zero = w == 0
    size = np.maximum(np.abs(smooth[zero]) - 0.03, 0)
    expected[zero] = np.sign(smooth[zero]) * size
    expected[(w >= np.float32(upper)) & (expected < 0)] = 0.0
    expected[(w == upper) & (expected < 0)] = 0.0
    np.testing.assert_allclose(least, expected, atol=1e-15)
    assert norm == pytest.approx(np.sqrt(expected @ expected + r.mean() ** 2))


@pytest.mark.parametrize("bent", [{"l1": 0.1}, {"lower": 0.0}, {"upper": (1.0,) * 7}])
def test_several_steps_are_refused_by_name(bent):
    problem = make_problem("gaussian")
    config = config_for(problem, problem=bent)
    with pytest.raises(ConfigError, match=r"--steps 1.*problem.l1_at=exchange"):
        train_on(2, config, problem)


def test_steps_that_are_left_open_are_one():
    problem = make_problem("gaussian")
    config = proximal(problem, schedule={"steps": "auto"}, grid={"members": 2})
    assert train_on(2, config, problem).report["schedule"]["steps"] == 1
    held = proximal(
        problem, schedule={"steps": "auto"}, problem={"l1_at": "exchange"}, members=2
    )
    held = RunConfig.parse({**held.tables(), "run": {"network": "lan"}})
    assert train_on(2, held, problem).report["schedule"]["steps"] > 1


@pytest.mark.parametrize(
    "problem, says",
    [
        ({"l1": -1.0}, "l1 = -1.0 must be at least 0"),
        ({"l1": 0.1, "l1_at": "end"}, "must be one of step, exchange"),
        ({"lower": 1.0, "upper": 0.5}, "leave some weight no value"),
        ({"lower": [0.0, 0.0], "upper": [1.0]}, None),
        ({"lower": [0.0, 0.0], "upper": [1.0] * 3}, "leave some weight no value"),
        ({"lower": ["a"]}, "must be of type float"),
    ],
)
def test_what_makes_no_penalty_is_refused(problem, says):
    if says is None:
        RunConfig.parse({"problem": problem})
        return
    with pytest.raises(ConfigError, match=says):
        RunConfig.parse({"problem": problem})


def test_bounds_of_other_columns_are_refused():
    problem = make_problem("gaussian")
    config = proximal(problem, members=2, problem={"lower": (0.0,) * 3})
    with pytest.raises(ConfigError, match="lower has 3 numbers and the data 7 columns"):
        train_on(2, config, problem)


def test_a_run_that_goes_on_is_the_same(tmp_path):
    problem = make_problem("logistic")
    one = {"lower": (-0.1,) * 7, "upper": None}
    speed = {"kind": "momentum", "momentum": 0.6}

    def config(epochs, **run):
        return proximal(
            problem,
            problem=one,
            update=speed,
            schedule={"epochs": epochs},
            run=run,
            checkpoint={"every": 5},
        )

    whole = train(config(4), X=problem.X, y=problem.y)
    train(config(2, out=str(tmp_path)), X=problem.X, y=problem.y)
    on = config(4, out=str(tmp_path), resume="auto")
    result = train(on, X=problem.X, y=problem.y)
    assert result.report["resumes"] == 1
    assert result.weights.tobytes() == whole.weights.tobytes()
    assert result.loss == whole.loss


def test_narrow_weights_stay_in_their_format():
    problem = make_problem("gaussian")
    config = proximal(problem, problem={"l1": 0.2}, precision={"recipe": "bf16"})
    w = train_on(1, config, problem).weights.astype(np.float32)
    assert not (w.view(np.uint32) & 0xFFFF).any() and (w == 0.0).any()


def test_a_sweep_refuses_what_bends():
    problem = make_problem("gaussian")
    tables = {"problem": {"family": "gaussian", "l1": 0.1}, "schedule": {"steps": 1}}
    with pytest.raises(ConfigError, match="use hpcsgd.path"):
        sweep(tables, l2=[0.1, 0.2], X=problem.X, y=problem.y)


def test_proximal_svrg_goes_to_the_optimum():
    """Full gradients vanish from its noise, and so does all that keeps l1 from 0."""
    problem = make_problem("logistic", n=40, d=6)
    config = proximal(
        problem,
        members=2,
        problem={"l1": 0.03, "l2": 0.02, "lower": None, "upper": None},
        schedule={"epochs": 150, "batch": 4},
        update={"kind": "svrg"},
        rate={"value": 0.5},
    )
    w = train_on(2, config, problem)
    r = 1 / (1 + np.exp(-problem.X @ w.weights - w.intercept)) - problem.y
    slope = problem.X.T @ r / 40 + 0.02 * w.weights
    assert np.abs(Penalty(0.02, 0.03).least(w.weights, slope)).max() < 1e-9
    assert (w.weights == 0.0).any()


def test_a_run_begins_within_its_bounds():
    problem = make_problem("gaussian", n=20, d=4)
    bounds = {"l1": 0.1, "l2": 0.0, "lower": 0.2, "intercept": False}
    config = proximal(problem, problem=bounds, run={"evaluate_every": 1})
    first = train_on(1, config, problem).history[0]["loss"]
    r = problem.X @ np.full(4, 0.2) - problem.y
    assert first == pytest.approx(r @ r / 40 + 0.1 * 4 * 0.2, rel=1e-12)


def test_verify_takes_the_loss_with_l1(tmp_path):
    problem = make_problem("logistic")
    config = proximal(problem, run={"out": str(tmp_path), "record": 2})
    train(config, X=problem.X, y=problem.y)
    found = certify(tmp_path, 2, reader=MemoryReader(problem.X, problem.y))
    assert found.ok and all(check.ok for check in found.checks)

"""The finisher goes to the optimum, on every grid, and says what it sent for that."""

import numpy as np
import pytest
from scipy.optimize import minimize

from hpcsgd.backends import compiled_calls
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from hpcsgd.glm import get_family
from hpcsgd.runs.progress import Callback
from hpcsgd.solvers import lbfgs
from hpcsgd.solvers.callbacks import Request
from hpcsgd.solvers.lbfgs import CurvaturePairs, Trial, search
from tests.helpers.cpu import kernels  # noqa: F401
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.polish import (
    GRIDS,
    ICPT,
    checks_of_scaling,
    flat,
    gradient,
    polished,
)
from tests.helpers.problems import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reaches_its_optimum(family):
    problem, data = make_problem(family), {"weights": True, "offset": True}
    result = polished(family, (2, 2), problem, data)
    assert result.report["polish"]["ended"] == "converged"
    assert np.linalg.norm(gradient(problem, result, **data)) < 1e-11
    assert result.weights.dtype == np.float64


@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("grid", GRIDS)
def test_grids_agree_to_the_last_digits(family, grid):
    one = polished(family)
    np.testing.assert_allclose(flat(polished(family, grid)), flat(one), atol=1e-10)


def test_the_optimum_is_that_of_a_reference():
    problem = make_problem("logistic")
    family, l2 = get_family("logistic"), ICPT["l2"]

    def objective(v):
        t = (problem.X @ v[:-1] + v[-1])[:, None]
        return family.loss(t, problem.y[:, None]).mean() + l2 / 2 * v[:-1] @ v[:-1]

    best = minimize(objective, np.zeros(8), method="BFGS", options={"gtol": 1e-9})
    result = polished("logistic", (1, 1), problem)
    np.testing.assert_allclose(flat(result), best.x, atol=1e-6)
    assert result.loss == pytest.approx(objective(flat(result)), abs=1e-14)
    assert result.loss <= best.fun + 1e-14


@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_low_precision_ends_where_float64_does(recipe):
    low = polished("poisson", precision={"recipe": recipe})
    # Targets and weights of rows were float32.
    np.testing.assert_allclose(flat(low), flat(polished("poisson")), atol=1e-6)


def test_scores_that_all_grow_alike_are_left_out():
    """Without a ridge nothing says how large they are; what rounding left goes."""
    free = {"problem": {"l2": 0.0}, "precision": {"recipe": "fp32"}}
    result = polished("softmax", polish={"tol": 1e-6}, **free)
    assert np.abs(result.weights.mean(axis=1)).max() < 1e-14
    assert abs(result.intercept.mean()) < 1e-14


@pytest.mark.parametrize("kind", ["direct", "gather", "cached"])
def test_whatever_the_product(kind):
    found = polished("softmax", (1, 2), products={"kind": kind})
    np.testing.assert_allclose(flat(found), flat(polished("softmax")), atol=1e-10)


def test_badly_scaled_columns_are_no_harder():
    """Thirteen decades of scales and means far from zero: the same few passes."""
    problem = make_problem("logistic")
    worse = make_problem("logistic")
    scales = 10.0 ** np.linspace(-6, 6, 7)
    worse.X[...] = worse.X * scales + 30 * scales
    free = {"problem": {"l2": 0.0, "intercept": True}}
    easy = polished("logistic", (1, 1), problem, **free).report["polish"]
    hard = polished("logistic", (2, 2), worse, **free, rate={"value": 1e-16})
    assert hard.report["polish"]["ended"] == "converged"
    assert hard.report["polish"]["passes"] <= easy["passes"] + 8
    t = worse.X @ hard.weights + hard.intercept
    best = polished("logistic", (1, 1), problem, **free)
    expected = problem.X @ best.weights + best.intercept
    np.testing.assert_allclose(t, expected, atol=1e-8)


def test_sparse_rows_too():
    from scipy.sparse import csr_array

    problem = make_problem("logistic")
    problem.X[np.abs(problem.X) < 0.3] = 0.0
    dense = polished("logistic", (1, 2), problem)
    sparse = type(problem)(**{**vars(problem), "X": csr_array(problem.X)})
    found = polished("logistic", (2, 1), sparse)
    np.testing.assert_allclose(flat(found), flat(dense), atol=1e-10)


class Heard(Callback):
    """Counts calls of evaluations between passes, and may ask for an end."""

    def __init__(self, after=10**9, wish=Request.NONE):
        self.after, self.wish, self.passes = after, wish, []

    def on_evaluate(self, view):
        record = view.history[-1]
        self.passes.append(record.get("passes"))
        return self.wish if (record.get("passes") or 0) >= self.after else Request.NONE


def test_callbacks_see_every_pass():
    heard = Heard()
    problem = make_problem("logistic")
    config = config_for(problem, problem=ICPT, polish={"kind": "lbfgs"})
    result = train_on(1, config, problem, callbacks=[heard])
    count = result.report["polish"]["passes"]
    assert heard.passes[2:] == [*range(1, count + 1), count]
    records = result.history[2:]
    losses = [record["loss"] for record in records]
    assert all(b <= a + 1e-14 for a, b in zip(losses, losses[1:], strict=False))
    assert records[-1]["gradient"] == result.report["polish"]["gradient_after"]


@pytest.mark.parametrize(
    ("wish", "ends"), [(Request.STOP, "stopped"), (Request.PREEMPT, "preempted")]
)
def test_a_wish_of_one_rank_ends_it_on_all(wish, ends):
    problem = make_problem("logistic")
    config = config_for(
        problem,
        problem=ICPT,
        grid={"members": 2},
        polish={"kind": "lbfgs", "tol": 0.0},
    )
    from hpcsgd.api import train

    def on_rank(world):
        callbacks = [Heard(2, wish)] if world.rank else []
        given = {"X": problem.X, "y": problem.y}
        return train(config, **given, world=world, callbacks=callbacks)

    for result in run_ranks(2, on_rank):
        assert result.status.value == ends
        assert result.report["polish"]["passes"] == 3


def test_it_goes_on_from_the_last_step_after_a_preemption(tmp_path):
    problem = make_problem("logistic")
    run = {"out": str(tmp_path / "run"), "resume": "auto"}
    asked = {"problem": ICPT, "polish": {"kind": "lbfgs"}, "run": run}
    config = config_for(problem, **asked)
    first = train_on(1, config, problem, callbacks=[Heard(2, Request.PREEMPT)])
    assert first.status.value == "preempted"
    again = train_on(1, config, problem)
    whole = train_on(1, config_for(problem, **{**asked, "run": {}}), problem)
    assert again.status.value == "completed"
    assert again.iterations == whole.iterations
    np.testing.assert_array_equal(flat(again), flat(whole))


def test_too_few_passes_are_said(caplog):
    result = polished("logistic", polish={"passes": 2})
    assert result.report["polish"]["ended"] == "passes used up"
    assert "raise polish.passes" in caplog.text


def test_nothing_is_left_to_do_at_the_last_digit():
    found = polished("gaussian", polish={"tol": 0.0}).report["polish"]
    assert found["ended"] == "at rounding"
    assert found["gradient_after"] < 1e-14


def test_an_exact_fit_ends():
    problem = make_problem("gaussian", n=5, d=7)
    problem.y[...] = problem.X @ np.arange(7.0)
    nothing = {"l2": 0.0, "intercept": False}
    config = config_for(problem, problem=nothing, polish={"kind": "lbfgs"})
    result = train_on(1, config, problem)
    assert result.loss < 1e-16


@pytest.mark.parametrize("grid", GRIDS)
def test_messages_are_those_of_the_formulas(grid):
    replicas, members = grid
    problem = make_problem("softmax")
    plain = polished("softmax", grid, problem, polish={"kind": "none"})
    result = polished("softmax", grid, problem, polish={"gap": False})
    said, K, depth = result.report["polish"], problem.classes, 20
    n = [27, 53][replicas == 1]  # of the first replica
    d = [7, 4, 3][members - 1] if members != 3 else 3
    passes, trials = said["passes"], said["trials"]
    over_members, over_replicas, over_all = members > 1, replicas > 1, grid != (1, 1)
    calls = over_replicas * 1  # Σc
    words = over_replicas * 1
    calls += over_members * (2 + passes)  # the start, λ‖w‖², directions
    words += over_members * (n * K + 1 + passes * (n * K + 3 + K))
    calls += over_replicas * (2 + 2 * passes)  # gradients, the moments, directions
    words += over_replicas * ((1 + 2 * passes) * (d + 1) * K + (2 * d + 1) * K)
    calls += over_replicas * 2 * checks_of_scaling(passes)  # mean curvature, moments
    words += over_replicas * (2 * d + 2) * K * checks_of_scaling(passes)
    calls += over_all * (1 + trials + 1 + passes)
    words += over_all * (3 * (1 + trials) + (1 + passes) * (3 * (2 * depth + 1) + 6))
    after_calls, after_words = final_look(n, d, K, grid)
    assert said["messages"] == calls + after_calls
    assert said["words"] == words + after_words
    evaluate = result.ledger["evaluate"], plain.ledger["evaluate"]
    assert evaluate[0]["calls"] - evaluate[1]["calls"] == said["messages"]
    assert result.ledger["products"]["words"] == plain.ledger["products"]["words"]


def final_look(n, d, K, grid):
    """F and ∇F anew: scores, λ‖w‖², the norm; the gradient; and β, the same bits."""
    replicas, members = grid
    calls = 3 * (members > 1) + (replicas > 1) + (grid != (1, 1))
    words = (members > 1) * (n * K + 2) + (replicas > 1) * (3 + K + d * K)
    return calls, words + (grid != (1, 1)) * K


def test_emulated_members_have_no_optimum():
    problem = make_problem("logistic")
    run = {"emulate_members": 4}
    config = config_for(problem, polish={"kind": "lbfgs"}, run=run)
    with pytest.raises(ConfigError, match="polish.kind"):
        train_on(1, config, problem)


@pytest.mark.parametrize("table", [{"kind": "bfgs"}, {"passes": 0}, {"tol": -1.0}])
def test_settings_are_checked(table):
    with pytest.raises(ConfigError, match=r"\[polish\]"):
        config_for(make_problem("logistic"), polish=table)


def test_the_recursion_is_that_of_two_loops():
    """Against Nocedal's recursion on whole vectors, parts held by three ranks."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(9, 9))
    hessian = root @ root.T + np.eye(9)
    points = [rng.normal(size=9) for _ in range(6)]
    memory = CurvaturePairs(4, 9)
    memory.begin(hessian @ points[0])
    parts = [slice(0, 4), slice(4, 6), slice(6, 9)]
    pairs = []
    for before, after in zip(points, points[1:], strict=False):
        memory.put(after - before, hessian @ after)
        memory.add_products(sum(memory.parts(part) for part in parts))
        pairs.append((after - before, hessian @ (after - before)))
    found, slope = memory.direction()
    expected = two_loops(pairs[-4:], hessian @ points[-1])
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert slope == pytest.approx(expected @ hessian @ points[-1])


def test_the_recursion_is_that_of_numpy(kernels):  # noqa: F811
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(9, 30))
    vectors[2::2] += vectors[1::2]  # y near s: their product is above 0
    products = vectors @ vectors.T
    for order in ([], [2], [3, 0, 1], [1, 2, 3, 0]):
        found = compiled_calls.two_loops(order, products)
        np.testing.assert_allclose(found, lbfgs.two_loops(order, products), rtol=1e-12)


def rare_label(rows=2000, columns=100):
    """Rows of which few are of the second class: curvatures change much on the way."""
    rng = np.random.default_rng(7)
    X = (rng.random((rows, columns)) < 0.1 * rng.random(columns) ** 3).astype(float)
    t = X @ (2.0 * rng.normal(size=columns)) - 5.0
    problem = make_problem("logistic", n=rows, d=columns)
    problem.X[...] = X
    problem.y[...] = rng.random(rows) < 1 / (1 + np.exp(-t))
    return problem


def test_variables_follow_curvatures_that_change(monkeypatch):
    """Pairs are converted: on any grid, the steps are those of one rank."""
    problem = rare_label()
    settings = {"problem": {"l2": 1e-5}, "polish": {"tol": 1e-9}}
    results = [polished("logistic", grid, problem, **settings) for grid in GRIDS]
    monkeypatch.setattr(lbfgs, "RESCALED_FIRST", 10**9)
    never = polished("logistic", (1, 1), problem, **settings)
    passes = [result.report["polish"]["passes"] for result in results]
    assert max(passes) <= 0.8 * never.report["polish"]["passes"]
    assert max(passes) - min(passes) <= 2
    for result in results:
        np.testing.assert_allclose(flat(result), flat(never), rtol=1e-6, atol=1e-7)


def two_loops(pairs, gradient):
    q, shares = gradient.copy(), []
    for s, y in reversed(pairs):
        shares.append((s @ q) / (s @ y))
        q -= shares[-1] * y
    s, y = pairs[-1]
    q *= (s @ y) / (y @ y)
    for (s, y), share in zip(pairs, reversed(shares), strict=True):
        q += (share - (y @ q) / (s @ y)) * s
    return -q


@pytest.mark.parametrize("best", [1e-6, 0.3, 1.0, 50.0])
def test_the_search_finds_where_the_slope_is_flat(best):
    def look(a):
        with np.errstate(over="ignore"):
            value = np.exp(a - best) - (a - best)
            return Trial(a, float(value), float(np.exp(a - best) - 1), 1e-14)

    begin = look(0.0)
    found, count = search(look, begin)
    assert abs(found.slope) <= 0.5 * abs(begin.slope)
    assert found.value <= begin.value
    assert count < 20


def test_there_is_no_step_uphill():
    begin = Trial(0.0, 1.0, -1.0, 0.0)
    found, _ = search(lambda a: Trial(a, 1.0 + a, 1.0, 0.0), begin)
    assert found is None


@pytest.mark.parametrize("family", ["logistic", "softmax", "poisson"])
@pytest.mark.parametrize("grid", [(1, 1), (2, 2)])
@pytest.mark.parametrize("kind", ["lbfgs", "newton"])
def test_every_pass_may_have_a_gap(family, grid, kind):
    """Each bounds F − F*, the last is nothing; what is learnt is what it is without."""
    problem = make_problem(family)
    asked = {"polish": {"kind": kind}, "run": {"evaluate": "gap"}}
    plain = polished(family, grid, problem, polish={"kind": kind, "gap": False})
    result = polished(family, grid, problem, **asked)
    assert result.weights_sha256 == plain.weights_sha256
    passes = [record for record in result.history if "passes" in record]
    assert len(passes) > 3
    for record in passes:
        above = record["loss"] - result.loss
        assert record["gap"] >= above - 1e-14, record
    assert passes[-1]["gap"] < 1e-14
    assert not any("gap" in record for record in plain.history if "passes" in record)

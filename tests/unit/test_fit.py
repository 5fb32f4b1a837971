"""`hpcsgd.fit`: defaults reach the optimum, or say in one sentence what to change."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn import datasets

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError, ConvergenceWarning, DataError
from hpcsgd.estimators.fit import with_bits_of_rank_0
from hpcsgd.glm import get_family
from hpcsgd.runs.progress import Callback
from hpcsgd.solvers.callbacks import Request
from tests.helpers.problems import FAMILIES, make_problem

QUIET = pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")


def objective(X, y, family, alpha, c=None, o=None):
    """F and ∇F of flat (w, β), in columns of mean 0 and size 1: SciPy needs that."""
    loss, n, d = get_family(family), *X.shape
    K = len(np.unique(y)) if family == "softmax" else 1
    if loss.targets in ("binary", "classes", "signed"):
        _, y = np.unique(y, return_inverse=True)
        y = 2 * y - 1 if loss.targets == "signed" else y
    y, center, size = y.astype(float)[:, None], X.mean(axis=0), X.std(axis=0) + 1e-12
    c = np.ones((n, 1)) if c is None else c[:, None]
    o = 0.0 if o is None else o[:, None]

    def value(z):
        v, b = z[: d * K].reshape(d, K), z[d * K :]
        w = v / size[:, None]
        t = X @ w + (b - center @ w) + o
        F = (c * loss.loss(t.copy(), y)).sum() / c.sum() + alpha / 2 * np.sum(w**2)
        r = c * loss.residual(t, y) / c.sum()
        slope = X.T @ r - np.outer(center, r.sum(axis=0)) + alpha * w
        return F, np.concatenate([(slope / size[:, None]).ravel(), r.sum(axis=0)])

    return value, d * K + K


def optimum(*problem):
    """F* by SciPy's L-BFGS in float64."""
    value, size = objective(*problem)
    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-16, "gtol": 1e-11}
    at, found = np.zeros(size), None
    for _ in range(2):
        found = minimize(
            value, at, jac=True, method="L-BFGS-B", options=options | {"maxcor": 50}
        )
        at = found.x
    return found.fun


def scaled_badly(n=400, d=12):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    t = X @ rng.normal(size=d)
    return (X + 3.0) * 10.0 ** np.linspace(-4, 4, d), rng.random(n) < 1 / (
        1 + np.exp(-t)
    )


def abalone_like():
    rng = np.random.default_rng(1)
    X = rng.uniform(0.1, 1.2, size=(500, 6))
    return X, rng.poisson(np.exp(X @ rng.normal(size=6) + 2.0))


SETS = {
    "breast cancer": (datasets.load_breast_cancer, "logistic"),
    "breast cancer, hinge": (datasets.load_breast_cancer, "squared-hinge"),
    "iris": (datasets.load_iris, "softmax"),
    "wine": (datasets.load_wine, "softmax"),
    "diabetes": (datasets.load_diabetes, "gaussian"),
    "diabetes, huber": (datasets.load_diabetes, "huber"),
    "diabetes, gamma": (datasets.load_diabetes, "gamma"),
    "bad scales": (lambda return_X_y: scaled_badly(), "logistic"),
    "bad scales, gaussian": (lambda return_X_y: scaled_badly(), "gaussian"),
    "counts": (lambda return_X_y: abalone_like(), "poisson"),
}


@pytest.mark.parametrize("name", SETS)
def test_defaults_reach_the_optimum(name):
    load, family = SETS[name]
    X, y = load(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = hpcsgd.fit(X, family, np.asarray(y, dtype=float))
    best = optimum(X, np.asarray(y, dtype=float), family, 1e-4)
    assert (result.loss - best) / abs(best) < 1e-6
    assert result.report["converged"] and result.advice == ""
    gap = result.report["gap"]
    assert -1e-9 * abs(best) <= result.loss - best <= gap + 1e-9 * abs(best)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_offsets_of_every_family(family):
    problem = make_problem(family, n=90, d=4)
    c, o = problem.weights, problem.offset
    result = hpcsgd.fit(
        problem.X, family, problem.y, sample_weight=c, offset=o, alpha=0.01, tol=1e-8
    )
    best = optimum(problem.X, problem.y, family, 0.01, c, o)
    assert abs(result.loss - best) < 1e-9 * abs(best)


def test_without_a_penalty_and_an_intercept():
    X = np.random.default_rng(0).normal(size=(50, 4))
    y = X @ [1.0, 2.0, 3.0, 4.0] + 0.5
    result = hpcsgd.fit(X, "gaussian", y, alpha=0.0, fit_intercept=False, tol=1e-10)
    np.testing.assert_allclose(result.weights, np.linalg.lstsq(X, y)[0], rtol=1e-8)
    assert result.intercept is None and result.report["gap"] is None


def test_l1_and_bounds_of_least_squares_are_exact():
    from sklearn.linear_model import ElasticNet

    X, y = datasets.load_diabetes(return_X_y=True)
    theirs = ElasticNet(alpha=0.1, l1_ratio=0.7, tol=1e-12, max_iter=10**6).fit(X, y)
    ours = hpcsgd.fit(X, "gaussian", y, alpha=0.1, l1_ratio=0.7, tol=1e-13)
    np.testing.assert_allclose(ours.weights, theirs.coef_, atol=1e-4)
    assert ours.report["solver"] == "coordinate" and ours.report["converged"]
    positive = hpcsgd.fit(X, "gaussian", y, bounds=(0.0, None))
    assert positive.weights.min() == 0.0 and positive.report["converged"]


def test_l1_and_bounds_of_other_families_are_exact_too():
    problem = make_problem("logistic", n=80, d=5)
    arguments = (problem.X, "logistic", problem.y)
    null = hpcsgd.fit(*arguments, alpha=1.0, l1_ratio=0.99)
    assert not null.weights.any() and null.report["converged"]
    bounded = hpcsgd.fit(*arguments, alpha=0.1, bounds=(-0.2, [0.2] * 5))
    assert np.abs(bounded.weights).max() == 0.2
    assert bounded.report["converged"]
    with pytest.warns(ConvergenceWarning, match="raise epochs, or tol"):
        short = hpcsgd.fit(*arguments, l1_ratio=0.5, epochs=1)
    assert not short.report["converged"]


def test_classes_with_l1_go_to_their_gap_or_warn():
    """By coordinates, or by proximal steps where those are asked for."""
    problem = make_problem("softmax", n=80, d=5)
    arguments = (problem.X, "softmax", problem.y)
    found = hpcsgd.fit(*arguments, alpha=0.3, l1_ratio=0.1, tol=1e-3)
    assert found.status.value == "converged" and found.report["converged"]
    assert found.report["gap"] <= 1e-3 * found.loss
    assert found.report["solver"] == "coordinate"
    stepped = hpcsgd.fit(*arguments, alpha=0.3, l1_ratio=0.1, tol=1e-3, solver="svrg")
    assert stepped.config["schedule"]["steps"] == 1
    assert stepped.report["gap"] <= 1e-3 * stepped.loss
    momentum = {"epochs": 2, "update": "momentum"}
    with pytest.warns(ConvergenceWarning):
        by_name = hpcsgd.fit(*arguments, l1_ratio=0.1, **momentum)
    assert by_name.config["update"]["kind"] == "momentum"
    with pytest.warns(ConvergenceWarning, match="raise epochs, or tol"):
        short = hpcsgd.fit(*arguments, alpha=0.01, l1_ratio=0.5, epochs=1)
    assert not short.report["converged"]


def test_too_few_passes_are_one_warning_that_names_the_remedy():
    X, y = datasets.load_breast_cancer(return_X_y=True)
    with pytest.warns(ConvergenceWarning) as heard:
        result = hpcsgd.fit(X, "logistic", y, config={"polish": {"passes": 3}})
    assert len(heard) == 1 and heard[0].filename == __file__
    said = str(heard[0].message)
    assert said == result.advice and "raise polish.passes" in said
    assert not result.report["converged"]


def test_svrg_goes_to_its_gap():
    problem = make_problem("logistic", n=200, d=5)
    found = hpcsgd.fit(
        problem.X, "logistic", problem.y, solver="svrg", polish=False, alpha=0.01
    )
    assert found.config["update"]["kind"] == "svrg" and found.report["converged"]
    assert found.report["gap"] <= 1e-5 * found.loss


@QUIET
def test_polish_is_off_on_or_to_the_last_digits():
    problem = make_problem("logistic", n=80, d=5)
    arguments = (problem.X, "logistic", problem.y)
    off = hpcsgd.fit(*arguments, polish=False, epochs=3)
    auto, on = (hpcsgd.fit(*arguments, polish=p, tol=1e-3) for p in ("auto", True))
    assert "polish" not in off.report and off.loss > auto.loss
    assert auto.report["polish"]["relative_after"] <= 1e-3
    assert on.report["polish"]["relative_after"] <= 1e-8


def test_a_start_that_is_the_optimum_stays_there():
    problem = make_problem("softmax", n=80, d=5)
    arguments = (problem.X, "softmax", problem.y)
    first = hpcsgd.fit(*arguments, alpha=0.1, tol=1e-9)
    again = hpcsgd.fit(*arguments, alpha=0.1, start=first, epochs=1, rate=1e-12)
    assert again.history[0]["loss"] == pytest.approx(first.loss, abs=1e-9)
    pair = (first.weights, first.intercept)
    other = hpcsgd.fit(*arguments, alpha=0.1, start=pair, epochs=1, rate=1e-12)
    assert other.history[0]["loss"] == again.history[0]["loss"]
    assert other.report["polish"]["passes"] <= 3


@pytest.mark.parametrize("family", ["gaussian", "logistic", "poisson", "softmax"])
@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 1)])
def test_it_begins_with_the_best_constant(family, grid):
    problem = make_problem(family, n=61, d=5)
    y = problem.y + (100.0 if family in ("gaussian", "poisson") else 0.0)
    c, o = problem.weights, problem.offset

    def on_rank(world):
        return hpcsgd.fit(
            problem.X, family, y, sample_weight=c, offset=o, comm=world, grid=grid
        )

    found = run_ranks(grid[0] * grid[1], on_rank)[0].history[0]["loss"]
    value, size = objective(np.zeros((61, 1)), y, family, 1.0, c, o)
    null = minimize(value, np.zeros(size), jac=True, method="BFGS").fun
    if family == "logistic" or family == "softmax":  # offsets are left out there
        assert found == pytest.approx(null, rel=0.02)
    else:
        assert found == pytest.approx(null, rel=1e-6)


@pytest.mark.parametrize("size", [1e-12, 1e-30, 1e30])
def test_targets_of_log_links_may_be_of_any_size(size):
    """Another unit of y is another intercept of a gamma model, and nothing else."""
    problem = make_problem("gamma", n=61, d=5)
    one, other = (
        hpcsgd.fit(problem.X, "gamma", problem.y * unit, alpha=0.01)
        for unit in (1.0, size)
    )
    np.testing.assert_allclose(other.weights, one.weights, atol=1e-6)
    assert other.intercept == pytest.approx(one.intercept + np.log(size), rel=1e-7)
    assert other.report["converged"]
    small = hpcsgd.fit(problem.X, "poisson", problem.y * min(size, 1.0))
    assert small.report["converged"] and not small.advice


def test_a_rate_that_blows_up_is_tried_again_slower(monkeypatch):
    problem = make_problem("gaussian", n=60, d=5)
    monkeypatch.setattr("hpcsgd.runs.auto_rate.smoothness", lambda *_: 0.02)
    result = hpcsgd.fit(problem.X, "gaussian", problem.y, batch=32)
    assert result.report["rates_tried"] > 1 and result.report["converged"]
    with pytest.warns(ConvergenceWarning, match="lower the rate"):
        given = hpcsgd.fit(problem.X, "gaussian", problem.y, rate=50.0)
    assert given.report["rates_tried"] == 1 and given.status.value == "diverged"


def test_held_out_rows_end_it_and_name_the_weights():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 40))
    y = (X[:, 0] + 2.0 * rng.normal(size=60) > 0).astype(float)
    result = hpcsgd.fit(
        X, "logistic", y, alpha=1e-6, hold_out=0.4, patience=3, rate=0.5, epochs=500
    )
    held = [record["held"] for record in result.history]
    best = result.report["best_held"]
    assert result.status.value == "converged" and result.report["converged"]
    assert 0 < best["epoch"] < result.history[-1]["epoch"] < 500
    assert held[-1] == min(held) == best["held"]
    assert result.loss == result.history[-1]["loss"]
    # After the best there are `patience` looks, and the one at its weights.
    assert len(held) == best["epoch"] + 1 + 3 + 1
    assert "polish" not in result.report and "average" not in result.report


@QUIET
@pytest.mark.parametrize(("at", "epochs"), [(4, 300), (5, 5)])
def test_held_out_rows_of_a_run_that_goes_on(tmp_path, at, epochs):
    """Also after its last exchange, with nothing left to do but name the best."""

    class Stop(Callback):
        def on_exchange(self, view):
            return Request.PREEMPT if view.exchanges == at else None

    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 40))
    y = (X[:, 0] + 2.0 * rng.normal(size=60) > 0).astype(float)
    options = {"alpha": 1e-6, "hold_out": 0.4, "rate": 0.5, "steps": 2}
    options["epochs"] = epochs

    def run(resume="no", callbacks=()):
        folder = {"out": str(tmp_path), "resume": resume, "check_every": 1}
        return hpcsgd.fit(
            X, "logistic", y, **options, config={"run": folder}, callbacks=[*callbacks]
        )

    whole = hpcsgd.fit(X, "logistic", y, **options)
    assert run(callbacks=[Stop()]).status.value == "preempted"
    assert run("auto").weights_sha256 == whole.weights_sha256


def test_verbose_shows_a_line_for_every_pass(capsys):
    problem = make_problem("logistic", n=40, d=3)

    def on_rank(world):
        return hpcsgd.fit(
            problem.X, "logistic", problem.y, epochs=2, verbose=1, comm=world
        )

    result = run_ranks(2, on_rank)[0]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(result.history)
    assert lines[1].startswith("pass 1: F ") and ", gap " in lines[1]
    assert lines[-1].startswith(f"pass {2 + result.report['polish']['passes']}: F ")
    assert all(r["gap"] >= 0.0 for r in result.history[:3])


def test_callbacks_are_told():
    seen = []

    class Count(Callback):
        def on_exchange(self, view):
            seen.append(view.exchanges)

    problem = make_problem("logistic", n=40, d=3)
    result = hpcsgd.fit(problem.X, "logistic", problem.y, callbacks=[Count()])
    assert seen == list(range(1, result.exchanges + 1))


def test_the_configuration_lies_over_everything():
    problem = make_problem("logistic", n=40, d=3)
    more = {"schedule": {"epochs": 3}, "rate": {"kind": "cosine"}}
    result = hpcsgd.fit(problem.X, "logistic", problem.y, config=more)
    assert result.config["schedule"]["epochs"] == 3
    assert result.config["rate"]["kind"] == "cosine"


def test_numbers_of_numpy_are_numbers():
    problem = make_problem("logistic", n=40, d=3)
    found = [
        hpcsgd.fit(
            problem.X, "logistic", problem.y, alpha=kind(0.25), rate=kind(0.5)
        ).weights_sha256
        for kind in (float, np.float32, np.float64)
    ]
    assert len(set(found)) == 1


@QUIET
def test_ways_of_sgd_are_taken_where_coordinates_have_none():
    problem = make_problem("gaussian", n=40, d=3)
    for more in ({"update": "momentum"}, {"average": True}):
        result = hpcsgd.fit(
            problem.X, "gaussian", problem.y, l1_ratio=0.5, epochs=2, **more
        )
        assert result.config["update"]["kind"] == more.get("update", "sgd")
        assert ("average" in result.report) or "update" in more


@pytest.mark.parametrize(
    "more, words",
    [
        ({"alpha": "much"}, "alpha = 'much' must be a number"),
        ({"l1_ratio": 2.0}, r"must lie in \[0, 1\]"),
        ({"solver": "simplex"}, "known: 'auto', 'sgd', 'svrg', 'coordinate', 'newton'"),
        ({"polish": "yes"}, "must be 'auto', True or False"),
        ({"polish": True, "l1_ratio": 0.5}, "l1 or bounds is not smooth"),
        ({"polish": True, "hold_out": 0.1}, "hold_out ends a fit before"),
        ({"bounds": 3.0}, "bounds must be a pair"),
        ({"grid": 3}, "grid = 3 must be a pair"),
        ({"grid": (1, 2, 3)}, "must be a pair of replicas and members"),
        ({"start": (1, 2, 3)}, "a pair of weights and intercept"),
        ({"start": np.zeros(7)}, r"weights of shape \(7, 1\)"),
        ({"start": np.full(3, np.nan)}, "not finite"),
        ({"comm": "world"}, "give a communicator of mpi4py"),
        ({"family": "cauchy"}, "cauchy"),
        ({"config": {"rate": 0.1}}, "outside a section"),
        ({"config": {"stop": {"on": "validation"}}}, "sampling.hold_out"),
        ({"update": "momentum", "solver": "svrg"}, "leave one of them out"),
        ({"average": True, "solver": "coordinate"}, "average.kind"),
    ],
)
def test_settings_that_cannot_be_are_refused(more, words):
    problem = make_problem("logistic", n=40, d=3)
    options = {"family": "logistic", "y": problem.y} | more
    with pytest.raises(ConfigError, match=words):
        hpcsgd.fit(problem.X, **options)


@pytest.mark.parametrize(
    "start, words",
    [
        ((np.zeros(3), np.nan), "intercept .* not finite; give 1 finite"),
        ((np.zeros(3), [1.0, 2.0]), "an intercept of 2 numbers"),
        ((np.full(3, np.inf), 0.0), "not finite"),
        ("here", "must be a Result, weights, or a pair"),
        ([[1.0, 2.0], [3.0]], "must be a Result, weights, or a pair"),
    ],
)
def test_starts_that_are_none_are_refused(start, words):
    X = np.eye(3)
    with pytest.raises(ConfigError, match=words):
        hpcsgd.fit(X, "gaussian", X[0], start=start)


def test_weights_that_no_number_can_sum_are_refused():
    X = np.eye(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="more than a float64.*by the largest"):
            hpcsgd.fit(X, "gaussian", X[0], sample_weight=np.full(3, 1e308))


def test_errors_come_from_data_as_they_do_in_training():
    with pytest.raises(DataError, match="y has one label only"):
        hpcsgd.fit(np.ones((4, 2)), "logistic", np.ones(4))


def test_all_ranks_get_the_bits_of_rank_0():
    """Also where sums over members left them different ones."""
    problem = make_problem("logistic", n=40, d=3)

    def on_rank(world):
        own = hpcsgd.fit(problem.X, "logistic", problem.y)
        moved = replace(
            own,
            weights=own.weights + world.rank,
            intercept=own.intercept + world.rank,
            loss=own.loss + world.rank,
        )
        return own, with_bits_of_rank_0(moved, world)

    for own, told in run_ranks(3, on_rank):
        assert told.weights_sha256 == own.weights_sha256
        assert told.loss == own.loss and type(told.loss) is float
        assert np.shape(told.intercept) == np.shape(own.intercept)


@pytest.mark.parametrize(
    "agreement", [{"method": "zero2"}, {"method": "ddp"}, {"kind": "sharded"}]
)
def test_replicas_of_a_named_method_agree_in_every_step(agreement):
    """Nobody asked for the eight steps that a fit would choose."""
    problem = make_problem("logistic", n=24, d=3)

    def on_rank(world):
        asked = {"config": {"agreement": agreement}, "grid": (2, 1), "comm": world}
        return hpcsgd.fit(problem.X, "logistic", problem.y, epochs=2, **asked)

    result = run_ranks(2, on_rank)[0]
    assert result.config["schedule"]["steps"] == 1


# ------------------------------------------- agreements without weights in one place


WIDE = make_problem("logistic", n=40, d=9)


def fitted(config, ranks=2, **asked):
    """On thread ranks that are replicas."""

    def on_rank(world):
        own = {"alpha": 1e-2, "epochs": 3, "grid": f"{ranks}x1", "comm": world}
        return hpcsgd.fit(WIDE.X, "logistic", WIDE.y, config=config, **{**own, **asked})

    return run_ranks(ranks, on_rank)[0]


ZERO3 = {"agreement": {"method": "zero3"}}


@QUIET
@pytest.mark.parametrize("kind", ["zero3", "stage", "infinity"])
def test_weights_that_are_never_whole_are_not_polished(kind, caplog, tmp_path):
    asked = {
        "zero3": ZERO3,
        "stage": {"agreement": {"kind": "sharded", "stage": 3}},
        "infinity": {"agreement": {"method": "infinity", "store": str(tmp_path)}},
    }[kind]
    rate = 0.1 if kind == "infinity" else "auto"
    result = fitted(asked, rate=rate, verbose=1)
    assert result.config["polish"]["kind"] == result.config["average"]["kind"] == "none"
    assert result.config["stop"]["on"] == result.config["run"]["evaluate"] == "loss"
    assert "polish is off: " in caplog.text


@QUIET
def test_nothing_is_said_of_polish_where_somebody_has_spoken(caplog):
    fitted(ZERO3, polish=False)
    fitted({**ZERO3, "polish": {"kind": "none"}})
    fitted({"agreement": {"method": "zero2"}})
    assert "polish is off" not in caplog.text
    with pytest.raises(ConfigError, match="has no rank that holds.*polish='auto'"):
        fitted(ZERO3, polish=True)
    with pytest.raises(ConfigError, match=r"\[polish\] works on all of it"):
        fitted({**ZERO3, "polish": {"kind": "lbfgs"}})

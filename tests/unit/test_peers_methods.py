"""Peers minimise the objective that they are compared on."""

import threading

import numpy as np
import pytest

import hpcsgd
from benchmarks.peers import clock, mpi_loop, with_hpcsgd
from benchmarks.peers.clock import Limit, Outcome
from benchmarks.peers.losses import LOSSES, Objective, optimum
from benchmarks.peers.methods import ByEpochs
from benchmarks.peers.problems import Problem, solved
from benchmarks.peers.with_hpcsgd import Follow, Ours
from benchmarks.peers.with_numpy import NumpySgd
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.solvers.callbacks import View
from tests.helpers.limits import HANG


def problem_of(family, rows=300, cols=5, seed=0):
    """A small set whose optimum is finite."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, cols)).astype(np.float32)
    scores = X @ rng.normal(size=cols) / 2
    y = {
        "logistic": scores + rng.logistic(size=rows) > 0,
        "poisson": rng.poisson(np.exp(scores)),
        "gaussian": scores + rng.normal(size=rows),
    }[family]
    return solved(Problem("small", family, X, y.astype(np.float32)))[0]


@pytest.mark.parametrize("family", ["logistic", "poisson", "gaussian"])
def test_the_objective_is_that_of_the_package(family):
    problem = problem_of(family)
    result = hpcsgd.train(
        {
            "problem": {"family": family, "l2": problem.l2},
            "precision": {"recipe": "fp64"},
            "schedule": {"epochs": 2},
        },
        X=problem.X,
        y=problem.y,
        world=SerialCommunicator(),
    )
    assert problem.objective.value(result.weights) == pytest.approx(
        result.loss, rel=1e-6
    )
    assert problem.best < result.loss


@pytest.mark.parametrize("family", ["logistic", "poisson", "gaussian"])
def test_the_optimum_is_one(family):
    problem = problem_of(family)
    exact = Objective(family, problem.X.astype(float), problem.y, problem.l2)
    w = np.linspace(-0.3, 0.3, 5)
    slope = exact.with_gradient(w)[1]
    for j, unit in enumerate(np.eye(5)):
        rise = exact.value(w + 1e-6 * unit) - exact.value(w - 1e-6 * unit)
        assert slope[j] == pytest.approx(rise / 2e-6, rel=1e-6, abs=1e-8)
    assert optimum(exact)["largest_gradient"] < 1e-9


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("family", ["logistic", "poisson", "gaussian"])
def test_the_numpy_loop_is_sgd(family, momentum):
    problem = problem_of(family, rows=50)
    setting = {"rate": 0.05, "batch": 8, "momentum": momentum, "decays": 1}
    run = NumpySgd(problem, setting, seed=3)
    run.epoch()
    run.epoch()
    assert run.weights() == pytest.approx(_slowly(problem, setting, 3), abs=1e-5)


def _slowly(problem, setting, seed):
    """Two epochs in float64, written out."""
    order = np.random.default_rng(seed).permutation(50)
    batches = np.split(order, range(8, 50, 8))
    w, v = np.zeros(5), np.zeros(5)
    for k, batch in enumerate([*batches, *batches]):
        A = problem.X[batch].astype(float)
        r = LOSSES[problem.family][1](A @ w, problem.y[batch])
        v = setting["momentum"] * v + A.T @ r / len(batch) + problem.l2 * w
        w = w - setting["rate"] / (1 + k / 7) * v
    return w


@pytest.mark.parametrize("method", [Ours("c"), Ours("fp32"), ByEpochs("n", NumpySgd)])
@pytest.mark.parametrize("family", ["logistic", "poisson", "gaussian"])
def test_methods_with_a_rate_reach_the_target(family, method):
    problem = problem_of(family)
    tuned = method.tune(problem, trials=12, cap=1.0)
    assert tuned.outcome.reached and tuned.trials == 12
    outcome = method.time(problem, tuned.setting, seed=1, cap=2.0)
    assert outcome.reached and outcome.gap <= clock.TARGET
    assert outcome.epochs >= 1 and outcome.seconds > 0


def test_a_trial_of_ours_that_diverges_is_an_outcome():
    setting = {"rate": 1e30, "batch": 8, "momentum": 0.0, "decays": 0}
    outcome = Ours("fp32").time(problem_of("poisson"), setting, seed=0, cap=1.0)
    assert not outcome.reached and outcome.seconds > 0


def test_losses_are_off_the_clock_of_ours(monkeypatch):
    now = iter([10, 11, 50, 60, 61, 95, 96, 99])
    monkeypatch.setattr(with_hpcsgd, "perf_counter", lambda: next(now))
    view = View(epochs=2, exchanges_planned=2, total_rows=1, loss=9.0)
    follow = Follow(1.0, Limit(20.0))  # at 10
    follow.on_start(view)  # at 11
    assert not follow.on_evaluate(view)  # at 50, after 39 of loss
    assert not follow.on_exchange(view)  # at 60
    assert follow.seconds_at_mark() == 11  # 1 before the loss, 10 after it
    view.epoch, view.seconds, view.loss = 1, 0.5, 1.004  # half a second in a look
    assert follow.on_evaluate(view)  # at 61
    assert follow.outcome == Outcome(True, 11.5, 1, pytest.approx(0.004))
    assert follow.on_exchange(view)  # at 95: past the limit
    assert follow.seconds_at_mark() == 45.5


@pytest.mark.parametrize("kind", ["columns", "rows"])
@pytest.mark.parametrize("size", [1, 2])
def test_the_bare_loops_are_sgd(kind, size):
    problem = problem_of("logistic", rows=40)
    meeting, words = threading.Barrier(size, timeout=HANG), [None] * size
    found = [None] * size

    def on_rank(rank):
        def add(own):
            words[rank] = own.copy()
            meeting.wait()
            own[:] = sum(words)
            meeting.wait()

        task = (problem.X, problem.y, 8, 0.3)
        walk_on, found[rank] = mpi_loop.LOOPS[kind]((rank, size), add, task)
        walk_on(7)  # past the last batch, on to the first again

    threads = [threading.Thread(target=on_rank, args=(n,)) for n in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    w = np.zeros(5)
    for batch in [*np.split(np.arange(40), 5), *np.split(np.arange(40), 5)[:2]]:
        A = problem.X[batch].astype(float)
        w -= 0.3 / 8 * A.T @ (1 / (1 + np.exp(-A @ w)) - problem.y[batch])
    got = np.concatenate(found) if kind == "columns" else found[-1]
    assert got == pytest.approx(w, abs=1e-5)

"""The rules that the benchmark of peers plays by."""

import json
import threading

import numpy as np
import pytest

import hpcsgd
from benchmarks import bench_ddp, bench_peers
from benchmarks.peers import clock, mpi_loop
from benchmarks.peers.clock import Limit, Outcome, walk
from benchmarks.peers.losses import Objective, optimum
from benchmarks.peers.methods import ByEpochs, Solver, Tuned, search
from benchmarks.peers.notebook import Notebook
from benchmarks.peers.problems import Problem, solved
from benchmarks.peers.settings import BATCHES, RATES, settings, taken
from benchmarks.peers.smallest import smallest
from benchmarks.peers.table import table
from benchmarks.peers.with_hpcsgd import Ours
from benchmarks.peers.with_numpy import RESIDUALS, NumpySgd
from hpcsgd.comm.serial import SerialCommunicator


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


def test_trials_are_drawn_once_for_all():
    assert settings(40, 7.0) == settings(40, 7.0)
    assert settings(10, 7.0) == settings(40, 7.0)[:10]


def test_trials_cover_what_they_say():
    tried = settings(2000, 4.0)
    rates = np.log([s["rate"] * 4 for s in tried])
    low, high = np.log(RATES)
    assert low <= rates.min() < low + 0.1 and high - 0.1 < rates.max() <= high
    assert abs(rates.mean() - (low + high) / 2) < 0.2
    assert {min(s["batch"] for s in tried), max(s["batch"] for s in tried)} == {
        *BATCHES
    }
    still = [s for s in tried if s["momentum"] == 0]
    assert 0.4 < len(still) / len(tried) < 0.6


def test_every_method_takes_its_fields_of_the_same_trials():
    tried = settings(40, 1.0)
    assert [s["rate"] for s in taken(tried, ("rate", "decays"))] == [
        s["rate"] for s in tried
    ]
    assert sorted(s["averages"] for s in taken(tried, ("averages",))) == [0, 1]


@pytest.mark.parametrize("start", [1, 3, 20])
@pytest.mark.parametrize("enough", [1, 2, 3, 7, 8, 9, 100])
def test_bisecting_finds_the_smallest(enough, start):
    tries = []

    def is_enough(count):
        tries.append(count)
        return count >= enough

    assert smallest(is_enough, start=start) == enough
    assert len(tries) == len(set(tries)) <= 2 * 7 + 2


def test_bisecting_gives_up_where_it_must():
    assert smallest(lambda n: False, most=64) is None
    tries = []
    assert smallest(lambda n: tries.append(n), lambda n: n < 8) is None
    assert tries == [1, 2, 4, 8]


class Falling:
    """A run whose weights are the number of its epochs."""

    def __init__(self):
        self.done = 0

    def epoch(self):
        self.done += 1

    def weights(self):
        return self.done


class Watched(Problem):
    """Gaps 1, 1/2, 1/3, ... and a clock that looks cost 100 seconds of."""

    def gap(self, weights):
        Ticks.now += 100.0
        return 1.0 / weights if weights else float("inf")


class Ticks:
    """Seconds that pass when they are asked for."""

    now = 0.0

    @classmethod
    def read(cls):
        cls.now += 1.0
        return cls.now


@pytest.fixture
def ticks(monkeypatch):
    """Every look at the clock costs a second."""
    monkeypatch.setattr(clock, "perf_counter", Ticks.read)


def watched():
    X = np.zeros((1, 1), np.float32)
    return Watched("watched", "gaussian", X, np.zeros(1, np.float32), 1.0)


def test_looks_are_off_the_clock(ticks):
    outcome = walk(Falling, watched(), Limit(1e9, epochs=1000))
    assert (outcome.reached, outcome.epochs) == (True, 200)
    assert outcome.seconds == 201.0  # one second a span: the start and 200 epochs


def test_a_walk_ends_at_its_limit(ticks):
    outcome = walk(Falling, watched(), Limit(10.0))
    assert (outcome.reached, outcome.epochs) == (False, 9)
    assert walk(Falling, watched(), Limit(1e9, epochs=5)).epochs == 5


def test_a_search_ends_trials_that_cannot_win():
    limits, far = [], Outcome(False, 10.0, 1, 0.3)
    given = {1: far, 2: Outcome(True, 4.0, 1, 0.0), 3: Outcome(True, 3.0, 1, 0.0)}

    def reach(setting, limit):
        limits.append(limit.seconds)
        return given[setting["rate"]]

    tuned = search(reach, [{"rate": n} for n in (1, 2, 3, 1)], cap=10.0)
    assert limits == [10.0, 10.0, 4.0, 3.0]
    assert (tuned.setting, tuned.trials, tuned.seconds) == ({"rate": 3}, 4, 27.0)


def test_a_solver_is_given_the_fewest_iterations():
    problem, fits = watched(), []

    def fit(_, count):
        fits.append(count)
        return count

    solver = Solver("solver", fit)
    tuned = solver.tune(problem, trials=40, cap=10.0)
    assert tuned.setting == {"max_iter": 200} and tuned.outcome.reached
    assert tuned.trials == len(fits)
    assert solver.settle(problem, {"max_iter": 500}, 10.0) == {"max_iter": 200}
    assert solver.tune(problem, trials=3, cap=10.0).trials == 3


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
        A, r = problem.X[batch].astype(float), problem.X[batch] @ w
        RESIDUALS[problem.family](r, problem.y[batch])
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


class Counted:
    """A method that does nothing, and counts; it may break at one of its calls."""

    def __init__(self, name, breaks_at=None):
        self.name, self.breaks_at, self.calls = name, breaks_at, []

    def _call(self, what):
        self.calls.append(what)
        if len(self.calls) == self.breaks_at:
            raise KeyboardInterrupt
        return Outcome(True, float(len(self.calls)), 1, 0.001)

    def tune(self, problem, trials, cap):
        if trials > 1:  # else it is the warm-up
            self._call("tune")
        return Tuned({"rate": 1.0}, Outcome(True, 1.0, 1, 0.0), trials, 1.0)

    def settle(self, problem, setting, cap):
        return setting

    def time(self, problem, setting, seed, cap):
        return self._call(f"time {seed}")


def _run(monkeypatch, path, names, **more):
    """One call of the bench on a tiny set; what each of these methods was asked."""
    counted = [Counted(name, more.pop(name, None)) for name in names]
    monkeypatch.setattr(bench_peers, "methods", lambda problem: counted)
    monkeypatch.setattr(bench_peers, "_one_core", lambda: None)
    arguments = ["--out", str(path), "--problems", "susy", "--rows", "300"]
    for flag, value in ({"repeats": 2, "trials": 3} | more).items():
        arguments += [f"--{flag}", str(value)]
    asked = bench_peers._arguments(arguments)
    try:
        bench_peers.run(asked)
    except KeyboardInterrupt:
        assert path.exists()
    return [method.calls for method in counted]


ALL = ["tune", "time 0", "time 1", "time 2"]


def test_what_is_finished_is_skipped(monkeypatch, tmp_path):
    path = tmp_path / "figures.json"
    assert _run(monkeypatch, path, ["one", "two"]) == [ALL, ALL]
    assert _run(monkeypatch, path, ["one", "two"]) == [[], []]
    assert _run(monkeypatch, path, ["one", "three"]) == [[], ALL]
    assert _run(monkeypatch, path, ["one"], repeats=3) == [[*ALL, "time 3"]]


def test_an_interrupted_run_goes_on(monkeypatch, tmp_path):
    path = tmp_path / "figures.json"
    assert _run(monkeypatch, path, ["one", "two"], two=4) == [ALL, ALL]
    before = json.loads(path.read_text())["figures"]["problems"]["susy"]["methods"]
    assert _run(monkeypatch, path, ["one", "two"]) == [[], ["time 0", "time 2"]]
    after = json.loads(path.read_text())["figures"]["problems"]["susy"]["methods"]
    assert after["one"] == before["one"] and len(after["two"]["runs"]) == 2


def test_figures_of_another_configuration_are_not_mixed(tmp_path):
    path = tmp_path / "figures.json"
    book = Notebook(path, {"cores": 2}, {"rows": 10})
    book.problem("p")["gap"] = float("inf")
    book.save()
    assert json.loads(path.read_text())["figures"]["problems"]["p"]["gap"] is None
    assert "gap" in Notebook(path, {"cores": 2}, {"rows": 10}).problem("p")
    for other in (
        Notebook(path, {"cores": 4}, {"rows": 10}),
        Notebook(path, {"cores": 2}, {"rows": 11}),
        Notebook(path, {"cores": 2}, {"rows": 10}, fresh=True),
    ):
        assert other.started_anew and "gap" not in other.problem("p")


def test_a_summary_counts_the_runs_that_did_not_get_there():
    there = {"reached": True, "seconds": 1.0, "epochs": 2, "gap": 0.004}
    never = {"reached": False, "seconds": 9.0, "epochs": 9, "gap": None}
    assert bench_peers.summary([there, there, never])["seconds"] == 1.0
    assert bench_peers.summary([there, never, never])["seconds"] is None
    assert not bench_peers.summary([there, never])["reached"]


def test_the_table_puts_the_fastest_first():
    def row(seconds):
        runs = [{"reached": bool(seconds), "seconds": seconds, "epochs": 1, "gap": 0.1}]
        tuning = {"seconds": 2.0, "setting": {"rate": 0.5}}
        return {"tuning": tuning, "runs": runs, **bench_peers.summary(runs)}

    rows = {"slow": row(4.0), "never": row(0), "fast": row(2.0), "untimed": {}}
    part = {"rows": 3, "columns": 2, "family": "poisson", "optimum": {"loss": 1.5}}
    lines = table("p", part | {"methods": rows}).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["fast", "slow", "never"]
    assert "2.00" in lines[3] and "never" in lines[4].split()[1]


@pytest.mark.parametrize("kind", ["columns", "rows"])
@pytest.mark.parametrize("size", [1, 2])
def test_the_bare_loops_are_sgd(kind, size):
    problem = problem_of("logistic", rows=40)
    meeting, words = threading.Barrier(size, timeout=20), [None] * size
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
        thread.join(30)
    w = np.zeros(5)
    for batch in [*np.split(np.arange(40), 5), *np.split(np.arange(40), 5)[:2]]:
        A = problem.X[batch].astype(float)
        w -= 0.3 / 8 * A.T @ (1 / (1 + np.exp(-A @ w)) - problem.y[batch])
    got = np.concatenate(found) if kind == "columns" else found[-1]
    assert got == pytest.approx(w, abs=1e-5)


def test_ratios_are_of_the_fastest_of_each_kind():
    rows = {
        "hpcsgd auto": {"us": 20.0},
        "hpcsgd gather": {"us": 10.0},
        "bare rows": {"us": 30.0},
        "bare columns": {"us": 15.0},
        "ddp": {"us": 700.0},
    }
    found = bench_ddp.ratios(rows)
    assert found["best"] == "hpcsgd gather"
    assert found["ddp"] == {"beside": "ddp", "times": 70.0, "target": 60.0, "met": True}
    assert (found["bare"]["beside"], found["bare"]["times"]) == ("bare columns", 1.5)
    assert not found["bare"]["met"]
    assert "ddp" not in bench_ddp.ratios({k: rows[k] for k in rows if k != "ddp"})

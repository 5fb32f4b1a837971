"""The rules that the benchmark of peers plays by: trials, limits, clocks."""

import numpy as np
import pytest

from benchmarks.peers import clock
from benchmarks.peers.clock import Limit, Outcome, walk
from benchmarks.peers.methods import Solver, search
from benchmarks.peers.problems import Problem
from benchmarks.peers.settings import BATCHES, RATES, settings, taken
from benchmarks.peers.smallest import smallest


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
    given[4] = Outcome(True, 3.5, 1, 0.0)  # it was there before it could be ended

    def reach(setting, seed, limit):
        limits.append(limit.seconds)
        return given[setting["rate"]]

    tuned = search(reach, [{"rate": n} for n in (1, 2, 3, 4, 1)], cap=10.0)
    assert limits == [10.0, 10.0, *2 * [10.0], 4.0, *2 * [10.0], 3.0, 3.0]
    assert (tuned.setting, tuned.trials, tuned.seconds) == ({"rate": 3}, 5, 44.5)


@pytest.mark.parametrize(
    ("lucky", "chosen", "spent"), [((), 3, 18), ((3,), 2, 17), ((3, 2, 1), 1, 12)]
)
def test_a_trial_that_was_lucky_is_not_taken(lucky, chosen, spent):
    """Trials 1, 2, 3 are ever faster; the lucky ones arrive with one order alone."""
    seeds, limits = [], []

    def reach(setting, seed, limit):
        number = setting["rate"]
        if seed:
            seeds.append(seed)
            limits.append(limit.seconds)
        return Outcome(seed == 0 or number not in lucky, 4.0 - number, 1, 0.0)

    tuned = search(reach, [{"rate": n} for n in (1, 2, 3)], cap=6.0)
    assert (tuned.setting, tuned.seconds) == ({"rate": chosen}, spent)
    assert tuned.outcome.reached == (1 not in lucky)
    if not lucky:
        assert limits == [6.0, 6.0, 6.0, 6.0, 4.0, 4.0]
        assert seeds == [101, 102] * 3


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


@pytest.mark.parametrize("trials", [3, 9, 11])
def test_a_solver_keeps_to_its_trials(trials):
    fits = []
    tuned = Solver("solver", lambda _, n: fits.append(n) or n).tune(
        watched(), trials, cap=10.0
    )
    assert tuned.trials == len(fits) == trials
    assert tuned.outcome.reached == (trials >= 9)  # 256, the first power of two


def test_a_solver_keeps_to_its_cap(ticks):
    solver = Solver("solver", lambda _, count: count)
    assert solver.tune(watched(), trials=40, cap=1.9).trials == 1
    assert solver.tune(watched(), trials=40, cap=2.0).outcome.reached

"""What the bar and the lines say: split of the time, time left, no jumps."""

import math

import pytest

from hpcsgd.api import train
from hpcsgd.runs.progress import (
    Forecast,
    ProgressDisplay,
    ProgressLines,
    TimeShares,
    figures,
    format_time_left,
)
from hpcsgd.solvers.callbacks import Callback, View
from tests.helpers.problems import make_problem
from tests.helpers.resumed import PreemptAt


class Run:
    """A view that is moved by hand."""

    def __init__(self, exchanges=100, evaluations=0):
        self.seconds = {}
        self.view = View(
            epochs=1,
            exchanges_planned=exchanges,
            total_rows=1000,
            phases=lambda: self.seconds,
            evaluations_planned=evaluations,
        )

    def spend(self, exchanges=0, **phases):
        for name, seconds in phases.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self.view.seconds += 0.0 if name == "evaluate" else seconds
        self.view.exchanges += exchanges


@pytest.mark.parametrize(
    "seconds, said",
    [
        (math.nan, ""),
        (math.inf, ""),
        (0.4, "almost done"),
        (3.2, "3 s left"),
        (43.0, "45 s left"),
        (57.4, "55 s left"),
        (58.0, "1 min left"),
        (131.0, "2 min 10 s left"),
        (594.0, "9 min 50 s left"),
        (596.0, "10 min left"),
        (1500.0, "25 min left"),
        (3569.0, "59 min left"),
        (3600.0, "about 1 h left"),
        (4700.0, "about 1 h 20 min left"),
        (6890.0, "about 1 h 50 min left"),
        (6901.0, "about 2 h left"),
        (10500.0, "about 3 h left"),
        (171500.0, "about 2 days left"),
    ],
)
def test_time_as_a_person_says_it(seconds, said):
    assert format_time_left(seconds) == said


def test_the_words_never_go_back_up():
    """Rounded minutes and tens do not overlap at the seams."""
    said = [format_time_left(seconds) for seconds in range(1, 200000)]
    changes = [a for a, b in zip(said, said[1:], strict=False) if a != b]
    assert len(changes) == len(set(changes))
    assert not any(" 60 " in text for text in changes)


def test_the_split_is_that_of_the_last_interval():
    run, split = Run(), TimeShares()
    run.spend(1, gram=3.0, inner=1.0, communicate=5.0, sample=1.0)
    assert split.since_last(run.view) == "work 40 net 50 other 10 %"
    run.spend(1, update=1.0, agreement=1.0, communicate=2.0)
    assert split.since_last(run.view) == "work 25 net 75 other 0 %"
    assert split.since_last(run.view) == "", "nothing happened since"


def test_evaluations_are_no_part_of_the_split():
    run, split = Run(), TimeShares()
    run.spend(1, gram=1.0, evaluate=99.0)
    assert split.since_last(run.view) == "work 100 net 0 other 0 %"


def test_time_left_counts_exchanges_and_evaluations():
    run, forecast = Run(exchanges=100, evaluations=4), Forecast()
    assert math.isnan(forecast.seconds_left(run.view))
    run.spend(evaluate=3.0)
    forecast.evaluated()
    run.spend(10, gram=2.0)
    forecast.update(run.view)
    assert forecast.seconds_left(run.view) == pytest.approx(90 * 0.2 + 3 * 3.0)


def test_time_left_after_a_resume_is_by_the_evaluations_of_this_start():
    """Thirty evaluations of an earlier start were slow; this start evaluates fast."""
    run = Run(exchanges=1000, evaluations=100)
    run.spend(300, gram=60.0)
    run.spend(evaluate=90.0)
    run.view.history[:] = [{"loss": 0.5}] * 30
    forecast = Forecast()
    forecast.begin(run.view)
    run.spend(10, gram=1.0)
    forecast.update(run.view)
    # Before the first evaluation of this start, that of earlier starts counts.
    assert forecast.seconds_left(run.view) == pytest.approx(690 * 0.1 + 70 * 3.0)
    run.spend(evaluate=1.0)
    forecast.evaluated()
    assert forecast.seconds_left(run.view) == pytest.approx(690 * 0.1 + 69 * 1.0)


def test_a_slow_moment_moves_the_forecast_a_little_and_is_forgotten():
    run, forecast = Run(exchanges=10000), Forecast()
    for _ in range(50):
        run.spend(10, gram=1.0)
        forecast.update(run.view)
    before = forecast.seconds_left(run.view)
    run.spend(1, gram=1.0)  # ten times slower, for a second
    forecast.update(run.view)
    after = forecast.seconds_left(run.view)
    assert before < after < 1.06 * before
    for _ in range(100):
        run.spend(10, gram=1.0)
        forecast.update(run.view)
    rest = 0.1 * (run.view.exchanges_planned - run.view.exchanges)
    assert forecast.seconds_left(run.view) == pytest.approx(rest, rel=0.002)


def test_a_lasting_change_is_believed():
    run, forecast = Run(exchanges=100000), Forecast()
    for seconds in [1.0] * 60 + [2.0] * 60:
        run.spend(10, gram=seconds)
        forecast.update(run.view)
    rest = 0.2 * (run.view.exchanges_planned - run.view.exchanges)
    assert forecast.seconds_left(run.view) == pytest.approx(rest, rel=0.01)


def test_narrow_terminals_leave_words_out():
    view = Run().view
    assert any("words/step" in part for part in figures(view))
    assert not any("words/step" in part for part in figures(view, wide=False))


class Spy(Callback):
    """Keeps what the engine's view says at the end."""

    def on_end(self, view):
        self.phases, self.planned = dict(view.phases()), view.evaluations_planned


@pytest.mark.parametrize("every, epochs", [(0, 3), (1, 3), (2, 3), (3, 3), (2, 4)])
def test_a_real_run_evaluates_as_often_as_was_planned(every, epochs):
    problem, spy = make_problem("logistic"), Spy()
    result = train(
        {"schedule": {"epochs": epochs}, "run": {"evaluate_every": every}},
        X=problem.X,
        y=problem.y,
        callbacks=[spy],
    )
    assert len(result.history) == spy.planned
    assert {"evaluate", "agreement"} <= set(spy.phases)
    assert {"steps", "update"} & set(spy.phases)  # by kernels, or one by one


def test_lines_of_a_real_run(capsys):
    problem = make_problem("logistic")
    train(
        {"schedule": {"epochs": 2, "batch": 2}},
        X=problem.X,
        y=problem.y,
        callbacks=[ProgressLines(0.0)],
    )
    said = capsys.readouterr()
    assert said.out == ""
    last = said.err.splitlines()[-1]
    assert last.startswith("hpcsgd: 100 %  loss ")
    for word in ("rows/s", "words/step", "work ", " net ", "almost done"):
        assert word in last, last


class Foresight(ProgressDisplay):
    """A display that keeps the forecast beside what this start has measured."""

    def on_start(self, view):
        super().on_start(view)
        self.before, self.evaluated, self.seen = view.phases().get("evaluate", 0), 0, []

    def on_evaluate(self, view):
        super().on_evaluate(view)
        self.evaluated += 1

    def show(self, view, said):
        if self.evaluated:
            each = (view.phases()["evaluate"] - self.before) / self.evaluated
            to_come = view.evaluations_planned - len(view.history)
            exchanges = view.exchanges_planned - view.exchanges
            rate = self.forecast.spent / self.forecast.done
            expected = exchanges * rate + to_come * each
            self.seen.append((self.forecast.seconds_left(view), expected))


def test_a_resumed_run_forecasts_by_what_its_own_start_measured(tmp_path):
    problem, foresight = make_problem("logistic"), Foresight()

    def start(*callbacks):
        return train(
            {
                "schedule": {"epochs": 6, "batch": 4, "steps": 3},
                "run": {"evaluate_every": 1, "out": str(tmp_path), "resume": "auto"},
            },
            X=problem.X,
            y=problem.y,
            callbacks=list(callbacks),
        )

    preempted = start(PreemptAt(12))
    assert len(preempted.history) > 1
    resumed = start(foresight)
    assert resumed.report["resumes"] == 1 and foresight.before > 0
    assert len(foresight.seen) > 3
    for forecast, expected in foresight.seen:
        assert forecast == pytest.approx(expected)

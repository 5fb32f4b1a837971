"""`--precision auto` looks again on the way, from the weights at hand."""

import logging

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.checkpoint import Store
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import PrecisionConfig
from hpcsgd.data.memory import MemoryReader
from hpcsgd.precision import RECIPES
from hpcsgd.recheck import Recheck
from hpcsgd.result import Status
from hpcsgd.start import Start
from hpcsgd.trials import pilot
from hpcsgd.trials.pilot import draw_sample, loss_gaps
from tests.harness import config_for, make_problem, oracle_for, relative_error, train_on

N, D, BATCH, STEPS, EPOCHS = 6000, 12, 16, 4, 8
EACH = -(-N // (BATCH * STEPS))


def fading(seed=0):
    """A linear problem whose loss falls by 1e4: what rounding adds is lost at first."""
    problem = make_problem("gaussian", n=N, d=D)
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(N, D)), rng.normal(size=D)
    object.__setattr__(problem, "X", X)
    object.__setattr__(problem, "y", X @ w + 0.03 * rng.normal(size=N))
    return problem


def settings(problem, /, **sections):
    tables = {
        "schedule": {"batch": BATCH, "steps": STEPS, "epochs": EPOCHS},
        "precision": {"recipe": "auto", **sections.pop("precision", {})},
        "rate": {"value": 0.004},
        # Without a clock: c is asked first.
        "run": {"reproducible": True, "evaluate_every": 1, **sections.pop("run", {})},
    }
    return config_for(problem, **{**tables, **sections})


def rechecks(result):
    return result.report["precision_auto"]["rechecks"]


def test_after_one_two_four_eight_epochs():
    due = [epoch for epoch in range(40) if Recheck.is_due(None, epoch)]
    assert due == [1, 2, 4, 8, 16, 32]


@pytest.fixture(scope="module")
def fallen():
    problem = fading()
    return problem, {n: train_on(n, settings(problem), problem) for n in (1, 2, 3)}


@pytest.mark.parametrize("members", [1, 2, 3])
def test_a_recipe_that_was_good_enough_at_first_is_widened(fallen, members):
    result = fallen[1][members]
    assert result.status is Status.COMPLETED
    assert result.report["precision_auto"]["recipe"] == "c"
    assert result.report["precision"] == vars(RECIPES["fp32"])
    assert result.config["precision"]["recipe"] == "fp32"
    (event,) = result.events
    assert event["event"] == "fall-back" and event["reason"] == "precision"
    assert event["change"] == "recipe c -> fp32"
    assert event["gap"] > event["tolerance"] == 0.005
    assert event["exchange"] == event["stopped"] == event["now"] == 2 * EACH
    looks = [(one["epoch"], one["recipe"], one["passed"]) for one in rechecks(result)]
    # The last epoch has nothing left to decide.
    assert looks == [(1, "c", True), (2, "c", False), (4, "fp32", True)]
    assert result.exchanges == EPOCHS * EACH
    assert [record["epoch"] for record in result.history] == list(range(EPOCHS + 1))


def test_it_pays_and_what_was_predicted_is_what_would_have_been(fallen):
    """Without the recheck the loss is off by more than the tolerance."""
    problem, results = fallen
    kept = settings(problem, precision={"recheck": False})
    blind = train_on(1, kept, problem)
    assert blind.events == [] and "rechecks" not in blind.report["precision_auto"]
    assert blind.report["precision"] == vars(RECIPES["c"])
    exact = train_on(1, settings(problem, precision={"recipe": "fp64"}), problem)
    truth = np.array([record["loss"] for record in exact.history])

    def worst(result):
        losses = np.array([record["loss"] for record in result.history])
        return np.abs(losses / truth - 1)[3:].max()

    assert worst(results[1]) <= 0.005 < worst(blind)


def test_up_to_there_it_is_the_run_of_c_and_from_there_that_of_fp32(tmp_path):
    problem = fading()
    run = {"out": str(tmp_path / "run")}
    keep = {"keep": 100}
    train_on(2, settings(problem, run=run, checkpoint=keep), problem)
    paths = Store(tmp_path / "run", 100).paths()
    from hpcsgd.checkpoint import read_checkpoint

    found = [read_checkpoint(path) for path in paths]
    (there,) = [one for one in found if one.exchanges == 2 * EACH]
    schedule = {"batch": BATCH, "steps": STEPS, "epochs": 2}
    alone = settings(problem, precision={"recipe": "c"}, schedule=schedule)
    expected = train_on(2, alone, problem).weights
    assert (there.arrays["weights"][0][:, 0] == expected).all()


def test_resumed_runs_go_on_with_what_was_found(tmp_path):
    """A run that is cut off before and after the recheck has the same bits."""
    problem = fading()
    whole = train_on(2, settings(problem), problem)
    for first in (1, 3):
        run = {"out": str(tmp_path / str(first)), "resume": "auto"}
        stop = Stop(first * EACH)
        config = settings(problem, run=run)
        cut = train_on(2, config, problem, callbacks=[stop])
        assert cut.status is Status.STOPPED and cut.exchanges == first * EACH
        again = train_on(2, config, problem)
        assert again.report["resumes"] == 1
        assert (again.weights == whole.weights).all()
        assert [e["change"] for e in again.events] == ["recipe c -> fp32"]
        shown = [(k["epoch"], k["recipe"]) for k in rechecks(again)]
        expected = [(k["epoch"], k["recipe"]) for k in rechecks(whole)]
        # One that ends looks no further.
        assert shown == expected[first == 1 :]


class Stop:
    """A callback that ends the run after an exchange."""

    def __init__(self, after):
        self.after = after

    def on_start(self, view):
        pass

    on_evaluate = on_end = on_start

    def on_exchange(self, view):
        return view.exchanges == self.after


def test_without_fall_backs_it_is_said_and_nothing_changes(caplog):
    problem = fading()
    config = settings(problem, run={"fall_back": False})
    with caplog.at_level(logging.WARNING):
        result = train_on(2, config, problem)
    assert [event["event"] for event in result.events] == ["precision"]
    assert "it goes on as it is" in caplog.text
    alone = train_on(2, settings(problem, precision={"recipe": "c"}), problem)
    assert (result.weights == alone.weights).all()


def test_with_nothing_wider_it_is_said_and_goes_on():
    problem = fading()
    hand = {"matrix": "bf16", "margin": "bf16", "tolerance": 1e-9}
    result = train_on(1, settings(problem, precision=hand), problem)
    assert result.report["precision"]["matrix"] == "bf16"
    assert {event["event"] for event in result.events} == {"precision"}
    assert result.status is Status.COMPLETED


def test_nothing_becomes_narrower_again():
    """What the ladder has widened is wide in the next recipe, too, or it is none."""
    problem = fading()
    config = settings(problem, precision={"recipe": "d"})

    class Live:
        pass

    live = Live()
    live.config = config
    live.capture = Live()
    live.capture.facts = {}
    wider = Recheck(live, None, {"considered": {}})._wider()
    assert set(wider) == {"c", "fp32", "fp64"}
    live.config = settings(problem, precision={"recipe": "c", "matrix": "fp32"})
    live.capture.facts = {"asked": {"precision": {"recipe": "c"}}}
    wider = Recheck(live, None, {"considered": {}})._wider()
    assert set(wider) == {"fp32", "fp64"}
    assert wider["fp32"] == PrecisionConfig(recipe="fp32")


@pytest.mark.parametrize("kind", ["sgd", "momentum", "nesterov"])
@pytest.mark.parametrize("family", ["gaussian", "softmax"])
def test_pilots_begin_where_the_run_stands(monkeypatch, family, kind):
    """Weights, intercept and momentum: a pilot is the rest of the run, on its rows."""
    problem = make_problem(family, n=256, d=9)
    update = {"kind": kind, "momentum": 0.0 if kind == "sgd" else 0.5}
    sections = {
        "problem": {"intercept": True},
        "schedule": {"batch": 8, "steps": 2, "epochs": 6},
        "update": update,
    }
    config = config_for(problem, **sections)
    seen = {}

    class Keep(Stop):
        pass

    def on_rank(world):
        from hpcsgd.session import Session
        from hpcsgd.timing import Clock

        def reader(_):
            return MemoryReader(problem.X, problem.y)

        session = Session(config, world, reader, [Keep(3 * 16)], 0.0, Clock())
        look = Session._in_folder

        def keeping(self, live, folder):
            result = look(self, live, folder)
            weights = live.columns.join(live.state.weights)
            if world.rank == 0:
                seen["start"] = Start(weights, live.state.intercept.copy())
            return result

        session._in_folder = keeping.__get__(session)
        return session.run()

    half = run_ranks(2, on_rank)[0]
    assert half.exchanges == 48
    sample = draw_sample(MemoryReader(problem.X, problem.y), 16, 0, family)
    short = config_for(problem, **sections)
    monkeypatch.setattr(pilot, "EXCHANGES", 48)
    kept = []
    gap = pilot._gap

    def keep(found, exact, exchanges):
        kept.append(exact)
        return gap(found, exact, exchanges)

    monkeypatch.setattr(pilot, "_gap", keep)
    asked = {"fp64": PrecisionConfig(recipe="fp64")}
    assert loss_gaps(short, sample, asked, 2, 48, seen["start"])["fp64"].measured == 0
    whole = train_on(2, config, problem)
    # All rows are in the sample, in the order of the data, shuffled by the same seed;
    # the order of the second half is that of its own first epochs: the same, as it is
    # drawn once.
    assert kept[0].history[0]["loss"] == half.loss
    np.testing.assert_array_equal(kept[0].weights, whole.weights)


def test_a_sample_has_every_label_however_rare():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50_000, 3)), np.zeros(50_000)
    y[[777, 40_001]] = 1, 7
    for family in ("softmax", "logistic"):
        sample = draw_sample(MemoryReader(X, y), 64, 0, family)
        assert set(sample.y) == {0.0, 1.0, 7.0}
        rare = np.flatnonzero(sample.y)
        np.testing.assert_array_equal(sample.X[rare], X[[777, 40_001]])
    assert set(draw_sample(MemoryReader(X, y), 64).y) == {0.0}


def test_auto_takes_data_with_a_rare_label():
    problem = make_problem("logistic", n=20_000, d=4)
    y = np.zeros(20_000)
    y[4321] = 1
    object.__setattr__(problem, "y", y)
    config = settings(problem, rate={"value": 0.1})
    result = train_on(2, config, problem)
    assert result.status is Status.COMPLETED and len(rechecks(result)) == 3


def test_iterates_are_those_of_sgd_across_the_change(fallen):
    """fp32 from the second epoch on: nearer to the oracle than c all the way."""
    problem, results = fallen
    config = settings(problem)
    exact = oracle_for(config, problem)
    blind = train_on(2, settings(problem, precision={"recheck": False}), problem)
    assert relative_error(results[2], exact) < 0.2 * relative_error(blind, exact)


def test_replicas_stay_as_they_are_between_agreements():
    """A change of the recipe is no reason to average earlier."""
    problem = fading()
    tables = {
        "grid": {"replicas": 2},
        "schedule": {"batch": BATCH, "steps": STEPS, "epochs": EPOCHS, "period": 7},
        "agreement": {"kind": "average"},
    }
    chosen = settings(problem, precision={"tolerance": 1e-3}, **tables)
    result = train_on(4, chosen, problem)
    assert [event["change"] for event in result.events] == ["recipe c -> fp32"]
    blind = train_on(4, settings(problem, precision={"recipe": "c"}, **tables), problem)
    calls = [one.ledger["agreement"]["calls"] for one in (result, blind)]
    assert calls[0] == calls[1] > 0


def test_the_number_of_threads_is_that_of_the_run(monkeypatch):
    from hpcsgd import recheck

    used = []
    monkeypatch.setattr(recheck.threads, "use", used.append)
    problem = fading()
    config = settings(problem, precision={"tolerance": 0.5}, run={"threads": 2})
    result = train(config, X=problem.X, y=problem.y)
    assert result.events == [] and len(rechecks(result)) == 3
    assert used.count(2) == 1 + 3 and used[-1] == 2

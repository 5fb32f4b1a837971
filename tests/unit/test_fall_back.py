"""More careful settings after an alarm or a divergence, and never for long."""

import json
import logging

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends.exchange import HostExchange
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.sampling import plan_groups
from hpcsgd.errors import ConfigError
from hpcsgd.glm.updates import EightBitArray
from hpcsgd.precision import make_precision
from hpcsgd.products import monitor
from hpcsgd.runs.checkpoint import Capture, CheckpointStore
from hpcsgd.runs.fall_back import fewer_steps, next_fallback_level, widest_format
from hpcsgd.runs.progress import Callback
from hpcsgd.runs.result import Status, load_result
from hpcsgd.solvers.callbacks import Request
from hpcsgd.solvers.evaluation import Evaluation
from hpcsgd.studies.verify.certificate import certify
from tests.helpers.harness import (
    config_for,
    make_problem,
    oracle_for,
    relative_error,
    train_on,
)

N, D, BATCH, STEPS = 150, 12, 4, 8


def settings(problem, /, **sections):
    """5 exchanges of s = 8 steps an epoch, four epochs; every second is looked at."""
    tables = {
        "schedule": {"batch": BATCH, "steps": STEPS, "epochs": 4},
        "run": {"gap_every": 2, "evaluate_every": 1, **sections.pop("run", {})},
    }
    return config_for(problem, **{**tables, **sections})


def changes(result):
    return [event["change"] for event in result.events if event["event"] == "fall-back"]


@pytest.mark.parametrize(
    "s, all_of_them",
    [(8, [4, 2, 1]), (6, [3, 1]), (7, [1]), (12, [6, 3, 1]), (9, [3, 1]), (2, [1])],
)
def test_groups_begin_where_they_began(s, all_of_them):
    found = []
    while s > 1:
        s = fewer_steps(s)
        found.append(s)
    assert found == all_of_them


def ladder(product="gram", steps=8, **precision):
    config = config_for(
        make_problem("logistic"), schedule={"steps": steps}, precision=precision
    )
    found = []
    while (rung := next_fallback_level(config, product)) is not None:
        found.append(rung.text)
        config = config.with_values({rung.key: rung.after})
    return found


HALVED = ["steps 8 -> 4", "steps 4 -> 2", "steps 2 -> 1"]


@pytest.mark.parametrize(
    "recipe, more",
    [
        ("fp64", []),
        ("fp32", []),
        ("c", ["margin bf16 -> fp32", "matrix bf16 -> fp32"]),
        ("d", ["gram_wire bf16 -> fp32", "margin bf16 -> fp32", "matrix bf16 -> fp32"]),
        (
            "bf16",
            [
                "inner bf16 -> fp32",
                "gram_wire bf16 -> fp32",
                "margin bf16 -> fp32",
                "matrix bf16 -> fp32",
            ],
        ),
    ],
)
def test_fewer_steps_then_wider_formats(recipe, more):
    assert ladder(recipe=recipe) == HALVED + more


def test_wide_is_what_the_run_computes_in():
    more = ["margin fp32 -> fp64", "matrix fp32 -> fp64"]
    wide = {"recipe": "fp32", "inner": "fp64", "gram_wire": "fp64"}
    assert ladder(**wide)[3:] == more
    assert widest_format(make_precision("bf16")) == "fp32"


def test_products_without_a_recurrence_keep_their_steps():
    assert ladder("direct", recipe="c") == [
        "margin bf16 -> fp32",
        "matrix bf16 -> fp32",
    ]
    assert ladder("gather", recipe="d") == [
        "margin bf16 -> fp32",
        "matrix bf16 -> fp32",
    ]
    assert ladder("direct", recipe="fp32") == []


@pytest.fixture
def wrong(monkeypatch):
    """G is wrong while an exchange has more than so many steps, after so many calls."""
    plan = {"above": 2, "after": 0, "calls": 0}
    steps = HostExchange.steps

    def bending(self):
        plan["calls"] += 1
        late = plan["calls"] > plan["after"]
        if late and len(self.blocks.sizes) > plan["above"]:
            self.gram = self.gram.copy()
            self.gram[5] *= 3
        steps(self)

    monkeypatch.setattr(HostExchange, "steps", bending)
    return plan


@pytest.mark.parametrize("members", [1, 2, 3])
def test_an_alarm_halves_the_steps_until_all_is_well(members, wrong, caplog):
    problem = make_problem("logistic", n=N, d=D)
    with caplog.at_level(logging.WARNING):
        result = train_on(members, settings(problem), problem)
    assert result.status is Status.COMPLETED
    assert changes(result) == ["steps 8 -> 4", "steps 4 -> 2"]
    assert result.config["schedule"]["steps"] == 2
    # From the good state on these are the iterates of SGD, whatever s was.
    config = settings(problem)
    assert relative_error(result, oracle_for(config, problem)) <= 1e-10
    assert result.exchanges == 4 * len(plan_groups(N, BATCH, 2))
    assert result.iterations == 4 * -(-N // BATCH)
    kinds = [event["event"] for event in result.events]
    assert kinds == ["gap", "fall-back"] * 2
    first = result.events[1]
    assert first["gap"] > first["tolerance"] > 0 and first["reason"] == "gap"
    assert "steps 8 -> 4" in caplog.text and "off from fresh products" in caplog.text


def test_it_goes_on_from_the_last_state_that_was_checked(wrong):
    """12 exchanges of 8 steps are right; looks at 2, 4, ... 12 pass, that at 14 not."""
    wrong["after"] = 12
    problem = make_problem("logistic", n=N, d=D)
    result = train_on(1, settings(problem), problem)
    gap_event, fall = result.events[:2]
    assert gap_event["looked_at"] == 14
    assert fall["exchange"] == 12 and fall["stopped"] == 15
    # 12 exchanges: two epochs of 5, and 2 of 8 steps, which are 4 of 4 steps.
    assert fall["now"] == 2 * len(plan_groups(N, BATCH, 4)) + 4
    assert relative_error(result, oracle_for(settings(problem), problem)) <= 1e-10


def test_replicas_fall_back_together(wrong):
    problem = make_problem("logistic", n=2 * N, d=D)
    config = settings(
        problem, grid={"replicas": 2, "members": 2}, problem={"intercept": True}
    )

    def on_rank(world):
        return train(config, X=problem.X, y=problem.y, world=world)

    results = run_ranks(4, on_rank)
    assert {r.weights_sha256 for r in results} == {results[0].weights_sha256}
    assert [changes(r) for r in results] == [["steps 8 -> 4", "steps 4 -> 2"]] * 4


def test_replicas_agree_before_their_exchanges_are_counted_anew(wrong, monkeypatch):
    """Exchange 10 is between two agreements of every 4; number 20 would not be."""
    wrong["after"] = 20  # of two replicas
    problem, found = make_problem("logistic", n=2 * N, d=D), []
    schedule = {"batch": BATCH, "steps": STEPS, "epochs": 4, "period": 4}
    config = settings(problem, grid={"replicas": 2}, schedule=schedule)
    take = Capture.take

    def taking(self, state, view, on_any_grid):
        apart = not self.agreement.holds_one_state(state, view.exchanges)
        found.append((view.exchanges, apart, state.weights.copy()))
        return take(self, state, view, on_any_grid)

    monkeypatch.setattr(Capture, "take", taking)
    results = run_ranks(
        2, lambda world: train(config, X=problem.X, y=problem.y, world=world)
    )
    assert changes(results[0])[0] == "steps 8 -> 4"
    first = [one for one in found if one[0] == 10][:2]
    assert [apart for _, apart, _ in first] == [True, True]
    np.testing.assert_array_equal(first[0][2], first[1][2])


@pytest.mark.parametrize("update", ["momentum", "nesterov-classic"])
def test_momentum_is_put_back_too(update, wrong):
    wrong["after"] = 6
    problem = make_problem("logistic", n=N, d=D)
    config = settings(
        problem,
        update={"kind": update},
        rate={"value": 0.02},
        problem={"intercept": True},
    )
    result = train_on(2, config, problem)
    assert changes(result)
    assert relative_error(result, oracle_for(config, problem)) <= 1e-10


def test_without_fall_backs_an_alarm_changes_nothing(wrong):
    problem = make_problem("logistic", n=N, d=D)
    result = train_on(2, settings(problem, run={"fall_back": False}), problem)
    assert {event["event"] for event in result.events} == {"gap"}
    assert result.config["schedule"]["steps"] == STEPS
    assert result.status is Status.COMPLETED


def test_at_the_top_of_the_ladder_the_run_ends_and_says_what_was_tried(
    wrong, monkeypatch
):
    """Residuals that are wrong whatever the settings."""
    check = monitor.Exact.residual_gap

    def off(self, task, group, residuals):
        return check(self, task, group, residuals * 1.01)

    monkeypatch.setattr(monitor.Exact, "residual_gap", off)
    problem = make_problem("logistic", n=N, d=D)
    result = train_on(2, settings(problem, precision={"recipe": "c"}), problem)
    assert result.status is Status.DIVERGED
    all_of_them = [*HALVED, "margin bf16 -> fp32", "matrix bf16 -> fp32"]
    assert changes(result) == all_of_them
    assert result.advice.endswith(f"tried before: {', '.join(all_of_them)}")
    assert np.isfinite(result.weights).all()


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("recipe", ["fp64", "c"])
def test_a_rate_far_too_high_ends_soon(members, recipe):
    problem = make_problem("gaussian", n=N, d=D)
    starts = []

    class Counts(Callback):
        def on_start(self, view):
            starts.append(view.status)

        def on_end(self, view):
            starts.append(view.status)

    config = settings(problem, rate={"value": 400.0}, precision={"recipe": recipe})
    result = train_on(members, config, problem, callbacks=[Counts()])
    assert result.status is Status.DIVERGED and "lower the rate" in result.advice
    legs = len(ladder(recipe=recipe)) + 1
    assert len(changes(result)) == legs - 1
    seen = ["running", "falling back"] * (legs - 1) + ["running", "diverged"]
    assert starts == seen if members == 1 else len(starts) == members * len(seen)
    assert np.isfinite(result.loss) and np.isfinite(result.weights).all()
    residual = problem.X @ result.weights - problem.y
    assert result.loss == pytest.approx(np.mean(residual**2) / 2)


def test_the_run_folder_tells_the_story(wrong, tmp_path):
    problem = make_problem("logistic", n=N, d=D)
    config = settings(problem, run={"out": str(tmp_path)})
    result = train_on(2, config, problem)
    lines = [
        json.loads(t) for t in (tmp_path / "history.jsonl").read_text().splitlines()
    ]
    events = [line for line in lines if line.get("kind") == "event"]
    assert events == result.events and len(events) == 4
    assert [line for line in lines if "loss" in line] == result.history
    said = json.loads((tmp_path / "result.json").read_text())
    assert said["events"] == result.events == load_result(tmp_path).events
    assert not (tmp_path / "earlier-1").exists(), "it is one run"
    assert result.report["resumes"] == 0


def test_the_ledger_counts_what_was_sent_for_nothing(wrong):
    problem = make_problem("logistic", n=N, d=D)
    sent = train_on(2, settings(problem), problem).ledger["products"]["calls"]
    wrong["above"] = STEPS
    direct = train_on(
        2,
        settings(problem, schedule={"batch": BATCH, "steps": 2, "epochs": 4}),
        problem,
    ).ledger["products"]["calls"]
    # Two legs of three exchanges each came to nothing.
    assert sent == direct + 2 * 3


class Ends(Callback):
    def __init__(self, at):
        self.at = at

    def on_exchange(self, view):
        return Request.PREEMPT if view.exchanges >= self.at else None


def test_a_request_is_granted_after_a_fall_back(wrong):
    """An alarm is graver than a request: the run falls back first, then it stops."""
    problem, stopped = make_problem("logistic", n=N, d=D), []

    class StopsOnce(Callback):
        def on_exchange(self, view):
            if view.exchanges == 3 and not stopped:
                stopped.append(view.exchanges)
                return Request.STOP
            return None

    result = train_on(1, settings(problem), problem, callbacks=[StopsOnce()])
    assert result.events[1]["stopped"] == 3, "the alarm was heard with the request"
    assert changes(result) == ["steps 8 -> 4"]
    assert result.status is Status.STOPPED and result.exchanges == 1


@pytest.mark.parametrize("said", [8, "auto"])
def test_a_run_that_fell_back_is_resumed_with_what_it_fell_back_to(
    said, wrong, tmp_path
):
    problem = make_problem("logistic", n=N, d=D)
    if said == "auto":  # choose 8, whatever the machine is
        wrong["above"] = 0
    schedule = {"batch": BATCH, "steps": STEPS, "epochs": 4}
    run = {"out": str(tmp_path), "resume": "auto", "check_every": 1}
    config = settings(problem, schedule=schedule, run=run)
    wrong["above"] = 2
    whole = train_on(2, settings(problem), problem)
    broken = train_on(2, config, problem, callbacks=[Ends(40)])
    assert broken.status is Status.PREEMPTED and len(changes(broken)) == 2
    again = train_on(2, config, problem)
    assert again.status is Status.COMPLETED
    assert again.config["schedule"]["steps"] == 2
    assert again.weights_sha256 == whole.weights_sha256
    assert changes(again) == changes(broken), "and it did not fall again"
    third = train_on(2, config, problem)
    assert third.weights_sha256 == whole.weights_sha256


def test_a_fall_back_is_on_disk_at_once(wrong, tmp_path):
    problem = make_problem("logistic", n=N, d=D)
    kept = []

    class Looks(Callback):
        def on_start(self, view):
            if view.events:
                kept.append(CheckpointStore(tmp_path, 2).paths())

    class Waits(Looks):
        def on_exchange(self, view):
            return None

    config = settings(problem, run={"out": str(tmp_path)}, checkpoint={"seconds": 0.0})
    result = train_on(1, config, problem, callbacks=[Waits()])
    # Two fall-backs and the end.
    assert result.report["checkpoints_written"] >= 2 and kept


def test_precision_that_fell_back_is_resumed(tmp_path, monkeypatch):
    """Wrong for as long as the matrix is low."""
    check = monitor.Exact.residual_gap

    def off(self, task, group, residuals):
        low = task.precision.matrix == "bf16"
        return check(self, task, group, residuals * (1.1 if low else 1.0))

    monkeypatch.setattr(monitor.Exact, "residual_gap", off)
    problem = make_problem("logistic", n=N, d=D)
    run = {"out": str(tmp_path), "resume": "auto", "check_every": 1}
    config = settings(problem, run=run, precision={"recipe": "c"})
    first = train_on(2, config, problem, callbacks=[Ends(100)])
    assert (
        first.status is Status.PREEMPTED
        and first.report["precision"]["matrix"] == "fp32"
    )
    again = train_on(2, config, problem)
    assert again.status is Status.COMPLETED
    assert again.report["precision"]["matrix"] == "fp32"
    assert changes(again) == changes(first)


def test_a_certificate_says_what_it_covers(wrong, tmp_path):
    wrong["after"] = 3
    problem = make_problem("logistic", n=N, d=D)
    from hpcsgd.data.readers import MemoryReader

    config = settings(problem, run={"out": str(tmp_path), "record": 20})
    result = train_on(2, config, problem)
    assert changes(result)
    found = certify(tmp_path, exchanges=8, reader=MemoryReader(problem.X, problem.y))
    assert found.ok
    traffic = next(check for check in found.checks if check.name == "traffic")
    assert traffic.ok is None and "fell back" in traffic.why
    assert any(
        check.name.startswith("exchange ") and check.ok for check in found.checks
    )


def test_good_runs_have_no_events():
    problem = make_problem("logistic", n=N, d=D)
    result = train_on(2, settings(problem), problem)
    assert result.events == [] and result.as_dict()["events"] == []


@pytest.mark.parametrize(
    "flags, every, falls",
    [
        ([], 50, True),
        (["--gap-every", "7"], 7, True),
        (["--no-fall-back", "--gap-every", "0"], 0, False),
    ],
)
def test_flags(flags, every, falls):
    from hpcsgd.cli.parser import make_parser
    from hpcsgd.cli.train import configuration

    found = configuration(make_parser().parse_args(["train", *flags])).run
    assert (found.gap_every, found.fall_back) == (every, falls)


def test_a_negative_count_is_refused():
    with pytest.raises(ConfigError, match="gap_every = -1 must be at least 0"):
        settings(make_problem("logistic"), run={"gap_every": -1})


def test_losses_behind_the_good_state_are_forgotten(wrong, tmp_path):
    """Right until 7, whose look passes; 8 to 14 are not, and a loss is taken at 10."""
    wrong["after"] = 7
    problem = make_problem("logistic", n=N, d=D)
    config = settings(problem, run={"gap_every": 7, "out": str(tmp_path)})
    result = train_on(1, config, problem)
    fall = next(event for event in result.events if event["event"] == "fall-back")
    assert fall["exchange"] == 7, "not 10, whose loss was good"
    assert [record["epoch"] for record in result.history] == [0, 1, 2, 3, 4]
    assert relative_error(result, oracle_for(config, problem)) <= 1e-10
    lines = [
        json.loads(t) for t in (tmp_path / "history.jsonl").read_text().splitlines()
    ]
    assert [line["epoch"] for line in lines if "epoch" in line] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["average", "async-average", "slowmo"])
def test_each_replica_goes_back_to_its_own_state(kind, monkeypatch):
    """The states of other replicas, which it does not take, change nothing."""
    problem = make_problem("logistic", n=2 * N, d=D)
    config = settings(
        problem,
        agreement={"kind": kind},
        products={"kind": "direct"},
        grid={"replicas": 2, "members": 2},
        schedule={"batch": BATCH, "steps": 1, "epochs": 3, "period": 3},
        precision={"recipe": "c"},
        run={"check_every": 1},
    )
    polls = {}

    def breaking(self, state):
        """Break the weights of each leg once, after the first epoch of 38 exchanges."""
        polls[self] = polls.get(self, 0) + 1
        return polls[self] == 45

    take, results, apart = Capture.take, [], []
    monkeypatch.setattr(Evaluation, "has_broken_weights", breaking)
    for forced in (False, True):

        def taking(self, state, view, on_any_grid, forced=forced):
            apart.append(not self.agreement.holds_one_state(state, view.exchanges))
            return take(self, state, view, forced)

        monkeypatch.setattr(Capture, "take", taking)
        results.append(train_on(4, config, problem))
    assert all(apart)
    own, everywhere = results
    assert changes(own) == ["margin bf16 -> fp32", "matrix bf16 -> fp32"]
    assert own.status is Status.COMPLETED
    assert own.weights_sha256 == everywhere.weights_sha256
    assert own.history[-1]["loss"] == everywhere.history[-1]["loss"]


def test_a_divergence_goes_back_to_a_good_loss():
    """Weights that grow pass every look; they are not what to go on from."""
    problem = make_problem("gaussian", n=N, d=D)
    config = settings(problem, rate={"value": 30.0})
    result = train_on(2, config, problem)
    assert result.status is Status.DIVERGED
    falls = [e for e in result.events if e["event"] == "fall-back"]
    assert len(falls) == 3 and {e["exchange"] for e in falls} == {0}
    assert min(e["stopped"] for e in falls) > 3, "looks passed before it was found"


def test_states_in_eight_bits_are_copied_and_put_back():
    """Adam keeps more than 4096 words in codes and scales, which are no arrays."""
    problem = make_problem("gaussian", n=24, d=5000)
    config = settings(
        problem,
        update={"kind": "adam", "bits": 8},
        rate={"value": 1e5},
        agreement={"kind": "gradient"},
        products={"kind": "direct"},
        grid={"replicas": 2},
        schedule={"batch": BATCH, "steps": 1, "epochs": 2},
        precision={"recipe": "c"},
    )
    result = train_on(2, config, problem)
    assert changes(result) == ["margin bf16 -> fp32", "matrix bf16 -> fp32"]
    assert result.status is Status.DIVERGED and np.isfinite(result.weights).all()
    array = EightBitArray.zeros(300, 2, np.float32, rooted=False)
    array.encode(np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32))
    before, copy = array.decoded(), array.copy()
    array.encode(np.ones((300, 2), np.float32))
    array[...] = copy
    np.testing.assert_array_equal(array.decoded(), before)
